#include "plan/model/team.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

Result<std::vector<Team>> one_team(std::int32_t num_ranks, const std::vector<std::int32_t>& group) {
    std::unordered_set<std::int32_t> seen;
    for (const std::int32_t rank : group) {
        if (rank < 0 || rank >= num_ranks) {
            return usage_error(
                fmt::format("the group names rank {}; the mesh has ranks 0 to {}", rank, num_ranks - 1));
        }
        if (!seen.insert(rank).second) return usage_error(fmt::format("the group names rank {} twice", rank));
    }
    return std::vector<Team>{{group}};
}

}  // namespace

bool has_two_levels(Algorithm algorithm) {
    return algorithm == Algorithm::hierarchical || algorithm == Algorithm::double_ring;
}

Result<std::vector<Team>> teams_of(const Mesh& mesh, const std::vector<std::string>& over,
                                   const std::vector<std::int32_t>& group) {
    const std::int32_t num_ranks = mesh.num_ranks();
    if (!over.empty() && !group.empty()) {
        return usage_error(
            "groups are either the lines over a mesh axis or one list of ranks; give one of the two");
    }
    if (!group.empty()) return one_team(num_ranks, group);
    std::vector<bool> chosen(mesh.axes.size(), over.empty());
    for (const std::string& name : over) {
        const auto found = std::find_if(mesh.axes.begin(), mesh.axes.end(),
                                        [&](const Mesh::Axis& axis) { return axis.name == name; });
        if (found == mesh.axes.end()) {
            std::vector<std::string> names;
            for (const Mesh::Axis& axis : mesh.axes) names.push_back(axis.name);
            return usage_error(
                fmt::format("the mesh has no axis \"{}\"; it has {}", name, fmt::join(names, ", ")));
        }
        chosen[at(found - mesh.axes.begin())] = true;
    }
    // Ranks with the same coordinates on the other axes are one team; rising ranks are row-major positions.
    std::map<std::int32_t, Team> teams;
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
        std::int32_t fixed = 0;
        std::int32_t stride = num_ranks;
        for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
            stride /= mesh.axes[axis].size;
            if (!chosen[axis]) fixed += rank / stride % mesh.axes[axis].size * stride;
        }
        teams[fixed].ranks.push_back(rank);
    }
    std::vector<Team> list;
    for (auto& [fixed, team] : teams) list.push_back(std::move(team));
    return list;
}

Status set_levels(std::vector<Team>& teams, const Mesh& mesh, std::int32_t inner) {
    const std::int32_t size = teams.front().size();
    if (inner < 0) return usage_error(fmt::format("inner is {}; expected at least 1", inner));
    if (inner == 0) {
        if (mesh.axes.size() < 2 || size % mesh.axes.back().size != 0) {
            return usage_error(
                "two levels need a mesh of at least two axes, such as node=2,gpu=4, whose last one the group "
                "runs over, or the size of the inner level (inner)");
        }
        inner = mesh.axes.back().size;
        for (const Team& team : teams) {
            for (std::int32_t at = 0; at < size; ++at) {
                if (team.rank(at) / inner == team.rank(at / inner * inner) / inner) continue;
                return usage_error(
                    fmt::format("positions {} and {} of a group are one inner level of {} ranks, but ranks "
                                "{} and {} differ "
                                "in other axes than \"{}\"; give the size of the inner level (inner)",
                                at / inner * inner, at, inner, team.rank(at / inner * inner), team.rank(at),
                                mesh.axes.back().name));
            }
        }
    }
    if (size % inner != 0) {
        return usage_error(
            fmt::format("inner is {}, which does not divide the {} ranks of a group", inner, size));
    }
    for (Team& team : teams) team.inner = inner;
    return Done{};
}

}  // namespace syncopate::plan
