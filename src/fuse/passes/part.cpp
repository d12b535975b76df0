#include "fuse/passes/part.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <ranges>
#include <set>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "syncopate/at.hpp"

namespace syncopate::fuse {
namespace {

/// Whether some tile of the stage waits for an op, or for what an earlier stage makes.
bool awaits(const Graph& graph, std::size_t stage) {
    const Graph::StageNodes& nodes = graph.stages[stage];
    for (std::size_t rank = 0; rank < nodes.first.size(); ++rank) {
        std::vector<bool> run(at(nodes.num_classes), nodes.runs.empty());
        if (!nodes.runs.empty()) {
            for (std::size_t tile = 0; tile < nodes.class_of.size(); ++tile) {
                if (nodes.runs[rank][tile]) run[at(nodes.class_of[tile])] = true;
            }
        }
        for (std::int32_t c = 0; c < nodes.num_classes; ++c) {
            const NodeId tiles = nodes.first[rank] + c;
            if (!run[at(c)]) continue;
            if (!graph.in[at(tiles)].empty() || !graph.awaited_by(stage, tiles).empty()) return true;
            if (nodes.ranged && !graph.uses_of(stage, tiles).empty()) return true;
        }
    }
    return false;
}

std::int32_t most_stores(const Decisions& decisions) {
    std::size_t most = 1;
    if (!decisions.stores.by) return 1;
    for (std::size_t rank = 0; rank < decisions.graph.made.size(); ++rank) {
        std::vector<std::set<Place>> of_tile(decisions.graph.stages.front().class_of.size());
        for (std::size_t chunk = 0; chunk < decisions.graph.made[rank].size(); ++chunk) {
            const std::vector<Place>& stores = decisions.stores.at[rank][chunk];
            for (const std::int64_t tile : decisions.graph.made[rank][chunk].makers)
                of_tile[at(tile)].insert(stores.begin(), stores.end());
        }
        for (const std::set<Place>& places : of_tile) most = std::max(most, places.size());
    }
    return static_cast<std::int32_t>(most);
}

/// FNV-1a of words: of what has no text, or too long a one.
class Words {
public:
    template <typename Number>
        requires std::is_integral_v<Number> || std::is_enum_v<Number>
    void add(Number number) {
        made_ = (made_ ^ static_cast<std::uint64_t>(number)) * 0x100000001b3U;
        made_ ^= made_ >> 29;  // a product of words spreads upwards only
    }
    void add(double number) { add(std::bit_cast<std::uint64_t>(number)); }
    void add(std::string_view text) {
        add(text.size());
        for (const char byte : text) add(static_cast<unsigned char>(byte));
    }
    void add(const plan::Interval& interval) { add(interval.begin, interval.end); }
    void add(const plan::OpRef& ref) { add(ref.rank, ref.index); }
    void add(const plan::Chunk& chunk) { add(chunk.tensor, chunk.region); }
    /// Regions, and lists of any of these.
    template <typename List>
        requires std::ranges::sized_range<List>
    void add(const List& list) {
        add(list.size());
        for (const auto& one : list) add(one);
    }
    template <typename... Values>
        requires(sizeof...(Values) > 1)
    void add(const Values&... values) {
        (add(values), ...);
    }
    /// What of `touched` is of this parameter, if anything is.
    template <typename Map>
    auto found(const Map& touched, const std::string& param) -> decltype(&touched.begin()->second) {
        const auto at = touched.find(param);
        add(at != touched.end());
        return at == touched.end() ? nullptr : &at->second;
    }
    [[nodiscard]] std::string text() const { return fmt::format("{:016x}", made_); }

private:
    std::uint64_t made_ = 0xcbf29ce484222325U;
};

std::string words_of(const std::vector<plan::Holding>& holdings) {
    Words words;
    words.add(holdings.size());
    for (const plan::Holding& held : holdings)
        words.add(held.rank, held.chunk, held.partial, held.of_all, held.of);
    return words.text();
}

std::string words_of(const std::vector<plan::Op>& list) {
    Words words;
    words.add(list.size());
    for (const plan::Op& op : list)
        words.add(op.kind, op.peer, op.src, op.dst, op.reduce, op.backend, op.collective,
                  std::string_view(*op.channel), op.after, *op.ranks);
    return words.text();
}

/// How often loops run, where a bound parameter is read in some.
std::string words_of_loops(const kernel::Kernel& kernel) {
    Words words;
    words.add(kernel.tiles_differ);
    for (const kernel::Loop& loop : kernel.loops) words.add(loop.trips, loop.divisible, loop.any_order);
    for (const kernel::Tile& tile : kernel.tiles) {
        words.add(tile.trips != nullptr);
        if (tile.trips != nullptr) words.add(*tile.trips);
    }
    return words.text();
}

/// What tiles read and write through a bound parameter. What they touch else is each rank's own.
std::string words_of(const kernel::Kernel& kernel, const kernel::Param& param) {
    Words words;
    words.add(param.kind, param.read, param.written, param.sent);
    for (const kernel::ParamAccess& access : kernel.accesses) {
        if (access.param != param.name) continue;
        words.add(access.stores, access.by, access.given, access.rows, std::string_view(access.fixed),
                  std::string_view(access.not_own));
    }
    bool looped = false;
    for (std::size_t loop = 0; loop < kernel.loops.size(); ++loop) {
        for (const kernel::LoopSlice& slice : kernel.loops[loop].slices) {
            if (slice.param != param.name) continue;
            looped = true;
            words.add(loop, slice.dim, slice.base, slice.step, slice.extent);
        }
    }
    for (const kernel::Tile& tile : kernel.tiles) {
        if (const plan::Region* box = words.found(tile.reads, param.name)) words.add(*box);
        if (const plan::Region* box = words.found(tile.writes, param.name)) words.add(*box);
        if (const kernel::SharedBoxes* exact = words.found(tile.read_boxes, param.name))
            words.add(static_cast<const std::vector<plan::Region>&>(*exact));
        if (const kernel::SharedBoxes* exact = words.found(tile.write_boxes, param.name))
            words.add(static_cast<const std::vector<plan::Region>&>(*exact));
        words.add(tile.inexact_reads.contains(param.name));
        words.add(tile.inexact_writes.contains(param.name));
        const auto* const loops = words.found(tile.loop_reads, param.name);
        if (loops == nullptr || *loops == nullptr) continue;
        looped = true;
        words.add((*loops)->size());
        for (const kernel::LoopRead& read : **loops)
            words.add(read.loop, read.dim, read.base, read.step, read.extent, read.boxes);
    }
    return words.text() + (looped ? words_of_loops(kernel) : std::string());
}

/// In which order tiles run.
std::string words_of(const kernel::Kernel& kernel) {
    Words words;
    for (const kernel::TileAxis& axis : kernel.axes) words.add(axis.count, axis.block);
    for (const kernel::Tile& tile : kernel.tiles) words.add(tile.program);
    words.add(kernel.traversal);
    words.add(kernel.in_order);
    return words.text();
}

std::string text_of(const Options& options) {
    const Costs& costs = options.costs;
    return fmt::format(
        "device {}, programs {}, preferred {}, engine blocks {}, kernel sums {}, together {}, "
        "topology {}, costs {} {} {} {} {} {} {}",
        static_cast<int>(options.device), options.num_programs ? *options.num_programs : -1,
        plan::name_of(options.preferred), options.engine_blocks, options.kernel_sums, options.together,
        options.topology ? plan::to_json(*options.topology) : "none", costs.copy_stream_gbps, costs.sm_tflops,
        costs.tile_us, costs.two_streams_mib, costs.summed_store_mib, costs.last_store_mib,
        costs.part_rounds);
}

std::string text_of(const Stage& stage) {
    const kernel::Kernel& kernel = stage.kernel;
    std::string text = fmt::format(
        "; kernel {}: grid {}x{}x{}, {} multiprocessors, persistent {}, programs a tile {}, sums {}, head "
        "start {}, operations {}, slots {}, starts next {}, {} tiles {}, {} loops",
        kernel.name, kernel.grid[0], kernel.grid[1], kernel.grid[2], kernel.arguments.num_sms,
        kernel.persistent, kernel.programs_per_tile, kernel.sums, kernel.head_start, kernel.operations,
        kernel.most_slots, kernel.starts_next, kernel.tiles.size(), words_of(kernel), kernel.loops.size());
    for (const auto& [param, tensor] : stage.bindings)
        text += fmt::format(", {} is {} {}", param, tensor, words_of(kernel, *kernel.find_param(param)));
    return text;
}

std::string text_of(const plan::Tensor& tensor) {
    std::string text =
        fmt::format(" {} {}{}", tensor.name, plan::name_of(tensor.dtype), to_string(tensor.whole()));
    if (!tensor.ragged) return text;
    text += fmt::format(" ragged axis {}, {} rows, bound {},", tensor.ragged->axis, tensor.ragged->rows,
                        tensor.ragged->bound);
    for (const std::string& group : tensor.ragged->groups) text += fmt::format(" {}", group);
    return text;
}

std::string text_of(const plan::Plan& plan) {
    std::string text = "; mesh";
    for (const plan::Mesh::Axis& axis : plan.mesh.axes) text += fmt::format(" {}={}", axis.name, axis.size);
    text += fmt::format(", nodes {}; tensors", plan.mesh.nodes);
    for (const plan::Tensor& tensor : plan.tensors) text += text_of(tensor);
    text += fmt::format("; initial {}, produced {}, final {}; ops", words_of(plan.initial),
                        words_of(plan.produced), words_of(plan.final));
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
        text += fmt::format(" of rank {} {},", rank, words_of(plan.ranks[rank]));
    return text;
}

/// What all nodes must have alike, for their parts to be of one schedule.
std::string made_of(const StagedProgram& program, const Options& options) {
    std::string text = text_of(options);
    for (const Stage& stage : program.stages) text += text_of(stage);
    return text + text_of(program.plan);
}

/// Who sends to other nodes, or receives from there.
std::vector<std::int32_t> channel_ranks(const Lowered& lowered) {
    std::set<std::int32_t> ranks;
    for (const auto& [ref, side] : lowered.channel) ranks.insert(ref.rank);
    return {ranks.begin(), ranks.end()};
}

}  // namespace

Part part_of(const StagedProgram& program, const Options& options, const Decisions& decisions) {
    Part part{.first = decisions.scope.first, .end = decisions.scope.end};
    for (std::size_t stage = 0; stage < decisions.orders.size(); ++stage) {
        part.stages.push_back({.makes = decisions.graph.makes(stage),
                               .awaits = awaits(decisions.graph, stage),
                               .most_stores = stage == 0 ? most_stores(decisions) : 1});
    }
    part.can_wait = std::ranges::any_of(decisions.stores.at, [](const auto& chunks) {
        return std::ranges::any_of(chunks, [](const auto& stores) { return !stores.empty(); });
    });
    part.channel_ranks = channel_ranks(decisions.lowered);
    part.made_of = made_of(program, options);
    return part;
}

}  // namespace syncopate::fuse
