// What the JSON schemas of partition IR and loop IR share: tensors, and mesh axes by name.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/ingest/partition/partition_ir.hpp"
#include "syncopate/names.hpp"
#include "syncopate/plan/json/parts_reader.hpp"

namespace syncopate::ingest {

/// What was made of a text in one of these schemas; an error is about its file.
[[nodiscard]] Result<Import> imported(Format format, Result<plan::Plan> plan, const std::string& file_name);

class MeshReader : public plan::PartsReader {
public:
    using PartsReader::PartsReader;

protected:
    /// Reads the mesh first.
    auto mesh(plan::Mesh& out) {
        mesh_ = &out;
        return PartsReader::mesh(out);
    }
    /// A mesh axis by its name.
    auto mesh_axis(std::int32_t& out) {
        return [this, &out](JsonAt at) { return read_mesh_axis(at, out); };
    }
    auto mesh_axes(std::vector<std::int32_t>& out) {
        return [this, &out](JsonAt at) { return read_mesh_axes(at, out); };
    }
    /// For each axis of `tensor`, which has been read, a list of mesh axes; no mesh axis may occur twice.
    auto shard(const plan::Tensor& tensor, std::vector<std::vector<std::int32_t>>& out) {
        return [this, &tensor, &out](JsonAt at) { return read_shard(at, tensor.shape.size(), out); };
    }
    auto uneven(Uneven& out) { return name(out, "way to cut", kUneven); }
    auto reduction(plan::Reduce& out) {
        return [this, &out](JsonAt at) {
            std::string word;
            if (!text(word)(at)) return false;
            out = word == "sum" ? plan::Reduce::sum : plan::Reduce::max;
            return word == name_of(out) ||
                   fail(at, "is \"" + escaped(word) + "\"; a plan can reduce by \"sum\" and \"max\"");
        };
    }
    /// Each member of an object by add(name, where it is); no name may be empty or come twice.
    template <typename Add>
    auto named(Add add) {
        return [this, add](JsonAt at) {
            std::vector<std::string_view> seen;
            return entries(at, [&](std::string_view name, JsonAt inner) {
                return is_new(name, inner, seen) && add(name, inner);
            });
        };
    }

private:
    static constexpr std::array<std::string_view, 2> kUneven{"ceiling", "balanced"};

    bool read_mesh_axis(JsonAt at, std::int32_t& out);
    bool read_mesh_axes(JsonAt at, std::vector<std::int32_t>& out);
    bool read_shard(JsonAt at, std::size_t axes, std::vector<std::vector<std::int32_t>>& out);
    bool is_new(std::string_view name, JsonAt at, std::vector<std::string_view>& seen);

    const plan::Mesh* mesh_ = nullptr;
};

}  // namespace syncopate::ingest
