#include "syncopate/ingest/loops/loop_ir.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "ingest/partition/mesh_json.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ingest {
namespace {

class LoopDecoder : private MeshDecoder {
public:
    using MeshDecoder::MeshDecoder;

    Result<LoopNest> decode() {
        if (!nest()) return error();
        return std::move(out_);
    }

private:
    bool nest() {
        const JsonPath root;
        static constexpr std::array<JsonField, 6> kFields{{{"schema", true},
                                                           {"mesh", true},
                                                           {"tensors", true},
                                                           {"loops", true},
                                                           {"communicate", true},
                                                           {"uneven", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(0, root, kFields, at)) return false;
        return schema(at[0], {&root, "schema"}, "syncopate.loop/1") &&
               mesh(at[1], {&root, "mesh"}, out_.mesh) &&
               (!has(at[5]) || uneven(at[5], {&root, "uneven"}, out_.uneven)) &&
               members(at[2], {&root, "tensors"},
                       [&](std::string_view name, Index node, const JsonPath& path) {
                           return tensor(name, node, path);
                       }) &&
               loops(at[3], {&root, "loops"}) && points(at[4], {&root, "communicate"});
    }

    bool tensor(std::string_view name, Index node, const JsonPath& path) {
        static constexpr std::array<JsonField, 4> kFields{
            {{"shape", true}, {"dtype", true}, {"shard", true}, {"carry", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        LoopTensor made;
        made.tensor.name = name;
        if (!shape(at[0], {&path, "shape"}, made.tensor) || !dtype(at[1], {&path, "dtype"}, made.tensor) ||
            !bytes_fit(at[0], {&path, "shape"}, made.tensor) ||
            !shard(at[2], {&path, "shard"}, out_.mesh, made.tensor.shape.size(), made.shard) ||
            (has(at[3]) && !reduction(at[3], {&path, "carry"}, made.carry))) {
            return false;
        }
        out_.tensors.push_back(std::move(made));
        return true;
    }

    bool loops(Index node, const JsonPath& path) {
        if (!list(node, path, "a list of loops, outermost first", 64)) return false;
        std::int64_t iterations = 1;
        return each(node, path, [&](Index at, const JsonPath& inner) {
            Loop made;
            if (!loop(at, inner, made)) return false;
            if (made.over >= 0) iterations *= made.steps;
            if (iterations > kMaxIterations) {
                return fail(
                    at, inner,
                    fmt::format("makes more than {} iterations of the loops together", kMaxIterations));
            }
            out_.loops.push_back(std::move(made));
            return true;
        });
    }

    bool loop(Index node, const JsonPath& path, Loop& made) {
        static constexpr std::array<JsonField, 7> kFields{{{"name", true},
                                                           {"over", false},
                                                           {"shift", false},
                                                           {"start", false},
                                                           {"steps", false},
                                                           {"tile", false},
                                                           {"size", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        const auto [name_at, over, shift, start, steps, tile, size] = at;
        std::string_view name;
        const JsonPath name_path{&path, "name"};
        if (!string(name_at, name_path, name)) return false;
        if (name.empty()) return fail(name_at, name_path, "is an empty name");
        for (const Loop& other : out_.loops) {
            if (other.name == name) return fail(name_at, name_path, "names a loop a second time");
        }
        made.name = name;
        if (has(over) == has(tile)) {
            return fail(node, path,
                        "needs either \"over\", a mesh axis, or \"tile\", the tensor axes it cuts");
        }
        if (has(tile)) {
            for (const Index other : {shift, start, steps}) {
                if (has(other)) return fail(other, path, "has a key that only a loop over a mesh axis has");
            }
            if (!has(size)) return fail(node, path, "lacks \"size\", the elements of one block");
            return integer(size, {&path, "size"}, 1, plan::kMaxCoordinate, made.size) &&
                   members(
                       tile, {&path, "tile"}, [&](std::string_view of, Index axis, const JsonPath& inner) {
                           auto& [tensor, tensor_axis] = made.tiles.emplace_back();
                           if (!tensor_named(of, axis, inner, tensor)) return false;
                           const auto axes =
                               out_.tensors[static_cast<std::size_t>(tensor)].tensor.shape.size();
                           return integer(axis, inner, 0, static_cast<std::int64_t>(axes) - 1, tensor_axis);
                       });
        }
        if (has(size)) return fail(size, path, "has the key \"size\", which only a loop over blocks has");
        if (!has(shift)) return fail(node, path, "lacks \"shift\", by how many places each step moves on");
        if (!mesh_axis(over, {&path, "over"}, out_.mesh, made.over)) return false;
        for (const Loop& other : out_.loops) {
            if (other.over == made.over) {
                return fail(over, {&path, "over"},
                            fmt::format("is the mesh axis of loop \"{}\"", escaped(other.name)));
            }
        }
        const std::int64_t ring = out_.mesh.axes[static_cast<std::size_t>(made.over)].size;
        made.steps = ring;
        if (!integer(shift, {&path, "shift"}, -plan::kMaxRanks, plan::kMaxRanks, made.shift) ||
            (has(start) &&
             !integer(start, {&path, "start"}, -plan::kMaxRanks, plan::kMaxRanks, made.start)) ||
            (has(steps) && !integer(steps, {&path, "steps"}, 1, kMaxIterations, made.steps))) {
            return false;
        }
        return made.shift % ring != 0 || ring == 1 ||
               fail(shift, {&path, "shift"}, fmt::format("moves nothing on a ring of {}", ring));
    }

    /// The place of one of `items`, by its name.
    template <typename Item, typename Name>
    bool named(std::string_view what, const std::vector<Item>& items, Name name_of, std::string_view name,
               Index node, const JsonPath& path, std::int32_t& out) {
        std::vector<std::string_view> known;
        for (const Item& item : items) known.push_back(name_of(item));
        out = static_cast<std::int32_t>(std::ranges::find(known, name) - known.begin());
        return out < static_cast<std::int32_t>(known.size()) ||
               fail(node, path,
                    fmt::format("names an unknown {} \"{}\"{}", what, escaped(name),
                                did_you_mean(name, known)));
    }
    bool tensor_named(std::string_view name, Index node, const JsonPath& path, std::int32_t& out) {
        const auto name_of = [](const LoopTensor& one) -> std::string_view { return one.tensor.name; };
        return named("tensor", out_.tensors, name_of, name, node, path, out);
    }
    bool loop_named(std::string_view name, Index node, const JsonPath& path, std::int32_t& out) {
        const auto name_of = [](const Loop& one) -> std::string_view { return one.name; };
        return named("loop", out_.loops, name_of, name, node, path, out);
    }

    bool points(Index node, const JsonPath& path) {
        if (!list(node, path, "a list of communication points", 4096)) return false;
        if (document_.size(node) == 0) return fail(node, path, "is empty; nothing would move");
        return each(node, path, [&](Index at, const JsonPath& inner) { return point(at, inner); }) &&
               complete(node, path);
    }

    bool point(Index node, const JsonPath& path) {
        static constexpr std::array<JsonField, 3> kFields{{{"tensor", true}, {"at", true}, {"chunk", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        CommunicationPoint made;
        std::string_view tensor;
        std::string_view loop;
        if (!string(at[0], {&path, "tensor"}, tensor) ||
            !tensor_named(tensor, at[0], {&path, "tensor"}, made.tensor) ||
            !string(at[1], {&path, "at"}, loop) || !loop_named(loop, at[1], {&path, "at"}, made.at)) {
            return false;
        }
        const Loop& where = out_.loops[static_cast<std::size_t>(made.at)];
        if (where.over < 0) {
            return fail(at[1], {&path, "at"},
                        "names a loop over blocks; shards move on in a loop over a mesh axis");
        }
        if (!is_cut_over(made.tensor, where.over)) {
            return fail(at[1], {&path, "at"},
                        fmt::format("names a loop over mesh axis \"{}\", over which the tensor is not cut",
                                    out_.mesh.axes[static_cast<std::size_t>(where.over)].name));
        }
        for (const CommunicationPoint& other : out_.points) {
            if (other.tensor == made.tensor && other.at == made.at) {
                return fail(node, path, "moves the tensor a second time at that loop");
            }
        }
        if (has(at[2]) &&
            !members(at[2], {&path, "chunk"}, [&](std::string_view name, Index count, const JsonPath& inner) {
                auto& [block, group] = made.chunk.emplace_back();
                if (!loop_named(name, count, inner, block) ||
                    !integer(count, inner, 1, plan::kMaxCoordinate, group)) {
                    return false;
                }
                const Loop& blocks = out_.loops[static_cast<std::size_t>(block)];
                return std::any_of(blocks.tiles.begin(), blocks.tiles.end(),
                                   [&](const auto& tile) { return tile.first == made.tensor; }) ||
                       fail(count, inner, "names a loop that does not cut the tensor into blocks");
            })) {
            return false;
        }
        out_.points.push_back(std::move(made));
        return true;
    }

    [[nodiscard]] bool is_cut_over(std::int32_t tensor, std::int32_t mesh_axis) const {
        for (const auto& axes : out_.tensors[static_cast<std::size_t>(tensor)].shard) {
            if (std::find(axes.begin(), axes.end(), mesh_axis) != axes.end()) return true;
        }
        return false;
    }

    /// A tensor that moves at all moves wherever a loop shifts its shard.
    bool complete(Index node, const JsonPath& path) {
        const auto moved_at = [&](std::int32_t tensor, std::size_t loop) {
            return std::any_of(out_.points.begin(), out_.points.end(), [&](const CommunicationPoint& point) {
                return point.tensor == tensor && point.at == static_cast<std::int32_t>(loop);
            });
        };
        for (const CommunicationPoint& point : out_.points) {
            for (std::size_t i = 0; i < out_.loops.size(); ++i) {
                const Loop& loop = out_.loops[i];
                if (loop.over < 0 || loop.steps == 1 || !is_cut_over(point.tensor, loop.over)) continue;
                if (moved_at(point.tensor, i)) continue;
                return fail(
                    node, path,
                    fmt::format("does not move {} at loop \"{}\", which shifts its shard",
                                escaped(out_.tensors[static_cast<std::size_t>(point.tensor)].tensor.name),
                                escaped(loop.name)));
            }
        }
        return true;
    }

    LoopNest out_;
};

}  // namespace

Result<LoopNest> read_loop_nest(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    return LoopDecoder(document, text, file_name).decode();
}

Result<Import> import_loop_nest(std::string_view text, const std::string& file_name, const ImportOptions&) {
    SYNCOPATE_TAKE(const LoopNest nest, read_loop_nest(text, file_name));
    SYNCOPATE_TAKE(Import made, imported(Format::loop, plan_of(nest), file_name));
    for (const Loop& loop : nest.loops) {
        if (loop.over < 0) continue;
        made.claims.emplace_back("loop " + escaped(loop.name),
                                 fmt::format("{} steps over {}", loop.steps,
                                             nest.mesh.axes[static_cast<std::size_t>(loop.over)].name));
    }
    return made;
}

}  // namespace syncopate::ingest
