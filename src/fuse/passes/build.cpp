#include "syncopate/fuse/passes/build.hpp"

#include <algorithm>
#include <map>
#include <span>

#include "fuse/passes/build_chain.hpp"
#include "fuse/passes/build_makes.hpp"
#include "fuse/passes/build_reads.hpp"
#include "fuse/passes/run_tiles.hpp"
#include "fuse/passes/start_order.hpp"
#include "syncopate/fuse/inline/inline_reads.hpp"
#include "syncopate/fuse/inline/sum_stores.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/try.hpp"

namespace syncopate::fuse {
namespace {

Node::Kind kind_of(const plan::Op& op) {
    if (op.kind == plan::OpKind::collective) return Node::Kind::collective;
    return is_sum(op) ? Node::Kind::sum : Node::Kind::copy;
}

Carrier carrier_of(const Lowered& lowered, plan::OpRef ref, plan::Backend backend) {
    if (lowered.done_with.contains(ref)) return Carrier::sum_loads;
    if (!is_inline(backend)) return Carrier::own;
    if (is_sum(lowered.plan.op(ref))) return Carrier::programs;
    if (follows_sums(lowered.plan, ref)) return Carrier::sum_stores;
    return is_fetched(lowered.plan, ref) ? Carrier::tile_loads : Carrier::tile_stores;
}

/// The ops, and what each names in `after`.
void add_ops(const Lowered& lowered, const Backends& backends, Graph& graph) {
    const plan::Plan& plan = lowered.plan;
    std::size_t ops = 0;
    for (const std::vector<plan::Op>& list : plan.ranks) ops += list.size();
    graph.nodes.reserve(ops + ops / 16);  // tiles, chunks and boundaries follow
    graph.in.reserve(ops + ops / 16);
    graph.carriers.reserve(ops);
    graph.first_op.push_back(0);
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const auto count = static_cast<std::int32_t>(plan.ranks[rank].size());
        for (std::int32_t index = 0; index < count; ++index) {
            const plan::OpRef ref{rank, index};
            graph.nodes.push_back({kind_of(plan.op(ref)), rank, 0, index});
            graph.carriers.push_back(carrier_of(lowered, ref, backends[rank][index]));
        }
        graph.first_op.push_back(graph.first_op.back() + count);
    }
    graph.in.resize(graph.nodes.size());
    for (NodeId op = 0; op < graph.num_ops(); ++op) {
        Edges& in = graph.in[op];
        for (const plan::OpRef& before : plan.op(graph.ref(op)).after) in.push_back({0, graph.op(before)});
        std::ranges::sort(in);
        const auto rest = std::ranges::unique(in);
        in.erase(rest.begin(), rest.end());
    }
}

/// The boundaries of each rank's call; its kernel has ended when all its tiles have.
void add_boundaries(Graph& graph) {
    const auto add = [&](std::vector<NodeId>& to, Node::Kind kind, std::int32_t rank) {
        to.push_back(static_cast<NodeId>(graph.nodes.size()));
        graph.nodes.push_back({kind, rank});
        graph.in.emplace_back();
    };
    for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(graph.made.size()); ++rank) {
        add(graph.begin, Node::Kind::begin, rank);
        add(graph.start, Node::Kind::start, rank);
        add(graph.kernel, Node::Kind::kernel, rank);
        add(graph.end, Node::Kind::end, rank);
        graph.in[graph.start.back()].push_back({0, graph.begin.back()});
        for (const Graph::StageNodes& stage : graph.stages) {
            for (std::int32_t c = 0; c < stage.num_classes; ++c)
                graph.in[graph.kernel.back()].push_back({0, stage.first[rank] + c});
        }
        graph.in[graph.end.back()].push_back({0, graph.kernel.back()});
    }
}

}  // namespace

Result<Graph> build(const StagedProgram& program, const Lowered& lowered, const Backends& backends,
                    Scope scope) {
    scope = scope.within(lowered.plan.num_ranks());
    Graph graph;
    add_ops(lowered, backends, graph);
    SYNCOPATE_TRY(order_starts(graph));
    graph.stages.resize(program.stages.size());
    graph.made.resize(lowered.plan.ranks.size());
    graph.written.resize(lowered.plan.tensors.size(), false);
    Written written;
    for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
        const BoundKernel one(program.stages[stage], lowered.plan);
        SYNCOPATE_TRY(find_runs(one, stage, graph));
        SYNCOPATE_TRY(add_tiles(one, stage, written, graph));
        add_beside(program, lowered.plan, stage, graph);
        SYNCOPATE_TRY(add_chunks(one, stage, lowered, scope, graph));
        add_written(one, written);
    }
    // Tiles that only a call knows are counted by nobody before; and where the groups of a ragged axis lie,
    // kernels tell each other in memory that is no tensor of the plan. A stage of such waits for the one before,
    // but for what that one sends.
    const bool tiles_are_known =
        std::ranges::none_of(program.stages, [](const Stage& stage) { return stage.kernel.most_slots > 0; });
    const bool places_are_known = std::ranges::none_of(
        lowered.plan.tensors, [](const plan::Tensor& tensor) { return tensor.ragged.has_value(); });
    if (tiles_are_known && places_are_known) add_chain(program, lowered.plan, graph);
    if (tiles_order_ops(graph)) SYNCOPATE_TRY(order_starts(graph));
    SYNCOPATE_TRY(order_channel(lowered, graph));
    add_boundaries(graph);
    return graph;
}

Status wait_together(const StagedProgram& program, Graph& graph) {
    const std::vector<bool> makers = graph.makers();
    for (std::size_t stage = 0; stage < graph.stages.size(); ++stage) {
        const Graph::StageNodes& nodes = graph.stages[stage];
        for (std::size_t rank = 0; rank < nodes.first.size(); ++rank) {
            if (makers[rank])
                return Error{"tiles of " + program.stages[stage].kernel.name +
                             " cannot all wait for what arrives: some of them make what is sent"};
            const std::span<Edges> classes = std::span(graph.in).subspan(
                static_cast<std::size_t>(nodes.first[rank]), static_cast<std::size_t>(nodes.num_classes));
            std::map<NodeId, std::int64_t> earliest;  // iterations
            for (const Edges& of_class : classes) {
                for (const Edge& edge : of_class) {
                    const auto [at, added] = earliest.try_emplace(edge.from, edge.iteration);
                    at->second = std::min(at->second, edge.iteration);
                }
            }
            Edges needs;
            for (const auto& [from, iteration] : earliest)
                needs.push_back({nodes.ranged ? 0 : iteration, from});
            std::ranges::sort(needs);
            std::ranges::fill(classes, needs);
        }
    }
    return Done{};
}

}  // namespace syncopate::fuse
