// Meshes in MLIR text, and the groups of ranks that lie along some of their axes.
//
//     sdy.mesh @mesh = <["a"=2, "b"=4]>
//     replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = ["b"]>
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ingest/stablehlo/mlir_text.hpp"

namespace syncopate::ingest {

struct MlirMesh {
    std::vector<std::string_view> axes;
    std::vector<std::int64_t> sizes;
    std::string problem;  ///< not empty: a form that is not taken, and why
};

using MlirMeshes = std::map<std::string, MlirMesh, std::less<>>;  ///< by name, without '@'

/// Adds the mesh of an sdy.mesh to `meshes`. `text` is all of the file.
void add_mesh(const MlirOp& op, std::string_view text, MlirMeshes& meshes);

/// The groups that `value`, "#stablehlo.replica_group_mesh_axes<…>", names. A form that is not taken is told
/// by `problem`.
[[nodiscard]] ReplicaGroups groups_along(std::string_view value, const MlirMeshes& meshes);

}  // namespace syncopate::ingest
