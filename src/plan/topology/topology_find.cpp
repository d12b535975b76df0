#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/topology/topology_shipped.hpp"
#include "syncopate/io.hpp"
#include "syncopate/names.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/try.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::plan {
namespace {

/// "4x4" as {4, 4}: sizes of at least 1 whose product is at most kMaxRanks.
std::optional<std::vector<std::int32_t>> sizes_of(std::string_view text) {
    std::vector<std::int32_t> sizes;
    std::int64_t count = 1;
    for (;;) {
        const std::size_t at = text.find('x');
        const std::int32_t size = whole_number<std::int32_t>(text.substr(0, at)).value_or(0);
        if (size < 1) return std::nullopt;
        count *= size;
        if (count > kMaxRanks || sizes.size() == static_cast<std::size_t>(kMaxAxes)) return std::nullopt;
        sizes.push_back(size);
        if (at == text.npos) return sizes;
        text.remove_prefix(at + 1);
    }
}

std::optional<Topology> generated(std::string_view kind, const std::vector<std::int32_t>& sizes) {
    if (kind == "torus") return torus_topology(sizes);
    if (kind == "mesh") return mesh_topology(sizes);
    if (sizes.size() != 1) return std::nullopt;
    if (kind == "ring") return ring_topology(sizes[0]);
    if (kind == "switch") return switch_topology(sizes[0]);
    return std::nullopt;
}

}  // namespace

std::vector<std::string> topology_names() {
    std::vector<std::string> names;
    for (const ShippedTopology& shipped : shipped_topologies()) names.emplace_back(shipped.name);
    std::sort(names.begin(), names.end());
    return names;
}

Topology default_topology(std::int32_t ranks) {
    const Result<Topology> node = find_topology("h200x8");
    if (node && ranks <= node->num_devices()) return *node;
    const Result<Topology> nodes = find_topology("h200x8x2");
    return nodes && ranks <= nodes->num_devices() ? *nodes : switch_topology(ranks);
}

Result<Topology> find_topology(const std::string& name) {
    for (const ShippedTopology& shipped : shipped_topologies()) {
        if (shipped.name == name) return topology_from_json(shipped.text, fmt::format("{}.json", name));
    }
    const std::size_t colon = name.find(':');
    const std::string kind = name.substr(0, colon);
    if (colon != name.npos && (kind == "ring" || kind == "torus" || kind == "mesh" || kind == "switch")) {
        const auto sizes = sizes_of(std::string_view(name).substr(colon + 1));
        std::optional<Topology> made = sizes ? generated(kind, *sizes) : std::nullopt;
        if (made) return *std::move(made);
        return usage_error(
            fmt::format("topology \"{}\" is not ring:N, switch:N, torus:AxB… or mesh:AxB… with 1 to {} "
                        "devices in all",
                        name, kMaxRanks));
    }
    if (name == "-" || name.find('/') != name.npos || name.ends_with(".json")) {
        SYNCOPATE_TAKE(const std::string text, read_file(name));
        return topology_from_json(text, name);
    }
    const std::vector<std::string> names = topology_names();
    const std::string hint = did_you_mean(name, names);
    return usage_error(
        fmt::format("there is no topology \"{}\"{}", name,
                    hint.empty() ? fmt::format("; there are {}, ring:N, switch:N, torus:AxB, mesh:AxB, and "
                                               "files (a name with / or .json)",
                                               fmt::join(names, ", "))
                                 : hint));
}

}  // namespace syncopate::plan
