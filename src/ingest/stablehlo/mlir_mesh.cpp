#include "ingest/stablehlo/mlir_mesh.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "ingest/hlo/replica_groups.hpp"
#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

/// A name, as in "a"; empty if there is none.
std::string_view quoted(TextCursor& at) {
    const std::size_t begin = (at.skip_blanks(), at.offset());
    if (at.peek() != '"' || !at.skip_string()) return {};
    const std::string_view text = at.since(begin);
    return text.substr(1, text.size() - 2);
}

/// <["a"=2, "b"=4]>, the cursor before '<'.
MlirMesh mesh_at(TextCursor& at) {
    MlirMesh mesh;
    const auto unread = [&] {
        mesh.problem = "a mesh whose axes cannot be read";
        return mesh;
    };
    if (!at.take("<") || !at.take("[")) return unread();
    std::int64_t devices = 1;
    while (!at.take("]")) {
        const std::string_view axis = quoted(at);
        const auto size = at.take("=") ? at.integer() : std::nullopt;
        if (axis.empty() || !size || *size < 1 || mesh.axes.size() >= kMaxShapeAxes ||
            __builtin_mul_overflow(devices, *size, &devices) ||
            devices > static_cast<std::int64_t>(kMaxParticipants))
            return unread();
        mesh.axes.push_back(axis);
        mesh.sizes.push_back(*size);
        at.take(",");
    }
    if (at.take(",")) mesh.problem = "a mesh with device_ids, whose order is not taken";
    return mesh;
}

}  // namespace

void add_mesh(const MlirOp& op, std::string_view text, MlirMeshes& meshes) {
    static const std::string kNoFile;
    const MlirAttribute* const generic = op.find("mesh");
    const std::size_t begin = generic != nullptr ? generic->offset : op.offset;
    const std::size_t open = text.find('<', begin);
    if (open == text.npos) return;
    TextCursor at(text, kNoFile);
    at.seek(open);
    const MlirAttribute* const said = op.find("sym_name");
    std::string_view name = said != nullptr ? said->value : op.symbol;
    while (!name.empty() && (name.front() == '"' || name.front() == '@')) name.remove_prefix(1);
    while (!name.empty() && name.back() == '"') name.remove_suffix(1);
    meshes.insert_or_assign(std::string(name), mesh_at(at));
}

ReplicaGroups groups_along(std::string_view value, const MlirMeshes& meshes) {
    static const std::string kNoFile;
    ReplicaGroups out;
    const auto problem = [&](std::string what) {
        out.problem = std::move(what);
        return out;
    };
    TextCursor at(value, kNoFile);
    const bool opened = at.take("#stablehlo.replica_group_mesh_axes") && at.take("<") && at.take("mesh") &&
                        at.take("=") && at.take("@");
    const std::string_view name = opened ? at.name() : std::string_view{};
    if (name.empty() || !at.take(",") || !at.take("axes") || !at.take("=") || !at.take("["))
        return problem("mesh axes whose form is not taken");
    const auto found = meshes.find(name);
    if (found == meshes.end())
        return problem(fmt::format("a mesh @{} that the text does not define", escaped(name)));
    const MlirMesh& mesh = found->second;
    if (!mesh.problem.empty()) return problem(mesh.problem);
    std::vector<std::int64_t> over;
    while (!at.take("]")) {
        const std::string_view axis = quoted(at);
        const auto known = std::find(mesh.axes.begin(), mesh.axes.end(), axis);
        if (axis.empty()) return problem("a part of a mesh axis, which is not taken");
        if (known == mesh.axes.end())
            return problem(fmt::format("an axis \"{}\" that the mesh does not have", escaped(axis)));
        const auto index = static_cast<std::int64_t>(known - mesh.axes.begin());
        if (std::find(over.begin(), over.end(), index) != over.end())
            return problem("a mesh axis named twice");
        over.push_back(index);
        if (!at.take(",") && at.peek() != ']') return problem("a part of a mesh axis, which is not taken");
    }
    out.groups = groups_over(mesh.sizes, over);
    return out;
}

}  // namespace syncopate::ingest
