#include "syncopate/ingest/loops/loop_ir.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "ingest/partition/mesh_reader.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ingest {
namespace {

class LoopReader : public MeshReader {
public:
    using MeshReader::MeshReader;

    Result<LoopNest> nest() {
        const JsonPath root;
        const auto one = [this](std::string_view name, JsonAt at) { return tensor(name, at); };
        if (!object({0, &root}, required("schema", schema("syncopate.loop/1")),
                    required("mesh", mesh(out_.mesh)), optional("uneven", uneven(out_.uneven)),
                    required("tensors", named(one)),
                    required("loops", [this](JsonAt at) { return loops(at); }),
                    required("communicate", [this](JsonAt at) { return points(at); })))
            return error();
        return std::move(out_);
    }

private:
    bool tensor(std::string_view name, JsonAt at) {
        LoopTensor& made = out_.tensors.emplace_back();
        made.tensor.name = name;
        return object(at, required("shape", shape(made.tensor)), required("dtype", dtype(made.tensor)),
                      required("shard", shard(made.tensor, made.shard)),
                      optional("carry", reduction(made.carry)));
    }

    bool loops(JsonAt at) {
        std::int64_t iterations = 1;
        return elements("a list of loops, outermost first", 64, [&](JsonAt inner) {
            Loop made;
            if (!loop(inner, made)) return false;
            if (made.over >= 0) iterations *= made.steps;
            out_.loops.push_back(std::move(made));
            return iterations <= kMaxIterations ||
                   fail(inner,
                        fmt::format("makes more than {} iterations of the loops together", kMaxIterations));
        })(at);
    }

    bool loop(JsonAt at, Loop& made) {
        bool over = false, tile = false, shift = false, size = false;
        const auto loop_name = [&](JsonAt inner) {
            if (!text(made.name)(inner)) return false;
            if (made.name.empty()) return fail(inner, "is an empty name");
            return std::ranges::find(out_.loops, made.name, &Loop::name) == out_.loops.end() ||
                   fail(inner, "names a loop a second time");
        };
        const auto ring = [&](JsonAt inner) {
            over = true;
            if (!mesh_axis(made.over)(inner)) return false;
            made.steps = ring_of(made);
            const auto other = std::ranges::find(out_.loops, made.over, &Loop::over);
            return other == out_.loops.end() ||
                   fail(inner, fmt::format("is the mesh axis of loop \"{}\"", escaped(other->name)));
        };
        const auto blocks = [&](std::string_view of, JsonAt inner) {
            auto& [tensor, axis] = made.tiles.emplace_back();
            if (!tensor_named(of, inner, tensor)) return false;
            const auto axes = out_.tensors[static_cast<std::size_t>(tensor)].tensor.shape.size();
            return integer(axis, 0, static_cast<std::int64_t>(axes) - 1)(inner);
        };
        const auto cut = [&](JsonAt inner) {
            tile = true;
            if (!named(blocks)(inner)) return false;
            return !made.tiles.empty() || fail(inner, "is empty; nothing would be cut");
        };
        // Of a loop over a mesh axis, or over blocks.
        const auto of_ring = [&](auto walk) {
            return [&, walk](JsonAt inner) {
                return over ? walk(inner) : fail(inner, "has a key that only a loop over a mesh axis has");
            };
        };
        const auto moves = [&](JsonAt inner) {
            shift = true;
            return integer(made.shift, -plan::kMaxRanks, plan::kMaxRanks)(inner) &&
                   (made.shift % ring_of(made) != 0 || ring_of(made) == 1 ||
                    fail(inner, fmt::format("moves nothing on a ring of {}", ring_of(made))));
        };
        const auto elements_of_block = [&](JsonAt inner) {
            size = true;
            return tile ? integer(made.size, 1, plan::kMaxCoordinate)(inner)
                        : fail(inner, "has the key \"size\", which only a loop over blocks has");
        };
        if (!object(at, required("name", loop_name), optional("over", ring),
                    optional("shift", of_ring(moves)),
                    optional("start", of_ring(integer(made.start, -plan::kMaxRanks, plan::kMaxRanks))),
                    optional("steps", of_ring(integer(made.steps, 1, kMaxIterations))), optional("tile", cut),
                    optional("size", elements_of_block)))
            return false;
        if (over == tile)
            return fail(at, "needs either \"over\", a mesh axis, or \"tile\", the tensor axes it cuts");
        if (tile && !size) return fail(at, "lacks \"size\", the elements of one block");
        return tile || shift || fail(at, "lacks \"shift\", by how many places each step moves on");
    }
    [[nodiscard]] std::int64_t ring_of(const Loop& loop) const {
        return out_.mesh.axes[static_cast<std::size_t>(loop.over)].size;
    }

    /// The place of one of `items`, by its name.
    template <typename Item, typename Name>
    bool place_of(std::string_view what, const std::vector<Item>& items, Name name_of, std::string_view name,
                  JsonAt at, std::int32_t& out) {
        std::vector<std::string_view> known;
        for (const Item& item : items) known.push_back(name_of(item));
        out = static_cast<std::int32_t>(std::ranges::find(known, name) - known.begin());
        return out < static_cast<std::int32_t>(known.size()) ||
               fail(at, fmt::format("names an unknown {} \"{}\"{}", what, escaped(name),
                                    did_you_mean(name, known)));
    }
    bool tensor_named(std::string_view name, JsonAt at, std::int32_t& out) {
        const auto name_of = [](const LoopTensor& one) -> std::string_view { return one.tensor.name; };
        return place_of("tensor", out_.tensors, name_of, name, at, out);
    }
    bool loop_named(std::string_view name, JsonAt at, std::int32_t& out) {
        const auto name_of = [](const Loop& one) -> std::string_view { return one.name; };
        return place_of("loop", out_.loops, name_of, name, at, out);
    }

    bool points(JsonAt at) {
        return elements("a list of communication points", 4096,
                        [&](JsonAt inner) { return point(inner, out_.points.emplace_back()); })(at) &&
               (!out_.points.empty() || fail(at, "is empty; nothing would move")) && complete(at);
    }

    bool point(JsonAt at, CommunicationPoint& made) {
        std::string word;
        const auto tensor = [&](JsonAt inner) {
            return text(word)(inner) && tensor_named(word, inner, made.tensor);
        };
        const auto loop = [&](JsonAt inner) {
            if (!text(word)(inner) || !loop_named(word, inner, made.at)) return false;
            const std::int32_t over = out_.loops[static_cast<std::size_t>(made.at)].over;
            if (over < 0)
                return fail(inner, "names a loop over blocks; shards move on in a loop over a mesh axis");
            return is_cut_over(made.tensor, over) ||
                   fail(inner,
                        fmt::format("names a loop over mesh axis \"{}\", over which the tensor is not cut",
                                    out_.mesh.axes[static_cast<std::size_t>(over)].name));
        };
        const auto blocks = [&](std::string_view name, JsonAt inner) {
            auto& [block, group] = made.chunk.emplace_back();
            if (!loop_named(name, inner, block) || !integer(group, 1, plan::kMaxCoordinate)(inner))
                return false;
            const auto& tiles = out_.loops[static_cast<std::size_t>(block)].tiles;
            return std::ranges::find(tiles, made.tensor, &std::pair<std::int32_t, std::int32_t>::first) !=
                       tiles.end() ||
                   fail(inner, "names a loop that does not cut the tensor into blocks");
        };
        if (!object(at, required("tensor", tensor), required("at", loop), optional("chunk", named(blocks))))
            return false;
        const auto same = [&](const CommunicationPoint& other) {
            return other.tensor == made.tensor && other.at == made.at;
        };
        return std::ranges::count_if(out_.points, same) == 1 ||
               fail(at, "moves the tensor a second time at that loop");
    }

    [[nodiscard]] bool is_cut_over(std::int32_t tensor, std::int32_t mesh_axis) const {
        for (const auto& axes : out_.tensors[static_cast<std::size_t>(tensor)].shard) {
            if (std::find(axes.begin(), axes.end(), mesh_axis) != axes.end()) return true;
        }
        return false;
    }

    /// A tensor that moves at all moves wherever a loop shifts its shard.
    bool complete(JsonAt at) {
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
                    at, fmt::format("does not move {} at loop \"{}\", which shifts its shard",
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
    return LoopReader(document, text, file_name).nest();
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
