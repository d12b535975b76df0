#include "kernel/support.hpp"

namespace syncopate::kernel::triton::test {
namespace {

using Boxes = std::vector<plan::Region>;

TEST(Sites, OneTilePerProgramRebindsItsProgramId) {
    const Kernel k = analysed(example("matmul_pointers.py"), pointers(200, 144, 96));
    ASSERT_EQ(sites_of(k).tile_ids.size(), 1u);
    const TileIdSite& site = sites_of(k).tile_ids[0];
    EXPECT_EQ(site.kind, TileIdSite::Kind::rebind);
    EXPECT_EQ(site.variables, std::vector<std::string>{"pid"});
    EXPECT_EQ(slice(k, site.anchor), "pid = tl.program_id(axis=0)");
    EXPECT_EQ(site.indent, 4);
    EXPECT_TRUE(site.guards_reads);
    EXPECT_TRUE(site.guards_writes);
    EXPECT_FALSE(k.persistent);
    EXPECT_FALSE(sites_of(k).early_return);
}

TEST(Sites, ThePlacesInTheSourceAreExact) {
    const Kernel k = analysed(example("matmul_pointers.py"), pointers(200, 144, 96));
    const Sites& s = sites_of(k);
    EXPECT_TRUE(slice(k, s.function).starts_with("@triton.jit\ndef matmul_kernel("));
    EXPECT_TRUE(slice(k, s.function).ends_with("mask=c_mask)"));
    EXPECT_EQ(slice(k, s.name), "matmul_kernel");
    EXPECT_TRUE(slice(k, s.parameters).starts_with("\n    a_ptr,\n    b_ptr,\n"));
    EXPECT_TRUE(slice(k, s.parameters).ends_with("PRECISION: tl.constexpr = \"ieee\",\n"));
    EXPECT_TRUE(slice(k, s.body).starts_with("pid = tl.program_id"));
    EXPECT_EQ(s.body_indent, 4);
    EXPECT_TRUE(text_of(k).source.substr(0, s.imports_end).ends_with("\nimport triton.language as tl\n"));
    EXPECT_EQ(slice(k, s.last_store), "tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=c_mask)");
    EXPECT_EQ(slice(k, s.parameter.at(static_cast<std::size_t>(k.find_param("GROUP_M") - k.params.data()))),
              "GROUP_M: tl.constexpr");
}

TEST(Sites, TheReductionLoopAndItsSlices) {
    const Kernel k = analysed(example("matmul_pointers.py"), pointers(200, 144, 96));
    ASSERT_EQ(k.loops.size(), 1u);
    ASSERT_EQ(sites_of(k).loops.size(), 1u);
    const LoopSite& site = sites_of(k).loops.front();
    EXPECT_EQ(slice(k, site.header), "for k in range(0, tl.cdiv(K, BLOCK_K)):");
    EXPECT_EQ(slice(k, site.iterable), "range(0, tl.cdiv(K, BLOCK_K))");
    EXPECT_EQ(site.bound, "tl.cdiv(K, BLOCK_K)");
    const Loop& loop = k.loops.front();
    EXPECT_TRUE(loop.divisible);
    EXPECT_EQ(loop.variable, "k");
    EXPECT_EQ(loop.trips, 3);
    EXPECT_TRUE(slice(k, site.statement).ends_with("b_ptrs += BLOCK_K * stride_bk"));
    ASSERT_EQ(loop.slices.size(), 2u);
    EXPECT_EQ(loop.slices[0].param, "a_ptr");
    EXPECT_EQ(loop.slices[0].dim, 1);
    EXPECT_EQ(loop.slices[1].dim, 0);
    for (const LoopSlice& slice : loop.slices) {
        EXPECT_EQ(slice.base, 0);
        EXPECT_EQ(slice.step, 32);
        EXPECT_EQ(slice.extent, 32);
    }
}

TEST(Sites, ALoopsNumbersAreThoseThatItsRangeIsGivenByPlaceOrByName) {
    const auto site_of = [](const std::string& range) {
        Arguments args = arguments("N=8", {"x_ptr=4x8:fp32", "y_ptr=4:fp32"});
        args.grid = {4, 1, 1};
        const Kernel k = analysed(
            source("x_ptr, y_ptr, N",
                   "    pid = tl.program_id(0)\n    acc = 0.0\n    ends = (2, N)\n    for i in " + range +
                       ":\n        acc += tl.load(x_ptr + pid * 8 + i)\n"
                       "    tl.store(y_ptr + pid, acc)\n"),
            args);
        const Boxes all = k.tiles.empty() ? Boxes{} : Boxes(k.tiles[0].read_boxes.at("x_ptr"));
        std::string said =
            all.empty() ? "" : std::to_string(all.front()[1].begin) + ":" + std::to_string(all.back()[1].end);
        for (const LoopSite& site : sites_of(k).loops)
            said += " " + site.begin + "," + site.bound + "," + site.step;
        return said;
    };
    EXPECT_EQ(site_of("tl.range(0, N)"), "0:8 ,N,");
    EXPECT_EQ(site_of("tl.range(N)"), "0:8 ,N,");
    EXPECT_EQ(site_of("tl.range(arg1=N)"), "0:8 ,N,");
    EXPECT_EQ(site_of("tl.range(N, None)"), "0:8 ,N,");
    EXPECT_EQ(site_of("tl.range(N, arg2=None, step=None)"), "0:8 ,N,");
    EXPECT_EQ(site_of("tl.range(2, N)"), "2:8 2,N,");
    EXPECT_EQ(site_of("tl.range(2, arg2=N)"), "2:8 2,N,");
    EXPECT_EQ(site_of("tl.range(arg1=2, arg2=N)"), "2:8 2,N,");
    EXPECT_EQ(site_of("tl.range(2, N, 4)"), "2:7 2,N,4");
    EXPECT_EQ(site_of("tl.range(2, N, step=4)"), "2:7 2,N,4");
    EXPECT_EQ(site_of("tl.range(N, step=4)"), "0:5 ,N,4");
    EXPECT_EQ(site_of("tl.range(N, num_stages=2, step=4)"), "0:5 ,N,4");
    EXPECT_EQ(site_of("range(*ends)"), "2:8 ,,") << "where its numbers stand, the file does not say";
}

TEST(Sites, APersistentKernelRebindsInItsTileLoopOnly) {
    const Kernel k = analysed(example("matmul_persistent_device_tma.py"), descriptors(200, 144, 96, false));
    EXPECT_TRUE(k.persistent);
    EXPECT_EQ(slice(k, sites_of(k).tile_loop_header),
              "for tile_id in tl.range(start_pid, num_tiles, NUM_SMS):");
    ASSERT_EQ(sites_of(k).tile_ids.size(), 1u);
    EXPECT_EQ(slice(k, sites_of(k).tile_ids[0].anchor), slice(k, sites_of(k).tile_loop_header));
    EXPECT_EQ(sites_of(k).tile_ids[0].indent, 8);
    EXPECT_EQ(slice(k, sites_of(k).last_store),
              "c_desc.store([offs_m, offs_n], acc.to(c_ptr.dtype.element_ty))");
}

TEST(Sites, ATileIsStoredAfterTheStatementOfItsScopeThatHoldsTheLastStore) {
    const Kernel k = analysed(example("matmul_persistent_device_tma.py"), descriptors(200, 144, 96, false));
    EXPECT_EQ(slice(k, sites_of(k).stored), slice(k, sites_of(k).last_store));
    const std::string source =
        "import triton\nimport triton.language as tl\n\n@triton.jit\n"
        "def k(y_ptr, N, B: tl.constexpr):\n"
        "    pid = tl.program_id(0)\n"
        "    r = pid * B + tl.arange(0, B)\n"
        "    if pid % 2 == 0:\n"
        "        tl.store(y_ptr + r, 1.0, mask=r < N)\n"
        "    else:\n"
        "        tl.store(y_ptr + r, 2.0, mask=r < N)\n"
        "    r = r + 1\n";
    Arguments arguments;
    arguments.scalars = {{"N", std::int64_t{20}}, {"B", std::int64_t{8}}};
    arguments.tensors["y_ptr"] = {{20}, {}, plan::DType::fp32, {}};
    const auto branches = analyse(source, "k.py", "k", arguments);
    ASSERT_TRUE(branches.ok()) << branches.error().to_string();
    const std::string stored = slice(*branches, sites_of(*branches).stored);
    EXPECT_TRUE(stored.starts_with("if pid % 2 == 0:")) << stored;
    EXPECT_TRUE(stored.ends_with("tl.store(y_ptr + r, 2.0, mask=r < N)")) << stored;
}

/// The one load, or store, through a parameter.
ParamAccess access_of(const Kernel& k, const std::string& param, bool stores = false) {
    const auto is_it = [&](const ParamAccess& one) { return one.param == param && one.stores == stores; };
    EXPECT_EQ(std::ranges::count_if(k.accesses, is_it), 1);
    const auto found = std::ranges::find_if(k.accesses, is_it);
    return found == k.accesses.end() ? ParamAccess{} : *found;
}

TEST(Accesses, SayWhatCanBeSentElsewhereAndWhichDescriptorCanBeExchanged) {
    const Kernel pointer = analysed(example("matmul_pointers.py"), pointers(200, 144, 96));
    EXPECT_EQ(access_of(pointer, "a_ptr").by, ParamAccess::By::pointers);
    EXPECT_EQ(access_of(pointer, "a_ptr").fixed, "");
    EXPECT_EQ(access_of(pointer, "c_ptr", true).fixed, "");

    const Kernel made =
        analysed(example("matmul_persistent_device_tma.py"), descriptors(200, 144, 96, false));
    EXPECT_EQ(access_of(made, "a_ptr").by, ParamAccess::By::descriptor);
    EXPECT_EQ(access_of(made, "a_ptr").fixed, "");
    EXPECT_EQ(access_of(made, "a_ptr").rows, 64);
    EXPECT_FALSE(access_of(made, "a_ptr").given) << "the kernel makes it";

    const Kernel given = analysed(example("matmul_persistent_host_tma.py"), descriptors(200, 144, 96, true));
    EXPECT_TRUE(access_of(given, "a_desc").given);
    EXPECT_TRUE(access_of(given, "c_desc", true).given);
}

TEST(Accesses, SayWhyOneStaysWhereItIs) {
    const std::string helper =
        "@triton.jit\ndef put(y_ptr, r, v):\n    tl.store(y_ptr + r, v)\n\n\n" +
        source("x_ptr, y_ptr, B: tl.constexpr",
               "    r = tl.program_id(0) * B + tl.arange(0, B)\n"
               "    put(y_ptr, r, tl.load(tl.make_block_ptr(x_ptr, (16,), (1,), (0,), (B,), (0,))))\n");
    const Kernel k = analysed(helper, arguments("B=8", {"x_ptr=16:fp32", "y_ptr=16:fp32"}));
    EXPECT_EQ(access_of(k, "y_ptr", true).fixed,
              "y_ptr is stored in a helper (line 3); write the store, and what makes its descriptor, in the "
              "kernel");
    EXPECT_EQ(access_of(k, "x_ptr").fixed,
              "a load of x_ptr (line 13) is neither tl.load(…) nor DESCRIPTOR.load([…]) of the whole tensor");
}

TEST(Sites, LoadsAndStoresSayThroughWhatTheyGo) {
    using By = ParamAccess::By;
    const auto loads_of = [](const Kernel& k, const std::string& param) {
        std::vector<AccessSite> found;
        for (const AccessSite& site : sites_of(k).loads) {
            if (site.param == param) found.push_back(site);
        }
        return found;
    };
    const Kernel by_pointer = analysed(example("matmul_pointers.py"), pointers(200, 144, 96));
    ASSERT_EQ(loads_of(by_pointer, "a_ptr").size(), 1u);
    EXPECT_EQ(loads_of(by_pointer, "a_ptr")[0].by, By::pointers);
    EXPECT_TRUE(
        slice(by_pointer, loads_of(by_pointer, "a_ptr")[0].call).starts_with("tl.load(a_ptrs, mask="));
    EXPECT_EQ(sites_of(by_pointer).stores[0].by, By::pointers);

    const Kernel made =
        analysed(example("matmul_persistent_device_tma.py"), descriptors(200, 144, 96, false));
    const AccessSite load = loads_of(made, "a_ptr").at(0);
    EXPECT_EQ(load.by, By::descriptor);
    EXPECT_EQ(slice(made, load.call), "a_desc.load([offs_m, k * BLOCK_K])");
    EXPECT_TRUE(slice(made, load.made).starts_with("tl.make_tensor_descriptor(a_ptr, shape=[M, K]"));
    EXPECT_EQ(load.rows, 64);

    const Kernel given = analysed(example("matmul_persistent_host_tma.py"), descriptors(200, 144, 96, true));
    EXPECT_EQ(sites_of(given).stores[0].by, By::descriptor);
    EXPECT_EQ(sites_of(given).stores[0].made.end, 0u) << "the descriptor is the parameter";

    const std::string text = source(
        "x_ptr, y_ptr, n, B: tl.constexpr",
        "    pid = tl.program_id(0)\n"
        "    part = tl.make_tensor_descriptor(x_ptr + B, shape=[n - B], strides=[1], block_shape=[B])\n"
        "    block = tl.make_block_ptr(x_ptr, (n,), (1,), (pid * B,), (B,), (0,))\n"
        "    r = pid * B + tl.arange(0, B)\n"
        "    tl.store(y_ptr + r, tl.load(block) + part.load([pid * B]), mask=r < n)\n");
    const Kernel other = analysed(text, arguments("n=32,B=8", {"x_ptr=32:fp32", "y_ptr=32:fp32"}));
    ASSERT_EQ(loads_of(other, "x_ptr").size(), 2u);
    for (const AccessSite& site : loads_of(other, "x_ptr"))
        EXPECT_EQ(site.by, By::other) << "a block pointer, and a descriptor of a part";
}

TEST(Sites, AnIdCarriedForTheEpilogueIsWrappedWhereItIsUsed) {
    const Kernel k = analysed(example("matmul_persistent_host_tma.py"), descriptors(200, 144, 96, true));
    ASSERT_EQ(sites_of(k).tile_ids.size(), 2u);
    const TileIdSite &loads = sites_of(k).tile_ids[0], &stores = sites_of(k).tile_ids[1];
    EXPECT_EQ(loads.kind, TileIdSite::Kind::rebind);
    EXPECT_TRUE(loads.guards_reads);
    EXPECT_FALSE(loads.guards_writes);
    EXPECT_EQ(stores.kind, TileIdSite::Kind::use);
    EXPECT_EQ(stores.variables[0], "tile_id_c");
    EXPECT_EQ(slice(k, stores.anchor), "tile_id_c");
    EXPECT_EQ(text_of(k).source.substr(stores.anchor.begin - 13, 13), "_compute_pid(");
    EXPECT_FALSE(stores.guards_reads);
    EXPECT_TRUE(stores.guards_writes);
}

TEST(Sites, AWhileLoopOverTilesIsPersistentToo) {
    const std::string text =
        source("x_ptr, y_ptr, n, B: tl.constexpr, STEP: tl.constexpr",
               "    tile = tl.program_id(0)\n    while tile < n:\n        r = tile * B + tl.arange(0, B)\n"
               "        tl.store(y_ptr + r, tl.load(x_ptr + r))\n        tile += STEP\n");
    const Kernel k = analysed(text, arguments("n=7,B=4,STEP=3", {"x_ptr=28:fp32", "y_ptr=28:fp32"}));
    ASSERT_EQ(k.tiles.size(), 7u);
    EXPECT_TRUE(k.persistent);
    EXPECT_EQ(k.tiles[4].program, 1);
    ASSERT_EQ(sites_of(k).tile_ids.size(), 1u);
    EXPECT_EQ(sites_of(k).tile_ids[0].kind, TileIdSite::Kind::use);
    EXPECT_EQ(slice(k, sites_of(k).tile_ids[0].anchor), "tile");
}

TEST(Sites, ACarriedIdIsWrappedWhereNoAddressFollowsFromItToo) {
    const std::string text =
        source("x_ptr, y_ptr, n, B: tl.constexpr, STEP: tl.constexpr",
               "    tile = tl.program_id(0)\n    while tile < n:\n        r = tile * B + tl.arange(0, B)\n"
               "        x = tl.load(x_ptr + r)\n        if tile == 0:\n            x = -x\n"
               "        tl.store(y_ptr + r, x + tile)\n        tile += STEP\n");
    const Kernel k = analysed(text, arguments("n=7,B=4,STEP=3", {"x_ptr=28:fp32", "y_ptr=28:fp32"}));
    EXPECT_TRUE(k.persistent);
    const std::vector<TileIdSite>& sites = sites_of(k).tile_ids;
    ASSERT_EQ(sites.size(), 3u);
    EXPECT_TRUE(sites[0].guards_reads);
    for (const TileIdSite& data : {sites[1], sites[2]}) {
        EXPECT_EQ(data.kind, TileIdSite::Kind::use);
        EXPECT_EQ(slice(k, data.anchor), "tile");
        EXPECT_FALSE(data.guards_reads || data.guards_writes);
    }
}

/// y = x + `data` in a loop over 7 tiles by 3 programs; `before` and `after` are lines of the kernel and of
/// the loop.
Kernel loop_with(const std::string& before, const std::string& data, const std::string& after) {
    const std::string text = source(
        "x_ptr, y_ptr, n, B: tl.constexpr, STEP: tl.constexpr",
        "    pid = tl.program_id(0)\n" + before + "    for tile in range(pid, n, STEP):\n" +
            "        r = tile * B + tl.arange(0, B)\n        tl.store(y_ptr + r, tl.load(x_ptr + r) + " +
            data + ")\n" + after);
    return analysed(text, arguments("n=7,B=4,STEP=3", {"x_ptr=28:fp32", "y_ptr=28:fp32"}));
}

TEST(Sites, ALoopWhoseRoundsFollowFromTheProgramsIdMakesAProgramOneTile) {
    EXPECT_TRUE(loop_with("", "tile", "").persistent);
    EXPECT_TRUE(loop_with("    own = pid * 2\n", "1.0", "        own = tile * 2\n").persistent);
    EXPECT_TRUE(loop_with("", "1.0", "        if B == 5:\n            tl.store(y_ptr + r, pid)\n").persistent)
        << "never read";
    EXPECT_FALSE(loop_with("", "pid", "").persistent);
    EXPECT_FALSE(loop_with("", "tl.program_id(0)", "").persistent);
    EXPECT_FALSE(loop_with("    own = (pid * 2, 1)\n", "own[0]", "").persistent);
    EXPECT_FALSE(loop_with("    y_ptr += pid * 0\n", "1.0", "").persistent);
    EXPECT_FALSE(loop_with("    ahead = pid + STEP\n", "ahead", "        ahead += STEP\n").persistent)
        << "counted with the tiles, but another tile's id";
}

TEST(Sites, AnIdFromWhichTheNextOneIsCountedStaysTheSlots) {
    const std::string text =
        source("x_ptr, y_ptr, n, B: tl.constexpr, STEP: tl.constexpr",
               "    tile = tl.program_id(0)\n    while tile < n:\n        r = tile * B + tl.arange(0, B)\n"
               "        tl.store(y_ptr + r, tl.load(x_ptr + r))\n        following = tile + STEP\n"
               "        tile = following\n");
    const Kernel k = analysed(text, arguments("n=7,B=4,STEP=7", {"x_ptr=28:fp32", "y_ptr=28:fp32"}));
    EXPECT_FALSE(k.persistent);
    ASSERT_EQ(sites_of(k).tile_ids.size(), 1u);
    EXPECT_EQ(sites_of(k).tile_ids[0].kind, TileIdSite::Kind::rebind);
}

TEST(Sites, WhatFollowsAnIdThatIsTakenBehindASemicolonIsIndentedAsItsLine) {
    const Kernel k = analysed(source("x_ptr, y_ptr, n, B: tl.constexpr",
                                     "    i = tl.program_id(0); j = tl.program_id(1)\n"
                                     "    r = (i * n + j) * B + tl.arange(0, B)\n"
                                     "    tl.store(y_ptr + r, tl.load(x_ptr + r))\n"),
                              [] {
                                  Arguments made = arguments("n=2,B=4", {"x_ptr=24:fp32", "y_ptr=24:fp32"});
                                  made.grid = {3, 2, 1};
                                  return made;
                              }());
    ASSERT_EQ(sites_of(k).tile_ids.size(), 1u);
    EXPECT_EQ(sites_of(k).tile_ids[0].kind, TileIdSite::Kind::rebind_grid);
    EXPECT_EQ(slice(k, sites_of(k).tile_ids[0].anchor), "j = tl.program_id(1)");
    EXPECT_EQ(sites_of(k).tile_ids[0].indent, 4);
}

TEST(Sites, ALoopThatAddressesByAVariableThatIsNotTheIdMakesAProgramOneTile) {
    const std::string text = source(
        "x_ptr, y_ptr, n, B: tl.constexpr, STEP: tl.constexpr",
        "    start = tl.program_id(0)\n    ahead = start + STEP\n    for tile in range(start, n, STEP):\n"
        "        r = tl.arange(0, B)\n        tl.store(y_ptr + tile * B + r, tl.load(x_ptr + ahead * B + "
        "r))\n        ahead += STEP\n");
    const Kernel k = analysed(text, arguments("n=7,B=4,STEP=3", {"x_ptr=28:fp32", "y_ptr=28:fp32"}));
    ASSERT_EQ(k.tiles.size(), 3u);
    EXPECT_FALSE(k.persistent);
    EXPECT_EQ(k.tiles[1].write_boxes.at("y_ptr"), (std::vector<plan::Region>{{{4, 8}}, {{16, 20}}}));
    EXPECT_EQ(k.tiles[1].read_boxes.at("x_ptr"), (std::vector<plan::Region>{{{16, 20}}}));
}

TEST(Sites, ALoopThatCarriesASumFromRoundToRoundIsNotOneOverTiles) {
    const std::string text =
        source("x_ptr, y_ptr, s_ptr, ROWS: tl.constexpr, B: tl.constexpr",
               "    first = tl.program_id(0) * ROWS\n    r = tl.arange(0, B)\n    total = tl.zeros((B,), "
               "tl.float32)\n"
               "    for row in range(first, first + ROWS):\n        x = tl.load(x_ptr + row * B + r)\n"
               "        tl.store(y_ptr + row * B + r, x)\n        total += x\n"
               "    tl.store(s_ptr + tl.program_id(0) * B + r, total)\n");
    Arguments args = arguments("ROWS=4,B=8", {"x_ptr=12x8:fp32", "y_ptr=12x8:fp32", "s_ptr=3x8:fp32"});
    args.grid = {3, 1, 1};
    const Kernel k = analysed(text, args);
    ASSERT_EQ(k.tiles.size(), 3u);
    EXPECT_FALSE(k.persistent);
    EXPECT_EQ(k.tiles[2].writes.at("y_ptr"), box(8, 12, 0, 8));
    EXPECT_EQ(k.tiles[2].writes.at("s_ptr"), box(2, 3, 0, 8));
}

TEST(Sites, TwoLoopsOverTilesMakeAProgramOneTile) {
    const std::string loop =
        "    for tile in range(tl.program_id(0), n, STEP):\n"
        "        tl.store(y_ptr + tile * B + r, tl.load(x_ptr + tile * B + r))\n";
    const std::string text = source("x_ptr, y_ptr, n, B: tl.constexpr, STEP: tl.constexpr",
                                    "    r = tl.arange(0, B)\n" + loop + loop);
    const Kernel k = analysed(text, arguments("n=7,B=4,STEP=3", {"x_ptr=28:fp32", "y_ptr=28:fp32"}));
    ASSERT_EQ(k.tiles.size(), 3u);
    EXPECT_EQ(k.tiles[2].write_boxes.at("y_ptr"), (std::vector<plan::Region>{{{8, 12}}, {{20, 24}}}));
}

TEST(Sites, AnEarlyReturnIsNoted) {
    const std::string text = source("y_ptr, n, B: tl.constexpr",
                                    "    pid = tl.program_id(0)\n    if pid * B >= n:\n        return\n    "
                                    "tl.store(y_ptr + pid * B + tl.arange(0, B), 0.0)\n");
    const Kernel k = analysed(text, arguments("n=16,B=4", {"y_ptr=16:fp32"}));
    EXPECT_TRUE(sites_of(k).early_return);
    EXPECT_EQ(k.tiles.size(), 4u);
}

/// Three axes, of which the kernel's `body` uses some; y is 2 x 3 x 8.
Kernel on_a_grid(const std::string& body, std::array<std::int64_t, 3> grid) {
    Arguments args = arguments("B=8", {"x_ptr=2x3x8:fp32", "y_ptr=2x3x8:fp32"});
    args.grid = grid;
    return analysed(
        source("x_ptr, y_ptr, B: tl.constexpr", body + "    r = (z * 3 + y) * B + tl.arange(0, B)\n"
                                                       "    tl.store(y_ptr + r, tl.load(x_ptr + r))\n"),
        args);
}

TEST(Sites, IdsThatAreAssignedOneAfterAnotherAreReboundTogether) {
    const Kernel k = on_a_grid("    z = tl.program_id(1)\n    y = tl.program_id(0)\n", {3, 2, 1});
    ASSERT_EQ(sites_of(k).tile_ids.size(), 1u);
    EXPECT_EQ(sites_of(k).tile_ids[0].kind, TileIdSite::Kind::rebind_grid);
    EXPECT_EQ(sites_of(k).tile_ids[0].variables, (std::vector<std::string>{"y", "z"}));
    EXPECT_EQ(slice(k, sites_of(k).tile_ids[0].anchor), "y = tl.program_id(0)");
}

TEST(Sites, OtherIdsAreTakenAtTheEntryAllTogether) {
    const std::vector<std::string> bodies{
        "    z = tl.program_id(1).to(tl.int64)\n    y = tl.program_id(0)\n",    // a cast
        "    z, y = tl.program_id(1), tl.program_id(0)\n",                      // no statements of their own
        "    z = tl.program_id(1)\n    w = z * 2\n    y = tl.program_id(0)\n",  // used between them
        "    z = tl.program_id(1)\n    y = tl.program_id(0)\n    tl.device_assert(tl.program_id(0) < 3)\n"};
    for (const std::string& body : bodies) {
        const Kernel k = on_a_grid("    \"\"\"What it does.\"\"\"\n" + body, {3, 2, 1});
        ASSERT_EQ(sites_of(k).tile_ids.size(), 1u) << body;
        const TileIdSite& site = sites_of(k).tile_ids[0];
        EXPECT_EQ(site.kind, TileIdSite::Kind::entry) << body;
        EXPECT_EQ(site.variables, (std::vector<std::string>{"sy_x", "sy_y"}));
        EXPECT_TRUE(slice(k, site.anchor).starts_with("z")) << "after the docstring";
        EXPECT_GE(site.program_ids.size(), 2u);
        for (const ProgramId& id : site.program_ids)
            EXPECT_TRUE(slice(k, id.call).starts_with("tl.program_id(")) << slice(k, id.call);
    }
}

TEST(Sites, WhatTouchesMemoryAboveTheIdsComesAfterAnIdThatIsTakenAtTheEntry) {
    const auto kind_of = [](const std::string& body) {
        Arguments args = arguments("N=32,B=16", {"x_ptr=32:fp32", "y_ptr=1:fp32"});
        args.grid = {2, 1, 1};
        const std::string text =
            "import triton\nimport triton.language as tl\n\n@triton.jit\ndef first(p):\n    return "
            "tl.load(p)\n\n"
            "@triton.jit\ndef kernel(x_ptr, y_ptr, N, B: tl.constexpr):\n" +
            body +
            "    r = pid * B + tl.arange(0, B)\n"
            "    tl.store(x_ptr + r, tl.zeros((B,), tl.float32) + g, mask=r < N)\n";
        const Kernel k = analysed(text, args);
        return sites_of(k).tile_ids.at(0).kind;
    };
    const std::string ids = "    pid = tl.program_id(0)\n";
    const std::string load = "    g = tl.load(y_ptr)\n";
    EXPECT_EQ(kind_of(ids + load), TileIdSite::Kind::rebind);
    EXPECT_EQ(kind_of("    n = N * 2\n" + ids + load), TileIdSite::Kind::rebind);
    EXPECT_EQ(kind_of(load + ids), TileIdSite::Kind::entry);
    EXPECT_EQ(kind_of("    g = first(y_ptr)\n" + ids), TileIdSite::Kind::entry);
    EXPECT_EQ(kind_of("    g = 0.0\n    if N > 1:\n        g = tl.load(y_ptr)\n" + ids),
              TileIdSite::Kind::entry);
    // Whoever returns there has a tile, too: of which it has to say that it is done.
    for (const char* above : {"    if N == 7:\n        return\n", "    if B == 7: return\n",
                              "    for i in range(N):\n        if i > 40:\n            return\n",
                              "    if N > 0:\n        n = N\n    else:\n        return\n"})
        EXPECT_EQ(kind_of(above + ids + load), TileIdSite::Kind::entry) << above;
    EXPECT_EQ(kind_of(ids + load + "    if N == 7:\n        return\n"), TileIdSite::Kind::rebind);
}

TEST(Sites, AnAxisThatTheKernelDoesNotAskForCountsAllTheSame) {
    const Kernel k = on_a_grid("    z = 0\n    y = tl.program_id(0)\n", {3, 1, 2});
    ASSERT_EQ(sites_of(k).tile_ids.size(), 1u);
    EXPECT_EQ(sites_of(k).tile_ids[0].kind, TileIdSite::Kind::entry);
    EXPECT_EQ(sites_of(k).tile_ids[0].variables.size(), 3u);
}

TEST(Sites, AnIdThatAHelperTakesIsNoted) {
    const std::string text =
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef at(B: tl.constexpr):\n"
        "    return tl.program_id(0) * B + tl.arange(0, B)\n\n\n@triton.jit\n"
        "def k(x_ptr, y_ptr, B: tl.constexpr):\n    r = at(B)\n    tl.store(y_ptr + r, tl.load(x_ptr + r))\n";
    const Kernel k = analysed(text, arguments("B=8", {"x_ptr=16:fp32", "y_ptr=16:fp32"}));
    EXPECT_EQ(k.tiles.size(), 2u);
    EXPECT_EQ(slice(k, sites_of(k).foreign_id), "tl.program_id(0)");
}

TEST(Kernels, HelpersAreNotKernels) {
    const Kernel k = analysed(example("matmul_persistent_host_tma.py"), descriptors(200, 144, 96, true));
    EXPECT_EQ(k.name, "matmul_kernel");
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
