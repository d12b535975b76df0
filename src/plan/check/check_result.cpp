#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "plan/check/check_final.hpp"
#include "plan/check/memory.hpp"
#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

using Piece = Memory::Piece;

std::vector<std::int64_t> displacement(const Region& from, const Region& to) {
    std::vector<std::int64_t> by(from.size());
    for (std::size_t axis = 0; axis < from.size(); ++axis) by[axis] = to[axis].begin - from[axis].begin;
    return by;
}

/// The pieces, and their contents, moved from one place to another of the same extents.
std::vector<Piece> placed(ContentPool& pool, std::vector<Piece> pieces, const Region& from,
                          const Region& to) {
    if (from == to) return pieces;
    const std::vector<std::int64_t> by = displacement(from, to);
    for (Piece& piece : pieces) {
        for (std::size_t axis = 0; axis < from.size(); ++axis) {
            piece.box[axis].begin += by[axis];
            piece.box[axis].end += by[axis];
        }
        piece.value = pool.moved(piece.value, by);
    }
    return pieces;
}

class Execution {
public:
    Execution(const Plan& plan, const EventGraph& graph, const std::vector<std::size_t>& axes,
              const Cells& cells, Budget& budget)
        : plan_(plan),
          graph_(graph),
          cells_(cells),
          budget_(budget),
          axes_(axes),
          pool_(budget),
          memory_(axes_, cells, budget) {
        for (const auto* holdings : {&plan.initial, &plan.produced}) {
            for (const Holding& holding : *holdings) {
                const Content content = holding.partial
                                            ? pool_.contribution(holding.chunk.tensor, holding.rank)
                                            : pool_.value(holding.chunk.tensor);
                memory_.hold(holding, content);
            }
        }
    }

    void run(std::int32_t event) {
        const auto members = graph_.members(event);
        const Cells::Transfer& transfer = cells_.transfer(event);
        if (transfer.is_collective) return run_collective({members.begin(), members.end()});
        const OpRef ref = members.front();
        if (transfer.destination != Cells::kNone) return run_in_cells(transfer, ref);
        const Op& op = plan_.op(ref);
        std::vector<Piece> arriving;
        if (transfer.source == Cells::kNone) {
            arriving = memory_.read(transfer.source_rank, op.src);
        } else if (memory_[transfer.source] != nullptr) {
            arriving.push_back({op.src.region, memory_[transfer.source]});
        }
        arriving = placed(pool_, std::move(arriving), op.src.region, op.dst.region);
        if (op.reduce != Reduce::none) arriving = reduced(ref, op, transfer.destination_rank, arriving);
        memory_.write(transfer.destination_rank, op.dst, arriving);
    }

    std::vector<Finding> finish() {
        FinalCheck final(plan_, memory_, pool_, axes_, budget_);
        for (std::size_t i = 0; i < plan_.final.size() && !budget_.exhausted(); ++i) final.judge(i);
        for (auto& [op, finding] : duplicates_) findings_.push_back(std::move(finding));
        for (Finding& finding : final.take()) findings_.push_back(std::move(finding));
        return std::move(findings_);
    }

private:
    /// From a cell to a cell: what the rest of run() does, of one piece or none.
    void run_in_cells(const Cells::Transfer& transfer, OpRef ref) {
        budget_.spend();
        Content arriving = memory_[transfer.source];
        if (arriving != nullptr && !transfer.stays) {
            const Op& op = plan_.op(ref);
            arriving = pool_.moved(arriving, displacement(op.src.region, op.dst.region));
        }
        Content& held = memory_[transfer.destination];
        if (transfer.reduce == Reduce::none || held == nullptr) {
            if (transfer.reduce == Reduce::none || arriving != nullptr) held = arriving;
        } else if (arriving != nullptr) {
            held = joined(ref, transfer.reduce, transfer.destination_rank, plan_.op(ref).dst, held, arriving);
        }
    }

    /// What the destination holds once the arriving pieces are reduced into it. Where it held nothing, which
    /// check_order reports, they count as they are.
    std::vector<Piece> reduced(OpRef ref, const Op& op, std::int32_t rank,
                               const std::vector<Piece>& arriving) {
        std::vector<Piece> result = memory_.read(rank, op.dst);
        if (arriving.size() == 1 && result.size() == 1 && arriving.front().box == result.front().box) {
            join(ref, op.reduce, rank, op.dst.tensor, result.front(), arriving.front().value);
            return result;
        }
        BoxIndex<Content> held(axes_[at(op.dst.tensor)], budget_);
        for (Piece& piece : result) held.insert(std::move(piece.box), piece.value);
        for (const Piece& piece : arriving) reduce_into(held, ref, op.reduce, rank, op.dst.tensor, piece);
        return held.extract_overlapping(op.dst.region);
    }

    /// Reduces one piece into an index of disjoint ones.
    void reduce_into(BoxIndex<Content>& index, OpRef ref, Reduce reduce, std::int32_t rank,
                     std::int32_t tensor, const Piece& piece) {
        if (Piece* const same = index.find(piece.box))
            return join(ref, reduce, rank, tensor, *same, piece.value);
        std::vector<Region> fresh{piece.box};
        for (Piece& old : index.extract_overlapping(piece.box)) {
            Piece common{*intersect(piece.box, old.box), old.value};
            for (Region& rest : subtract(old.box, common.box)) index.insert(std::move(rest), old.value);
            budget_.spend(static_cast<std::int64_t>(fresh.size()));
            take(fresh, common.box);
            join(ref, reduce, rank, tensor, common, piece.value);
            index.insert(std::move(common.box), common.value);
        }
        for (Region& box : fresh) index.insert(std::move(box), piece.value);
    }

    /// Reduces `arriving` into a piece. A sum of two things that share a contribution is wrong; max does not
    /// mind.
    void join(OpRef ref, Reduce reduce, std::int32_t rank, std::int32_t tensor, Piece& held,
              Content arriving) {
        if (reduce == Reduce::sum && !is_wanted(held.box)) {
            held.value = pool_.joined(held.value, arriving, reduce);
        } else {
            held.value = joined(ref, reduce, rank, {tensor, held.box}, held.value, arriving);
        }
    }
    Content joined(OpRef ref, Reduce reduce, std::int32_t rank, const Chunk& chunk, Content held,
                   Content arriving) {
        if (reduce == Reduce::sum) {
            if (const std::optional<Duplicate> twice = duplicate_in_sum(held, arriving))
                report(ref, rank, chunk, *twice, held, arriving);
        }
        return pool_.joined(held, arriving, reduce);
    }

    /// Of the frame of a collective, only what some target takes is really added up.
    bool is_wanted(const Region& box) {
        if (targets_ == nullptr) return true;
        return std::any_of(targets_->begin(), targets_->end(), [&](const CollectivePart& part) {
            budget_.spend();
            return overlaps(part.at, box);
        });
    }

    void report(OpRef ref, std::int32_t rank, const Chunk& chunk, const Duplicate& twice, Content held,
                Content arriving) {
        if (duplicates_.contains(ref)) return;  // one finding for each op tells enough
        const std::string where = fmt::format("{} on rank {}", to_string(plan_, chunk), rank);
        const auto has_value = [](Content content) {
            return content->origins.front().value || content->origins.back().value;
        };
        std::string message;
        if (twice.value != nullptr) {
            message = fmt::format(
                "sums into {}, where {} is the value itself and not a contribution; mark contributions "
                "\"partial\": true in initial or produced",
                where, has_value(arriving) || !has_value(held) ? "what arrives" : "what is held");
        } else {
            message = fmt::format("adds the contribution of {} to {} a second time",
                                  describe_ranks(twice.ranks), where);
        }
        duplicates_.emplace(
            ref, Finding{Finding::Kind::duplicate_contribution, ref.rank, ref.index, std::move(message)});
    }

    void run_collective(const CollectiveGroup& members) {
        const Result<CollectiveLayout> layout = layout_of(plan_, members);
        if (!layout) return;  // check_malformed has said so
        // All sources are read before any destination is written: a collective may work in place.
        const std::size_t axis = axes_[at(layout->targets.front().chunk.tensor)];
        BoxIndex<Content> frame(axis, budget_);
        targets_ = &layout->targets;
        for (const CollectivePart& part : layout->sources) {
            if (budget_.exhausted()) break;
            for (Piece& piece :
                 placed(pool_, memory_.read(part.op.rank, part.chunk), part.chunk.region, part.at)) {
                if (layout->reduce == Reduce::none) {
                    lay(frame, part.op, std::move(piece));
                } else {
                    reduce_into(frame, part.op, layout->reduce, part.op.rank, part.chunk.tensor, piece);
                }
            }
        }
        targets_ = nullptr;
        std::vector<Piece> filled;
        for (const CollectivePart& part : layout->sources) {
            for (Piece& piece : frame.extract_overlapping(part.at)) filled.push_back(std::move(piece));
        }
        coalesce(filled);
        for (Piece& piece : filled) frame.insert(std::move(piece.box), piece.value);
        for (const CollectivePart& part : layout->targets) {
            if (budget_.exhausted()) return;
            std::vector<Piece> taken;
            frame.visit_overlapping(part.at, [&](const Piece& piece) {
                taken.push_back({*intersect(piece.box, part.at), piece.value});
                return true;
            });
            for (Piece& piece : placed(pool_, std::move(taken), part.at, part.chunk.region)) {
                const Chunk chunk{part.chunk.tensor, piece.box};
                memory_.write(part.op.rank, chunk, {std::move(piece)});
            }
        }
    }

    /// Lays a piece beside others. Sources may overlap if they bring the same.
    void lay(BoxIndex<Content>& frame, OpRef ref, Piece piece) {
        std::vector<Region> fresh{piece.box};
        bool differs = false;
        frame.visit_overlapping(piece.box, [&](const Piece& other) {
            differs |= other.value != piece.value;
            take(fresh, other.box);
            return true;
        });
        if (differs) {
            findings_.push_back(
                {Finding::Kind::write_race, ref.rank, ref.index,
                 fmt::format("brings {}, where another participant of the collective brings something else",
                             to_string(plan_, plan_.op(ref).src))});
        }
        for (Region& box : fresh) frame.insert(std::move(box), piece.value);
    }

    const Plan& plan_;
    const EventGraph& graph_;
    const Cells& cells_;
    Budget& budget_;
    const std::vector<std::size_t>& axes_;
    ContentPool pool_;
    Memory memory_;
    const std::vector<CollectivePart>* targets_ =
        nullptr;  ///< while the sources of a collective are laid out
    std::vector<Finding> findings_;
    std::map<OpRef, Finding> duplicates_;
};

}  // namespace

std::vector<Finding> check_result(const Plan& plan, const EventGraph& graph,
                                  std::span<const std::int32_t> topological,
                                  const std::vector<std::size_t>& axes, const Cells& cells, Budget& budget) {
    Execution execution(plan, graph, axes, cells, budget);
    for (const std::int32_t event : topological) {
        if (budget.exhausted()) break;
        execution.run(event);
    }
    return execution.finish();
}

}  // namespace syncopate::plan
