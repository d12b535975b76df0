#include "ingest/partition/mesh_json.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/names.hpp"

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

bool MeshDecoder::schema(Index node, const JsonPath& path, std::string_view expected) {
    std::string_view name;
    if (!string(node, path, name)) return false;
    return name == expected ||
           fail(node, path, fmt::format("is \"{}\"; expected \"{}\"", escaped(name), expected));
}

bool MeshDecoder::uneven(Index node, const JsonPath& path, Uneven& out) {
    std::string_view name;
    if (!string(node, path, name)) return false;
    if (name != "ceiling" && name != "balanced") {
        return fail(node, path, "is \"" + escaped(name) + "\"; expected \"ceiling\" or \"balanced\"");
    }
    out = name == "ceiling" ? Uneven::ceiling : Uneven::balanced;
    return true;
}

bool MeshDecoder::shape(Index node, const JsonPath& path, plan::Tensor& out) {
    return integers(node, path, "a list of sizes", plan::kMaxAxes, 1, plan::kMaxCoordinate, out.shape) &&
           (!out.shape.empty() || fail(node, path, "is empty; a tensor has at least one axis"));
}

bool MeshDecoder::dtype(Index node, const JsonPath& path, plan::Tensor& out) {
    std::string_view name;
    if (!string(node, path, name)) return false;
    const auto dtype = plan::dtype_from(name);
    if (!dtype) {
        std::array<std::string_view, plan::kNumDTypes> known;
        for (std::size_t i = 0; i < known.size(); ++i) known[i] = name_of(static_cast<plan::DType>(i));
        const std::string hint = did_you_mean(name, known);
        return fail(node, path,
                    "is \"" + escaped(name) + "\", not a known dtype" +
                        (hint.empty() ? "; expected one of " + join_words(known) : hint));
    }
    out.dtype = *dtype;
    return true;
}

bool MeshDecoder::mesh_axis(Index node, const JsonPath& path, const plan::Mesh& mesh, std::int32_t& out) {
    std::string_view name;
    if (!string(node, path, name)) return false;
    std::vector<std::string_view> known;
    for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
        if (mesh.axes[i].name == name) {
            out = static_cast<std::int32_t>(i);
            return true;
        }
        known.push_back(mesh.axes[i].name);
    }
    const std::string hint = did_you_mean(name, known);
    return fail(node, path,
                "is \"" + escaped(name) + "\", no axis of the mesh" +
                    (hint.empty() ? "; its axes are " + join_words(known) : hint));
}

bool MeshDecoder::mesh_axes(Index node, const JsonPath& path, const plan::Mesh& mesh,
                            std::vector<std::int32_t>& out) {
    return list(node, path, "a list of mesh axes", plan::kMaxAxes,
                [&](Index axis, const JsonPath& axis_path) {
                    std::int32_t found = 0;
                    if (!mesh_axis(axis, axis_path, mesh, found)) return false;
                    if (std::find(out.begin(), out.end(), found) != out.end()) {
                        return fail(axis, axis_path, "names the mesh axis a second time");
                    }
                    out.push_back(found);
                    return true;
                });
}

bool MeshDecoder::shard(Index node, const JsonPath& path, const plan::Mesh& mesh, std::size_t axes,
                        std::vector<std::vector<std::int32_t>>& out) {
    if (!list(node, path, "a list of mesh axes for each axis of the tensor", plan::kMaxAxes)) return false;
    if (document_.size(node) != axes) {
        return fail(node, path,
                    fmt::format("has {} entries; the tensor has {} axes", document_.size(node), axes));
    }
    std::vector<bool> used(mesh.axes.size());
    return each(node, path, [&](Index over, const JsonPath& over_path) {
        if (!mesh_axes(over, over_path, mesh, out.emplace_back())) return false;
        for (const std::int32_t axis : out.back()) {
            if (used[at(axis)]) {
                return fail(over, over_path,
                            fmt::format("cuts along mesh axis \"{}\", along which another axis is cut",
                                        mesh.axes[at(axis)].name));
            }
            used[at(axis)] = true;
        }
        return true;
    });
}

bool MeshDecoder::reduction(Index node, const JsonPath& path, plan::Reduce& out) {
    std::string_view name;
    if (!string(node, path, name)) return false;
    if (name != "sum" && name != "max") {
        return fail(node, path, "is \"" + escaped(name) + "\"; a plan can reduce by \"sum\" and \"max\"");
    }
    out = name == "sum" ? plan::Reduce::sum : plan::Reduce::max;
    return true;
}

bool MeshDecoder::new_name(Index node, const JsonPath& path, std::string_view name,
                           std::vector<std::string_view>& seen) {
    if (name.empty()) return fail(node, path, "is an empty name");
    if (seen.size() >= 4096) return fail(node, path, "is one of more than 4096");
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
        return fail(node, path, "is defined a second time");
    }
    seen.push_back(name);
    return true;
}

}  // namespace syncopate::ingest
