#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "sync/validate.hpp"
#include "syncopate/json_decoder.hpp"
#include "syncopate/names.hpp"
#include "syncopate/sync/chain.hpp"

namespace syncopate::sync {
namespace {

constexpr std::array kPolicies{PolicyKind::none,    PolicyKind::tile,        PolicyKind::row,
                               PolicyKind::strided, PolicyKind::consecutive, PolicyKind::halo,
                               PolicyKind::batched, PolicyKind::automatic,   PolicyKind::custom};
constexpr std::array kOrders{OrderKind::identity, OrderKind::transposed, OrderKind::grouped,
                             OrderKind::automatic, OrderKind::custom};

class ChainDecoder : private JsonDecoder {
public:
    using JsonDecoder::JsonDecoder;

    Result<Chain> decode() {
        if (!chain()) return error();
        return std::move(chain_);
    }

private:
    bool chain() {
        const JsonPath root;
        static constexpr std::array<JsonField, 5> kFields{
            {{"schema", true}, {"tensors", true}, {"stages", true}, {"launch", false}, {"calls", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(0, root, kFields, at)) return false;
        const auto [schema, tensors_at, stages_at, launch, calls] = at;
        std::string_view text;
        const JsonPath schema_path{&root, "schema"};
        if (!string(schema, schema_path, text)) return false;
        if (text != "syncopate.chain/1") {
            return fail(schema, schema_path,
                        "is \"" + escaped(text) + "\"; this version reads \"syncopate.chain/1\"");
        }
        bool any = false;
        bool overlapped = false;
        if ((has(launch) && !one_of_two(launch, {&root, "launch"}, "after_start", "any", any)) ||
            (has(calls) && !one_of_two(calls, {&root, "calls"}, "ordered", "overlapped", overlapped))) {
            return false;
        }
        if (any) chain_.launch = Chain::Launch::any;
        if (overlapped) chain_.calls = Chain::Calls::overlapped;
        return tensors(tensors_at, {&root, "tensors"}) && stages(stages_at, {&root, "stages"});
    }

    bool one_of_two(Index node, const JsonPath& path, std::string_view first, std::string_view second,
                    bool& is_second) {
        std::string_view text;
        if (!string(node, path, text)) return false;
        is_second = text == second;
        return is_second || text == first ||
               fail(node, path,
                    fmt::format("is \"{}\"; expected \"{}\" or \"{}\"", escaped(text), first, second));
    }

    /// Calls decode(name, value, its path) for each member of an object; names are not empty, and each once.
    template <typename Decode>
    bool members(Index node, const JsonPath& path, std::string_view expected, Decode decode) {
        if (!is(node, path, Type::object, expected)) return false;
        std::set<std::string_view> seen;
        for (Index key = document_.first(node); key != document_.end(node);) {
            const Index value = document_.next(key);
            const std::string_view name = document_.text(key);
            if (name.empty()) return fail(key, path, "has an empty name");
            if (!seen.insert(name).second)
                return fail(key, path, "has the key \"" + escaped(name) + "\" twice");
            if (!decode(key, std::string(name), value, JsonPath{&path, name})) return false;
            key = document_.next(value);
        }
        return true;
    }

    bool tensors(Index node, const JsonPath& path) {
        return members(node, path, "an object of extents by name",
                       [&](Index, const std::string& name, Index value, const JsonPath& of) {
                           std::vector<std::int64_t>& extents = chain_.tensors[name];
                           if (!list(value, of, "a list of extents", kMostAxes)) return false;
                           return each(value, of, [&](Index extent, const JsonPath& at) {
                               return integer(extent, at, 1, kLargestExtent, extents.emplace_back());
                           });
                       });
    }

    bool stages(Index node, const JsonPath& path) {
        if (!list(node, path, "a list of stages", kMostStages)) return false;
        if (document_.size(node) == 0) return fail(node, path, "is empty; it needs at least one stage");
        std::int64_t blocks = 0;
        return each(node, path, [&](Index entry, const JsonPath& entry_path) {
            ChainStage& made = chain_.stages.emplace_back();
            if (!stage(entry, entry_path, made)) return false;
            blocks += made.num_blocks();
            return blocks <= kMostBlocks ||
                   fail(entry, entry_path, fmt::format("takes the chain above {} blocks", kMostBlocks));
        });
    }

    bool stage(Index node, const JsonPath& path, ChainStage& made) {
        static constexpr std::array<JsonField, 10> kFields{{{"name", true},
                                                            {"grid", true},
                                                            {"order", false},
                                                            {"tickets", false},
                                                            {"reads", false},
                                                            {"writes", false},
                                                            {"adds", false},
                                                            {"waits", false},
                                                            {"early", false},
                                                            {"guards", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        const auto [name_at, grid_at, order_at, tickets, reads, writes, adds, waits, early, guards] = at;
        std::string_view name;
        if (!string(name_at, {&path, "name"}, name)) return false;
        made.name = name;
        if (name.empty()) return fail(name_at, {&path, "name"}, "is an empty name");
        for (std::size_t i = 0; i + 1 < chain_.stages.size(); ++i) {
            if (chain_.stages[i].name == name)
                return fail(name_at, {&path, "name"}, "is \"" + escaped(name) + "\", as another stage's");
        }
        return grid(grid_at, {&path, "grid"}, made) &&
               (!has(order_at) || order(order_at, {&path, "order"}, made)) &&
               (!has(tickets) || boolean(tickets, {&path, "tickets"}, made.tickets)) &&
               (!has(reads) || boxes(reads, {&path, "reads"}, made.reads)) &&
               (!has(writes) || boxes(writes, {&path, "writes"}, made.writes)) &&
               (!has(adds) || added(adds, {&path, "adds"}, made)) &&
               (!has(waits) || policies(waits, {&path, "waits"}, made.reads, "does not read", made.waits)) &&
               (!has(early) || early_inputs(early, {&path, "early"}, made)) &&
               (!has(guards) ||
                policies(guards, {&path, "guards"}, made.writes, "does not write", made.guards));
    }

    bool grid(Index node, const JsonPath& path, ChainStage& made) {
        if (!list(node, path, "a list of one to three counts", 3)) return false;
        if (document_.size(node) == 0) return fail(node, path, "is empty; it needs one to three counts");
        std::size_t axis = 0;
        if (!each(node, path, [&](Index count, const JsonPath& at) {
                return integer(count, at, 1, kMostBlocks, made.grid[axis++]);
            })) {
            return false;
        }
        return made.grid[0] * made.grid[1] <= kMostBlocks && made.num_blocks() <= kMostBlocks
                   ? true
                   : fail(node, path, fmt::format("is more than {} blocks", kMostBlocks));
    }

    bool order(Index node, const JsonPath& path, ChainStage& made) {
        Index name_at = node;
        Index rows = JsonDocument::kNone;
        Index tiles = JsonDocument::kNone;
        if (document_.type(node) == Type::object) {
            static constexpr std::array<JsonField, 3> kFields{
                {{"order", true}, {"rows", false}, {"tiles", false}}};
            std::array<Index, kFields.size()> at;
            if (!fields(node, path, kFields, at)) return false;
            name_at = at[0], rows = at[1], tiles = at[2];
        }
        if (!word(name_at, path, kOrders, made.order.kind)) return false;
        if (has(rows)) {
            if (made.order.kind != OrderKind::grouped)
                return fail(rows, path, "has \"rows\" without \"grouped\"");
            if (!integer(rows, {&path, "rows"}, 1, kMostBlocks, made.order.rows)) return false;
        }
        if (has(tiles) != (made.order.kind == OrderKind::custom))
            return fail(node, path, "needs \"tiles\" exactly where the order is \"custom\"");
        if (!has(tiles)) return true;
        const auto blocks = static_cast<std::int32_t>(made.num_blocks());
        const JsonPath tiles_path{&path, "tiles"};
        if (!list(tiles, tiles_path, "a list of tiles", blocks)) return false;
        std::vector<bool> seen(static_cast<std::size_t>(blocks), false);
        if (!each(tiles, tiles_path, [&](Index tile, const JsonPath& at) {
                std::int32_t& number = made.order.tiles.emplace_back();
                if (!integer(tile, at, 0, blocks - 1, number)) return false;
                if (seen[static_cast<std::size_t>(number)])
                    return fail(tile, at, fmt::format("is {}, which the list has already", number));
                seen[static_cast<std::size_t>(number)] = true;
                return true;
            })) {
            return false;
        }
        return made.order.tiles.size() == seen.size() ||
               fail(tiles, tiles_path, fmt::format("has {} of {} tiles", made.order.tiles.size(), blocks));
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

    bool known_tensor(Index at, const JsonPath& path, const std::string& name) {
        if (chain_.tensors.contains(name)) return true;
        std::vector<std::string_view> known;
        for (const auto& [tensor, extents] : chain_.tensors) known.push_back(tensor);
        return fail(
            at, path,
            "names \"" + escaped(name) + "\", which is not among the tensors" + did_you_mean(name, known));
    }

    /// {tensor: box} or {tensor: [box, box, …]}, a box being a list of ranges.
    bool boxes(Index node, const JsonPath& path, std::map<std::string, std::vector<BoxText>>& out) {
        return members(node, path, "an object of ranges by tensor",
                       [&](Index key, const std::string& name, Index value, const JsonPath& of) {
                           if (!known_tensor(key, path, name)) return false;
                           if (!is(value, of, Type::array, "a list of ranges, one for each axis"))
                               return false;
                           std::vector<BoxText>& made = out[name];
                           const bool several = document_.size(value) > 0 &&
                                                document_.type(document_.first(value)) == Type::array;
                           if (!several) return box(value, of, name, made.emplace_back());
                           if (!list(value, of, "a list of boxes", kMostBoxes)) return false;
                           return each(value, of, [&](Index one, const JsonPath& at) {
                               return box(one, at, name, made.emplace_back());
                           });
                       });
    }

    bool box(Index node, const JsonPath& path, const std::string& tensor, BoxText& out) {
        if (!is(node, path, Type::array, "a list of ranges, one for each axis")) return false;
        const std::size_t axes = chain_.tensors[tensor].size();
        if (document_.size(node) != axes)
            return fail(node, path,
                        fmt::format("has {} ranges; \"{}\" has {} axes", document_.size(node), tensor, axes));
        return each(node, path,
                    [&](Index entry, const JsonPath& at) { return range(entry, at, out.emplace_back()); });
    }

    bool range(Index node, const JsonPath& path, affine::Range& out) {
        std::string_view text;
        if (!string(node, path, text)) return false;
        Result<affine::Range> parsed = affine::Range::parse(text, "the range");
        if (!parsed) return fail(node, path, "is not a range: " + parsed.error().message);
        out = *std::move(parsed);
        return true;
    }

    bool policies(Index node, const JsonPath& path,
                  const std::map<std::string, std::vector<BoxText>>& touched, std::string_view complaint,
                  std::map<std::string, Policy>& out) {
        return members(node, path, "an object of policies by tensor",
                       [&](Index key, const std::string& name, Index value, const JsonPath& of) {
                           if (!known_tensor(key, path, name)) return false;
                           if (!touched.contains(name))
                               return fail(key, path,
                                           fmt::format("names \"{}\", which the stage {}", name, complaint));
                           return policy(value, of, out[name]);
                       });
    }

    bool policy(Index node, const JsonPath& path, Policy& out) {
        if (document_.type(node) == Type::string) {
            return word(node, path, kPolicies, out.kind) &&
                   (out.kind != PolicyKind::custom ||
                    fail(node, path, "is \"custom\"; write {\"policy\": \"custom\", \"semaphore\": …}"));
        }
        static constexpr std::array<JsonField, 6> kFields{{{"policy", true},
                                                           {"stride", false},
                                                           {"group", false},
                                                           {"semaphore", false},
                                                           {"count", false},
                                                           {"awaits", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        const auto [kind, stride, group, semaphore, count, awaits] = at;
        if (!word(kind, {&path, "policy"}, kPolicies, out.kind)) return false;
        const auto belongs = [&](Index field, std::string_view name, PolicyKind to) {
            return !has(field) || out.kind == to ||
                   fail(field, path, fmt::format("has \"{}\", which belongs to \"{}\"", name, name_of(to)));
        };
        if (!belongs(stride, "stride", PolicyKind::strided) ||
            !belongs(group, "group", PolicyKind::consecutive) ||
            !belongs(semaphore, "semaphore", PolicyKind::custom) ||
            !belongs(awaits, "awaits", PolicyKind::custom)) {
            return false;
        }
        if (has(count) && out.kind == PolicyKind::none)
            return fail(count, path, "has \"count\", and \"none\" awaits nothing");
        if (out.kind == PolicyKind::custom && !has(semaphore)) return fail(node, path, "lacks \"semaphore\"");
        if ((has(stride) && !integer(stride, {&path, "stride"}, 1, kMostBlocks, out.stride)) ||
            (has(group) && !integer(group, {&path, "group"}, 1, kMostBlocks, out.group)) ||
            (has(semaphore) && !expression(semaphore, {&path, "semaphore"}, out.semaphore)) ||
            (has(awaits) && !range(awaits, {&path, "awaits"}, out.awaited.emplace()))) {
            return false;
        }
        return !has(count) || integer(count, {&path, "count"}, 0, kMostBlocks, out.count.emplace());
    }

    bool expression(Index node, const JsonPath& path, std::optional<affine::Expression>& out) {
        std::string_view text;
        if (!string(node, path, text)) return false;
        Result<affine::Expression> parsed = affine::Expression::parse(text, "the semaphore");
        if (!parsed) return fail(node, path, "is not an expression: " + parsed.error().message);
        out = *std::move(parsed);
        return true;
    }

    bool early_inputs(Index node, const JsonPath& path, ChainStage& made) {
        if (!list(node, path, "a list of tensors", kMostBoxes)) return false;
        return each(node, path, [&](Index entry, const JsonPath& at) {
            std::string_view name;
            if (!string(entry, at, name)) return false;
            if (!made.reads.contains(std::string(name)))
                return fail(entry, at, "names \"" + escaped(name) + "\", which the stage does not read");
            if (made.waits.contains(std::string(name)))
                return fail(entry, at, "names \"" + escaped(name) + "\", which the stage also waits for");
            made.early.emplace_back(name);
            return true;
        });
    }

    bool added(Index node, const JsonPath& path, ChainStage& made) {
        if (!list(node, path, "a list of tensors", kMostBoxes)) return false;
        return each(node, path, [&](Index entry, const JsonPath& at) {
            std::string_view name;
            if (!string(entry, at, name)) return false;
            if (!made.writes.contains(std::string(name)))
                return fail(entry, at, "names \"" + escaped(name) + "\", which the stage does not write");
            made.adds.emplace_back(name);
            return true;
        });
    }

    Chain chain_;
};

}  // namespace

std::string_view name_of(PolicyKind kind) {
    constexpr std::array<std::string_view, kPolicies.size()> kNames{
        "none", "tile", "row", "strided", "consecutive", "halo", "batched", "auto", "custom"};
    return kNames[static_cast<std::size_t>(kind)];
}

std::string_view name_of(OrderKind kind) {
    constexpr std::array<std::string_view, kOrders.size()> kNames{"identity", "transposed", "grouped", "auto",
                                                                  "custom"};
    return kNames[static_cast<std::size_t>(kind)];
}

bool ChainStage::is_early(const std::string& tensor) const {
    return std::ranges::find(early, tensor) != early.end();
}

bool ChainStage::is_added_to(const std::string& tensor) const {
    return std::ranges::find(adds, tensor) != adds.end();
}

Result<Chain> chain_from_json(std::string_view text, const std::string& file_name) {
    const Result<JsonDocument> document = JsonDocument::parse(text, file_name);
    if (!document) return document.error();
    return ChainDecoder(*document, text, file_name, "the chain").decode();
}

}  // namespace syncopate::sync
