#include "ingest/hlo/replica_groups.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

using Sizes = std::vector<std::int64_t>;
constexpr auto kMost = static_cast<std::int64_t>(kMaxParticipants);

/// "[2,4]" or "(1,0)", the opening bracket already taken.
bool numbers(TextCursor& at, std::string_view close, Sizes& out) {
    do {
        const auto value = at.integer();
        if (!value || *value < 0 || *value > kMost) {
            return at.fail(fmt::format("expected a number from 0 to {}, found {}", kMost, at.found()));
        }
        if (out.size() >= kMaxShapeAxes) return at.fail("too many numbers");
        out.push_back(*value);
    } while (at.take(","));
    return at.expect(close, "after the numbers of replica_groups");
}

/// The product, or -1 if it is 0 or more than a collective may have participants.
std::int64_t product(const Sizes& sizes) {
    std::int64_t total = 1;
    for (const std::int64_t size : sizes) {
        if (size < 1 || total * size > kMost) return -1;
        total *= size;
    }
    return total;
}

bool is_permutation_of_axes(Sizes axes, std::size_t count) {
    std::sort(axes.begin(), axes.end());
    for (std::size_t i = 0; i < axes.size(); ++i) {
        if (axes[i] != static_cast<std::int64_t>(i)) return false;
    }
    return axes.size() == count;
}

bool lists(TextCursor& at, ReplicaGroups& out) {
    if (at.take("}")) return true;
    std::size_t total = 0;
    do {
        if (!at.expect("{", "to begin a replica group")) return false;
        std::vector<std::int32_t>& group = out.groups.emplace_back();
        if (at.take("}")) {
            out.groups.pop_back();  // {{}} says what {} says
            continue;
        }
        do {
            const std::size_t start = (at.skip_blanks(), at.offset());
            const auto id = at.integer();
            if (!id) return at.fail("expected a replica's number, found " + at.found());
            if (*id < 0 || *id >= kMost) return at.fail_at(start, "a replica's number out of range");
            if (++total > kMaxParticipants) return at.fail("too many replicas in groups");
            group.push_back(static_cast<std::int32_t>(*id));
        } while (at.take(","));
        if (!at.expect("}", "after a replica group")) return false;
    } while (at.take(","));
    return at.expect("}", "after the replica groups");
}

bool iota(TextCursor& at, ReplicaGroups& out) {
    const std::size_t start = at.offset();
    Sizes rows;
    Sizes reshape;
    Sizes transpose;
    if (!numbers(at, "]", rows) || !at.expect("<=", "in replica_groups") ||
        !at.expect("[", "in replica_groups") || !numbers(at, "]", reshape)) {
        return false;
    }
    if (at.take("T")) {
        if (!at.expect("(", "in replica_groups") || !numbers(at, ")", transpose)) return false;
        if (!is_permutation_of_axes(transpose, reshape.size())) {
            return at.fail_at(start, "replica_groups: T(…) is no permutation of the axes before it");
        }
    }
    if (rows.size() != 2 || product(rows) < 1 || product(rows) != product(reshape)) {
        return at.fail_at(start, "replica_groups: [groups,size]<=[…] whose products differ");
    }
    out.groups = iota_groups(rows[0], rows[1], reshape, transpose);
    return true;
}

/// mesh['x'=2,'y'=4] {'y'}, quotes optional; the word "mesh" already taken.
bool mesh_axes(TextCursor& at, ReplicaGroups& out) {
    const auto axis_name = [&] {
        const bool quoted = at.take("'");
        std::string_view name = at.name(true);
        if (quoted) at.take("'");
        return name;
    };
    std::vector<std::string_view> names;
    Sizes sizes;
    const std::size_t start = at.offset();
    if (!at.expect("[", "after \"mesh\"")) return false;
    do {
        names.push_back(axis_name());
        if (names.back().empty() || !at.expect("=", "after a mesh axis' name")) {
            return at.fail("expected a mesh axis, found " + at.found());
        }
        const auto size = at.integer();
        if (!size || *size < 1 || *size > kMost) return at.fail("expected a mesh axis' size");
        if (names.size() > kMaxShapeAxes) return at.fail("too many mesh axes");
        sizes.push_back(*size);
    } while (at.take(","));
    if (!at.expect("]", "after the mesh axes")) return false;
    if (product(sizes) < 1) return at.fail_at(start, "a mesh with too many devices");
    while (at.take(",")) {  // device_ids=([4,2]T(1,0))
        if (at.name() != "device_ids" || !at.take("=") || at.peek() != '(' || !at.skip_balanced(false)) {
            return at.fail("expected device_ids=(…), found " + at.found());
        }
        out.problem = "a mesh with device_ids, whose order is not taken";
    }
    if (!at.expect("{", "before the axes of replica_groups")) return false;
    Sizes over;
    if (!at.take("}")) {
        do {
            at.skip_blanks();
            const std::size_t place = at.offset();
            const std::string_view name = axis_name();
            const auto found = std::find(names.begin(), names.end(), name);
            if (found == names.end()) {
                return at.fail_at(place,
                                  fmt::format("replica_groups: the mesh has no axis \"{}\"", escaped(name)));
            }
            if (at.peek() == ':') {
                out.problem = "a part of a mesh axis, which is not taken";
                while (at.peek() != ',' && at.peek() != '}' && !at.at_end()) at.advance();
            }
            const auto axis = static_cast<std::int64_t>(found - names.begin());
            if (std::find(over.begin(), over.end(), axis) != over.end()) {
                out.problem = "a mesh axis named twice";
            }
            over.push_back(axis);
        } while (at.take(","));
        if (!at.expect("}", "after the axes of replica_groups")) return false;
    }
    if (out.problem.empty()) out.groups = groups_over(sizes, over);
    return true;
}

}  // namespace

std::vector<std::vector<std::int32_t>> groups_over(const std::vector<std::int64_t>& sizes,
                                                   const std::vector<std::int64_t>& over) {
    Sizes transpose;
    std::int64_t size = 1;
    for (std::int64_t axis = 0; axis < static_cast<std::int64_t>(sizes.size()); ++axis) {
        if (std::find(over.begin(), over.end(), axis) == over.end()) transpose.push_back(axis);
    }
    for (const std::int64_t axis : over) {
        transpose.push_back(axis);
        size *= sizes[at(axis)];
    }
    return iota_groups(product(sizes) / size, size, sizes, transpose);
}

std::vector<std::vector<std::int32_t>> iota_groups(std::int64_t groups, std::int64_t size,
                                                   const std::vector<std::int64_t>& reshape,
                                                   const std::vector<std::int64_t>& transpose) {
    // Strides of `reshape`, in the order in which the transposed axes are walked.
    const std::size_t axes = reshape.size();
    Sizes strides(axes, 1);
    for (std::size_t axis = axes; axis-- > 1;) strides[axis - 1] = strides[axis] * reshape[axis];
    Sizes extent(axes);
    Sizes step(axes);
    for (std::size_t axis = 0; axis < axes; ++axis) {
        const std::size_t from = transpose.empty() ? axis : static_cast<std::size_t>(transpose[axis]);
        extent[axis] = reshape[from];
        step[axis] = strides[from];
    }
    std::vector<std::vector<std::int32_t>> all(static_cast<std::size_t>(groups));
    Sizes at(axes, 0);
    for (std::vector<std::int32_t>& group : all) {
        group.reserve(static_cast<std::size_t>(size));
        for (std::int64_t i = 0; i < size; ++i) {
            std::int64_t id = 0;
            for (std::size_t axis = 0; axis < axes; ++axis) id += at[axis] * step[axis];
            group.push_back(static_cast<std::int32_t>(id));
            for (std::size_t axis = axes; axis-- > 0 && ++at[axis] == extent[axis];) at[axis] = 0;
        }
    }
    return all;
}

bool parse_replica_groups(TextCursor& at, ReplicaGroups& out) {
    if (at.take("{")) return lists(at, out);
    if (at.take("[")) return iota(at, out);
    if (at.take("mesh")) return mesh_axes(at, out);
    return at.fail("expected replica groups: {{0,1},…}, [groups,size]<=[…] or mesh[…] {…}, found " +
                   at.found());
}

}  // namespace syncopate::ingest
