// From placements to transfers: who holds what, who lacks what, who sends it.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "syncopate/ingest/partition/partition_ir.hpp"
#include "syncopate/plan/model/region.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::ingest {
namespace {

using plan::Region;
using Ranks = std::vector<std::int32_t>;

bool has(const Ranks& list, std::int32_t value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

/// `region` as at most `parts` boxes along its first axis that is long enough (else its longest), none empty.
std::vector<Region> cut(const Region& region, std::int32_t parts) {
    if (parts <= 1) return {region};
    std::size_t axis = 0;
    for (std::size_t i = 0; i < region.size(); ++i) {
        if (region[i].size() >= parts) {
            axis = i;
            break;
        }
        if (region[i].size() > region[axis].size()) axis = i;
    }
    std::vector<Region> boxes;
    for (const plan::Interval& range : plan::split_evenly(region[axis].begin, region[axis].end, parts)) {
        if (range.empty()) break;
        boxes.push_back(region);
        boxes.back()[axis] = range;
    }
    return boxes;
}

constexpr std::size_t kFewContributions = 32;

/// A push to be; its place in its owner's list is known only when all are there.
struct Transfer {
    std::int32_t owner = 0, peer = 0, tensor = 0;
    Region region;
    plan::Reduce reduce = plan::Reduce::none;
    std::int32_t phase = 0;
    std::vector<std::size_t> after;  // other transfers
};

/// Ranks that together hold a value: one that has it, or all that contribute to it.
struct Source {
    Ranks ranks;
    Region box;
    std::vector<std::pair<std::int32_t, Region>> wanted;  // by whom, which part
};

class Converter {
public:
    explicit Converter(const PartitionProgram& program)
        : program_(program), num_ranks_(program.mesh.num_ranks()) {
        plan_.mesh = program.mesh;
        plan_.ranks.resize(static_cast<std::size_t>(num_ranks_));
    }

    Result<plan::Plan> convert() {
        for (const Conversion& conversion : program_.conversions) {
            plan_.tensors.push_back(conversion.tensor);
            if (tensor(conversion)) continue;
            if (comparisons_ > kMaxComparisons) {
                return Error{
                    fmt::format("tensors.{}: too many ranks and shards to compare", conversion.tensor.name)};
            }
            return Error{fmt::format("tensors.{}: the plan would have more than {} ops",
                                     conversion.tensor.name, kMaxPlannedOps)};
        }
        emit();
        return std::move(plan_);
    }

private:
    /// Number of leading mesh coordinates that two ranks share: more is nearer.
    [[nodiscard]] std::size_t nearness(std::int32_t a, std::int32_t b) const {
        const auto& x = coordinates_[static_cast<std::size_t>(a)];
        const auto& y = coordinates_[static_cast<std::size_t>(b)];
        return static_cast<std::size_t>(std::mismatch(x.begin(), x.end(), y.begin()).first - x.begin());
    }

    bool tensor(const Conversion& conversion) {
        const Placement& before = conversion.before;
        const Placement& after = conversion.after;
        Ranks reduced;
        for (const std::int32_t axis : before.partial) {
            if (!has(after.partial, axis)) reduced.push_back(axis);
        }
        coordinates_.clear();
        for (std::int32_t rank = 0; rank < num_ranks_; ++rank)
            coordinates_.push_back(coordinates_of(program_.mesh, rank));
        sent_.assign(static_cast<std::size_t>(num_ranks_), 0);

        // Ranks that differ only along reduced axes are one source. Only ranks with equal coordinates along
        // axes that stay partial may exchange data: other contributions are other data.
        std::map<std::vector<std::int32_t>, std::size_t> source_at;
        std::vector<Source> sources;
        std::vector<std::size_t> own(static_cast<std::size_t>(num_ranks_));
        std::map<std::vector<std::int32_t>, std::map<std::vector<std::int64_t>, std::vector<std::size_t>>>
            boxes;
        for (std::int32_t rank = 0; rank < num_ranks_; ++rank) {
            std::vector<std::int32_t> key = coordinates_[static_cast<std::size_t>(rank)];
            for (const std::int32_t axis : reduced) key[static_cast<std::size_t>(axis)] = 0;
            const auto [found, fresh] = source_at.emplace(std::move(key), sources.size());
            if (fresh) {
                const Region box = region_of(program_.mesh, conversion.tensor, before, rank, program_.uneven);
                sources.push_back({{}, box, {}});
                std::vector<std::int64_t> begin;
                for (const plan::Interval& range : box) begin.push_back(range.begin);
                if (!is_empty(box)) boxes[kept(after, rank)][begin].push_back(found->second);
            }
            sources[found->second].ranks.push_back(rank);
            own[static_cast<std::size_t>(rank)] = found->second;
            hold(conversion, rank, sources[found->second].box);
        }

        for (std::int32_t rank = 0; rank < num_ranks_; ++rank) {
            const Region need = region_of(program_.mesh, conversion.tensor, after, rank, program_.uneven);
            if (is_empty(need)) continue;
            if (before.partial.empty()) want(rank, need, {});
            const auto& within_reach = boxes[kept(after, rank)];
            comparisons_ += static_cast<std::int64_t>(within_reach.size());
            if (comparisons_ > kMaxComparisons) return false;
            for (const auto& [begin, holders] : within_reach) {
                const auto piece = intersect(sources[holders[0]].box, need);
                if (!piece) continue;
                comparisons_ += static_cast<std::int64_t>(holders.size());
                const std::size_t from = choose(sources, holders, own[static_cast<std::size_t>(rank)], rank);
                Source& source = sources[from];
                if (!before.partial.empty()) want(rank, *piece, source.ranks);
                source.wanted.emplace_back(rank, *piece);
                if (!has(source.ranks, rank)) {
                    sent_[static_cast<std::size_t>(source.ranks[0])] += num_elements(*piece);
                }
            }
        }
        for (const Source& source : sources) {
            if (source.ranks.size() == 1 ? !send(conversion, source) : !reduce(conversion, source))
                return false;
        }
        return true;
    }

    /// The coordinates along axes that stay partial.
    [[nodiscard]] std::vector<std::int32_t> kept(const Placement& after, std::int32_t rank) const {
        std::vector<std::int32_t> at;
        for (const std::int32_t axis : after.partial) {
            at.push_back(coordinates_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(axis)]);
        }
        return at;
    }

    /// Of the sources that hold one box: the rank's own, or the nearest, then the one that has sent least.
    [[nodiscard]] std::size_t choose(const std::vector<Source>& sources,
                                     const std::vector<std::size_t>& holders, std::size_t own,
                                     std::int32_t rank) const {
        std::size_t best = holders[0];
        for (const std::size_t each : holders) {
            if (each == own) return own;
            const std::int32_t a = sources[each].ranks[0];
            const std::int32_t b = sources[best].ranks[0];
            const std::size_t near_a = nearness(rank, a);
            const std::size_t near_b = nearness(rank, b);
            if (near_a > near_b || (near_a == near_b && sent_[static_cast<std::size_t>(a)] <
                                                            sent_[static_cast<std::size_t>(b)])) {
                best = each;
            }
        }
        return best;
    }

    std::optional<std::size_t> add(Transfer transfer) {
        if (static_cast<std::int64_t>(transfers_.size()) >= kMaxPlannedOps) return std::nullopt;
        transfer.tensor = static_cast<std::int32_t>(plan_.tensors.size()) - 1;
        transfers_.push_back(std::move(transfer));
        return transfers_.size() - 1;
    }

    bool send(const Conversion& conversion, const Source& source) {
        for (const auto& [rank, piece] : source.wanted) {
            if (rank == source.ranks[0]) continue;
            for (const Region& box : cut(piece, conversion.split)) {
                if (!add({source.ranks[0], rank, 0, box, {}, 0, {}})) return false;
            }
        }
        return true;
    }

    /// Each part is reduced at one rank, and goes from there to the others that want it.
    bool reduce(const Conversion& conversion, const Source& source) {
        const auto parts_wanted = segments(source);
        if (comparisons_ > kMaxComparisons) return false;
        for (const auto& [box, wanted_by] : parts_wanted) {
            Ranks reducers;  // of those that contribute, the ones that want the result: they keep it
            for (const std::int32_t rank : wanted_by) {
                if (has(source.ranks, rank)) reducers.push_back(rank);
            }
            if (reducers.empty()) reducers = source.ranks;
            const std::vector<Region> parts = cut(box, static_cast<std::int32_t>(reducers.size()));
            for (std::size_t i = 0; i < parts.size(); ++i) {
                for (const Region& chunk : cut(parts[i], conversion.split)) {
                    if (!reduce_at(conversion, source, reducers[i], chunk, wanted_by)) return false;
                }
            }
        }
        return true;
    }

    bool reduce_at(const Conversion& conversion, const Source& source, std::int32_t reducer,
                   const Region& chunk, const Ranks& wanted_by) {
        std::vector<std::size_t> contributions;
        for (const std::int32_t rank : source.ranks) {
            if (rank == reducer) continue;
            const auto made = add({rank, reducer, 0, chunk, conversion.before.reduce, 0, {}});
            if (!made) return false;
            contributions.push_back(*made);
        }
        // A rank's own contribution is overwritten by the result, so every contribution must have left first.
        // In large groups only the first one to be sent waits for all, the others for that one: so the edges
        // stay fewer than twice the ops.
        for (const std::int32_t rank : wanted_by) {
            if (rank == reducer) continue;
            const auto made = add({reducer, rank, 0, chunk, plan::Reduce::none, 1, contributions});
            if (!made) return false;
            if (contributions.size() > kFewContributions) contributions = {*made};
        }
        return true;
    }

    /// What is wanted of a source as disjoint boxes, each with all who want it.
    std::vector<std::pair<Region, Ranks>> segments(const Source& source) {
        std::vector<std::pair<Region, Ranks>> found;
        for (const auto& [rank, piece] : source.wanted) {
            comparisons_ += static_cast<std::int64_t>(found.size());
            if (comparisons_ > kMaxComparisons) break;
            std::vector<Region> rest{piece};
            std::vector<std::pair<Region, Ranks>> next;
            for (auto& [box, ranks] : found) {
                const auto common = intersect(box, piece);
                if (!common) {
                    next.emplace_back(std::move(box), std::move(ranks));
                    continue;
                }
                for (Region& left : subtract(box, *common)) next.emplace_back(std::move(left), ranks);
                next.emplace_back(*common, ranks);
                next.back().second.push_back(rank);
                std::vector<Region> still;
                for (const Region& part : rest) {
                    for (Region& left : subtract(part, *common)) still.push_back(std::move(left));
                }
                rest = std::move(still);
            }
            for (Region& part : rest) next.emplace_back(std::move(part), Ranks{rank});
            found = std::move(next);
        }
        return found;
    }

    void hold(const Conversion& conversion, std::int32_t rank, const Region& box) {
        if (is_empty(box)) return;
        plan::Holding holding;
        holding.rank = rank;
        holding.chunk = {static_cast<std::int32_t>(plan_.tensors.size()) - 1, box};
        holding.partial = !conversion.before.partial.empty();
        (conversion.produced ? plan_.produced : plan_.initial).push_back(std::move(holding));
    }

    void want(std::int32_t rank, const Region& box, const Ranks& of) {
        plan::Holding holding;
        holding.rank = rank;
        holding.chunk = {static_cast<std::int32_t>(plan_.tensors.size()) - 1, box};
        holding.of_all = static_cast<std::int32_t>(of.size()) == num_ranks_;
        if (!holding.of_all) holding.of = of;
        plan_.final.push_back(std::move(holding));
    }

    /// Puts the transfers into their owners' lists: contributions first, then round the ring from the owner.
    void emit() {
        std::vector<std::size_t> order(transfers_.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
        const auto turn = [&](const Transfer& transfer) {
            return (transfer.peer - transfer.owner + num_ranks_) % num_ranks_;
        };
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            const Transfer& x = transfers_[a];
            const Transfer& y = transfers_[b];
            return std::tuple(x.owner, x.phase, turn(x)) < std::tuple(y.owner, y.phase, turn(y));
        });
        std::vector<plan::OpRef> at(transfers_.size());
        std::vector<std::int32_t> counts(static_cast<std::size_t>(num_ranks_));
        for (const std::size_t i : order) {
            const std::int32_t owner = transfers_[i].owner;
            at[i] = {owner, counts[static_cast<std::size_t>(owner)]++};
        }
        for (const std::size_t i : order) {
            const Transfer& transfer = transfers_[i];
            plan::Op op;
            op.kind = plan::OpKind::push;
            op.peer = transfer.peer;
            op.src = op.dst = {transfer.tensor, transfer.region};
            op.reduce = transfer.reduce;
            for (const std::size_t other : transfer.after) op.after.push_back(at[other]);
            plan_.ranks[static_cast<std::size_t>(transfer.owner)].push_back(std::move(op));
        }
    }

    const PartitionProgram& program_;
    std::int32_t num_ranks_;
    plan::Plan plan_;
    std::vector<std::vector<std::int32_t>> coordinates_;
    std::vector<std::int64_t> sent_;  // elements, by rank
    std::int64_t comparisons_ = 0;
    std::vector<Transfer> transfers_;
};

}  // namespace

Result<plan::Plan> plan_of(const PartitionProgram& program) { return Converter(program).convert(); }

}  // namespace syncopate::ingest
