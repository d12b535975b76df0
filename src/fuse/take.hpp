// What is left of some boxes.
#pragma once

#include <utility>
#include <vector>

#include "syncopate/plan/region.hpp"

namespace syncopate::fuse {

/// Takes `region` out of the disjoint boxes `from`.
inline void take(std::vector<plan::Region>& from, const plan::Region& region) {
    std::vector<plan::Region> rest;
    for (plan::Region& part : from) {
        if (!overlaps(part, region)) {
            rest.push_back(std::move(part));
            continue;
        }
        for (plan::Region& outside : subtract(part, region)) rest.push_back(std::move(outside));
    }
    from = std::move(rest);
}

}  // namespace syncopate::fuse
