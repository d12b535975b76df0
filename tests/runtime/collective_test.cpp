// Collectives that a plan leaves direct, on host ranks: as the ranks of device host carry them out together,
// and in a schedule of cuda, where threads do what the GPU's streams would and stand in for the library.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>

#include "fuse/sample.hpp"
#include "runtime/fork.hpp"
#include "runtime/played_kernel.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/json.hpp"
#include "syncopate/plan/lower/lower.hpp"

namespace syncopate::runtime {
namespace {

using plan::CollectiveKind;
using testing::all_ranks;
using testing::make_heap;
using testing::run_kernel;
using testing::run_ranks;
using testing::tag;
using testing::TemporaryDirectory;

constexpr std::int64_t kColumns = 6;

struct Case {
    CollectiveKind kind;
    int size;
    fuse::Device device;
    plan::Reduce reduce = plan::Reduce::sum;
};

/// The kernel reads what is gathered or broadcast, and makes what is reduced or exchanged.
bool consumes(CollectiveKind kind) {
    return kind == CollectiveKind::all_gather || kind == CollectiveKind::broadcast;
}

plan::Plan plan_of(const Case& c, const plan::Tensor& tensor) {
    const plan::Mesh mesh = fuse::sample::ranks(c.size);
    if (c.kind != CollectiveKind::all_to_all) {
        plan::Plan plan =
            plan::make_collective(plan::name_of(c.kind), mesh, tensor, {.reduce = c.reduce}).value();
        if (!consumes(c.kind)) std::swap(plan.initial, plan.produced);
        return plan;
    }
    plan::Plan plan{mesh, {tensor, {"R", tensor.shape, tensor.dtype}}, {}, {}, {}, {}};
    for (std::int32_t rank = 0; rank < c.size; ++rank) {
        plan.produced.push_back({.rank = rank, .chunk = {0, tensor.whole()}, .partial = true});
        for (std::int32_t from = 0; from < c.size; ++from) {
            plan::Region block = tensor.whole();
            block[0] = {from * tensor.shape[0] / c.size, (from + 1) * tensor.shape[0] / c.size};
            plan.final.push_back({.rank = rank, .chunk = {1, block}, .of = {from}});
        }
        plan::Op op;
        op.kind = plan::OpKind::collective;
        op.collective = c.kind;
        op.ranks = all_ranks(c.size);
        op.src = {0, tensor.whole()};
        op.dst = {1, tensor.whole()};
        plan.ranks.push_back({op});
    }
    return plan;
}

std::int32_t wanted(const Case& c, int rank, std::uint32_t call, std::int64_t element, std::int64_t rows) {
    if (c.kind == CollectiveKind::all_to_all) {
        const std::int64_t block = rows / c.size * kColumns;
        return tag(static_cast<int>(element / block), call, rank * block + element % block);
    }
    std::uint32_t total = 0;
    for (int other = 0; other < c.size; ++other)
        total += static_cast<std::uint32_t>(tag(other, call, element));
    return c.reduce == plan::Reduce::max ? tag(c.size - 1, call, element) : static_cast<std::int32_t>(total);
}

class Collectives : public ::testing::TestWithParam<Case> {
protected:
    [[nodiscard]] const TemporaryDirectory& directory_of() const { return directory_; }

private:
    TemporaryDirectory directory_;
};

TEST_P(Collectives, BringEveryCallsDataWhateverTheTiming) {
    const Case c = GetParam();
    const std::int64_t rows = 4 * c.size;
    const plan::Tensor tensor{consumes(c.kind) ? "A" : "C", {rows, kColumns}, plan::DType::int32};
    fuse::Program program{fuse::sample::gemm({rows, kColumns, kColumns, 3, 4, kColumns, 2}),
                          plan_of(c, tensor),
                          {{consumes(c.kind) ? "a_ptr" : "c_ptr", tensor.name}}};
    for (auto& [name, argument] : program.kernel.arguments.tensors) argument.dtype = plan::DType::int32;
    const auto fused = fuse::fuse(program, {.device = c.device});
    ASSERT_TRUE(fused) << fused.error().to_string();
    const auto schedule = fuse::schedule_from_json(fuse::to_json(*fused));
    ASSERT_TRUE(schedule) << schedule.error().to_string();
    run_ranks(all_ranks(c.size), [&](int rank) {
        auto heap = make_heap(directory_of(), rank, c.size);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, *schedule,
                                  {.name = "direct", .deadline_ms = 600'000, .max_delay_us = 300});
        RANK_CHECK(op, op.error().to_string());
        std::vector<std::pair<plan::Region, std::vector<std::int32_t>>> parts;
        const bool in = consumes(c.kind);
        for (const plan::Holding& held : in ? program.plan.initial : program.plan.final) {
            if (held.rank == rank)
                parts.emplace_back(held.chunk.region,
                                   std::vector<std::int32_t>(num_elements(held.chunk.region)));
        }
        const std::string name = in ? "A" : c.kind == CollectiveKind::all_to_all ? "R" : "C";
        auto* whole = reinterpret_cast<std::int32_t*>((*op)->tensor_address(tensor.name).value());
        std::mt19937 random(static_cast<unsigned>(rank));
        for (std::uint32_t call = 1; call <= 30; ++call) {
            for (auto& [region, values] : parts) {
                for (std::size_t i = 0; i < values.size(); ++i) {
                    const std::int64_t element = region[0].begin * kColumns + static_cast<std::int64_t>(i);
                    values[i] = in ? tag(0, call, element) : -1;
                }
                const auto address = reinterpret_cast<std::uint64_t>(values.data());
                const std::vector<std::int64_t> strides{kColumns, 1};
                const Status set = in ? (*op)->set_input(name, region, address, strides)
                                      : (*op)->set_output(name, region, address, strides);
                RANK_CHECK(set, set.error().to_string());
            }
            if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
            const Status begun = (*op)->begin_call();
            RANK_CHECK(begun, begun.error().to_string());
            const bool right = run_kernel(**op, [&](int id) {
                const kernel::Tile& tile = program.kernel.tiles[static_cast<std::size_t>(id)];
                const plan::Region& box = in ? tile.reads.at("a_ptr") : tile.writes.at("c_ptr");
                bool good = true;
                for (std::int64_t row = box[0].begin; row < box[0].end; ++row) {
                    for (std::int64_t at = row * kColumns + box[1].begin; at < row * kColumns + box[1].end;
                         ++at) {
                        if (!in) whole[at] = tag(rank, call, at);
                        good = good && (!in || whole[at] == tag(0, call, at));
                    }
                }
                return good;
            });
            RANK_CHECK(right, "a tile read what is not of call " + std::to_string(call));
            const Status ended = (*op)->end_call();
            RANK_CHECK(ended, ended.error().to_string());
            for (auto& [region, values] : parts) {
                for (std::size_t i = 0; !in && i < values.size(); ++i) {
                    const std::int64_t element = region[0].begin * kColumns + static_cast<std::int64_t>(i);
                    RANK_CHECK(values[i] == wanted(c, rank, call, element, rows),
                               "element " + std::to_string(element) + " of call " + std::to_string(call));
                }
            }
        }
        return bool((*op)->destroy());
    });
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
    std::string name(plan::name_of(info.param.kind));
    return name + std::to_string(info.param.size) +
           (info.param.device == fuse::Device::cuda ? "AsOnCuda" : "") +
           (info.param.reduce == plan::Reduce::max ? "Max" : "");
}

std::vector<Case> all_cases() {
    std::vector<Case> cases;
    using enum CollectiveKind;
    for (const CollectiveKind kind : {all_gather, reduce_scatter, all_reduce, all_to_all, broadcast}) {
        for (const fuse::Device device : {fuse::Device::host, fuse::Device::cuda}) {
            cases.push_back({kind, 3, device});
            if (device == fuse::Device::host) cases.push_back({kind, 2, device});
        }
    }
    cases.push_back({all_reduce, 4, fuse::Device::host, plan::Reduce::max});
    return cases;
}

INSTANTIATE_TEST_SUITE_P(LeftDirect, Collectives, ::testing::ValuesIn(all_cases()), name_of_case);

/// Two ranks; `change` sees the plan before it is fused for cuda. The error, or nothing.
template <typename Change>
std::string refusal(Change change) {
    const plan::Tensor a{"A", {8, kColumns}, plan::DType::bf16};
    fuse::Program program{fuse::sample::gemm({8, kColumns, kColumns, 4, 2, 2}),
                          plan::make_collective("all_gather", fuse::sample::ranks(2), a).value(),
                          {{"a_ptr", "A"}}};
    change(program.plan);
    const auto schedule = fuse::fuse(program, {.device = fuse::Device::cuda});
    return schedule ? std::string() : schedule.error().to_string();
}

TEST(DirectCollective, AKernelDoesNotWaitOnAGpuForOneThatFollowsOtherOps) {
    EXPECT_EQ(refusal([](plan::Plan&) {}), "");
    const std::string why = refusal([](plan::Plan& plan) {
        // Rank 0's shard comes from rank 1, by a push, before it is gathered.
        plan.initial.erase(plan.initial.begin());
        plan.tensors.push_back({"B", {4, kColumns}, plan::DType::bf16});
        plan.initial.push_back({.rank = 1, .chunk = {1, {{0, 4}, {0, kColumns}}}});
        plan::Op push;
        push.kind = plan::OpKind::push;
        push.peer = 0;
        push.src = {1, {{0, 4}, {0, kColumns}}};
        push.dst = {0, {{0, 4}, {0, kColumns}}};
        plan.ranks[1].push_back(push);
        plan.ranks[0][0].after = {{1, 1}};
    });
    EXPECT_NE(why.find("rank 0 op 0: "), std::string::npos) << why;
}

TEST(DirectCollective, NamesTheRankThatDoesNotJoin) {
    const TemporaryDirectory directory;
    const plan::Tensor a{"A", {8, kColumns}, plan::DType::bf16};
    fuse::Program program{fuse::sample::gemm({8, kColumns, kColumns, 4, 2, 2}),
                          plan::make_collective("all_gather", fuse::sample::ranks(2), a).value(),
                          {{"a_ptr", "A"}}};
    const auto schedule = fuse::fuse(program).value();
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, schedule, {.name = "ag", .deadline_ms = 300});
        RANK_CHECK(op, op.error().to_string());
        if (rank == 0) {
            RANK_CHECK((*op)->begin_call(), "begin");
            run_kernel(**op, [](int) { return true; });
            const Status ended = (*op)->end_call();
            testing::tell(directory, "over");
            const Status destroyed = (*op)->destroy();  // or rank 1 would wait for it
            RANK_CHECK(
                !ended && ended.error().message.find("all_gather (op 0 of rank 0)") != std::string::npos,
                ended ? "no fault" : ended.error().message);
            return bool(destroyed);
        }
        testing::await(directory, "over");
        return bool((*op)->destroy());
    });
}

}  // namespace
}  // namespace syncopate::runtime
