// Accesses of a line's programs that move alike, put together before each program gets its own. A loop that
// is run round by round makes as many accesses as it has rounds; with many programs they are more than memory
// holds:
//
//      rounds      x[0:4, 0:8]   x[4:8, 0:8]   x[8:12, 0:8]     each by 8 along axis 1 from program to
//      program together    x[0:12, 0:8]                                 by 8 along axis 1
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::size_t kFew = 16;          // accesses of one tensor, which are as quick one by one
constexpr std::size_t kMostAlike = 1024;  // boxes that are put together

/// Joins boxes that agree on all axes but one, where they touch or overlap: the same elements in fewer boxes.
void join_boxes(std::vector<Box>& boxes, std::size_t rank) {
    for (std::size_t along = rank; along-- > 0;) {
        const auto order = [&](const Box& a, const Box& b) {
            for (std::size_t d = 0; d < rank; ++d) {
                if (d == along || a[d] == b[d]) continue;
                return std::pair(a[d].begin, a[d].end) < std::pair(b[d].begin, b[d].end);
            }
            return a[along].begin < b[along].begin;
        };
        std::sort(boxes.begin(), boxes.end(), order);
        std::size_t kept = 0;
        for (std::size_t i = 1; i < boxes.size(); ++i) {
            Box& last = boxes[kept];
            bool joins = boxes[i][along].begin <= last[along].end;
            for (std::size_t d = 0; d < rank && joins; ++d) joins = d == along || boxes[i][d] == last[d];
            if (joins)
                last[along].end = std::max(last[along].end, boxes[i][along].end);
            else
                boxes[++kept] = boxes[i];
        }
        if (!boxes.empty()) boxes.resize(kept + 1);
    }
}

}  // namespace

/// `all`, sorted by parameter, with fewer accesses that touch the same in each program of the line.
std::vector<Touch> Evaluator::together(std::vector<Touch> all) {
    if (all.size() <= kFew) return all;
    using Instance = MovingAccess::Instance;
    // One that is sure, and moved from program to program as a whole: all but the last are the first one
    // moved, so the last one is, too (work_out_between).
    const auto fits = [&](const Touch& touch) {
        if (!touch.exact || !touch.solid || touch.shadow || touch.leaves || touch.along >= 0) return false;
        if (!touch.moves) return true;
        const MovingAccess& access = moving_[touch.begin];
        const Instance& first = access.instances.front();
        const std::size_t count = access.instances.size();
        if (!access.solid || count < 3 || first.along >= 0 || !access.instances.back().exact) return false;
        return std::all_of(access.instances.begin(), access.instances.end() - 1, [&](const Instance& one) {
            return one.exact && !one.leaves && one.begin == first.begin && one.end == first.end;
        });
    };
    const auto alike = [&](const Touch& a, const Touch& b) {
        if (a.moves != b.moves || a.adds != b.adds || a.walk != b.walk) return false;
        if (!a.moves) return true;
        const auto &x = moving_[a.begin].instances, &y = moving_[b.begin].instances;
        if (x[1].along != y[1].along || x[1].by != y[1].by) return false;
        return std::ranges::equal(x, y, {}, &Instance::walk, &Instance::walk);
    };
    std::vector<Touch> made;
    for (std::size_t first = 0, end = 0; first < all.size(); first = end) {
        while (end < all.size() && all[end].param == all[first].param && all[end].write == all[first].write)
            ++end;
        if (all[first].param < 0 || end - first <= kFew) {  // of no tensor: how often a loop runs
            made.insert(made.end(), all.begin() + static_cast<std::ptrdiff_t>(first),
                        all.begin() + static_cast<std::ptrdiff_t>(end));
            continue;
        }
        const std::size_t rank = tensors[at(all[first].param)].shape.size();
        for (std::size_t i = first, next = 0; i < end; i = next) {
            next = i + 1;
            if (!fits(all[i])) {
                made.push_back(all[i]);
                continue;
            }
            std::vector<Box> boxes;
            const auto add = [&](const Touch& touch) {
                const std::uint32_t from =
                    touch.moves ? moving_[touch.begin].instances.front().begin : touch.begin;
                const std::uint32_t to = touch.moves ? moving_[touch.begin].instances.front().end : touch.end;
                boxes.insert(boxes.end(), found.boxes.begin() + from, found.boxes.begin() + to);
            };
            add(all[i]);
            while (next < end && boxes.size() < kMostAlike && fits(all[next]) && alike(all[i], all[next]))
                add(all[next++]);
            join_boxes(boxes, rank);
            Touch one = all[i];
            if (next == i + 1) {
                made.push_back(one);
                continue;
            }
            const auto begin = static_cast<std::uint32_t>(found.boxes.size());
            found.boxes.insert(found.boxes.end(), boxes.begin(), boxes.end());
            const auto behind = static_cast<std::uint32_t>(found.boxes.size());
            if (one.moves) {  // an access of its own: what was evaluated before may be used again
                MovingAccess& access = moving_.emplace_back();
                access.param = one.param;
                access.complete = true;
                access.instances = moving_[all[i].begin].instances;
                for (Instance& instance : access.instances) instance.begin = begin, instance.end = behind;
                const auto last = static_cast<std::int64_t>(access.instances.size()) - 1;
                access.instances.back().along = access.instances[1].along;
                access.instances.back().by = access.instances[1].by * last;
                instances_ += static_cast<std::int64_t>(access.instances.size());
                one.begin = static_cast<std::uint32_t>(moving_.size() - 1);
            } else {
                one.begin = begin, one.end = behind;
            }
            made.push_back(one);
        }
    }
    return made;
}

}  // namespace syncopate::kernel::triton
