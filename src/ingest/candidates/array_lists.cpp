#include "ingest/candidates/array_lists.hpp"

#include <algorithm>

namespace syncopate::ingest {

std::optional<std::int64_t> element_of(const Instruction& by, std::size_t k) {
    return by.operands.size() > 1 ? std::optional(static_cast<std::int64_t>(k)) : std::nullopt;
}

namespace {

/// The computation, and those around it as far as each is called from one place.
std::vector<std::int32_t> around(const Dataflow& flow, std::int32_t computation) {
    constexpr std::size_t kMost = 64;
    std::vector<std::int32_t> all{computation};
    while (all.size() < kMost && flow.callers(all.back()).size() == 1)
        all.push_back(flow.callers(all.back())[0].computation);
    return all;
}

/// Whether what two computations do belongs together each time: neither is called from several places in
/// what is common to both.
bool run_together(const Dataflow& flow, std::int32_t one, std::int32_t other) {
    const std::vector<std::int32_t> ones = around(flow, one), others = around(flow, other);
    return std::ranges::find_first_of(ones, others) != ones.end();
}

}  // namespace

std::optional<Dataflow::Meeting> joined_list(const Dataflow& flow, Site site) {
    const Instruction& by = flow.at(site);
    std::optional<Dataflow::Meeting> whole;
    for (std::size_t k = 0; k < by.operands.size(); ++k) {
        const auto readers = flow.readers(site, element_of(by, k), -1, 1);
        const auto found = std::ranges::find_if(readers, [&](const Dataflow::Meeting& met) {
            const Instruction& concatenate = flow.at(met.site);
            return concatenate.opcode == "concatenate" && met.operand == k && met.through.empty() &&
                   concatenate.operands.size() == by.operands.size() && concatenate.dimensions.size() == 1 &&
                   (!whole || whole->site == met.site);
        });
        if (found == readers.end()) return std::nullopt;
        whole = *found;
        if (!run_together(flow, site.computation, whole->site.computation)) return std::nullopt;
        whole->axis = flow.at(found->site).dimensions[0];
    }
    return whole;
}

namespace {

/// The axis along which a slice is part number `k` of an array of `parts` equal ones; -1: it is none.
std::int64_t axis_of_part(const Instruction& slice, const Shape& all, std::int64_t k, std::int64_t parts) {
    std::int64_t axis = -1;
    for (std::size_t d = 0; d < all.dims.size(); ++d) {
        if (d >= slice.shape.dims.size() || d >= slice.sizes.size()) return -1;
        const std::int64_t size = slice.shape.dims[d];  // `sizes` are the starts, if it has no strides
        if (size == all.dims[d]) continue;
        if (axis >= 0 || size < 1 || all.dims[d] != size * parts || slice.sizes[d] != size * k) return -1;
        axis = static_cast<std::int64_t>(d);
    }
    return axis;
}

}  // namespace

std::optional<Dataflow::Meeting> cut_list(const Dataflow& flow, Site site, std::int64_t parts) {
    const Instruction& by = flow.at(site);
    if (parts < 2 || by.operands.size() != static_cast<std::size_t>(parts)) return std::nullopt;
    std::optional<Dataflow::Meeting> whole;
    for (std::size_t k = 0; k < by.operands.size(); ++k) {
        const auto slice = flow.maker(site, k, -1, 1);
        if (!slice || !slice->through.empty() || flow.at(slice->site).opcode != "slice") return std::nullopt;
        const Instruction& part = flow.at(slice->site);
        if (part.operands.size() != 1) return std::nullopt;
        const Shape& all = flow.at({slice->site.computation, part.operands[0]}).shape;
        const std::int64_t axis = axis_of_part(part, all, static_cast<std::int64_t>(k), parts);
        if (axis < 0) return std::nullopt;
        const auto array = flow.maker(slice->site, 0, axis, parts);
        if (!array || (whole && (array->site != whole->site || array->axis != whole->axis ||
                                 array->through != whole->through)))
            return std::nullopt;
        whole = array;
    }
    return whole;
}

}  // namespace syncopate::ingest
