#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "sync/validate.hpp"
#include "syncopate/at.hpp"
#include "syncopate/json_table.hpp"
#include "syncopate/names.hpp"
#include "syncopate/sync/chain.hpp"
#include "syncopate/try.hpp"

namespace syncopate::sync {
namespace {

constexpr std::array kPolicies{PolicyKind::none,    PolicyKind::tile,        PolicyKind::row,
                               PolicyKind::strided, PolicyKind::consecutive, PolicyKind::halo,
                               PolicyKind::batched, PolicyKind::automatic,   PolicyKind::custom};
constexpr std::array kOrders{OrderKind::identity, OrderKind::transposed, OrderKind::grouped,
                             OrderKind::automatic, OrderKind::custom};

class ChainReader : private JsonReader {
public:
    using JsonReader::JsonReader;

    Result<Chain> decode() {
        if (!chain()) return error();
        return std::move(chain_);
    }

private:
    // Walks come before their users, who need their types.
    template <typename Enum>
    auto one_of_two(std::string_view first, std::string_view second, Enum& out, Enum is_second) {
        return [=, this, &out](JsonAt at) {
            std::string word;
            if (!text(word)(at)) return false;
            if (word == second) out = is_second;
            return word == first || word == second ||
                   fail(at,
                        fmt::format("is \"{}\"; expected \"{}\" or \"{}\"", escaped(word), first, second));
        };
    }

    /// Calls decode(name, value, its path) for each member of an object; names are not empty, and each once.
    template <typename Decode>
    bool members(Index node, const JsonPath& path, std::string_view expected, Decode decode) {
        if (!is(node, path, Type::object, expected)) return false;
        std::set<std::string_view> seen;
        return JsonReader::members(node, path, [&](Index key, Index value, const JsonPath& inner) {
            if (inner.key.empty()) return fail(key, path, "has an empty name");
            if (!seen.insert(inner.key).second)
                return fail(key, path, "has the key \"" + escaped(inner.key) + "\" twice");
            return decode(key, std::string(inner.key), value, inner);
        });
    }

    bool known_tensor(Index at, const JsonPath& path, const std::string& name) {
        if (chain_.tensors.contains(name)) return true;
        std::vector<std::string_view> known;
        for (const auto& [tensor, extents] : chain_.tensors) known.push_back(tensor);
        return fail(
            at, path,
            "names \"" + escaped(name) + "\", which is not among the tensors" + did_you_mean(name, known));
    }

    /// {tensor: box} or {tensor: [box, box, …]}, a box being a list of ranges.
    auto boxes(std::map<std::string, std::vector<BoxText>>& out) {
        return [this, &out](JsonAt at) {
            return members(
                at.node, *at.path, "an object of ranges by tensor",
                [&](Index key, const std::string& name, Index value, const JsonPath& of) {
                    if (!known_tensor(key, *at.path, name)) return false;
                    const JsonAt there{value, &of};
                    if (!is(value, of, Type::array, "a list of ranges, one for each axis")) return false;
                    const auto one = [&](JsonAt inner) { return box(inner, name, out[name].emplace_back()); };
                    const bool several =
                        document_.size(value) > 0 && document_.type(document_.first(value)) == Type::array;
                    return several ? elements("a list of boxes", kMostBoxes, one)(there) : one(there);
                });
        };
    }

    auto policies(const std::map<std::string, std::vector<BoxText>>& touched, std::string_view complaint,
                  std::map<std::string, Policy>& out) {
        return [this, &touched, complaint, &out](JsonAt at) {
            return members(at.node, *at.path, "an object of policies by tensor",
                           [&](Index key, const std::string& name, Index value, const JsonPath& of) {
                               if (!known_tensor(key, *at.path, name)) return false;
                               if (!touched.contains(name))
                                   return fail(
                                       key, *at.path,
                                       fmt::format("names \"{}\", which the stage {}", name, complaint));
                               return policy({value, &of}, out[name]);
                           });
        };
    }

    /// One of the kinds by its name.
    template <typename Kinds, typename Kind>
    bool word(Index node, const JsonPath& path, const Kinds& kinds, Kind& out) {
        std::string_view text;
        if (!string(node, path, text)) return false;
        std::vector<std::string_view> known;
        for (const Kind kind : kinds) {
            if (name_of(kind) == text) {
                out = kind;
                return true;
            }
            known.push_back(name_of(kind));
        }
        const std::string hint = did_you_mean(text, known);
        return fail(node, path,
                    "is \"" + escaped(text) + "\"" +
                        (hint.empty() ? "; expected one of " + join_words(known) : hint));
    }

    bool chain() {
        const JsonPath root;
        return object(
            {0, &root}, required("schema", schema("syncopate.chain/1")),
            required("tensors", [this](JsonAt at) { return tensors(at); }),
            required("stages", [this](JsonAt at) { return stages(at); }),
            optional("launch", one_of_two("after_start", "any", chain_.launch, Chain::Start::any)),
            optional("calls", one_of_two("ordered", "overlapped", chain_.calls, Chain::Calls::overlapped)));
    }

    bool tensors(JsonAt at) {
        return members(at.node, *at.path, "an object of extents by name",
                       [this](Index, const std::string& name, Index value, const JsonPath& of) {
                           std::vector<std::int64_t>& extents = chain_.tensors[name];
                           return elements("a list of extents", kMostAxes, [&](JsonAt extent) {
                               return integer(extents.emplace_back(), 1, kLargestExtent)(extent);
                           })({value, &of});
                       });
    }

    bool stages(JsonAt at) {
        std::int64_t blocks = 0;
        const auto one = [&](JsonAt entry) {
            ChainStage& made = chain_.stages.emplace_back();
            if (!stage(entry, made)) return false;
            blocks += made.num_blocks();
            return blocks <= kMostBlocks ||
                   fail(entry, fmt::format("takes the chain above {} blocks", kMostBlocks));
        };
        return elements("a list of stages", kMostStages, one)(at) &&
               (!chain_.stages.empty() || fail(at, "is empty; it needs at least one stage"));
    }

    bool stage(JsonAt at, ChainStage& made) {
        const auto named = [&](JsonAt inner, std::string_view does, const auto& touched, std::string& name) {
            return text(name)(inner) &&
                   (touched.contains(name) ||
                    fail(inner, "names \"" + escaped(name) + "\", which the stage " + std::string(does)));
        };
        const auto add = [&](JsonAt inner) {
            return named(inner, "does not write", made.writes, made.adds.emplace_back());
        };
        const auto early = [&](JsonAt inner) {
            std::string& name = made.early.emplace_back();
            return named(inner, "does not read", made.reads, name) &&
                   (!made.waits.contains(name) ||
                    fail(inner, "names \"" + escaped(name) + "\", which the stage also waits for"));
        };
        return object(at, required("name", [&](JsonAt inner) { return name_of_stage(inner, made); }),
                      required("grid", [&](JsonAt inner) { return grid(inner, made); }),
                      optional("order", [&](JsonAt inner) { return order(inner, made); }),
                      optional("tickets", flag(made.tickets)), optional("reads", boxes(made.reads)),
                      optional("writes", boxes(made.writes)),
                      optional("adds", elements("a list of tensors", kMostBoxes, add)),
                      optional("waits", policies(made.reads, "does not read", made.waits)),
                      optional("early", elements("a list of tensors", kMostBoxes, early)),
                      optional("guards", policies(made.writes, "does not write", made.guards)));
    }

    bool name_of_stage(JsonAt at, ChainStage& made) {
        std::string name;
        if (!text(name)(at)) return false;
        if (name.empty()) return fail(at, "is an empty name");
        if (std::ranges::find(chain_.stages, name, &ChainStage::name) != chain_.stages.end())
            return fail(at, "is \"" + escaped(name) + "\", as another stage's");
        made.name = std::move(name);
        return true;
    }

    bool grid(JsonAt at, ChainStage& made) {
        std::size_t axis = 0;
        const auto count = [&](JsonAt inner) { return integer(made.grid[axis++], 1, kMostBlocks)(inner); };
        if (!elements("a list of one to three counts", 3, count)(at)) return false;
        if (axis == 0) return fail(at, "is empty; it needs one to three counts");
        return (made.grid[0] * made.grid[1] <= kMostBlocks && made.num_blocks() <= kMostBlocks) ||
               fail(at, fmt::format("is more than {} blocks", kMostBlocks));
    }

    bool order(JsonAt at, ChainStage& made) {
        bool has_tiles = false;
        const auto kind = [&](JsonAt inner) { return word(inner.node, *at.path, kOrders, made.order.kind); };
        const auto rows = [&](JsonAt inner) {
            if (made.order.kind != OrderKind::grouped)
                return fail(inner.node, *at.path, "has \"rows\" without \"grouped\"");
            return integer(made.order.rows, 1, kMostBlocks)(inner);
        };
        const auto tiles = [&](JsonAt inner) {
            has_tiles = true;
            return made.order.kind != OrderKind::custom || all_tiles(inner, made);
        };
        const bool read =
            document_.type(at.node) == Type::object
                ? object(at, required("order", kind), optional("rows", rows), optional("tiles", tiles))
                : kind(at);
        return read && (has_tiles == (made.order.kind == OrderKind::custom) ||
                        fail(at, "needs \"tiles\" exactly where the order is \"custom\""));
    }

    bool all_tiles(JsonAt at, ChainStage& made) {
        const auto blocks = static_cast<std::int32_t>(made.num_blocks());
        std::vector<bool> seen(static_cast<std::size_t>(blocks), false);
        const auto tile = [&](JsonAt inner) {
            std::int32_t& number = made.order.tiles.emplace_back();
            if (!integer(number, 0, blocks - 1)(inner)) return false;
            if (seen[static_cast<std::size_t>(number)])
                return fail(inner, fmt::format("is {}, which the list has already", number));
            seen[static_cast<std::size_t>(number)] = true;
            return true;
        };
        return elements("a list of tiles", blocks, tile)(at) &&
               (made.order.tiles.size() == seen.size() ||
                fail(at, fmt::format("has {} of {} tiles", made.order.tiles.size(), blocks)));
    }

    bool box(JsonAt at, const std::string& tensor, BoxText& out) {
        if (!is(at.node, *at.path, Type::array, "a list of ranges, one for each axis")) return false;
        const std::size_t axes = chain_.tensors[tensor].size();
        if (document_.size(at.node) != axes)
            return fail(
                at, fmt::format("has {} ranges; \"{}\" has {} axes", document_.size(at.node), tensor, axes));
        return list(out, [this](JsonAt inner, affine::Range& range) {
            return parsed(inner, range, "the range", "is not a range: ");
        })(at);
    }

    template <typename T>
    bool parsed(JsonAt at, T& out, const std::string& what, const std::string& problem) {
        std::string given;
        if (!text(given)(at)) return false;
        Result<T> made = T::parse(given, what);
        if (!made) return fail(at, problem + made.error().message);
        out = *std::move(made);
        return true;
    }

    bool policy(JsonAt at, Policy& out) {
        const auto kind = [&](JsonAt inner) { return word(inner.node, *inner.path, kPolicies, out.kind); };
        if (document_.type(at.node) == Type::string)
            return kind(at) && (out.kind != PolicyKind::custom ||
                                fail(at, "is \"custom\"; write {\"policy\": \"custom\", \"semaphore\": …}"));
        const auto only = [&](PolicyKind to, std::string_view name, auto walk) {
            return [=, this, &out](JsonAt inner) {
                return out.kind == to
                           ? walk(inner)
                           : fail(inner.node, *at.path,
                                  fmt::format("has \"{}\", which belongs to \"{}\"", name, name_of(to)));
            };
        };
        const auto semaphore = [this, &out](JsonAt inner) {
            return parsed(inner, out.semaphore.emplace(), "the semaphore", "is not an expression: ");
        };
        const auto awaits = [this, &out](JsonAt inner) {
            return parsed(inner, out.awaited.emplace(), "the range", "is not a range: ");
        };
        const auto count = [&](JsonAt inner) {
            return out.kind == PolicyKind::none
                       ? fail(inner.node, *at.path, "has \"count\", and \"none\" awaits nothing")
                       : integer(out.count.emplace(), 0, kMostBlocks)(inner);
        };
        return object(at, required("policy", kind),
                      optional("stride",
                               only(PolicyKind::strided, "stride", integer(out.stride, 1, kMostBlocks))),
                      optional("group",
                               only(PolicyKind::consecutive, "group", integer(out.group, 1, kMostBlocks))),
                      optional("semaphore", only(PolicyKind::custom, "semaphore", semaphore)),
                      optional("count", count),
                      optional("awaits", only(PolicyKind::custom, "awaits", awaits))) &&
               (out.kind != PolicyKind::custom || out.semaphore || fail(at, "lacks \"semaphore\""));
    }

    Chain chain_;
};

}  // namespace

std::string_view name_of(PolicyKind kind) {
    constexpr std::array<std::string_view, kPolicies.size()> kNames{
        "none", "tile", "row", "strided", "consecutive", "halo", "batched", "auto", "custom"};
    return kNames[at(kind)];
}

std::string_view name_of(OrderKind kind) {
    constexpr std::array<std::string_view, kOrders.size()> kNames{"identity", "transposed", "grouped", "auto",
                                                                  "custom"};
    return kNames[at(kind)];
}

bool ChainStage::is_early(const std::string& tensor) const {
    return std::ranges::find(early, tensor) != early.end();
}

bool ChainStage::is_added_to(const std::string& tensor) const {
    return std::ranges::find(adds, tensor) != adds.end();
}

Result<Chain> chain_from_json(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    return ChainReader(document, text, file_name, "the chain").decode();
}

}  // namespace syncopate::sync
