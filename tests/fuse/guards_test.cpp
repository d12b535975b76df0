// Schedules run on the simulator: no schedule of events may read another call's data or block, and every
// single wait and post must be needed.
#include <gtest/gtest.h>

#include "fuse/sample.hpp"
#include "fuse/simulator.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::fuse {
namespace {

struct Case {
    std::string name;
    Program program;
    Options options;
};

std::vector<std::int64_t> programs_of(const Case& c) {
    std::vector<std::int64_t> result;
    for (const kernel::Tile& tile : c.program.kernel.tiles) result.push_back(tile.program);
    return result;
}

/// C reduced and scattered, round a ring: each rank adds what comes to its own and passes the sum on.
plan::Plan ring_reduce_scatter(std::int32_t num_ranks, const plan::Tensor& tensor) {
    plan::Plan plan;
    plan.mesh = sample::ranks(num_ranks);
    plan.tensors = {tensor};
    const auto shards = plan::split_evenly(0, tensor.shape[0], num_ranks);
    plan.ranks.resize(num_ranks);
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
        plan.produced.push_back({.rank = rank, .chunk = {0, tensor.whole()}, .partial = true});
        plan.final.push_back(
            {.rank = rank, .chunk = {0, {shards[rank], {0, tensor.shape[1]}}}, .of_all = true});
        for (std::int32_t step = 0; step + 1 < num_ranks; ++step) {
            plan::Op op;
            op.kind = plan::OpKind::push;
            op.peer = (rank + 1) % num_ranks;
            const std::int32_t shard = (rank + 2 * num_ranks - 1 - step) % num_ranks;
            op.src = op.dst = {0, {shards[shard], {0, tensor.shape[1]}}};
            op.reduce = plan::Reduce::sum;
            if (step > 0) op.after = {{(rank + num_ranks - 1) % num_ranks, step - 1}};
            plan.ranks[rank].push_back(op);
        }
    }
    return plan;
}

/// Each rank sends its shard to the next one, from which all ranks but these two fetch it in their tiles.
plan::Plan relayed(std::int32_t num_ranks, const plan::Tensor& tensor) {
    plan::Plan plan;
    plan.mesh = sample::ranks(num_ranks);
    plan.tensors = {tensor};
    const auto shards = plan::split_evenly(0, tensor.shape[0], num_ranks);
    plan.ranks.resize(num_ranks);
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
        const plan::Chunk own{0, {shards[rank], {0, tensor.shape[1]}}};
        plan.initial.push_back({.rank = rank, .chunk = own});
        plan::Op& push = plan.ranks[rank].emplace_back();
        push.kind = plan::OpKind::push;
        push.peer = (rank + 1) % num_ranks;
        push.src = push.dst = own;
        for (std::int32_t offset = 2; offset < num_ranks; ++offset) {
            plan::Op& pull = plan.ranks[(rank + offset) % num_ranks].emplace_back();
            pull.kind = plan::OpKind::pull;
            pull.peer = push.peer;
            pull.src = pull.dst = own;
            pull.after = {{rank, -1}};
            pull.backend = plan::Backend::ldst_inline;
        }
    }
    // A rank's push may come after the pulls in its list.
    for (auto& list : plan.ranks) {
        for (plan::Op& op : list) {
            for (plan::OpRef& before : op.after) {
                const auto& sent = plan.ranks[before.rank];
                const auto push = std::ranges::find(sent, plan::OpKind::push, &plan::Op::kind);
                before.index = static_cast<std::int32_t>(push - sent.begin());
            }
        }
    }
    return plan;
}

plan::Tensor c_of(const sample::Gemm& g) { return {"C", {g.M, g.N}, plan::DType::bf16}; }

Program reduced_gemm(const sample::Gemm& g, std::int32_t ranks, const plan::PushReduceOptions& options) {
    return {
        sample::gemm(g), plan::push_reduce(sample::ranks(ranks), c_of(g), options).value(), {{"c_ptr", "C"}}};
}

/// Programs whose kernel makes what is sent.
std::vector<Case> producers(std::int32_t max_ranks, bool minimal) {
    using sample::Gemm;
    std::vector<Case> result;
    const auto add = [&](std::string name, Program program, bool on_cuda = true) {
        for (const Device device : {Device::host, Device::cuda}) {
            if (device == Device::cuda && !on_cuda) continue;
            result.push_back({name + "_" + std::string(name_of(device)), program, {.device = device}});
        }
    };
    for (std::int32_t ranks = 1; ranks <= max_ranks; ranks += (ranks < 4 ? 1 : 4)) {
        const std::string suffix = "_on_" + std::to_string(ranks);
        const Gemm even{2 * ranks, 4, 2, 2, 2, 2, 2};
        const Gemm uneven{2 * ranks + 1, 4, 2, 2, 4, 2, 0};
        add("reduce_scatter" + suffix, reduced_gemm(even, ranks, {}));
        add("reduce_scatter_uneven" + suffix, reduced_gemm(uneven, ranks, {.split = 2}));
        add("exchange" + suffix, {sample::gemm(even),
                                  plan::push_exchange(sample::ranks(ranks), c_of(even), "D").value(),
                                  {{"c_ptr", "C"}}});
        for (const plan::Backend engine : {plan::Backend::tma_dedicated, plan::Backend::ldst_dedicated}) {
            for (const Device device : {Device::host, Device::cuda}) {
                const Gemm wide{2 * ranks, 8, 2, 2, 4, 2, 2};
                Program program = reduced_gemm(wide, ranks, {});
                const std::string by =
                    suffix + "_" + std::string(plan::name_of(engine)) + "_" + std::string(name_of(device));
                result.push_back({"reduce_scatter" + by, program, {.device = device, .preferred = engine}});
                program.plan = sample::pulled(program.plan);
                result.push_back({"pull_reduce" + by, program, {.device = device, .preferred = engine}});
            }
        }
        // What an all-reduce sends back tells its sources more than the guards count on.
        if (!minimal) add("all_reduce" + suffix, reduced_gemm(even, ranks, {.split = 2, .all = true}));
        if (ranks > 1) {
            const Gemm ring{ranks, 4, 2, 1, 2, 2, 3};
            add("ring" + suffix,
                {sample::gemm(ring), ring_reduce_scatter(ranks, c_of(ring)), {{"c_ptr", "C"}}});
        }
    }
    return result;
}

std::vector<Case> cases(std::int32_t max_ranks) {
    using sample::Gemm;
    std::vector<Case> result;
    const auto add = [&](std::string name, Program program) {
        for (const Device device : {Device::host, Device::cuda}) {
            result.push_back({name + "_" + std::string(name_of(device)), program, {.device = device}});
        }
    };
    for (std::int32_t ranks = 1; ranks <= max_ranks; ranks += (ranks < 4 ? 1 : 4)) {
        const std::string suffix = "_on_" + std::to_string(ranks);
        const Gemm even{2 * ranks, 4, 4, 2, 2, 2, 2};
        const Gemm uneven{2 * ranks + 1, 4, 4, 2, 4, 2, 0};
        const Gemm deep{2, 4, 4 * ranks, 2, 2, 2, 1};
        add("push" + suffix, sample::all_gather_gemm(even, ranks));
        add("push_uneven" + suffix, sample::all_gather_gemm(uneven, ranks, {.split = 2}));
        add("pull" + suffix, sample::all_gather_gemm(even, ranks, {.split = 2, .pull = true}));
        add("push_along_k" + suffix, sample::all_gather_gemm(deep, ranks, {.axis = 1}));
        add("pull_along_k" + suffix, sample::all_gather_gemm(deep, ranks, {.axis = 1, .pull = true}));
        add("push_slices_of_k" + suffix,
            sample::all_gather_gemm(even, ranks, {.minor_axis = 1, .minor_split = 2}));
        for (const std::int32_t split : {1, 2}) {
            plan::AllGatherOptions transient{.split = split, .pull = true};
            transient.transient = true;
            result.push_back({"fetched_" + std::to_string(split) + suffix,
                              sample::all_gather_gemm(even, ranks, transient),
                              {.preferred = plan::Backend::ldst_inline}});
        }
        result.push_back(
            {"exchanged" + suffix,
             {sample::gemm(even),
              plan::push_exchange(sample::ranks(ranks), {"X", {even.M, even.K}, plan::DType::bf16}, "A",
                                  {.produced = false, .transient = true})
                  .value(),
              {{"a_ptr", "A"}}},
             {.preferred = plan::Backend::ldst_inline}});
        add("exchanged_but_the_own" + suffix,
            {sample::gemm(even),
             plan::push_exchange(sample::ranks(ranks), {"X", {even.M, even.K}, plan::DType::bf16}, "A",
                                 {.produced = false, .for_kernel = true, .minor_axis = 1, .minor_split = 2})
                 .value(),
             {{"a_ptr", "A"}}});
        if (ranks == 1) continue;
        result.push_back({"relayed" + suffix,
                          {sample::gemm(even), relayed(ranks, sample::a_of(even)), {{"a_ptr", "A"}}},
                          {}});
        const Gemm ring{ranks, 4, 2, 1, 2, 2, 3};
        add("ring_push" + suffix,
            {sample::gemm(ring), sample::ring_all_gather(ranks, sample::a_of(ring)), {{"a_ptr", "A"}}});
        add("ring_pull" + suffix,
            {sample::gemm(ring), sample::ring_all_gather(ranks, sample::a_of(ring), true), {{"a_ptr", "A"}}});
        add("unread" + suffix, {sample::gemm(ring), sample::ring_all_gather(ranks, sample::a_of(ring)), {}});
        add("unread_direct" + suffix, {sample::gemm(ring), sample::all_gather_gemm(ring, ranks).plan, {}});
    }
    return result;
}

void expect_apart(const std::vector<Case>& all) {
    for (const Case& c : all) {
        const auto schedule = fuse(c.program, c.options);
        ASSERT_TRUE(schedule.ok()) << c.name << ": " << schedule.error().to_string();
        const int runs = schedule->ranks.size() > 4 ? 12 : 60;
        for (int run = 0; run < runs; ++run) {
            SimulatorOptions options{.calls = 4, .seed = static_cast<std::uint64_t>(run)};
            if (run % 3 != 0) options.straggler = run % static_cast<int>(schedule->ranks.size());
            const auto fault = simulate(c.program, *schedule, programs_of(c), options);
            ASSERT_FALSE(fault.has_value()) << c.name << " seed " << run << ": " << *fault;
        }
    }
}

TEST(Guards, KeepEveryCallApartWhateverTheTiming) { expect_apart(cases(8)); }

TEST(Guards, KeepEveryCallApartWhereTheKernelMakesWhatIsSent) { expect_apart(producers(8, false)); }

/// Every list of waits or posts of a schedule, with the rank whose delay would show that a wait is missing.
struct Spot {
    std::string name;
    std::vector<Wait>* waits = nullptr;
    std::vector<Post>* posts = nullptr;
    std::int32_t rank = 0;
};

std::vector<Spot> spots_of(Schedule& schedule) {
    std::vector<Spot> spots;
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
        RankSchedule& rank = schedule.ranks[r];
        const auto index = static_cast<std::int32_t>(r);
        const std::string on = " of rank " + std::to_string(r);
        spots.push_back({"begin_waits" + on, &rank.begin_waits, nullptr, index});
        spots.push_back({"end_waits" + on, &rank.end_waits, nullptr, index});
        spots.push_back({"begin_posts" + on, nullptr, &rank.begin_posts, index});
        spots.push_back({"kernel_posts" + on, nullptr, &rank.kernel_posts, index});
        spots.push_back({"end_posts" + on, nullptr, &rank.end_posts, index});
        for (std::size_t s = 0; s < rank.slots.size(); ++s) {
            spots.push_back({"slot " + std::to_string(s) + on, &rank.slots[s].waits, nullptr, index});
            for (Phase& phase : rank.slots[s].phases) {
                spots.push_back({"a phase of slot " + std::to_string(s) + on, &phase.waits, nullptr, index});
            }
        }
        for (std::size_t chunk = 0; chunk < rank.chunks.size(); ++chunk) {
            spots.push_back(
                {"made chunk " + std::to_string(chunk) + on, nullptr, &rank.chunks[chunk].posts, index});
        }
        for (std::size_t t = 0; t < rank.transfers.size(); ++t) {
            const std::string name = "transfer " + std::to_string(t) + on;
            spots.push_back({name, &rank.transfers[t].waits, nullptr, index});
            spots.push_back({name, nullptr, &rank.transfers[t].posts, index});
        }
    }
    return spots;
}

bool is_noticed(const Case& c, const Schedule& schedule, std::int32_t straggler) {
    for (int run = 0; run < 4000; ++run) {
        SimulatorOptions options{.calls = 3, .seed = static_cast<std::uint64_t>(run)};
        if (run % 4 != 0) options.straggler = straggler;
        if (run % 16 == 1) options.straggler = run / 16 % static_cast<int>(schedule.ranks.size());
        if (simulate(c.program, schedule, programs_of(c), options)) return true;
    }
    return false;
}

void expect_needed(const std::vector<Case>& all) {
    for (const Case& c : all) {
        const auto original = fuse(c.program, c.options);
        ASSERT_TRUE(original.ok());
        Schedule schedule = *original;
        for (const Spot& place : spots_of(schedule)) {
            for (std::size_t n = 0; place.waits != nullptr && n < place.waits->size(); ++n) {
                const std::vector<Wait> kept = *place.waits;
                const SignalMeaning meaning = schedule.ranks[place.rank].signals[kept[n].signal];
                place.waits->erase(place.waits->begin() + static_cast<std::ptrdiff_t>(n));
                EXPECT_TRUE(is_noticed(c, schedule, meaning.op.rank))
                    << c.name << ": wait " << n << " of " << place.name << " (kind "
                    << static_cast<int>(meaning.kind) << " of rank " << meaning.op.rank << " op "
                    << meaning.op.index << ") is not needed";
                *place.waits = kept;
            }
            for (std::size_t n = 0; place.posts != nullptr && n < place.posts->size(); ++n) {
                const std::vector<Post> kept = *place.posts;
                place.posts->erase(place.posts->begin() + static_cast<std::ptrdiff_t>(n));
                EXPECT_TRUE(is_noticed(c, schedule, place.rank))
                    << c.name << ": post " << n << " of " << place.name;
                *place.posts = kept;
            }
        }
    }
}

TEST(Guards, AreAllNeeded) { expect_needed(cases(3)); }

TEST(Guards, AreAllNeededWhereTheKernelMakesWhatIsSent) { expect_needed(producers(3, true)); }

TEST(Guards, OfARingMustWaitForTheEnd) {
    for (Case& c : cases(3)) {
        if (c.name.find("ring_") != 0) continue;
        Schedule schedule = fuse(c.program, c.options).value();
        bool moved = false;
        for (RankSchedule& rank : schedule.ranks) {
            moved = moved || !rank.end_posts.empty();
            rank.kernel_posts.insert(rank.kernel_posts.end(), rank.end_posts.begin(), rank.end_posts.end());
            rank.end_posts.clear();
        }
        bool noticed = !moved;  // on two ranks no transfer passes on what came
        for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(schedule.ranks.size()); ++rank) {
            noticed = noticed || is_noticed(c, schedule, rank);
        }
        EXPECT_TRUE(noticed) << c.name;
    }
}

}  // namespace
}  // namespace syncopate::fuse
