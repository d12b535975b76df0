#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"
#include "syncopate/names.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/json/parts_decoder.hpp"
#include "syncopate/plan/model/ragged.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

/// Turns the document into a Plan. Each method returns false once an error is recorded; only the first one is
/// kept.
class PlanDecoder : private PartsDecoder {
public:
    using PartsDecoder::PartsDecoder;

    Result<Plan> decode(JsonAt at) {
        if (!plan(at.node, *at.path)) return error();
        return std::move(plan_);
    }

private:
    bool plan(Index node, const JsonPath& root) {
        static constexpr std::array<JsonField, 8> kFields{{{"schema", true},
                                                           {"mesh", true},
                                                           {"nodes", false},
                                                           {"tensors", true},
                                                           {"initial", true},
                                                           {"final", true},
                                                           {"produced", false},
                                                           {"ranks", true}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, root, kFields, at)) return false;
        const auto [schema, mesh_at, nodes_at, tensors_at, initial, final, produced, ranks_at] = at;
        std::string_view name;
        const JsonPath schema_path{&root, "schema"};
        if (!string(schema, schema_path, name)) return false;
        if (name != "syncopate.plan/1") {
            return fail(schema, schema_path,
                        "is \"" + escaped(name) + "\"; this version reads \"syncopate.plan/1\"");
        }
        return mesh(mesh_at, {&root, "mesh"}, plan_.mesh) && nodes(nodes_at, {&root, "nodes"}) &&
               tensors(tensors_at, {&root, "tensors"}) &&
               holdings(initial, {&root, "initial"}, false, plan_.initial) &&
               holdings(final, {&root, "final"}, true, plan_.final) &&
               (produced == JsonDocument::kNone ||
                holdings(produced, {&root, "produced"}, false, plan_.produced)) &&
               ranks(ranks_at, {&root, "ranks"});
    }

    /// The axis of nodes: the first, so that the ranks of a node follow each other.
    bool nodes(Index node, const JsonPath& path) {
        if (node == JsonDocument::kNone) return true;
        std::string_view name;
        if (!string(node, path, name)) return false;
        if (name != plan_.mesh.axes.front().name)
            return fail(node, path,
                        fmt::format("is \"{}\"; the axis of nodes is the mesh's first one, \"{}\"",
                                    escaped(name), escaped(plan_.mesh.axes.front().name)));
        plan_.mesh.nodes = name;
        return true;
    }

    bool tensors(Index node, const JsonPath& path) {
        if (!is(node, path, Type::object, "an object of name: {\"shape\", \"dtype\"}")) return false;
        return members(node, path, [&](Index key, Index value, const JsonPath& inner) {
            if (inner.key.empty()) return fail(key, path, "has a tensor with an empty name");
            const auto index = static_cast<std::int32_t>(plan_.tensors.size());
            if (!tensor_index_.emplace(inner.key, index).second)
                return fail(key, inner, "is defined a second time");
            return tensor(value, inner, inner.key);
        });
    }

    bool tensor(Index node, const JsonPath& path, std::string_view name) {
        static constexpr std::array<JsonField, 3> kFields{
            {{"shape", true}, {"dtype", true}, {"ragged", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        const JsonPath shape_path{&path, "shape"};
        Tensor tensor;
        tensor.name = name;
        if (!integers(at[0], shape_path, "a list of sizes", kMaxAxes, 1, kMaxCoordinate, tensor.shape))
            return false;
        if (tensor.shape.empty()) return fail(at[0], shape_path, "is empty; it needs a size for each axis");
        if (!enumerator<DType, kNumDTypes>(at[1], {&path, "dtype"}, "dtype", tensor.dtype) ||
            !bytes_fit(at[0], shape_path, tensor) ||
            (has(at[2]) && !ragged(at[2], {&path, "ragged"}, tensor)))
            return false;
        plan_.tensors.push_back(std::move(tensor));
        return true;
    }

    bool ragged(Index node, const JsonPath& path, Tensor& tensor) {
        static constexpr std::array<JsonField, 4> kFields{
            {{"axis", true}, {"groups", true}, {"sizes", true}, {"bound", true}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        Ragged made;
        std::string_view groups;
        std::vector<std::int64_t> sizes;
        const JsonPath sizes_path{&path, "sizes"};
        const auto axes = static_cast<std::int64_t>(tensor.shape.size());
        if (!integer(at[0], {&path, "axis"}, 0, axes - 1, made.axis) ||
            !string(at[1], {&path, "groups"}, groups) ||
            !integers(at[2], sizes_path, "a number of groups for each name", kMaxAxes, 1, kMaxCoordinate,
                      sizes))
            return false;
        const auto place = tensor.shape.begin() + made.axis;
        made.rows = *place;
        if (!integer(at[3], {&path, "bound"}, 1, made.rows, made.bound)) return false;
        constexpr std::string_view kTimes =
            kGroupsTimes.substr(1, kGroupsTimes.size() - 2);  // blanks or none
        while (true) {
            const std::size_t end = std::min(groups.find(kTimes), groups.size());
            std::string_view name = groups.substr(0, end);
            while (name.starts_with(' ')) name.remove_prefix(1);
            while (name.ends_with(' ')) name.remove_suffix(1);
            if (name.empty() || std::ranges::find(made.groups, name) != made.groups.end())
                return fail(at[1], {&path, "groups"},
                            fmt::format("is \"{}\"; expected names, each once, with {} between them",
                                        escaped(groups), kTimes));
            made.groups.emplace_back(name);
            if (end == groups.size()) break;
            groups.remove_prefix(end + kTimes.size());
        }
        if (sizes.size() != made.groups.size())
            return fail(
                at[2], sizes_path,
                fmt::format("has {} numbers; the groups have {} names", sizes.size(), made.groups.size()));
        if (axes - 1 + static_cast<std::int64_t>(sizes.size()) > kMaxAxes)
            return fail(at[2], sizes_path, fmt::format("gives the tensor more than {} axes", kMaxAxes));
        tensor.shape.insert(tensor.shape.erase(place), sizes.begin(), sizes.end());
        tensor.ragged = std::move(made);
        return ragged_objection(tensor).empty() || fail(node, path, ragged_objection(tensor));
    }

    bool holdings(Index node, const JsonPath& path, bool is_final, std::vector<Holding>& holdings) {
        static constexpr std::array<JsonField, 4> kGiven{
            {{"rank", true}, {"tensor", true}, {"region", true}, {"partial", false}}};
        static constexpr std::array<JsonField, 4> kAsked{
            {{"rank", true}, {"tensor", true}, {"region", true}, {"of", false}}};
        if (!is(node, path, Type::array, "a list of {\"rank\", \"tensor\", \"region\"}")) return false;
        holdings.reserve(document_.size(node));
        return each(node, path, [&](Index entry, const JsonPath& entry_path) {
            std::array<Index, 4> at;
            if (!fields(entry, entry_path, is_final ? kAsked : kGiven, at)) return false;
            Holding holding;
            if (!rank(at[0], {&entry_path, "rank"}, holding.rank) ||
                !chunk(at[1], at[2], entry_path, holding.chunk)) {
                return false;
            }
            if (at[3] != JsonDocument::kNone) {
                if (is_final ? !of({&entry_path, "of"}, at[3], holding)
                             : !boolean(at[3], {&entry_path, "partial"}, holding.partial)) {
                    return false;
                }
            }
            holdings.push_back(std::move(holding));
            return true;
        });
    }

    bool of(const JsonPath& path, Index node, Holding& holding) {
        if (document_.type(node) == Type::string && document_.text(node) == "all") {
            holding.of_all = true;
            return true;
        }
        if (document_.type(node) != Type::array || document_.size(node) == 0) {
            return fail(node, path,
                        "is " + document_.describe(node) + "; expected \"all\" or a list of ranks");
        }
        return rank_list(node, path, holding.of);
    }

    bool ranks(Index node, const JsonPath& path) {
        static constexpr std::array<JsonField, 2> kFields{{{"rank", true}, {"ops", true}}};
        if (!is(node, path, Type::array, "a list of {\"rank\", \"ops\"}")) return false;
        const std::int32_t count = plan_.mesh.num_ranks();
        std::vector<bool> seen(static_cast<std::size_t>(count), false);
        plan_.ranks.resize(static_cast<std::size_t>(count));
        const bool decoded = each(node, path, [&](Index entry, const JsonPath& entry_path) {
            std::array<Index, kFields.size()> at;
            std::int32_t rank_number = -1;
            const JsonPath rank_path{&entry_path, "rank"};
            if (!fields(entry, entry_path, kFields, at) || !rank(at[0], rank_path, rank_number)) return false;
            if (rank_number < 0 || rank_number >= count) {
                return fail(at[0], rank_path,
                            fmt::format("is {}; the mesh has ranks 0 to {}", rank_number, count - 1));
            }
            const auto slot = static_cast<std::size_t>(rank_number);
            if (seen[slot])
                return fail(at[0], rank_path, fmt::format("is {}, which came before", rank_number));
            seen[slot] = true;
            context_.rank = rank_number;
            const bool ok = ops(at[1], {&entry_path, "ops"}, plan_.ranks[slot]);
            context_ = {};
            return ok;
        });
        if (!decoded) return false;
        for (std::size_t slot = 0; slot < seen.size(); ++slot) {
            if (!seen[slot]) {
                return fail(node, path,
                            fmt::format("has no entry for rank {}; the mesh has ranks 0 to {}, each "
                                        "needs one, if only with \"ops\": []",
                                        slot, count - 1));
            }
        }
        return true;
    }

    bool ops(Index node, const JsonPath& path, std::vector<Op>& ops) {
        if (!is(node, path, Type::array, "a list of ops")) return false;
        num_ops_ += static_cast<std::int64_t>(document_.size(node));
        if (num_ops_ > kMaxOps) return fail(node, path, fmt::format("takes the plan above {} ops", kMaxOps));
        ops.reserve(document_.size(node));
        return each(node, path, [&](Index entry, const JsonPath& entry_path) {
            context_.op = static_cast<std::int32_t>(entry_path.index);
            const bool ok = op(entry, entry_path, ops.emplace_back());
            if (ok) context_.op = -1;
            return ok;
        });
    }

    bool op(Index node, const JsonPath& path, Op& op) {
        static constexpr std::array<JsonField, 10> kFields{{{"op", true},
                                                            {"src", true},
                                                            {"dst", true},
                                                            {"peer", false},
                                                            {"after", false},
                                                            {"reduce", false},
                                                            {"channel", false},
                                                            {"backend", false},
                                                            {"kind", false},
                                                            {"ranks", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        const auto [op_at, src, dst, peer, after_at, reduce, channel, backend, kind, ranks_at] = at;
        if (!enumerator<OpKind, kNumOpKinds>(op_at, {&path, "op"}, "op", op.kind)) return false;
        const bool collective = op.kind == OpKind::collective;
        const bool has_peer = op.kind == OpKind::push || op.kind == OpKind::pull;
        if (!belongs(node, path, "peer", peer, has_peer, op.kind) ||
            !belongs(node, path, "kind", kind, collective, op.kind) ||
            !belongs(node, path, "ranks", ranks_at, collective, op.kind)) {
            return false;
        }
        if (has_peer && !rank(peer, {&path, "peer"}, op.peer)) return false;
        if (collective) {
            const JsonPath ranks_path{&path, "ranks"};
            std::vector<std::int32_t> ranks;
            if (!enumerator<CollectiveKind, kNumCollectiveKinds>(kind, {&path, "kind"}, "kind",
                                                                 op.collective) ||
                !list(ranks_at, ranks_path, "a list of ranks", kMaxRanks) ||
                !rank_list(ranks_at, ranks_path, ranks)) {
                return false;
            }
            op.ranks = std::move(ranks);
        }
        std::string_view channel_name;
        if (!chunk_object(src, {&path, "src"}, op.src) || !chunk_object(dst, {&path, "dst"}, op.dst) ||
            (has(after_at) && !after(after_at, {&path, "after"}, op.after)) ||
            (has(reduce) &&
             !enumerator<Reduce, kNumReduces>(reduce, {&path, "reduce"}, "reduction", op.reduce)) ||
            (has(backend) &&
             !enumerator<Backend, kNumBackends>(backend, {&path, "backend"}, "backend", op.backend)) ||
            (has(channel) && !string(channel, {&path, "channel"}, channel_name))) {
            return false;
        }
        op.channel = std::string(channel_name);
        return true;
    }

    /// `key` is given exactly when this kind of op has it.
    bool belongs(Index node, const JsonPath& path, std::string_view key, Index value, bool wanted,
                 OpKind kind) {
        if (has(value) == wanted) return true;
        if (wanted)
            return fail(node, path, fmt::format("lacks \"{}\", which a {} needs", key, name_of(kind)));
        return fail(value, {&path, key}, fmt::format("does not belong to a {} op", name_of(kind)));
    }

    bool after(Index node, const JsonPath& path, OpRefs& after) {
        if (!is(node, path, Type::array, "a list of [rank, op] pairs")) return false;
        after.reserve(document_.size(node));
        return each(node, path, [&](Index entry, const JsonPath& entry_path) {
            if (!tuple(entry, entry_path, "[rank, op]")) return false;
            const Index rank_at = document_.first(entry);
            OpRef& ref = after.emplace_back();
            return rank(rank_at, {&entry_path, {}, 0}, ref.rank) &&
                   rank(document_.next(rank_at), {&entry_path, {}, 1}, ref.index);
        });
    }

    bool chunk_object(Index node, const JsonPath& path, Chunk& chunk_out) {
        static constexpr std::array<JsonField, 2> kFields{{{"tensor", true}, {"region", true}}};
        std::array<Index, kFields.size()> at;
        return fields(node, path, kFields, at) && chunk(at[0], at[1], path, chunk_out);
    }

    bool chunk(Index tensor_at, Index region_at, const JsonPath& parent, Chunk& chunk) {
        const JsonPath tensor_path{&parent, "tensor"};
        std::string_view name;
        if (!string(tensor_at, tensor_path, name)) return false;
        const auto found = tensor_index_.find(name);
        if (found == tensor_index_.end()) {
            std::vector<std::string_view> known;
            for (const Tensor& tensor : plan_.tensors) known.push_back(tensor.name);
            return fail(tensor_at, tensor_path,
                        "names an unknown tensor \"" + escaped(name) + "\"" + did_you_mean(name, known));
        }
        chunk.tensor = found->second;
        const JsonPath region_path{&parent, "region"};
        if (!list(region_at, region_path, "a list of [begin, end] pairs", kMaxAxes)) return false;
        chunk.region.reserve(document_.size(region_at));
        const Tensor& tensor = plan_.tensors[at(chunk.tensor)];
        return each(region_at, region_path, [&](Index axis_at, const JsonPath& axis_path) {
            if (tensor.ragged && axis_path.index == tensor.ragged->axis)
                return groups(axis_at, axis_path, tensor, chunk.region);
            return interval(axis_at, axis_path, chunk.region.emplace_back());
        });
    }

    bool interval(Index node, const JsonPath& path, Interval& out) {
        if (!tuple(node, path, "[begin, end]")) return false;
        const Index begin = document_.first(node);
        return integer(begin, {&path, {}, 0}, -kMaxCoordinate, kMaxCoordinate, out.begin) &&
               integer(document_.next(begin), {&path, {}, 1}, -kMaxCoordinate, kMaxCoordinate, out.end);
    }

    /// {"rows_from_rank": 0, "expert": [0, 4]}: a name that is left out is all of its groups.
    bool groups(Index node, const JsonPath& path, const Tensor& tensor, Region& region) {
        const Ragged& of = *tensor.ragged;
        if (!is(node, path, Type::object,
                fmt::format("groups of rows, by name: {}", fmt::join(of.groups, ", "))))
            return false;
        std::vector<JsonField> known;
        for (const std::string& name : of.groups) known.push_back({name, false});
        std::vector<Index> at(known.size());
        if (!fields(node, path, known, at)) return false;
        for (std::size_t i = 0; i < at.size(); ++i) {
            Interval& range = region.emplace_back();
            const JsonPath group_path{&path, of.groups[i]};
            if (!has(at[i])) {
                range = {0, tensor.shape[static_cast<std::size_t>(of.axis) + i]};
            } else if (document_.type(at[i]) == Type::array) {
                if (!interval(at[i], group_path, range)) return false;
            } else {
                if (!integer(at[i], group_path, -kMaxCoordinate, kMaxCoordinate - 1, range.begin))
                    return false;
                range.end = range.begin + 1;
            }
        }
        return true;
    }

    /// A rank, or an op's index: whether it exists is judged later, except by ranks().
    bool rank(Index node, const JsonPath& path, std::int32_t& out) {
        return integer(node, path, std::numeric_limits<std::int32_t>::min(),
                       std::numeric_limits<std::int32_t>::max(), out);
    }

    bool rank_list(Index node, const JsonPath& path, std::vector<std::int32_t>& out) {
        std::unordered_set<std::int32_t> seen;
        out.reserve(document_.size(node));
        return each(node, path, [&](Index entry, const JsonPath& entry_path) {
            if (!rank(entry, entry_path, out.emplace_back())) return false;
            return seen.insert(out.back()).second ||
                   fail(entry, entry_path, fmt::format("names rank {} a second time", out.back()));
        });
    }

    Plan plan_;
    std::unordered_map<std::string_view, std::int32_t> tensor_index_;  ///< names lie in document_
    std::int64_t num_ops_ = 0;
};

}  // namespace

Result<Plan> from_json(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    const JsonPath root;
    return from_json(document, text, file_name, {0, &root});
}

Result<Plan> from_json(const JsonDocument& document, std::string_view text, const std::string& file_name,
                       JsonAt at) {
    return PlanDecoder(document, text, file_name).decode(at);
}

}  // namespace syncopate::plan
