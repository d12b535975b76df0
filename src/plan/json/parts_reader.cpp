#include "syncopate/plan/json/parts_reader.hpp"

#include <fmt/format.h>

#include "syncopate/names.hpp"

namespace syncopate::plan {

bool PartsReader::read_mesh(JsonAt at, Mesh& out) {
    std::int64_t ranks = 1;
    const auto axis = [&](JsonAt inner) {
        Mesh::Axis made;
        const auto name = [&](JsonAt place) {
            if (!text(made.name)(place)) return false;
            if (made.name.empty()) return fail(place, "is an empty name");
            return std::ranges::find(out.axes, made.name, &Mesh::Axis::name) == out.axes.end() ||
                   fail(place, fmt::format("names \"{}\" a second time", escaped(made.name)));
        };
        if (!row(inner, "[name, size]", name, integer(made.size, 1, kMaxRanks))) return false;
        ranks *= made.size;
        out.axes.push_back(std::move(made));
        return ranks <= kMaxRanks || fail(at, fmt::format("has more than {} ranks", kMaxRanks));
    };
    return elements("a list of [name, size] pairs", kMaxAxes, axis)(at) &&
           (!out.axes.empty() || fail(at, "is empty; it needs at least one [name, size] pair"));
}

bool PartsReader::read_shape(JsonAt at, Tensor& out) {
    shape_ = at.node;
    return integers("a list of sizes", kMaxAxes, 1, kMaxCoordinate, out.shape)(at) &&
           (!out.shape.empty() || fail(at, "is empty; it needs a size for each axis"));
}

bool PartsReader::read_dtype(JsonAt at, Tensor& out) {
    if (!one_of<DType, kNumDTypes>(out.dtype, "dtype")(at)) return false;
    auto bytes = static_cast<std::int64_t>(size_of(out.dtype));
    for (const std::int64_t size : out.shape) {
        const JsonPath shape{at.path->parent, "shape"};
        if (__builtin_mul_overflow(bytes, size, &bytes))
            return fail({shape_, &shape}, "is too large: the tensor's bytes do not fit 64 bits");
    }
    return true;
}

}  // namespace syncopate::plan
