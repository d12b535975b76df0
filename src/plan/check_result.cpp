#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "box_index.hpp"
#include "check_passes.hpp"
#include "content.hpp"

namespace syncopate::plan {
namespace {

/// What every rank holds: disjoint boxes with their content, per rank and tensor.
class Memory {
public:
    explicit Memory(const Plan& plan)
        : num_tensors_(static_cast<std::int64_t>(plan.tensors.size())), axes_(key_axes(plan)) {}

    using Piece = BoxIndex<Content>::Entry;

    /// The held parts of a chunk, clipped to it.
    std::vector<Piece> read(std::int32_t rank, const Chunk& chunk) const {
        std::vector<Piece> pieces;
        const auto memory = memories_.find(key(rank, chunk.tensor));
        if (memory == memories_.end()) return pieces;
        memory->second.visit_overlapping(chunk.region, [&](const Piece& piece) {
            pieces.push_back({*intersect(piece.box, chunk.region), piece.value});
            return true;
        });
        return pieces;
    }

    /// Replaces what the chunk held by `pieces`, which lie inside it; what they leave out is no longer held.
    void write(std::int32_t rank, const Chunk& chunk, std::vector<Piece> pieces) {
        const std::size_t axis = axes_[static_cast<std::size_t>(chunk.tensor)];
        BoxIndex<Content>& memory = memories_.try_emplace(key(rank, chunk.tensor), axis).first->second;
        for (Piece& old : memory.extract_overlapping(chunk.region)) {
            for (Region& rest : subtract(old.box, chunk.region)) memory.insert(std::move(rest), old.value);
        }
        for (Piece& piece : pieces) memory.insert(std::move(piece.box), piece.value);
    }

private:
    std::int64_t key(std::int32_t rank, std::int32_t tensor) const { return rank * num_tensors_ + tensor; }

    std::int64_t num_tensors_;
    std::vector<std::size_t> axes_;
    std::unordered_map<std::int64_t, BoxIndex<Content>> memories_;
};

class Execution {
public:
    Execution(const Plan& plan, const EventGraph& graph) : plan_(plan), graph_(graph), memory_(plan) {
        for (const auto* holdings : {&plan.initial, &plan.produced}) {
            for (const Holding& holding : *holdings) {
                const Content content = holding.partial ? pool_.of(Contributors({holding.rank})) : Content{};
                memory_.write(holding.rank, holding.chunk, {{holding.chunk.region, content}});
            }
        }
    }

    void run(std::int32_t event) {
        const auto members = graph_.members(event);
        const Result<std::vector<Move>> moves = moves_of(plan_, {members.begin(), members.end()});
        if (!moves) return;  // check_malformed has said so
        // All sources are read before any destination is written: a collective may work in place.
        std::vector<std::vector<Memory::Piece>> read;
        read.reserve(moves->size());
        for (const Move& move : *moves) read.push_back(memory_.read(move.src_rank, move.src));
        for (std::size_t i = 0; i < moves->size(); ++i) {
            const Move& move = (*moves)[i];
            std::vector<Memory::Piece> arriving = placed(move, std::move(read[i]));
            if (move.reduce != Reduce::none) arriving = reduced(move, arriving);
            memory_.write(move.dst_rank, move.dst, std::move(arriving));
        }
    }

    void judge_final(std::size_t index) {
        const Holding& wanted = plan_.final[index];
        const std::vector<Memory::Piece> held = memory_.read(wanted.rank, wanted.chunk);
        std::int64_t elements = 0;  // the pieces are disjoint, so their sizes add up
        for (const Memory::Piece& piece : held) elements += num_elements(piece.box);
        if (elements < num_elements(wanted.chunk.region)) {
            std::vector<Region> missing{wanted.chunk.region};
            for (const Memory::Piece& piece : held) {
                std::vector<Region> rest;
                for (const Region& box : missing) {
                    for (Region& part : subtract(box, piece.box)) rest.push_back(std::move(part));
                }
                missing = std::move(rest);
            }
            add(Finding::Kind::final_not_reached, wanted.rank, -1,
                fmt::format(
                    "final[{}]: {} never arrives{}", index,
                    to_string(plan_, {wanted.chunk.tensor, missing.front()}),
                    missing.size() > 1 ? fmt::format(", nor do {} more boxes", missing.size() - 1) : ""));
        }
        const std::optional<Contributors> reduction = wanted_reduction(wanted);
        for (const Memory::Piece& piece : held) {
            if (judge_content(index, wanted, reduction, piece)) break;  // one finding tells enough
        }
    }

    std::vector<Finding> take() { return std::move(findings_); }

private:
    void add(Finding::Kind kind, std::int32_t rank, std::int32_t op, std::string message) {
        findings_.push_back({kind, rank, op, std::move(message)});
    }

    /// Pieces of the source as they lie in the destination.
    static std::vector<Memory::Piece> placed(const Move& move, std::vector<Memory::Piece> pieces) {
        for (Memory::Piece& piece : pieces) {
            for (std::size_t axis = 0; axis < piece.box.size(); ++axis) {
                const std::int64_t shift = move.dst.region[axis].begin - move.src.region[axis].begin;
                piece.box[axis].begin += shift;
                piece.box[axis].end += shift;
            }
        }
        return pieces;
    }

    /// What the destination holds once the arriving pieces are reduced into it. Where it held nothing, which
    /// check_early_reads reports, they count as they are.
    std::vector<Memory::Piece> reduced(const Move& move, const std::vector<Memory::Piece>& arriving) {
        const std::vector<Memory::Piece> held = memory_.read(move.dst_rank, move.dst);
        std::vector<Memory::Piece> result;
        bool reported = false;
        for (const Memory::Piece& piece : arriving) {
            std::vector<Region> fresh{piece.box};
            for (const Memory::Piece& old : held) {
                const std::optional<Region> common = intersect(piece.box, old.box);
                if (!common) continue;
                if (move.reduce == Reduce::sum && !reported)
                    reported = report_duplicates(move, *common, piece, old);
                result.push_back({*common, joined(piece.value, old.value)});
                std::vector<Region> rest;
                for (const Region& box : fresh) {
                    for (Region& part : subtract(box, *common)) rest.push_back(std::move(part));
                }
                fresh = std::move(rest);
            }
            for (Region& box : fresh) result.push_back({std::move(box), piece.value});
        }
        return result;
    }

    Content joined(Content a, Content b) {
        if (a.is_value() || b.is_value()) return {};
        if (a.contributors == b.contributors) return a;
        return pool_.of(a.contributors->join(*b.contributors));
    }

    /// A sum of two things that share a contribution is wrong; max does not mind. True if it has said so.
    bool report_duplicates(const Move& move, const Region& box, const Memory::Piece& arriving,
                           const Memory::Piece& held) {
        const std::string where =
            fmt::format("{} on rank {}", to_string(plan_, {move.dst.tensor, box}), move.dst_rank);
        if (arriving.value.is_value() || held.value.is_value()) {
            add(Finding::Kind::duplicate_contribution, move.op.rank, move.op.index,
                fmt::format(
                    "sums into {}, where {} is the value itself and not a contribution; mark contributions "
                    "\"partial\": true in initial or produced",
                    where, arriving.value.is_value() ? "what arrives" : "what is held"));
            return true;
        }
        const std::vector<std::int32_t> twice =
            arriving.value.contributors->select(*held.value.contributors, true);
        if (twice.empty()) return false;
        add(Finding::Kind::duplicate_contribution, move.op.rank, move.op.index,
            fmt::format("adds the contribution of {} to {} a second time", describe_ranks(twice), where));
        return true;
    }

    std::optional<Contributors> wanted_reduction(const Holding& wanted) const {
        if (!wanted.of_all && wanted.of.empty()) return std::nullopt;
        Contributors ranks(wanted.of);
        if (wanted.of_all) {
            for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) ranks.insert(rank);
        }
        return ranks;
    }

    /// True if the piece is not what was asked for, which it then reports.
    bool judge_content(std::size_t index, const Holding& wanted, const std::optional<Contributors>& reduction,
                       const Memory::Piece& piece) {
        const Content& content = piece.value;
        const std::string where =
            fmt::format("final[{}]: {}", index, to_string(plan_, {wanted.chunk.tensor, piece.box}));
        if (content.is_value() != !reduction) {
            add(Finding::Kind::final_not_reached, wanted.rank, -1,
                content.is_value()
                    ? where + " holds the value itself, not the reduction asked for with \"of\""
                    : fmt::format("{} holds the reduction over {}, not the value; ask for it with \"of\"",
                                  where, describe_ranks(content.contributors->ranks())));
            return true;
        }
        if (content.is_value() || *content.contributors == *reduction) return false;
        const std::vector<std::int32_t> missing = reduction->select(*content.contributors, false);
        if (!missing.empty()) {
            add(Finding::Kind::missing_contribution, wanted.rank, -1,
                fmt::format("{} lacks the contribution of {}", where, describe_ranks(missing)));
        } else {
            add(Finding::Kind::final_not_reached, wanted.rank, -1,
                fmt::format("{} also has the contribution of {}, which \"of\" does not list", where,
                            describe_ranks(content.contributors->select(*reduction, false))));
        }
        return true;
    }

    const Plan& plan_;
    const EventGraph& graph_;
    ContributorPool pool_;
    Memory memory_;
    std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> check_result(const Plan& plan, const EventGraph& graph,
                                  std::span<const std::int32_t> topological) {
    Execution execution(plan, graph);
    for (const std::int32_t event : topological) execution.run(event);
    for (std::size_t i = 0; i < plan.final.size(); ++i) execution.judge_final(i);
    return execution.take();
}

}  // namespace syncopate::plan
