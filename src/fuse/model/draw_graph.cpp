#include "syncopate/fuse/model/draw_graph.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/plan/draw/svg_text.hpp"

namespace syncopate::fuse {
namespace {

using Kind = Node::Kind;

std::string_view name_of(LaneKind kind) {
    static constexpr std::array<std::string_view, 7> kNames{"copies", "sums",    "engine", "library",
                                                            "host",   "channel", "inline"};
    return kNames[at(kind)];
}

std::string_view name_of(Carrier carrier) {
    switch (carrier) {
        case Carrier::own: return "own";
        case Carrier::programs: return "summed by programs";
        case Carrier::tile_stores: return "stored by tiles";
        case Carrier::tile_loads: return "loaded by tiles";
        case Carrier::sum_loads: return "loaded by a sum";
        case Carrier::sum_stores: return "stored by a sum";
    }
    return "";
}

class Drawing {
public:
    Drawing(const StagedProgram& program, const Decisions& decisions)
        : program_(program), decisions_(decisions), graph_(decisions.graph), plan_(decisions.lowered.plan) {}

    /// What must be complete before the node, guards included.
    [[nodiscard]] Edges before(NodeId id) const {
        Edges edges = graph_.in[at(id)];
        const Node& node = graph_[id];
        const auto rank = static_cast<std::size_t>(node.rank);
        if (node.kind == Kind::start)
            edges.insert(edges.end(), decisions_.guards.start[rank].begin(),
                         decisions_.guards.start[rank].end());
        if (node.kind == Kind::end) {
            for (const NodeId op : decisions_.guards.end[rank]) edges.push_back({0, op});
        }
        return edges;
    }

    /// What the node does, in a few words.
    [[nodiscard]] std::string what(NodeId id) const {
        const Node& node = graph_[id];
        switch (node.kind) {
            case Kind::begin: return "begin";
            case Kind::start: return "start";
            case Kind::kernel: return "kernel";
            case Kind::end: return "end";
            case Kind::tiles: return tiles(id);
            case Kind::chunk: return "chunk " + name_of_chunk(graph_.made_at(id).chunk);
            case Kind::copy:
            case Kind::sum:
            case Kind::collective: return op(id);
        }
        return {};
    }

    /// Where it runs; empty for what is no op.
    [[nodiscard]] std::string where(NodeId id) const {
        if (!graph_.is_op(id)) return {};
        if (graph_.carrier(id) != Carrier::own) return std::string(name_of(graph_.carrier(id)));
        const Lane lane = decisions_.placement.lanes[at(id)];
        const std::string kind(name_of(lane.kind));
        return lane.kind == LaneKind::copies ? fmt::format("{} {}", kind, lane.stream) : kind;
    }

private:
    [[nodiscard]] std::string name_of_chunk(const plan::Chunk& chunk) const {
        return plan_.tensors[at(chunk.tensor)].name + to_string(chunk.region);
    }

    [[nodiscard]] std::string op(NodeId id) const {
        const plan::OpRef ref = graph_.ref(id);
        const plan::Op& op = plan_.op(ref);
        if (op.kind == plan::OpKind::collective) return std::string(plan::name_of(op.collective));
        if (graph_[id].kind == Kind::sum)
            return "sum " + name_of_chunk(op.src) + " into " + name_of_chunk(op.dst);
        std::string text = fmt::format("{} {}", plan::name_of(op.kind), name_of_chunk(op.src));
        if (!(op.dst == op.src)) text += " to " + name_of_chunk(op.dst);
        if (op.kind == plan::OpKind::push) text += fmt::format(" of rank {}", op.peer);
        if (op.kind == plan::OpKind::pull) text += fmt::format(" from rank {}", op.peer);
        return text;
    }

    /// "tiles 0, 1, 4 … 7 of matmul"
    [[nodiscard]] const std::string& tiles(NodeId id) const {
        const Node& node = graph_[id];
        const auto [found, is_new] = tiles_.try_emplace({node.stage, node.index});
        if (is_new) found->second = tiles_of(node);
        return found->second;
    }
    [[nodiscard]] std::string tiles_of(const Node& node) const {
        const auto stage = static_cast<std::size_t>(node.stage);
        const std::vector<std::int32_t>& class_of = graph_.stages[stage].class_of;
        std::vector<std::string> runs;
        for (std::size_t tile = 0; tile < class_of.size(); ++tile) {
            if (class_of[tile] != node.index) continue;
            std::size_t last = tile;
            while (last + 1 < class_of.size() && class_of[last + 1] == node.index) ++last;
            runs.push_back(last == tile ? fmt::format("{}", tile) : fmt::format("{}…{}", tile, last));
            tile = last;
        }
        constexpr std::size_t kMostRuns = 6;
        const bool more = runs.size() > kMostRuns;
        if (more) runs.resize(kMostRuns);
        return fmt::format("tiles {}{} of {}", fmt::join(runs, ", "), more ? ", …" : "",
                           program_.stages[stage].kernel.name);
    }

    const StagedProgram& program_;
    const Decisions& decisions_;
    const Graph& graph_;
    const plan::Plan& plan_;
    mutable std::map<std::pair<std::int32_t, std::int32_t>, std::string> tiles_;  ///< by stage and class
};

std::string edge_text(const Edge& edge) {
    std::string text = fmt::format("n{}{}", edge.from, edge.lag > 0 ? "'" : "");
    if (edge.iteration > 0) text += fmt::format(" at {}", edge.iteration);
    return text;
}

/// By node: the longest way to it inside a call.
std::vector<int> depths_of(const Drawing& drawing, std::size_t count) {
    std::vector<int> depths(count, -1);
    const auto visit = [&](const auto& self, NodeId node) -> int {
        int& depth = depths[at(node)];
        if (depth >= 0) return depth;
        int longest = 0;
        for (const Edge& edge : drawing.before(node)) {
            if (edge.lag == 0) longest = std::max(longest, self(self, edge.from) + 1);
        }
        return depths[at(node)] = longest;
    };
    for (std::size_t node = 0; node < count; ++node) visit(visit, static_cast<NodeId>(node));
    return depths;
}

std::string_view colour_of(Kind kind) {
    switch (kind) {
        case Kind::copy: return "#cfe3f7";
        case Kind::sum: return "#d9f0d3";
        case Kind::collective: return "#e6dcf2";
        case Kind::tiles: return "#fde8c8";
        case Kind::chunk: return "#fbd3c8";
        default: return "#e8e8e8";
    }
}

}  // namespace

void write_graph(std::ostream& out, const StagedProgram& program, const Decisions& decisions) {
    const Drawing drawing(program, decisions);
    std::vector<std::vector<NodeId>> of_rank(decisions.lowered.plan.ranks.size());
    for (NodeId node = 0; node < std::ssize(decisions.graph.nodes); ++node)
        of_rank[at(decisions.graph[node].rank)].push_back(node);
    std::string text;  // of one rank
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
        text = fmt::format("rank {}\n", rank);
        for (const NodeId node : of_rank[rank]) {
            text += fmt::format("  n{:<4} {}", node, drawing.what(node));
            if (const std::string where = drawing.where(node); !where.empty()) text += "  [" + where + "]";
            std::vector<std::string> edges;
            for (const Edge& edge : drawing.before(node)) edges.push_back(edge_text(edge));
            if (!edges.empty()) text += fmt::format("  after {}", fmt::join(edges, ", "));
            text += "\n";
        }
        out << text;
    }
}

Result<std::string> graph_svg(const StagedProgram& program, const Decisions& decisions) {
    const std::size_t count = decisions.graph.nodes.size();
    if (count > kMostDrawnNodes) {
        return Error{
            fmt::format("the graph has {} nodes, and a picture shows at most {}: print it (--show graph), or "
                        "fuse for fewer ranks and larger tiles",
                        count, kMostDrawnNodes)};
    }
    constexpr int kWidth = 250;
    constexpr int kHeight = 26;
    constexpr int kGap = 50;
    const Drawing drawing(program, decisions);
    const std::vector<int> depths = depths_of(drawing, count);
    const int columns = 1 + *std::ranges::max_element(depths);
    std::vector<std::pair<int, int>> places(count);  // left and top of each node
    std::string boxes;
    int top = 10;
    for (std::int32_t rank = 0; rank < decisions.lowered.plan.num_ranks(); ++rank) {
        boxes += fmt::format("<text x=\"8\" y=\"{}\" font-weight=\"bold\">rank {}</text>\n", top + 14, rank);
        std::vector<int> used(static_cast<std::size_t>(columns), 0);
        for (std::size_t node = 0; node < count; ++node) {
            if (decisions.graph.nodes[node].rank != rank) continue;
            int& row = used[at(depths[node])];
            places[node] = {10 + depths[node] * (kWidth + kGap), top + 22 + row * (kHeight + 8)};
            ++row;
            const auto [x, y] = places[node];
            const std::string where = drawing.where(static_cast<NodeId>(node));
            boxes += fmt::format(
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{}\" stroke=\"#888\"/>"
                "<text x=\"{}\" y=\"{}\">{}<title>n{}{}</title></text>\n",
                x, y, kWidth, kHeight, colour_of(decisions.graph.nodes[node].kind), x + 6, y + 17,
                plan::svg_escaped(drawing.what(static_cast<NodeId>(node))), node,
                where.empty() ? "" : ", " + plan::svg_escaped(where));
        }
        top += 30 + *std::ranges::max_element(used) * (kHeight + 8);
    }
    std::string edges;
    for (std::size_t node = 0; node < count; ++node) {
        for (const Edge& edge : drawing.before(static_cast<NodeId>(node))) {
            const auto [from_x, from_y] = places[at(edge.from)];
            const auto [to_x, to_y] = places[node];
            edges += fmt::format("<path d=\"M{} {} C{} {} {} {} {} {}\" fill=\"none\" stroke=\"{}\"{}/>\n",
                                 from_x + kWidth, from_y + kHeight / 2, from_x + kWidth + kGap / 2,
                                 from_y + kHeight / 2, to_x - kGap / 2, to_y + kHeight / 2, to_x,
                                 to_y + kHeight / 2, edge.lag > 0 ? "#c44" : "#999",
                                 edge.lag > 0 ? " stroke-dasharray=\"4 3\"" : "");
        }
    }
    return plan::svg_document(20 + columns * (kWidth + kGap), top + 10, 11, edges + boxes);
}

}  // namespace syncopate::fuse
