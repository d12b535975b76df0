// Plans whose transfers go by backends drawn at random, each by its own, fused for cuda and carried out on
// host ranks: copies and sums by what stands for the GPU's streams (host_streams.hpp), the rest by the chunk
// engine's table and by the kernel's own stores. Delays are random. A mixture is either right in every call
// or refused with op and reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>

#include "fuse/sample.hpp"
#include "runtime/fork.hpp"
#include "runtime/played_kernel.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::runtime {
namespace {

using plan::Backend;
using testing::all_ranks;
using testing::make_heap;
using testing::run_kernel;
using testing::run_ranks;
using testing::tag;
using testing::TemporaryDirectory;

constexpr std::int64_t kColumns = 8;
constexpr std::int64_t kBlock = 4;
constexpr std::uint32_t kCalls = 10;

enum class Shape { ring_gather, gather, reduce_scatter, all_reduce, exchange };

struct Mixture {
    Shape shape = Shape::gather;
    int size = 2;
    int nodes = 1;
    fuse::Program program;
    std::int64_t rows = 0;
    [[nodiscard]] bool gathers() const { return shape == Shape::gather || shape == Shape::ring_gather; }
};

/// A kernel in tiles of 4 x 4 that reads A or makes C, by pointers.
kernel::Kernel kernel_of(std::int64_t rows) {
    kernel::Kernel kernel = fuse::sample::gemm({rows, kColumns, kColumns, kBlock, kBlock, kBlock, 3});
    kernel.arguments.tensors["a_ptr"].dtype = kernel.arguments.tensors["c_ptr"].dtype = plan::DType::int32;
    return kernel;
}

/// `nodes` and `places`: of how many ranks each; 1 and 0: of one node, some.
Mixture draw(std::mt19937& random, int nodes = 1, int places = 0) {
    const auto below = [&](unsigned bound) { return static_cast<std::int32_t>(random() % bound); };
    Mixture made;
    made.shape = static_cast<Shape>(below(5));
    made.size = places > 0 ? nodes * places : 2 + below(3);
    made.nodes = nodes;
    plan::Mesh mesh = fuse::sample::ranks(made.size);
    if (nodes > 1) mesh = {{{"node", nodes}, {"gpu", places}}, "node"};
    // Shards of whole tiles, so that these may be stored inline, or uneven ones.
    const bool even = below(2) == 0 || made.shape == Shape::exchange;
    made.rows = even ? 8 * made.size : 7 * made.size + 2;
    const plan::Tensor a{"A", {made.rows, kColumns}, plan::DType::int32};
    const plan::Tensor c{"C", a.shape, a.dtype};
    const std::int32_t split = 1 + below(3);
    fuse::Program& program = made.program;
    program.kernel = kernel_of(made.rows);
    program.bindings = made.gathers() ? std::map<std::string, std::string>{{"a_ptr", "A"}}
                                      : std::map<std::string, std::string>{{"c_ptr", "C"}};
    switch (made.shape) {
        case Shape::ring_gather:
            program.plan = fuse::sample::ring_all_gather(made.size, a, below(2) == 0);
            program.plan.mesh = mesh;
            break;
        case Shape::gather: {
            plan::AllGatherOptions options{.split = split, .pull = below(2) == 0};
            options.transient = options.pull && below(3) > 0;
            if (nodes > 1)
                options.algorithm = std::array{plan::Algorithm::hierarchical, plan::Algorithm::direct,
                                               plan::Algorithm::double_ring}[random() % 3];
            program.plan = plan::all_gather(mesh, a, options).value();
            break;
        }
        case Shape::reduce_scatter:
        case Shape::all_reduce:
            program.plan =
                plan::push_reduce(mesh, c, {.split = split, .all = made.shape == Shape::all_reduce}).value();
            break;
        case Shape::exchange:
            program.plan = plan::push_exchange(mesh, c, "R", {.split = split}).value();
            break;
    }
    const bool direct = made.shape == Shape::reduce_scatter || made.shape == Shape::exchange;
    if (direct && nodes == 1 && below(3) == 0)  // over nodes what is brought together is sent on
        program.plan = fuse::sample::pulled(program.plan);
    const bool fetches = made.shape == Shape::gather && below(2) == 0;  // all that a tile reads, or none
    for (std::int32_t rank = 0; rank < made.size; ++rank) {
        for (plan::Op& op : program.plan.ranks[static_cast<std::size_t>(rank)]) {
            if (op.kind != plan::OpKind::local && mesh.node_of(rank) != mesh.node_of(op.peer)) continue;
            op.backend = Backend::ldst_inline;
            if (fetches) continue;
            op.backend = std::array{Backend::copy_engine, Backend::tma_dedicated, Backend::ldst_dedicated,
                                    Backend::ldst_inline}[random() % 4];
        }
    }
    return made;
}

/// Fuses; where an op's backend is refused, the error must say which and why, and that op gets copy_engine.
Result<fuse::Schedule> settle(fuse::Program& program, int& refused) {
    for (;;) {
        auto schedule = fuse::fuse(program, {.device = fuse::Device::cuda});
        if (schedule) return schedule;
        const Location& where = schedule.error().location;
        if (where.rank < 0 || where.op < 0) return schedule;
        auto& list = program.plan.ranks[static_cast<std::size_t>(where.rank)];
        if (static_cast<std::size_t>(where.op) >= list.size()) return schedule;
        plan::Op& op = list[static_cast<std::size_t>(where.op)];
        const bool says = schedule.error().message.find(plan::name_of(op.backend)) != std::string::npos;
        if (op.backend == Backend::copy_engine || !says) return schedule;
        op.backend = Backend::copy_engine;
        ++refused;
    }
}

/// What element `i` of a rank's part of the result must be.
std::int32_t wanted(const Mixture& mixture, int rank, std::uint32_t call, std::int64_t element) {
    if (mixture.shape == Shape::exchange) {
        const std::int64_t block = mixture.rows / mixture.size * kColumns;
        return tag(static_cast<int>(element / block), call, rank * block + element % block);
    }
    std::uint32_t total = 0;
    for (int other = 0; other < mixture.size; ++other)
        total += static_cast<std::uint32_t>(tag(other, call, element));
    return static_cast<std::int32_t>(total);
}

class Call {
public:
    Call(const Mixture& mixture, FusedOp& op, int rank) : mixture_(mixture), op_(op), rank_(rank) {
        const plan::Plan& plan = mixture.program.plan;
        const auto& from = mixture.gathers() ? plan.initial : plan.final;
        for (const plan::Holding& holding : from) {
            if (holding.rank != rank || plan::is_empty(holding.chunk.region)) continue;
            const std::string& name = plan.tensors[static_cast<std::size_t>(holding.chunk.tensor)].name;
            if (mixture.gathers() || name == (mixture.shape == Shape::exchange ? "R" : "C"))
                parts_.emplace_back(name, holding.chunk.region);
        }
    }

    /// One call; what is wrong, or nothing.
    std::string run(std::uint32_t call) {
        std::vector<std::vector<std::int32_t>> user;
        const std::vector<std::int64_t> strides{kColumns, 1};
        for (const auto& [name, region] : parts_) {
            const std::int64_t first = region[0].begin * kColumns;
            std::vector<std::int32_t>& values = user.emplace_back(plan::num_elements(region), -1);
            for (std::size_t i = 0; mixture_.gathers() && i < values.size(); ++i)
                values[i] = tag(0, call, first + static_cast<std::int64_t>(i));
            const auto address = reinterpret_cast<std::uint64_t>(values.data());
            const Status set = mixture_.gathers() ? op_.set_input(name, region, address, strides)
                                                  : op_.set_output(name, region, address, strides);
            if (!set) return set.error().to_string();
        }
        if (const Status begun = op_.begin_call(); !begun) return begun.error().to_string();
        if (!run_kernel(op_, [&](int tile, int slot) { return work(tile, slot, call); }))
            return "a tile read what is not of this call";
        if (const Status ended = op_.end_call(); !ended) return ended.error().to_string();
        for (std::size_t part = 0; !mixture_.gathers() && part < parts_.size(); ++part) {
            const std::int64_t first = parts_[part].second[0].begin * kColumns;
            for (std::size_t i = 0; i < user[part].size(); ++i) {
                if (user[part][i] != wanted(mixture_, rank_, call, first + static_cast<std::int64_t>(i)))
                    return "element " + std::to_string(first + static_cast<std::int64_t>(i)) + " is wrong";
            }
        }
        return {};
    }

private:
    bool work(int id, int slot, std::uint32_t call) {
        const kernel::Tile& tile = mixture_.program.kernel.tiles[static_cast<std::size_t>(id)];
        bool good = true;
        const auto each = [&](const plan::Region& box, const auto& visit) {
            for (std::int64_t row = box[0].begin; row < box[0].end; ++row) {
                for (std::int64_t column = box[1].begin; column < box[1].end; ++column)
                    visit(row * kColumns + column);
            }
        };
        if (mixture_.gathers()) {
            const auto* a = reinterpret_cast<const std::int32_t*>(op_.tensor_address("A").value()) +
                            testing::load_offset_of(op_, slot);
            each(tile.reads.at("a_ptr"), [&](std::int64_t at) { good = good && a[at] == tag(0, call, at); });
            return good;
        }
        auto* c = reinterpret_cast<std::int32_t*>(op_.tensor_address("C").value());
        for (const std::int64_t offset : testing::offsets_of(op_, slot))
            each(tile.writes.at("c_ptr"), [&](std::int64_t at) { c[offset + at] = tag(rank_, call, at); });
        return true;
    }

    const Mixture& mixture_;
    FusedOp& op_;
    int rank_;
    std::vector<std::pair<std::string, plan::Region>> parts_;  ///< inputs, or outputs
};

std::string describe(const Mixture& mixture) {
    std::string text = "shape " + std::to_string(static_cast<int>(mixture.shape));
    for (const auto& list : mixture.program.plan.ranks) {
        text += " |";
        for (const plan::Op& op : list) text += ' ' + std::string(plan::name_of(op.backend));
    }
    return text;
}

/// Ten calls on all ranks, with delays and stragglers.
void run(const Mixture& mixture, const fuse::Schedule& schedule, int n) {
    const TemporaryDirectory directory;
    SCOPED_TRACE(describe(mixture));
    run_ranks(all_ranks(mixture.size), [&](int rank) {
        auto heap = make_heap(directory, rank, mixture.size, 1 << 20, mixture.size / mixture.nodes);
        RANK_CHECK(heap, heap.error().to_string());
        auto op = FusedOp::create(*heap, schedule,
                                  {.name = "mixed",
                                   .deadline_ms = 600'000,
                                   .max_delay_us = 200,
                                   .seed = static_cast<std::uint64_t>(n)});
        RANK_CHECK(op, op.error().to_string());
        Call calls(mixture, **op, rank);
        std::mt19937 stalls(static_cast<unsigned>(rank * 100 + n));
        for (std::uint32_t call = 1; call <= kCalls; ++call) {
            if (stalls() % 8 == 0)
                std::this_thread::sleep_for(std::chrono::microseconds(stalls() % 2000));  // a straggler
            const std::string wrong = calls.run(call);
            RANK_CHECK(wrong.empty(), "call " + std::to_string(call) + ": " + wrong);
        }
        return bool((*op)->destroy());
    });
}

class Mixed : public ::testing::TestWithParam<int> {};

TEST_P(Mixed, EachTransferGoesByItsOwnBackendAndEveryCallIsRight) {
    std::mt19937 random(static_cast<unsigned>(GetParam()));
    int refused = 0;
    for (int n = 0; n < 10; ++n) {
        Mixture mixture = draw(random);
        const auto schedule = settle(mixture.program, refused);
        ASSERT_TRUE(schedule) << schedule.error().to_string() << ": " << describe(mixture);
        run(mixture, *schedule, n);
        if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
}

struct Nodes {
    int nodes = 2;
    int places = 2;
    int seed = 0;
};
std::ostream& operator<<(std::ostream& out, const Nodes& nodes) {
    return out << nodes.nodes << " nodes of " << nodes.places << ", seed " << nodes.seed;
}

class MixedOverNodes : public ::testing::TestWithParam<Nodes> {};

TEST_P(MixedOverNodes, WhatCrossesGoesByTheChannelAndEveryCallIsRight) {
    const Nodes nodes = GetParam();
    std::mt19937 random(static_cast<unsigned>(nodes.seed));
    int refused = 0;
    for (int n = 0; n < 4; ++n) {
        Mixture mixture = draw(random, nodes.nodes, nodes.places);
        const auto schedule = settle(mixture.program, refused);
        ASSERT_TRUE(schedule) << schedule.error().to_string() << ": " << describe(mixture);
        run(mixture, *schedule, n);
        if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
}

std::vector<Nodes> sweep() {
    std::vector<Nodes> all;
    for (int seed = 1; seed < 12; ++seed) all.push_back({2 + seed % 3, 1 + seed % 4, seed});
    return all;
}

INSTANTIATE_TEST_SUITE_P(OnHost, MixedOverNodes,
                         ::testing::Values(Nodes{2, 2, 0}, Nodes{2, 3, 1}, Nodes{4, 4, 2}, Nodes{2, 1, 3}));
INSTANTIATE_TEST_SUITE_P(Sweep, MixedOverNodes, ::testing::ValuesIn(sweep()));

TEST(Mixtures, SomeHaveTilesThatReadAtOtherRanks) {
    std::mt19937 random(0);
    int seen = 0, refused = 0;
    for (int n = 0; n < 40; ++n) {
        Mixture mixture = draw(random);
        const auto schedule = settle(mixture.program, refused);
        ASSERT_TRUE(schedule) << schedule.error().to_string();
        seen += schedule->loads().has_value() ? 1 : 0;
    }
    EXPECT_GT(seen, 2);
}

INSTANTIATE_TEST_SUITE_P(OnHost, Mixed, ::testing::Range(0, 2));
INSTANTIATE_TEST_SUITE_P(Sweep, Mixed, ::testing::Range(2, 16));

}  // namespace
}  // namespace syncopate::runtime
