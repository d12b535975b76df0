#include "sync/overlaps.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::sync {
namespace {

using Boxes = std::vector<plan::Region>;

struct BoxesLess {
    bool operator()(const Boxes* a, const Boxes* b) const {
        return std::ranges::lexicographical_compare(
            *a, *b, [](const plan::Region& one, const plan::Region& other) {
                return std::ranges::lexicographical_compare(
                    one, other, [](const plan::Interval& i, const plan::Interval& j) {
                        return i.begin != j.begin ? i.begin < j.begin : i.end < j.end;
                    });
            });
    }
};

/// Blocks with equal boxes, one class each, in the order of their first blocks.
struct Classes {
    explicit Classes(const BlockBoxes& boxes) {
        std::map<const Boxes*, std::int32_t, BoxesLess> numbers;
        for (const Boxes& of : boxes) {
            const auto [at, added] = numbers.emplace(&of, static_cast<std::int32_t>(representatives.size()));
            if (added) representatives.push_back(&of);
            class_of.push_back(at->second);
        }
    }
    std::vector<const Boxes*> representatives;
    std::vector<std::int32_t> class_of;
};

/// One box of a class.
struct Entry {
    std::int64_t begin;  ///< along the chosen axis
    const plan::Region* box;
    std::int32_t of;
};

/// Boxes sorted along the axis on which most of them begin at different places.
class Sorted {
public:
    explicit Sorted(const Classes& classes) {
        std::size_t axes = 0;
        for (const Boxes* boxes : classes.representatives) {
            if (!boxes->empty()) axes = boxes->front().size();
        }
        std::size_t most = 0;
        for (std::size_t axis = 0; axis < axes; ++axis) {
            std::set<std::int64_t> begins;
            for (const Boxes* boxes : classes.representatives) {
                for (const plan::Region& box : *boxes) begins.insert(box[axis].begin);
            }
            if (begins.size() > most) most = begins.size(), axis_ = axis;
        }
        for (std::size_t i = 0; i < classes.representatives.size(); ++i) {
            for (const plan::Region& box : *classes.representatives[i]) {
                const std::int64_t begin = axes == 0 ? 0 : box[axis_].begin;
                if (axes != 0) longest_ = std::max(longest_, box[axis_].size());
                entries_.push_back({begin, &box, static_cast<std::int32_t>(i)});
            }
        }
        std::ranges::stable_sort(entries_, {}, &Entry::begin);
    }

    /// Visits the classes that share an element with `box`, each once for each of its boxes that does.
    template <typename Visit>
    void find(const plan::Region& box, Visit visit) const {
        if (entries_.empty()) return;
        const bool scalar = box.empty();
        const std::int64_t first = scalar ? 0 : box[axis_].begin - longest_;
        auto at = std::ranges::lower_bound(entries_, first, {}, &Entry::begin);
        for (; at != entries_.end() && (scalar || at->begin < box[axis_].end); ++at) {
            if (plan::overlaps(*at->box, box)) visit(static_cast<std::size_t>(at->of));
        }
    }

private:
    std::size_t axis_ = 0;
    std::int64_t longest_ = 0;
    std::vector<Entry> entries_;
};

}  // namespace

Overlaps overlaps(const BlockBoxes& mine, const BlockBoxes& others, std::int64_t most) {
    Classes own(mine);
    const Classes other(others);
    std::vector<std::vector<std::int32_t>> blocks_of(other.representatives.size());
    for (std::size_t block = 0; block < others.size(); ++block) {
        blocks_of[at(other.class_of[block])].push_back(static_cast<std::int32_t>(block));
    }
    const Sorted sorted(other);
    Overlaps made{.class_of = std::move(own.class_of), .blocks = {}};
    made.blocks.resize(own.representatives.size());
    std::vector<std::size_t> found_for(other.representatives.size(),
                                       made.blocks.size());  // a class of `mine`
    for (std::size_t i = 0; i < made.blocks.size(); ++i) {
        std::vector<std::int32_t>& blocks = made.blocks[i];
        for (const plan::Region& box : *own.representatives[i]) {
            sorted.find(box, [&](std::size_t found) {
                if (std::exchange(found_for[found], i) != i)
                    blocks.insert(blocks.end(), blocks_of[found].begin(), blocks_of[found].end());
            });
        }
        std::ranges::sort(blocks);
        made.listed += static_cast<std::int64_t>(blocks.size());
        made.cut_off = made.listed > most;
        if (made.cut_off) break;
    }
    return made;
}

}  // namespace syncopate::sync
