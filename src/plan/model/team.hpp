// Who takes part in a collective: ranks by their position, and how positions fall into two levels.
#pragma once

#include <cstdint>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// A rank's position is its place in the list. On two levels position = outer × inner + place in the inner
/// level.
struct Team {
    std::vector<std::int32_t> ranks;
    std::int32_t inner = 1;  ///< divides the size; 1 where the algorithm knows no levels

    [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(ranks.size()); }
    [[nodiscard]] std::int32_t rank(std::int32_t position) const { return ranks[at(position)]; }
    [[nodiscard]] std::int32_t outer() const { return size() / inner; }
    [[nodiscard]] std::int32_t position(std::int32_t at_outer, std::int32_t at_inner) const {
        return at_outer * inner + at_inner;
    }
};

/// Algorithms that tell the levels apart.
[[nodiscard]] bool has_two_levels(Algorithm algorithm);

/// The groups that `over` or `group` name, all of one size; each without levels. Fails (ErrorClass::usage)
/// saying what is wrong with them.
[[nodiscard]] Result<std::vector<Team>> teams_of(const Mesh& mesh, const std::vector<std::string>& over,
                                                 const std::vector<std::int32_t>& group);

/// Gives each team its levels: of `inner` consecutive positions, or with 0 as the mesh's last axis has it.
/// Fails (ErrorClass::usage) if the teams do not fall into such levels.
Status set_levels(std::vector<Team>& teams, const Mesh& mesh, std::int32_t inner);

}  // namespace syncopate::plan
