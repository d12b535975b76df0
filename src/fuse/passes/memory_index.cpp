#include "fuse/passes/memory_index.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace syncopate::fuse {
namespace {

/// The axis along which the regions begin at the most places; the first of equals.
std::size_t best_axis(std::span<const MemoryIndex::Entry> entries) {
    std::size_t best = 0, most = 0;
    std::vector<std::int64_t> begins(entries.size());
    for (std::size_t axis = 0; axis < entries.front().region->size(); ++axis) {
        std::ranges::transform(entries, begins.begin(),
                               [&](const MemoryIndex::Entry& entry) { return (*entry.region)[axis].begin; });
        std::ranges::sort(begins);
        const std::size_t places = begins.size() - std::ranges::unique(begins).size();
        if (places > most) {
            best = axis;
            most = places;
        }
    }
    return best;
}

}  // namespace

MemoryIndex::MemoryIndex(std::vector<Entry> entries) : entries_(std::move(entries)) {
    std::ranges::stable_sort(entries_, {}, &Entry::tensor);
    furthest_end_.reserve(entries_.size());
    for (std::size_t begin = 0; begin < entries_.size();) {
        Group group{entries_[begin].tensor, begin, begin};
        while (group.end < entries_.size() && entries_[group.end].tensor == group.tensor) ++group.end;
        const std::span<Entry> of = std::span(entries_).subspan(begin, group.end - begin);
        group.axis = best_axis(of);
        std::ranges::stable_sort(of, {},
                                 [&](const Entry& entry) { return along(*entry.region, group.axis).begin; });
        for (const Entry& entry : of) {
            const std::int64_t end = along(*entry.region, group.axis).end;
            furthest_end_.push_back(&entry == &of.front() ? end : std::max(furthest_end_.back(), end));
        }
        groups_.push_back(group);
        begin = group.end;
    }
}

const MemoryIndex::Group* MemoryIndex::find(std::int32_t tensor) const {
    const auto found = std::ranges::lower_bound(groups_, tensor, {}, &Group::tensor);
    return found == groups_.end() || found->tensor != tensor ? nullptr : &*found;
}

std::size_t MemoryIndex::first_reaching(const Group& group, std::int64_t begin) const {
    const auto first = furthest_end_.begin();
    const auto found = std::upper_bound(first + static_cast<std::ptrdiff_t>(group.begin),
                                        first + static_cast<std::ptrdiff_t>(group.end), begin);
    return static_cast<std::size_t>(found - first);
}

}  // namespace syncopate::fuse
