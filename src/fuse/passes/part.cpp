#include "fuse/passes/part.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/collective.hpp"

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

bool makes(const Graph& graph, std::size_t stage) {
    return std::ranges::any_of(graph.made, [&](const std::vector<Made>& made) {
        return std::ranges::any_of(made, [&](const Made& one) {
            return one.stage == static_cast<std::int32_t>(stage) && !one.makers.empty();
        });
    });
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
    void add(const plan::Region& region) {
        add(region.size());
        for (const plan::Interval& interval : region) {
            add(interval.begin);
            add(interval.end);
        }
    }
    void add(const plan::Chunk& chunk) {
        add(chunk.tensor);
        add(chunk.region);
    }
    void add(const kernel::ByParameter<kernel::SharedBoxes>& touched) {
        for (const auto& [name, boxes] : touched) {
            add(std::string_view(name));
            for (const plan::Region& box : boxes) add(box);
        }
    }
    [[nodiscard]] std::string text() const { return fmt::format("{:016x}", made_); }

private:
    std::uint64_t made_ = 0xcbf29ce484222325U;
};

std::string words_of(const plan::Plan& plan) {
    Words words;
    for (const auto* holdings : {&plan.initial, &plan.produced, &plan.final}) {
        words.add(holdings->size());
        for (const plan::Holding& held : *holdings) {
            words.add(held.rank);
            words.add(held.chunk);
            words.add(held.partial);
            words.add(held.of_all);
            for (const std::int32_t rank : held.of) words.add(rank);
        }
    }
    for (const std::vector<plan::Op>& list : plan.ranks) {
        words.add(list.size());
        for (const plan::Op& op : list) {
            words.add(op.kind);
            words.add(op.peer);
            words.add(op.src);
            words.add(op.dst);
            words.add(op.reduce);
            words.add(op.backend);
            words.add(op.collective);
            words.add(std::string_view(op.channel));
            words.add(op.after.size());
            for (const plan::OpRef before : op.after) {
                words.add(before.rank);
                words.add(before.index);
            }
            for (const std::int32_t rank : op.ranks) words.add(rank);
        }
    }
    return words.text();
}

std::string words_of(const kernel::Kernel& kernel) {
    Words words;
    words.add(kernel.persistent);
    for (std::size_t position = 0; position < kernel.tiles.size(); ++position)
        words.add(kernel.tile_at(position));
    for (const kernel::Loop& loop : kernel.loops) {
        words.add(loop.trips);
        words.add(loop.divisible);
        words.add(loop.any_order);
    }
    for (const kernel::Tile& tile : kernel.tiles) {
        words.add(tile.program);
        words.add(tile.read_boxes);
        words.add(tile.write_boxes);
    }
    return words.text();
}

std::string text_of(const Options& options) {
    const Costs& costs = options.costs;
    return fmt::format(
        "device {}, programs {}, preferred {}, engine blocks {}, kernel sums {}, together {}, sum parts {}, "
        "topology {}, costs {} {} {} {} {} {} {}",
        static_cast<int>(options.device), options.num_programs.value_or(0), plan::name_of(options.preferred),
        options.engine_blocks, options.kernel_sums, options.together, options.most_sum_parts,
        options.topology ? plan::to_json(*options.topology) : "none", costs.copy_stream_gbps, costs.sm_mhz,
        costs.packed_tile_us, costs.two_streams_mib, costs.summed_store_mib, costs.last_store_mib,
        costs.part_rounds);
}

/// What all ranks must have alike, for their parts to be of one schedule.
std::string made_of(const StagedProgram& program, const Options& options) {
    std::string text = text_of(options);
    for (const Stage& stage : program.stages) {
        text += fmt::format("; kernel {}: {} tiles {}", stage.kernel.name, stage.kernel.tiles.size(),
                            words_of(stage.kernel));
        for (const auto& [param, tensor] : stage.bindings) text += fmt::format(", {} = {}", param, tensor);
    }
    text += "; plan:";
    for (const plan::Mesh::Axis& axis : program.plan.mesh.axes)
        text += fmt::format(" {}={}", axis.name, axis.size);
    for (const plan::Tensor& tensor : program.plan.tensors)
        text += fmt::format(" {} {}{}", tensor.name, plan::name_of(tensor.dtype), to_string(tensor.whole()));
    return text + " ops " + words_of(program.plan);
}

}  // namespace

Part part_of(const StagedProgram& program, const Options& options, const Decisions& decisions) {
    Part part{.first = decisions.scope.first, .end = decisions.scope.end};
    for (std::size_t stage = 0; stage < decisions.orders.size(); ++stage) {
        part.stages.push_back({.makes = makes(decisions.graph, stage),
                               .awaits = awaits(decisions.graph, stage),
                               .most_stores = stage == 0 ? most_stores(decisions) : 1});
    }
    part.can_wait = std::ranges::any_of(decisions.stores.at, [](const auto& chunks) {
        return std::ranges::any_of(chunks, [](const auto& stores) { return !stores.empty(); });
    });
    for (const auto& [op, collective] : collectives_of(decisions.lowered.plan))
        part.num_collectives = std::max(part.num_collectives, at(collective.number) + 1);
    part.made_of = made_of(program, options);
    return part;
}

}  // namespace syncopate::fuse
