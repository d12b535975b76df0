// What the JSON schemas of partition IR and loop IR share: a mesh, tensors' shapes and dtypes, and mesh axes
// by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "syncopate/ingest/partition/partition_ir.hpp"
#include "syncopate/plan/json/parts_decoder.hpp"

namespace syncopate::ingest {

/// What was made of a text in one of these schemas; an error is about its file.
[[nodiscard]] Result<Import> imported(Format format, Result<plan::Plan> plan, const std::string& file_name);

/// Methods return false once an error is recorded, as those of the base do.
class MeshDecoder : protected plan::PartsDecoder {
public:
    using PartsDecoder::PartsDecoder;

protected:
    bool schema(Index node, const JsonPath& path, std::string_view expected);
    bool uneven(Index node, const JsonPath& path, Uneven& out);
    bool shape(Index node, const JsonPath& path, plan::Tensor& out);
    bool dtype(Index node, const JsonPath& path, plan::Tensor& out);
    /// The name of one mesh axis.
    bool mesh_axis(Index node, const JsonPath& path, const plan::Mesh& mesh, std::int32_t& out);
    bool mesh_axes(Index node, const JsonPath& path, const plan::Mesh& mesh, std::vector<std::int32_t>& out);
    /// Per tensor axis a list of mesh axes; no mesh axis may occur twice, nor be in `used` already.
    bool shard(Index node, const JsonPath& path, const plan::Mesh& mesh, std::size_t axes,
               std::vector<std::vector<std::int32_t>>& out);
    bool reduction(Index node, const JsonPath& path, plan::Reduce& out);
    /// Calls decode(key, value, path of the value) for each member of an object; no key may be empty or come
    /// twice.
    template <typename Decode>
    bool members(Index node, const JsonPath& path, Decode decode);

    bool new_name(Index node, const JsonPath& path, std::string_view name,
                  std::vector<std::string_view>& seen);
};

template <typename Decode>
bool MeshDecoder::members(Index node, const JsonPath& path, Decode decode) {
    if (!is(node, path, Type::object, "an object")) return false;
    std::vector<std::string_view> seen;
    return JsonDecoder::members(node, path, [&](Index key, Index value, const JsonPath& inner) {
        return new_name(key, inner, inner.key, seen) && decode(inner.key, value, inner);
    });
}

}  // namespace syncopate::ingest
