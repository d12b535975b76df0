#include "syncopate/ingest/partition/partition_ir.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "ingest/partition/mesh_reader.hpp"
#include "syncopate/plan/templates/templates.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ingest {
namespace {

using plan::Mesh;

bool among(const std::vector<std::int32_t>& axes, std::int32_t axis) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

class PartitionReader : public MeshReader {
public:
    using MeshReader::MeshReader;

    Result<PartitionProgram> program() {
        const JsonPath root;
        const auto one = [this](std::string_view name, JsonAt at) { return conversion(name, at); };
        const auto tensors = [&](JsonAt at) {
            return named(one)(at) &&
                   (!out_.conversions.empty() || fail(at, "is empty; there is nothing to convert"));
        };
        if (!object({0, &root}, required("schema", schema("syncopate.partition/1")),
                    required("mesh", mesh(out_.mesh)), optional("uneven", uneven(out_.uneven)),
                    required("tensors", tensors)))
            return error();
        return std::move(out_);
    }

private:
    bool conversion(std::string_view name, JsonAt at) {
        Conversion& made = out_.conversions.emplace_back();
        made.tensor.name = name;
        const auto placed = [&](Placement& out) {
            return [&](JsonAt inner) { return placement(inner, made.tensor, out); };
        };
        const auto after = [&](JsonAt inner) { return placed(made.after)(inner) && reachable(inner, made); };
        return object(at, required("shape", shape(made.tensor)), required("dtype", dtype(made.tensor)),
                      required("before", placed(made.before)), required("after", after),
                      optional("split", integer(made.split, 1, 65536)),
                      optional("produced", flag(made.produced)));
    }

    bool placement(JsonAt at, const plan::Tensor& tensor, Placement& out) {
        const auto over = [&](JsonAt inner) {
            if (!mesh_axes(out.partial)(inner)) return false;
            if (out.partial.empty()) return fail(inner, "is empty; leave \"partial\" out");
            for (const std::vector<std::int32_t>& axes : out.shard) {
                for (const std::int32_t axis : axes) {
                    if (among(out.partial, axis))
                        return fail(inner,
                                    fmt::format("names mesh axis \"{}\", along which the tensor is cut",
                                                out_.mesh.axes[static_cast<std::size_t>(axis)].name));
                }
            }
            return true;
        };
        const auto partial = [&](JsonAt inner) {
            return object(inner, required("over", over), required("reduce", reduction(out.reduce)));
        };
        return object(at, required("shard", shard(tensor, out.shard)), optional("partial", partial));
    }

    bool reachable(JsonAt at, const Conversion& made) {
        for (const std::int32_t axis : made.after.partial) {
            if (!among(made.before.partial, axis))
                return fail(
                    at,
                    fmt::format("is partial over mesh axis \"{}\" and \"before\" is not; contributions have "
                                "to be computed, moving data does not make them",
                                out_.mesh.axes[static_cast<std::size_t>(axis)].name));
        }
        return made.after.partial.empty() || made.after.reduce == made.before.reduce ||
               fail(at, "reduces otherwise than \"before\"");
    }

    PartitionProgram out_;
};

}  // namespace

std::vector<std::int32_t> coordinates_of(const Mesh& mesh, std::int32_t rank) {
    std::vector<std::int32_t> coordinates(mesh.axes.size());
    for (std::size_t axis = mesh.axes.size(); axis-- > 0;) {
        coordinates[axis] = rank % mesh.axes[axis].size;
        rank /= mesh.axes[axis].size;
    }
    return coordinates;
}

plan::Region region_of(const Mesh& mesh, const plan::Tensor& tensor, const Placement& placement,
                       std::int32_t rank, Uneven uneven) {
    const std::vector<std::int32_t> coordinates = coordinates_of(mesh, rank);
    plan::Region region = tensor.whole();
    for (std::size_t i = 0; i < region.size() && i < placement.shard.size(); ++i) {
        for (const std::int32_t axis : placement.shard[i]) {
            const std::int32_t parts = mesh.axes[static_cast<std::size_t>(axis)].size;
            const std::int64_t index = coordinates[static_cast<std::size_t>(axis)];
            const plan::Interval range = region[i];
            const std::int64_t size = range.size();
            const std::int64_t each = size / parts;
            const std::int64_t left = size % parts;
            if (uneven == Uneven::balanced) {
                region[i].begin = range.begin + index * each + std::min(index, left);
                region[i].end = region[i].begin + each + (index < left ? 1 : 0);
            } else {
                const std::int64_t step = each + (left == 0 ? 0 : 1);
                region[i].begin = range.begin + std::min(index * step, size);
                region[i].end = range.begin + std::min((index + 1) * step, size);
            }
        }
    }
    return region;
}

std::string conversion_name(const Mesh& mesh, const Conversion& conversion) {
    const auto place = [](const Placement& placement, std::int32_t axis) -> std::int64_t {
        for (std::size_t i = 0; i < placement.shard.size(); ++i) {
            if (among(placement.shard[i], axis)) return static_cast<std::int64_t>(i);
        }
        return among(placement.partial, axis) ? -2 : -1;  // -1: replicated
    };
    std::vector<std::pair<std::string, std::string>> steps;  // what, over which mesh axes
    for (std::int32_t axis = 0; axis < static_cast<std::int32_t>(mesh.axes.size()); ++axis) {
        const std::int64_t from = place(conversion.before, axis);
        const std::int64_t to = place(conversion.after, axis);
        std::string what;
        if (from == to) continue;
        if (from == -2) {
            what = to == -1 ? "all_reduce" : fmt::format("reduce_scatter, axis {}", to);
        } else if (from == -1) {
            what = fmt::format("local slice, axis {}", to);
        } else {
            what = to == -1 ? fmt::format("all_gather, axis {}", from)
                            : fmt::format("all_to_all, axis {} to {}", from, to);
        }
        const std::string& name = mesh.axes[static_cast<std::size_t>(axis)].name;
        if (!steps.empty() && steps.back().first == what) {
            steps.back().second += ", " + name;
        } else {
            steps.emplace_back(std::move(what), name);
        }
    }
    if (steps.empty()) {
        return conversion.before.shard == conversion.after.shard ? "nothing moves" : "permutation of shards";
    }
    std::string text;
    for (const auto& [what, axes] : steps) {
        const std::size_t comma = what.find(',');
        text += (text.empty() ? "" : "; ") + what.substr(0, comma) + " over " + axes;
        if (comma != what.npos) text += " (" + what.substr(comma + 2) + ")";
    }
    return text;
}

Result<PartitionProgram> read_partition(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    return PartitionReader(document, text, file_name).program();
}

Result<Import> import_partition(std::string_view text, const std::string& file_name, const ImportOptions&) {
    SYNCOPATE_TAKE(const PartitionProgram program, read_partition(text, file_name));
    SYNCOPATE_TAKE(Import made, imported(Format::partition, plan_of(program), file_name));
    for (const Conversion& conversion : program.conversions) {
        made.claims.emplace_back(conversion.tensor.name, conversion_name(program.mesh, conversion));
    }
    return made;
}

}  // namespace syncopate::ingest
