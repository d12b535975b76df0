#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "box_index.hpp"
#include "check_passes.hpp"

namespace syncopate::plan {
namespace {

constexpr std::int32_t kAtStart = -1;  ///< in place of an event: held before the first op

/// Who writes what into each rank's memory.
class Writers {
public:
    Writers(const Plan& plan, const EventGraph& graph)
        : num_tensors_(static_cast<std::int64_t>(plan.tensors.size())), axes_(key_axes(plan)) {
        for (const Holding& holding : plan.initial) add(holding.rank, holding.chunk, kAtStart);
        for (const Holding& holding : plan.produced) add(holding.rank, holding.chunk, kAtStart);
        for (std::int32_t event = 0; event < graph.num_events(); ++event) {
            for (const OpRef ref : graph.members(event)) {
                const Op& op = plan.op(ref);
                add(op.destination_rank(ref.rank), op.dst, event);
            }
        }
    }

    /// Calls visit(box, event) for each write that overlaps the chunk in the rank's memory, until it returns
    /// false.
    template <typename Visit>
    void visit(std::int32_t rank, const Chunk& chunk, Visit visit) const {
        const auto memory = memories_.find(key(rank, chunk.tensor));
        if (memory == memories_.end()) return;
        memory->second.visit_overlapping(chunk.region,
                                         [&](const auto& entry) { return visit(entry.box, entry.value); });
    }

private:
    std::int64_t key(std::int32_t rank, std::int32_t tensor) const { return rank * num_tensors_ + tensor; }

    void add(std::int32_t rank, const Chunk& chunk, std::int32_t event) {
        const std::size_t axis = axes_[static_cast<std::size_t>(chunk.tensor)];
        memories_.try_emplace(key(rank, chunk.tensor), axis).first->second.insert(chunk.region, event);
    }

    std::int64_t num_tensors_;
    std::vector<std::size_t> axes_;
    std::unordered_map<std::int64_t, BoxIndex<std::int32_t>> memories_;
};

/// Takes `hole` out of every box; false once nothing is left.
bool remove(std::vector<Region>& boxes, const Region& hole) {
    std::vector<Region> left;
    for (const Region& box : boxes) {
        for (Region& part : subtract(box, hole)) left.push_back(std::move(part));
    }
    boxes = std::move(left);
    return !boxes.empty();
}

class EarlyReads {
public:
    EarlyReads(const Plan& plan, const EventGraph& graph, std::span<const std::int32_t> topological)
        : plan_(plan), graph_(graph), happens_before_(graph, topological), writers_(plan, graph) {}

    std::vector<Finding> find() {
        for (std::int32_t event = 0; event < graph_.num_events(); ++event) {
            for (const OpRef ref : graph_.members(event)) {
                const Op& op = plan_.op(ref);
                judge(event, ref, "reads", op.source_rank(ref.rank), op.src);
                // A reduction reads what it adds to. A collective only writes its destination.
                if (op.reduce != Reduce::none && op.kind != OpKind::collective) {
                    judge(event, ref, "reduces into", op.destination_rank(ref.rank), op.dst);
                }
            }
        }
        return std::move(findings_);
    }

private:
    void judge(std::int32_t event, OpRef ref, std::string_view verb, std::int32_t rank, const Chunk& chunk) {
        std::vector<Region> missing{chunk.region};
        writers_.visit(rank, chunk, [&](const Region& box, std::int32_t writer) {
            const bool matters = std::any_of(missing.begin(), missing.end(),
                                             [&](const Region& part) { return overlaps(part, box); });
            if (!matters || (writer != kAtStart && !happens_before_.before(writer, event))) return true;
            return remove(missing, box);
        });
        if (missing.empty()) return;

        const Chunk first{chunk.tensor, missing.front()};
        std::string why = "nothing writes it there before";
        writers_.visit(rank, first, [&](const Region&, std::int32_t writer) {
            if (writer == event) return true;
            const OpRef by = graph_.members(writer).front();
            why = happens_before_.before(event, writer)
                      ? fmt::format("op {}:{} writes it, but waits for this op", by.rank, by.index)
                      : fmt::format("op {}:{} writes it, but this op does not wait for that one", by.rank,
                                    by.index);
            return false;
        });
        findings_.push_back(
            {Finding::Kind::early_read, ref.rank, ref.index,
             fmt::format("{} {} on rank {}, where {}{} has not surely arrived: {}", verb,
                         to_string(plan_, chunk), rank, to_string(first.region),
                         missing.size() > 1 ? fmt::format(" (and {} more)", missing.size() - 1) : "", why)});
    }

    const Plan& plan_;
    const EventGraph& graph_;
    HappensBefore happens_before_;
    Writers writers_;
    std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check_early_reads(const Plan& plan, const EventGraph& graph,
                                       std::span<const std::int32_t> topological) {
    return EarlyReads(plan, graph, topological).find();
}

}  // namespace syncopate::plan
