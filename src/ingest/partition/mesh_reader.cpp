#include "ingest/partition/mesh_reader.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace syncopate::ingest {

Result<Import> imported(Format format, Result<plan::Plan> plan, const std::string& file_name) {
    if (!plan) {
        Error error = plan.error();
        error.location.file = file_name;
        return error;
    }
    Import made;
    made.format = format;
    made.plan = *std::move(plan);
    return made;
}

bool MeshReader::read_mesh_axis(JsonAt at, std::int32_t& out) {
    std::string_view name;
    if (!string(at.node, *at.path, name)) return false;
    std::vector<std::string_view> known;
    for (const plan::Mesh::Axis& axis : mesh_->axes) known.push_back(axis.name);
    out = static_cast<std::int32_t>(std::ranges::find(known, name) - known.begin());
    if (out < static_cast<std::int32_t>(known.size())) return true;
    const std::string hint = did_you_mean(name, known);
    return fail(at, "is \"" + escaped(name) + "\", no axis of the mesh" +
                        (hint.empty() ? "; its axes are " + join_words(known) : hint));
}

bool MeshReader::read_mesh_axes(JsonAt at, std::vector<std::int32_t>& out) {
    return elements("a list of mesh axes", plan::kMaxAxes, [&](JsonAt axis) {
        std::int32_t found = 0;
        if (!read_mesh_axis(axis, found)) return false;
        if (std::ranges::find(out, found) != out.end())
            return fail(axis, "names the mesh axis a second time");
        out.push_back(found);
        return true;
    })(at);
}

bool MeshReader::read_shard(JsonAt at, std::size_t axes, std::vector<std::vector<std::int32_t>>& out) {
    std::vector<bool> used(mesh_->axes.size());
    const auto over = [&](JsonAt inner) {
        if (!read_mesh_axes(inner, out.emplace_back())) return false;
        for (const std::int32_t axis : out.back()) {
            if (used[static_cast<std::size_t>(axis)])
                return fail(inner, fmt::format("cuts along mesh axis \"{}\", along which another axis is cut",
                                               mesh_->axes[static_cast<std::size_t>(axis)].name));
            used[static_cast<std::size_t>(axis)] = true;
        }
        return true;
    };
    return elements("a list of mesh axes for each axis of the tensor", plan::kMaxAxes, over)(at) &&
           (out.size() == axes ||
            fail(at, fmt::format("has {} entries; the tensor has {} axes", out.size(), axes)));
}

bool MeshReader::is_new(std::string_view name, JsonAt at, std::vector<std::string_view>& seen) {
    if (name.empty()) return fail(key_of(at), "is an empty name");
    if (seen.size() >= 4096) return fail(key_of(at), "is one of more than 4096");
    if (std::ranges::find(seen, name) != seen.end()) return fail(key_of(at), "is defined a second time");
    seen.push_back(name);
    return true;
}

}  // namespace syncopate::ingest
