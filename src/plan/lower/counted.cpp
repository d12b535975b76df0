#include "syncopate/plan/lower/counted.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"
#include "syncopate/topological_order.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

/// Rows of a tensor that lie together, in the place of groups.
using Rows = std::vector<Interval>;
/// Ops of the counted plan.
using Ends = std::shared_ptr<const std::vector<OpRef>>;

class Counting {
public:
    Counting(const Plan& plan, std::span<const std::int64_t> counts) : plan_(plan), counts_(counts) {}

    Result<Plan> make() {
        SYNCOPATE_TRY(lay_groups());
        SYNCOPATE_TRY(check_bounds());
        made_.mesh = plan_.mesh;
        for (const Tensor& tensor : plan_.tensors) made_.tensors.push_back(counted(tensor));
        hold(plan_.initial, made_.initial);
        hold(plan_.produced, made_.produced);
        hold(plan_.final, made_.final);
        SYNCOPATE_TRY(number_ops());
        SYNCOPATE_TRY(find_ends());
        for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
            made_.ranks.emplace_back();
            for (const Op& op : plan_.ranks[rank]) add(op, made_.ranks.back());
        }
        return std::move(made_);
    }

private:
    [[nodiscard]] static Error refused(std::string message) { return usage_error(std::move(message)); }

    /// How many groups a ragged tensor has along each of their names.
    [[nodiscard]] static std::vector<std::int64_t> sizes_of(const Tensor& tensor) {
        const auto first = tensor.shape.begin() + tensor.ragged->axis;
        return {first, first + static_cast<std::ptrdiff_t>(tensor.ragged->groups.size())};
    }

    Status lay_groups() {
        for (const Tensor& tensor : plan_.tensors) {
            if (!tensor.ragged) continue;
            if (first_ == nullptr) {
                first_ = &tensor;
                sizes_ = sizes_of(tensor);
            } else if (tensor.ragged->groups != first_->ragged->groups || sizes_of(tensor) != sizes_) {
                return refused(
                    fmt::format("counts: {} and {} are not grouped alike: count one of them at a time",
                                first_->name, tensor.name));
            }
        }
        if (first_ == nullptr) return refused("counts: the plan has no tensor with groups of rows");
        std::int64_t groups = 1;
        for (const std::int64_t size : sizes_) groups *= size;
        if (static_cast<std::int64_t>(counts_.size()) != groups)
            return refused(fmt::format("counts: {} numbers, and {} has {} groups ({})", counts_.size(),
                                       first_->name, groups, fmt::join(sizes_, " x ")));
        for (std::size_t group = 0; group < counts_.size(); ++group) {
            const std::int64_t count = counts_[group];
            if (count < 0 || count > kMaxCoordinate - ends_.back())
                return refused(fmt::format("counts: group {} has {} rows", group, count));
            ends_.push_back(ends_.back() + count);
        }
        if (ends_.back() == 0) return refused("counts: no group has rows, so that there is nothing to call");
        return Done{};
    }

    /// The group at these places along its names.
    [[nodiscard]] std::size_t group_at(std::span<const std::int64_t> place) const {
        std::int64_t group = 0;
        for (std::size_t name = 0; name < sizes_.size(); ++name) group = group * sizes_[name] + place[name];
        return at(group);
    }

    /// Groups of a region.
    [[nodiscard]] std::vector<std::size_t> groups_of(const Tensor& tensor, const Region& region) const {
        const std::size_t axis = at(tensor.ragged->axis);
        std::vector<std::int64_t> place;
        for (std::size_t name = 0; name < sizes_.size(); ++name) {
            if (region[axis + name].size() <= 0) return {};
            place.push_back(region[axis + name].begin);
        }
        std::vector<std::size_t> groups;
        for (;;) {
            groups.push_back(group_at(place));
            std::size_t name = sizes_.size();
            while (name-- > 0 && ++place[name] == region[axis + name].end)
                place[name] = region[axis + name].begin;
            if (name == static_cast<std::size_t>(-1)) return groups;
        }
    }

    /// Its rows, as far as they lie together.
    [[nodiscard]] Rows rows_of(const Tensor& tensor, const Region& region) const {
        Rows rows;
        for (const std::size_t group : groups_of(tensor, region)) {
            const Interval one{ends_[group], ends_[group + 1]};
            if (one.size() == 0) continue;
            if (!rows.empty() && rows.back().end == one.begin) {
                rows.back().end = one.end;
            } else {
                rows.push_back(one);
            }
        }
        return rows;
    }

    [[nodiscard]] Tensor counted(const Tensor& tensor) const {
        Tensor made = tensor;
        if (!tensor.ragged) return made;
        const auto first = made.shape.begin() + tensor.ragged->axis;
        made.shape.erase(first + 1, first + static_cast<std::ptrdiff_t>(sizes_.size()));
        made.shape[at(tensor.ragged->axis)] = ends_.back();
        made.ragged.reset();
        return made;
    }

    [[nodiscard]] Region with_rows(const Tensor& tensor, const Region& region, const Interval& rows) const {
        Region made;
        const std::size_t axis = at(tensor.ragged->axis);
        for (std::size_t i = 0; i < region.size(); ++i) {
            if (i == axis) made.push_back(rows);
            if (i < axis || i >= axis + sizes_.size()) made.push_back(region[i]);
        }
        return made;
    }

    /// No rank has more rows of a tensor than its bound says there is memory for.
    Status check_bounds() const {
        std::vector<std::vector<std::set<std::size_t>>> held(
            plan_.ranks.size(), std::vector<std::set<std::size_t>>(plan_.tensors.size()));
        const auto add = [&](std::int32_t rank, const Chunk& chunk) {
            const Tensor& tensor = plan_.tensors[at(chunk.tensor)];
            if (!tensor.ragged) return;
            const std::vector<std::size_t> groups = groups_of(tensor, chunk.region);
            held[at(rank)][at(chunk.tensor)].insert(groups.begin(), groups.end());
        };
        for (const auto* list : {&plan_.initial, &plan_.produced, &plan_.final})
            for (const Holding& one : *list) add(one.rank, one.chunk);
        for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank)
            for (const Op& op : plan_.ranks[rank])
                if (op.kind != OpKind::collective)
                    add(op.destination_rank(static_cast<std::int32_t>(rank)), op.dst);
        for (std::size_t rank = 0; rank < held.size(); ++rank) {
            for (std::size_t tensor = 0; tensor < plan_.tensors.size(); ++tensor) {
                std::int64_t rows = 0;
                for (const std::size_t group : held[rank][tensor]) rows += counts_[group];
                const Tensor& of = plan_.tensors[tensor];
                if (of.ragged && rows > of.ragged->bound)
                    return Error{fmt::format("counts: {} has {} rows there, and its bound is {}", of.name,
                                             rows, of.ragged->bound),
                                 {.rank = static_cast<std::int32_t>(rank)},
                                 ErrorClass::usage};
            }
        }
        return Done{};
    }

    void hold(const std::vector<Holding>& from, std::vector<Holding>& to) const {
        for (const Holding& one : from) {
            const Tensor& tensor = plan_.tensors[at(one.chunk.tensor)];
            if (!tensor.ragged) {
                to.push_back(one);
                continue;
            }
            for (const Interval& rows : rows_of(tensor, one.chunk.region)) {
                to.push_back(one);
                to.back().chunk.region = with_rows(tensor, one.chunk.region, rows);
            }
        }
    }

    [[nodiscard]] Status require_sense(const Op& op, const OpRef& ref) const {
        const Tensor& src = plan_.tensors[at(op.src.tensor)];
        const Tensor& dst = plan_.tensors[at(op.dst.tensor)];
        for (const OpRef& before : op.after) {
            const bool known = before.rank >= 0 && before.rank < plan_.num_ranks() && before.index >= 0 &&
                               at(before.index) < plan_.ranks[at(before.rank)].size();
            if (!known) return error_at(ref, "it waits for an op that is not there");
        }
        if (src.ragged.has_value() != dst.ragged.has_value())
            return error_at(ref, fmt::format("{} and {} are not grouped alike", src.name, dst.name));
        if (!src.ragged) return Done{};
        if (op.kind == OpKind::collective)
            return error_at(ref, "a collective of groups of rows cannot be counted: say its transfers");
        if (groups_of(src, op.src.region) != groups_of(dst, op.dst.region))
            return error_at(ref, "it moves groups to other groups");
        return Done{};
    }

    /// How many ops become of each.
    Status number_ops() {
        for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
            std::vector<std::pair<std::int32_t, std::int32_t>> places;
            std::int32_t next = 0;
            for (std::size_t index = 0; index < plan_.ranks[rank].size(); ++index) {
                const Op& op = plan_.ranks[rank][index];
                const OpRef ref{static_cast<std::int32_t>(rank), static_cast<std::int32_t>(index)};
                SYNCOPATE_TRY(require_sense(op, ref));
                const bool ragged = plan_.tensors[at(op.src.tensor)].ragged.has_value();
                const auto many = ragged
                                      ? static_cast<std::int32_t>(
                                            rows_of(plan_.tensors[at(op.src.tensor)], op.src.region).size())
                                      : 1;
                places.emplace_back(next, next + many);
                next += many;
            }
            places_.push_back(std::move(places));
        }
        return Done{};
    }

    [[nodiscard]] bool becomes_nothing(OpRef ref) const {
        const auto& [begin, end] = places_[at(ref.rank)][at(ref.index)];
        return begin == end;
    }

    /// What of the counted plan has to have ended where all of `refs` had, rising. Of ops that become nothing handed_on_ knows.
    [[nodiscard]] Ends ends_of(const OpRefs& refs) const {
        std::set<Ends> known;
        for (const OpRef ref : refs) {
            if (becomes_nothing(ref)) known.insert(handed_on_[at(ref.rank)][at(ref.index)]);
        }
        if (known.size() == 1 && std::ranges::all_of(refs, [&](OpRef ref) { return becomes_nothing(ref); }))
            return *known.begin();
        std::vector<OpRef> all;
        for (const OpRef ref : refs) {
            const auto& [begin, end] = places_[at(ref.rank)][at(ref.index)];
            for (std::int32_t index = begin; index < end; ++index) all.push_back({ref.rank, index});
        }
        for (const Ends& ends : known) all.insert(all.end(), ends->begin(), ends->end());
        std::ranges::sort(all);
        const auto rest = std::ranges::unique(all);
        all.erase(rest.begin(), rest.end());
        return std::make_shared<const std::vector<OpRef>>(std::move(all));
    }

    /// Each op that becomes nothing hands on what it waits for: one after another, as a chain of them may be long, and those
    /// after it share what it says.
    Status find_ends() {
        std::vector<OpRef> refs;
        std::vector<std::int32_t> first;
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            first.push_back(static_cast<std::int32_t>(refs.size()));
            const std::size_t count = plan_.ranks[at(rank)].size();
            for (std::size_t index = 0; index < count; ++index)
                refs.push_back({rank, static_cast<std::int32_t>(index)});
            handed_on_.emplace_back(count);
        }
        const Followers followers(refs.size(), [&](auto&& edge) {
            for (const OpRef ref : refs) {
                for (const OpRef before : plan_.op(ref).after)
                    edge(first[at(before.rank)] + before.index, first[at(ref.rank)] + ref.index);
            }
        });
        const std::vector<std::int32_t> order = topological_order(followers);
        if (order.size() < refs.size())
            return refused("counts: ops wait for each other in a circle: `syncopate plan check` prints it");
        for (const std::int32_t op : order) {
            const OpRef ref = refs[at(op)];
            if (becomes_nothing(ref)) handed_on_[at(ref.rank)][at(ref.index)] = ends_of(plan_.op(ref).after);
        }
        return Done{};
    }

    void add(const Op& op, std::vector<Op>& list) const {
        Op made = op;
        made.after = *ends_of(op.after);
        const Tensor& src = plan_.tensors[at(op.src.tensor)];
        const Tensor& dst = plan_.tensors[at(op.dst.tensor)];
        if (!src.ragged) return list.push_back(std::move(made));
        for (const Interval& rows : rows_of(src, op.src.region)) {
            made.src.region = with_rows(src, op.src.region, rows);
            made.dst.region = with_rows(dst, op.dst.region, rows);
            list.push_back(made);
        }
    }

    const Plan& plan_;
    std::span<const std::int64_t> counts_;
    const Tensor* first_ = nullptr;
    std::vector<std::int64_t> sizes_;
    std::vector<std::int64_t> ends_{0};  ///< by group, of the rows before it
    std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> places_;  ///< by rank and op
    std::vector<std::vector<Ends>> handed_on_;  ///< likewise; null: it becomes ops
    Plan made_;
};

}  // namespace

Result<Plan> counted(const Plan& plan, std::span<const std::int64_t> counts) {
    return Counting(plan, counts).make();
}

}  // namespace syncopate::plan
