#include "syncopate/plan/json/parts_decoder.hpp"

#include <utility>

#include <fmt/format.h>

#include "syncopate/names.hpp"

namespace syncopate::plan {

bool PartsDecoder::mesh(Index node, const JsonPath& path, Mesh& out) {
    if (!list(node, path, "a list of [name, size] pairs", kMaxAxes)) return false;
    if (document_.size(node) == 0)
        return fail(node, path, "is empty; it needs at least one [name, size] pair");
    std::int64_t ranks = 1;
    return each(node, path, [&](Index axis_at, const JsonPath& axis_path) {
        if (!tuple(axis_at, axis_path, "[name, size]")) return false;
        const Index name_at = document_.first(axis_at);
        Mesh::Axis axis;
        std::string_view name;
        if (!string(name_at, {&axis_path, {}, 0}, name) ||
            !integer(document_.next(name_at), {&axis_path, {}, 1}, 1, kMaxRanks, axis.size)) {
            return false;
        }
        if (name.empty()) return fail(name_at, {&axis_path, {}, 0}, "is an empty name");
        for (const Mesh::Axis& other : out.axes) {
            if (other.name == name) {
                return fail(name_at, {&axis_path, {}, 0},
                            fmt::format("names \"{}\" a second time", escaped(name)));
            }
        }
        ranks *= axis.size;
        if (ranks > kMaxRanks) {
            return fail(node, path, fmt::format("has more than {} ranks", kMaxRanks));
        }
        axis.name = name;
        out.axes.push_back(std::move(axis));
        return true;
    });
}

bool PartsDecoder::bytes_fit(Index node, const JsonPath& path, const Tensor& tensor) {
    auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
    for (const std::int64_t size : tensor.shape) {
        if (__builtin_mul_overflow(bytes, size, &bytes)) {
            return fail(node, path, "is too large: the tensor's bytes do not fit 64 bits");
        }
    }
    return true;
}

}  // namespace syncopate::plan
