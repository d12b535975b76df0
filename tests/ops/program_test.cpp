// Programs of operators: what fuse makes of them, and that the statements of the plain kernels say what the
// front end finds.
#include "syncopate/ops/program.hpp"

#include <gtest/gtest.h>

#include <map>

#include <fmt/format.h>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/io.hpp"
#include "syncopate/kernel/triton/analyse/analyse.hpp"
#include "syncopate/ops/gluon_box.hpp"
#include "syncopate/ops/statements.hpp"

namespace syncopate::ops {
namespace {

Problem problem_of(const std::string& spec) {
    const Result<Problem> problem = parse_problem(spec);
    EXPECT_TRUE(problem) << problem.error().to_string();
    return *problem;
}

Strategy strategy_of(const std::string& json) {
    const Result<Strategy> strategy = strategy_from_json(json);
    EXPECT_TRUE(strategy) << strategy.error().to_string();
    return *strategy;
}

std::string tiled(const std::string& more, const std::string& tile = R"("block_m": 64, "block_n": 128)") {
    return "{\"tiles\": [{" + tile + R"(, "block_k": 64, "stages": 4}])" + (more.empty() ? "" : ", ") + more +
           "}";
}

TEST(OperatorProgram, OfEachWayIsTakenByFuse) {
    struct Case {
        const char* spec;
        std::string strategy;
    };
    for (const auto& [spec, strategy] : std::vector<Case>{
             {"all_gather_matmul:M=512,N=384,K=256,ranks=4", tiled("")},
             {"all_gather_matmul:M=512,N=384,K=256,ranks=4",
              tiled(R"("chunking": {"rows": 2, "slices": 2})")},
             {"all_gather_matmul:M=512,N=384,K=256,ranks=4", tiled(R"("backend": "tma_inline")")},
             {"all_gather_matmul:M=512,N=384,K=256,ranks=4",
              tiled(R"("kernel": "gluon", "backend": "tma_dedicated", "programs": 8)")},
             {"all_gather_matmul:M=512,N=384,K=256,dtype=fp8e4m3,scales=row,ranks=2",
              tiled(R"("kernel": "gluon", "programs": 16)")},
             {"all_to_all_matmul:M=512,N=384,K=256,ranks=4", tiled("")},
             {"matmul_reduce_scatter:M=512,N=384,K=256,ranks=4", tiled(R"("stored": 1)")},
             {"matmul_reduce_scatter:M=500,N=384,K=256,ranks=4", tiled(R"("split": 2, "split_axis": 1)")},
             {"matmul_all_reduce:M=512,N=384,K=256,ranks=4", tiled(R"("split": 2)")},
             {"matmul_all_reduce:M=512,N=384,K=256,ranks=4",
              tiled(R"("one_step": true, "backend": "tma_inline")")},
             {"matmul_all_to_all:M=512,N=384,K=256,ranks=4", tiled("")},
             {"feed_forward:M=512,K=256,F=384,N=256,ranks=4", tiled("")},
             {"attention:S=1024,H=4,HKV=2,kind=ring,sharding=zigzag,ranks=4", "{}"},
             {"attention:S=1024,H=4,HKV=4,kind=ulysses,causal=0,ranks=2", R"({"kernel": "gluon"})"},
             {"attention:S=1024,H=4,HKV=4,kind=ulysses_ring,ranks=4", R"({"split": 2, "programs": 8})"},
             {"attention:S=250,H=4,HKV=2,D=96,ranks=4", "{}"},
             {"mlp_chain:M=256,H=512,F=384,ranks=1", tiled(R"("kernel": "gluon")")}}) {
        const Strategy chosen = strategy_of(strategy);
        const Result<fuse::StagedProgram> made = program(problem_of(spec), chosen);
        ASSERT_TRUE(made) << spec << " " << strategy << ": " << made.error().to_string();
        const Result<fuse::Schedule> schedule = fuse::fuse(*made, fuse_options(chosen, fuse::Device::cuda));
        EXPECT_TRUE(schedule) << spec << " " << strategy << ": " << schedule.error().to_string();
    }
}

TEST(OperatorProgram, SumsInItsKernelWhereTheStrategySaysSo) {
    const Strategy chosen = strategy_of(
        tiled(R"("kernel": "gluon", "backend": "tma_inline", "one_step": false, "kernel_sums": true)"));
    const Result<fuse::StagedProgram> made =
        program(problem_of("matmul_reduce_scatter:M=256,N=256,K=256,ranks=2"), chosen);
    ASSERT_TRUE(made) << made.error().to_string();
    const Result<fuse::Schedule> schedule = fuse::fuse(*made, fuse_options(chosen, fuse::Device::cuda));
    EXPECT_TRUE(schedule) << schedule.error().to_string();
}

TEST(OperatorProgram, RunsAsManyProgramsAsItsStrategySays) {
    const Problem problem = problem_of("all_gather_matmul:M=512,N=512,K=512,ranks=2");
    const auto grid = [&](const std::string& more, const std::string& tile) {
        const Result<fuse::StagedProgram> made = program(problem, strategy_of(tiled(more, tile)));
        EXPECT_TRUE(made) << made.error().to_string();
        return made->stages.front().kernel.grid[0];
    };
    const std::string tile = R"("block_m": 64, "block_n": 128)";
    EXPECT_EQ(grid("", tile), 32);
    EXPECT_EQ(grid(R"("programs": 7)", tile), 7);
    EXPECT_EQ(grid(R"("programs": 7, "kernel": "gluon")", tile + R"(, "split_k": 2)"), 6);
    EXPECT_EQ(grid(R"("programs": 100)", tile + R"(, "num_wide": 3)"), 8 * (3 + 2));
}

TEST(OperatorProgram, OfAStrategyThatFusesNothingIsRefused) {
    const Problem problem = problem_of("feed_forward:M=256,K=256,F=256,N=256,ranks=2");
    for (const auto& [strategy, message] : std::map<std::string, std::string>{
             {R"({"placement": "unfused"})",
              "feed_forward: unfused is no program of its own: the vendors' libraries carry it out"},
             {R"({"placement": "apart"})",
              "feed_forward: apart is no program of its own: its operators have one each"},
             {"{}", "feed_forward: the strategy has tiles of 0 products, and there are 2"}}) {
        const Result<fuse::StagedProgram> made = program(problem, strategy_of(strategy));
        ASSERT_FALSE(made) << strategy;
        EXPECT_EQ(made.error().message, message);
    }
}

/// What a kernel's tiles touch, in the order in which they run by themselves, and by which number it knows them.
std::string walked(const kernel::Kernel& kernel) {
    std::string text;
    for (std::size_t at = 0; at < kernel.tiles.size(); ++at) {
        const kernel::Tile& tile = kernel.tiles[static_cast<std::size_t>(kernel.tile_at(at))];
        text += fmt::format("program {} tile {}:", tile.program, tile.id);
        for (const char* param : {"a_desc", "c_desc", "scale_a_ptr"}) {
            const auto add = [&](const auto& around) {
                if (!around.contains(param)) return;
                for (const plan::Interval& range : around.at(param))
                    text += fmt::format(" {}..{}", range.begin, range.end);
            };
            std::string_view(param) == "c_desc" ? add(tile.writes) : add(tile.reads);
        }
        text += '\n';
    }
    return text;
}

TEST(PlainStatement, SaysWhatTheFrontEndFindsInTheKernel) {
    const std::string file = std::string(SYNCOPATE_SOURCE_DIR) + "/python/syncopate/kernels/matmul.py";
    const Result<std::string> source = read_file(file);
    ASSERT_TRUE(source);
    struct Case {
        const char* spec;
        std::string tile;
        std::int32_t programs;
        bool w_transposed;
    };
    for (const auto& [spec, tile, programs, w_transposed] : std::vector<Case>{
             {"all_gather_matmul:M=512,N=512,K=256,ranks=2", R"("block_m": 64, "block_n": 128)", 5, false},
             {"all_gather_matmul:M=700,N=328,K=136,ranks=2", R"("block_m": 64, "block_n": 128, "group_m": 4)",
              3, true},
             {"all_gather_matmul:M=1000,N=1096,K=64,ranks=4",
              R"("block_m": 64, "block_n": 256, "group_m": 3)", 7, false},
             {"all_gather_matmul:M=700,N=712,K=128,ranks=2",
              R"("block_m": 64, "block_n": 128, "num_wide": 4, "group_m": 4)", 9, false},
             {"all_gather_matmul:M=320,N=640,K=128,ranks=2",
              R"("block_m": 64, "block_n": 128, "num_wide": 5)", 9, true},
             {"all_gather_matmul:M=256,N=256,K=256,dtype=fp8e4m3,scales=block,ranks=2",
              R"("block_m": 64, "block_n": 128)", 4, true}}) {
        const Strategy strategy = strategy_of(tiled(fmt::format("\"programs\": {}", programs), tile));
        const Result<fuse::StagedProgram> made =
            program(problem_of(spec), strategy, {.w_transposed = w_transposed});
        ASSERT_TRUE(made) << spec << made.error().to_string();
        const kernel::Kernel& stated = made->stages.front().kernel;
        kernel::Arguments arguments = stated.arguments;
        arguments.scalars["NUM_SMS"] = stated.grid[0];
        arguments.scalars["B_TRANSPOSED"] = w_transposed;
        arguments.scalars["PRECISION"] = std::string("tf32");
        if (stated.name == "matmul_mixed") {
            kernel::TensorArgument narrow = arguments.tensors.at("b_desc");
            narrow.block[w_transposed ? 0 : 1] /= 2;
            arguments.tensors["b_narrow_desc"] = narrow;
        } else {
            const bool halves = arguments.tensors.at("c_desc").block[1] != strategy.tiles.front().block_n;
            arguments.scalars["SPLIT_STORE"] = std::int64_t{halves ? 2 : 1};
            if (arguments.tensors.contains("scale_a_ptr")) arguments.scalars["SCALES"] = std::string("block");
        }
        const Result<kernel::Kernel> found = kernel::triton::analyse(*source, file, stated.name, arguments);
        ASSERT_TRUE(found) << spec << found.error().to_string();
        EXPECT_EQ(walked(stated), walked(*found)) << spec << " " << tile;
    }
}

TEST(GluonBox, AsksForFewRowsBeyondTheLastOne) {
    const TileConfig tile{.block_m = 64, .block_n = 128, .block_k = 128};
    EXPECT_EQ(gluon_box(tile, 4096, 2), (GluonBox{64, 128, 128}));
    EXPECT_EQ(gluon_box(tile, 20, 2), (GluonBox{32, 128, 64})) << "12 rows too many, not 44";
    EXPECT_EQ(gluon_box(tile, 1, 1), (GluonBox{16, 128, 128}));
    EXPECT_EQ(gluon_box(tile, 2049, 2), (GluonBox{64, 128, 128})) << "of many rows the last tiles are few";
    EXPECT_EQ(gluon_box({.block_m = 192, .block_n = 192, .block_k = 64}, 192, 2), (GluonBox{64, 64, 64}));
    EXPECT_EQ(gluon_box({.block_m = 32, .block_n = 32, .block_k = 64}, 3, 2, false), (GluonBox{32, 32, 64}));
}

TEST(Statements, NameAllThatTheySpeakOfAmongTheirParameters) {
    for (const MatmulKernel which : {MatmulKernel::plain, MatmulKernel::mixed, MatmulKernel::gluon}) {
        const kernel::stated::Statement statement =
            matmul_statement({.kernel = which, .scales = Scales::row});
        for (const auto* accesses : {&statement.reads, &statement.writes})
            for (const kernel::stated::Access& access : *accesses)
                EXPECT_NE(std::ranges::find(statement.parameters, access.param), statement.parameters.end())
                    << statement.kernel << " " << access.param;
    }
}

}  // namespace
}  // namespace syncopate::ops
