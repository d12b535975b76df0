#include "plan/templates/algorithms.hpp"

#include <cassert>
#include <utility>

namespace syncopate::plan {

std::optional<OpRef> Script::move(std::int32_t from, const Chunk& source, std::int32_t to,
                                  const Chunk& target, std::int32_t slice, Reduce reduce,
                                  std::vector<OpRef> after) const {
    const std::vector<Chunk> sources = cut.chunks(source, slice);
    const bool in_place = source == target;
    const std::vector<Chunk> others = in_place ? std::vector<Chunk>{} : cut.chunks(target, slice);
    const std::vector<Chunk>& targets = in_place ? sources : others;
    assert(sources.size() == targets.size());
    std::optional<OpRef> last;
    for (std::size_t i = 0; i < sources.size(); ++i) {
        last = builder.transfer({team.rank(from), sources[i]}, {team.rank(to), targets[i]}, reduce,
                                std::exchange(after, {}));
    }
    return last;
}

std::vector<OpRef> Script::move_each(std::int32_t from, const Chunk& source, std::int32_t to,
                                     const Chunk& target, std::int32_t slice,
                                     std::span<const OpRef> after) const {
    const std::vector<Chunk> sources = cut.chunks(source, slice);
    const bool in_place = source == target;
    const std::vector<Chunk> others = in_place ? std::vector<Chunk>{} : cut.chunks(target, slice);
    const std::vector<Chunk>& targets = in_place ? sources : others;
    assert(sources.size() == targets.size() && (after.empty() || after.size() == sources.size()));
    std::vector<OpRef> moved;
    moved.reserve(sources.size());
    for (std::size_t i = 0; i < sources.size(); ++i) {
        std::vector<OpRef> before;
        if (!after.empty()) before.push_back(after[i]);
        moved.push_back(builder.transfer({team.rank(from), sources[i]}, {team.rank(to), targets[i]},
                                         Reduce::none, std::move(before)));
    }
    return moved;
}

void Script::copy(std::int32_t member, const Chunk& source, const Chunk& target) const {
    if (source == target || is_empty(source.region)) return;
    builder.transfer({team.rank(member), source}, {team.rank(member), target});
}

void Script::for_each_pair(const std::function<void(std::int32_t from, std::int32_t to)>& visit) const {
    const std::int32_t n = team.size();
    for (std::int32_t offset = 1; offset < n; ++offset) {
        for (std::int32_t owner = 0; owner < n; ++owner) {
            const std::int32_t partner = (owner + offset) % n;
            if (builder.pull()) {
                visit(partner, owner);
            } else {
                visit(owner, partner);
            }
        }
    }
}

Slots::Slots(Builder& builder, Tensor model, std::int32_t axis, std::int64_t count)
    : builder_(builder), model_(std::move(model)), axis_(static_cast<std::size_t>(axis)), count_(count) {}

Chunk Slots::at(std::int64_t slot, const Region& piece, const Region& chunk) {
    const std::int64_t extent = model_.shape[axis_];
    if (tensor_ < 0) {
        Tensor tensor = model_;
        if (__builtin_mul_overflow(tensor.shape[axis_], count_, &tensor.shape[axis_]))
            tensor.shape[axis_] = kMaxCoordinate;  // check() says that its bytes do not fit
        tensor_ = builder_.scratch(std::move(tensor));
    }
    Chunk staged{tensor_, chunk};
    for (std::size_t axis = 0; axis < chunk.size(); ++axis) {
        const std::int64_t shift = (axis == axis_ ? slot * extent : 0) - piece[axis].begin;
        staged.region[axis].begin += shift;
        staged.region[axis].end += shift;
    }
    return staged;
}

}  // namespace syncopate::plan
