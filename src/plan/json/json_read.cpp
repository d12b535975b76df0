#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/names.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/json/parts_reader.hpp"
#include "syncopate/plan/model/ragged.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

class PlanReader : public PartsReader {
public:
    using PartsReader::PartsReader;

private:
    // Walks come before their users, who need their types.
    auto rank_list(std::vector<std::int32_t>& out) {
        return [this, &out](JsonAt at) {
            std::unordered_set<std::int32_t> seen;
            return list(out, [&](JsonAt inner, std::int32_t& rank) {
                if (!integer(rank)(inner)) return false;
                return seen.insert(rank).second ||
                       fail(inner, fmt::format("names rank {} a second time", rank));
            })(at);
        };
    }

    auto tensor(Chunk& out) {
        return [this, &out](JsonAt at) {
            std::string_view name;
            if (!string(at.node, *at.path, name)) return false;
            const auto found = tensor_index_.find(name);
            if (found == tensor_index_.end()) {
                std::vector<std::string_view> known;
                for (const Tensor& tensor : plan_.tensors) known.push_back(tensor.name);
                return fail(at,
                            "names an unknown tensor \"" + escaped(name) + "\"" + did_you_mean(name, known));
            }
            out.tensor = found->second;
            return true;
        };
    }
    auto region(Chunk& out) {
        return elements("a list of [begin, end] pairs", kMaxAxes, [this, &out](JsonAt at) {
            const Tensor& tensor = plan_.tensors[static_cast<std::size_t>(out.tensor)];
            return tensor.ragged && at.path->index == tensor.ragged->axis
                       ? groups(at, tensor, out.region)
                       : interval(at, out.region.emplace_back());
        });
    }
    auto chunk(Chunk& out) {
        return [this, &out](JsonAt at) {
            return object(at, required("tensor", tensor(out)), required("region", region(out)));
        };
    }

    auto holdings(std::vector<Holding>& out, bool is_final) {
        return [this, &out, is_final](JsonAt at) {
            return is(at.node, *at.path, Type::array, "a list of {\"rank\", \"tensor\", \"region\"}") &&
                   list(out, [&](JsonAt inner, Holding& made) { return holding(inner, is_final, made); })(at);
        };
    }

public:
    Result<Plan> plan(JsonAt at) {
        const auto given = [this](std::vector<Holding>& out) { return holdings(out, false); };
        if (!object(at, required("schema", schema("syncopate.plan/1")), required("mesh", mesh(plan_.mesh)),
                    optional("nodes", [this](JsonAt inner) { return nodes(inner); }),
                    required("tensors", [this](JsonAt inner) { return tensors(inner); }),
                    required("initial", given(plan_.initial)), required("final", holdings(plan_.final, true)),
                    optional("produced", given(plan_.produced)),
                    required("ranks", [this](JsonAt inner) { return ranks(inner); })))
            return error();
        return std::move(plan_);
    }

private:
    /// The axis of nodes: the first, so that the ranks of a node follow each other.
    bool nodes(JsonAt at) {
        const std::string& first = plan_.mesh.axes.front().name;
        return text(plan_.mesh.nodes)(at) &&
               (plan_.mesh.nodes == first ||
                fail(at, fmt::format("is \"{}\"; the axis of nodes is the mesh's first one, \"{}\"",
                                     escaped(plan_.mesh.nodes), escaped(first))));
    }

    bool tensors(JsonAt at) {
        return is(at.node, *at.path, Type::object, "an object of name: {\"shape\", \"dtype\"}") &&
               entries(at, [&](std::string_view name, JsonAt inner) {
                   if (name.empty()) return fail(at, "has a tensor with an empty name");
                   const auto index = static_cast<std::int32_t>(plan_.tensors.size());
                   if (!tensor_index_.emplace(name, index).second)
                       return fail(key_of(inner), "is defined a second time");
                   Tensor& tensor = plan_.tensors.emplace_back();
                   tensor.name = name;
                   return object(inner, required("shape", shape(tensor)), required("dtype", dtype(tensor)),
                                 optional("ragged", [&](JsonAt of) { return ragged(of, tensor); }));
               });
    }

    bool ragged(JsonAt at, Tensor& tensor) {
        Ragged made;
        std::vector<std::int64_t> sizes;
        const auto axes = static_cast<std::int64_t>(tensor.shape.size());
        const auto bound = [&](JsonAt inner) {
            made.rows = tensor.shape[static_cast<std::size_t>(made.axis)];
            return integer(made.bound, 1, made.rows)(inner);
        };
        const auto groups = [&](JsonAt inner) { return group_names(inner, made.groups); };
        const auto sizes_of = [&](JsonAt inner) {
            if (!integers("a number of groups for each name", kMaxAxes, 1, kMaxCoordinate, sizes)(inner))
                return false;
            if (sizes.size() != made.groups.size())
                return fail(inner, fmt::format("has {} numbers; the groups have {} names", sizes.size(),
                                               made.groups.size()));
            return axes - 1 + static_cast<std::int64_t>(sizes.size()) <= kMaxAxes ||
                   fail(inner, fmt::format("gives the tensor more than {} axes", kMaxAxes));
        };
        if (!object(at, required("axis", integer(made.axis, 0, axes - 1)), required("groups", groups),
                    required("sizes", sizes_of), required("bound", bound)))
            return false;
        const auto place = tensor.shape.begin() + made.axis;
        tensor.shape.insert(tensor.shape.erase(place), sizes.begin(), sizes.end());
        tensor.ragged = std::move(made);
        return ragged_objection(tensor).empty() || fail(at, ragged_objection(tensor));
    }

    /// "rows_from_rank × expert"
    bool group_names(JsonAt at, std::vector<std::string>& out) {
        std::string whole;
        if (!text(whole)(at)) return false;
        constexpr std::string_view kTimes =
            kGroupsTimes.substr(1, kGroupsTimes.size() - 2);  // blanks or none
        for (std::string_view groups = whole;;) {
            const std::size_t end = std::min(groups.find(kTimes), groups.size());
            std::string_view name = groups.substr(0, end);
            while (name.starts_with(' ')) name.remove_prefix(1);
            while (name.ends_with(' ')) name.remove_suffix(1);
            if (name.empty() || std::ranges::find(out, name) != out.end())
                return fail(at, fmt::format("is \"{}\"; expected names, each once, with {} between them",
                                            escaped(whole), kTimes));
            out.emplace_back(name);
            if (end == groups.size()) return true;
            groups.remove_prefix(end + kTimes.size());
        }
    }

    bool holding(JsonAt at, bool is_final, Holding& made) {
        const auto read = [&](const auto& last) {
            return object(at, required("rank", integer(made.rank)), required("tensor", tensor(made.chunk)),
                          required("region", region(made.chunk)), last);
        };
        return is_final ? read(optional("of", [&](JsonAt inner) { return of(inner, made); }))
                        : read(optional("partial", flag(made.partial)));
    }

    bool of(JsonAt at, Holding& made) {
        made.of_all = document_.type(at.node) == Type::string && document_.text(at.node) == "all";
        if (made.of_all) return true;
        if (document_.type(at.node) != Type::array || document_.size(at.node) == 0)
            return fail(at, "is " + document_.describe(at.node) + "; expected \"all\" or a list of ranks");
        return rank_list(made.of)(at);
    }

    bool ranks(JsonAt at) {
        const std::int32_t count = plan_.mesh.num_ranks();
        std::vector<bool> seen(static_cast<std::size_t>(count), false);
        plan_.ranks.resize(static_cast<std::size_t>(count));
        const auto rank = [&](JsonAt inner) {
            std::int32_t number = -1;
            const auto once = [&](JsonAt place) {
                if (!integer(number)(place)) return false;
                if (number < 0 || number >= count)
                    return fail(place, fmt::format("is {}; the mesh has ranks 0 to {}", number, count - 1));
                if (seen[at_rank(number)])
                    return fail(place, fmt::format("is {}, which came before", number));
                seen[at_rank(number)] = true;
                context_.rank = number;
                return true;
            };
            const bool read = object(inner, required("rank", once), required("ops", [&](JsonAt place) {
                                         return ops(place, plan_.ranks[at_rank(number)]);
                                     }));
            context_ = {};
            return read;
        };
        if (!is(at.node, *at.path, Type::array, "a list of {\"rank\", \"ops\"}") ||
            !elements("a list of ranks", std::numeric_limits<std::int32_t>::max(), rank)(at))
            return false;
        const auto missing = std::ranges::find(seen, false) - seen.begin();
        return missing == count ||
               fail(at,
                    fmt::format("has no entry for rank {}; the mesh has ranks 0 to {}, each needs one, if "
                                "only with \"ops\": []",
                                missing, count - 1));
    }
    static std::size_t at_rank(std::int32_t number) { return static_cast<std::size_t>(number); }

    bool ops(JsonAt at, std::vector<Op>& out) {
        if (!is(at.node, *at.path, Type::array, "a list of ops")) return false;
        num_ops_ += static_cast<std::int64_t>(document_.size(at.node));
        if (num_ops_ > kMaxOps) return fail(at, fmt::format("takes the plan above {} ops", kMaxOps));
        return list(out, [&](JsonAt inner, Op& made) {
            context_.op = static_cast<std::int32_t>(inner.path->index);
            const bool read = op(inner, made);
            if (read) context_.op = -1;
            return read;
        })(at);
    }

    bool op(JsonAt at, Op& op) {
        const auto is_collective = [&] { return op.kind == OpKind::collective; };
        const auto has_peer = [&] { return op.kind == OpKind::push || op.kind == OpKind::pull; };
        // Given exactly where this kind of op has it.
        const auto only = [&](bool& given, auto wanted, auto walk) {
            return [&given, wanted, walk, &op, this](JsonAt inner) {
                given = true;
                return wanted() ? walk(inner)
                                : fail(inner, fmt::format("does not belong to a {} op", name_of(op.kind)));
            };
        };
        bool peer = false, kind = false, members = false;
        std::vector<std::int32_t> participants;
        std::string channel;
        const auto list_of_ranks = [&](JsonAt inner) {
            return JsonDecoder::list(inner.node, *inner.path, "a list of ranks", kMaxRanks) &&
                   rank_list(participants)(inner);
        };
        const auto after = [&](JsonAt inner) {
            return is(inner.node, *inner.path, Type::array, "a list of [rank, op] pairs") &&
                   list(op.after, [this](JsonAt pair, OpRef& ref) {
                       return row(pair, "[rank, op]", integer(ref.rank), integer(ref.index));
                   })(inner);
        };
        if (!object(
                at, required("op", one_of<OpKind, kNumOpKinds>(op.kind, "op")),
                optional("peer", only(peer, has_peer, integer(op.peer))),
                optional("kind", only(kind, is_collective,
                                      one_of<CollectiveKind, kNumCollectiveKinds>(op.collective, "kind"))),
                optional("ranks", only(members, is_collective, list_of_ranks)),
                required("src", chunk(op.src)), required("dst", chunk(op.dst)), optional("after", after),
                optional("reduce", one_of<Reduce, kNumReduces>(op.reduce, "reduction")),
                optional("backend", one_of<Backend, kNumBackends>(op.backend, "backend")),
                optional("channel", text(channel))))
            return false;
        op.ranks = std::move(participants);
        op.channel = std::move(channel);
        const std::string_view missing = has_peer() && !peer           ? "peer"
                                         : is_collective() && !kind    ? "kind"
                                         : is_collective() && !members ? "ranks"
                                                                       : "";
        return missing.empty() ||
               fail(at, fmt::format("lacks \"{}\", which a {} needs", missing, name_of(op.kind)));
    }

    bool interval(JsonAt at, Interval& out) {
        return row(at, "[begin, end]", integer(out.begin, -kMaxCoordinate, kMaxCoordinate),
                   integer(out.end, -kMaxCoordinate, kMaxCoordinate));
    }

    /// {"rows_from_rank": 0, "expert": [0, 4]}: a name that is left out is all of its groups.
    bool groups(JsonAt at, const Tensor& tensor, Region& region) {
        const Ragged& of = *tensor.ragged;
        if (!is(at.node, *at.path, Type::object,
                fmt::format("groups of rows, by name: {}", fmt::join(of.groups, ", "))))
            return false;
        std::vector<JsonField> known;
        for (const std::string& name : of.groups) known.push_back({name, false});
        std::vector<Index> found(known.size());
        if (!fields(at.node, *at.path, known, found)) return false;
        for (std::size_t i = 0; i < found.size(); ++i) {
            Interval& range = region.emplace_back();
            const JsonPath path{at.path, of.groups[i]};
            const JsonAt group{found[i], &path};
            if (!has(group.node)) {
                range = {0, tensor.shape[static_cast<std::size_t>(of.axis) + i]};
            } else if (document_.type(group.node) == Type::array) {
                if (!interval(group, range)) return false;
            } else {
                if (!integer(range.begin, -kMaxCoordinate, kMaxCoordinate - 1)(group)) return false;
                range.end = range.begin + 1;
            }
        }
        return true;
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
    return PlanReader(document, text, file_name).plan(at);
}

}  // namespace syncopate::plan
