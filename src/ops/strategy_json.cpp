// A strategy as JSON.
#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/json_decoder.hpp"
#include "syncopate/json_text.hpp"
#include "syncopate/names.hpp"
#include "syncopate/ops/strategy.hpp"

namespace syncopate::ops {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kMostTiles = 16;
constexpr std::int32_t kMostSlices = 1024;
constexpr std::int32_t kMostParts = 2;
constexpr std::size_t kNumKernels = 2;

class StrategyDecoder : private JsonDecoder {
public:
    using JsonDecoder::JsonDecoder;

    Result<Strategy> decode() {
        Strategy made;
        if (!strategy(0, JsonPath{}, made)) return error();
        return made;
    }

private:
    template <typename Enum>
    bool word(Index node, const JsonPath& path, std::size_t count, Enum& out) {
        std::string_view text;
        if (!string(node, path, text)) return false;
        std::vector<std::string_view> names;
        for (std::size_t i = 0; i < count; ++i) {
            names.push_back(name_of(static_cast<Enum>(i)));
            if (names.back() != text) continue;
            out = static_cast<Enum>(i);
            return true;
        }
        return fail(node, path,
                    fmt::format("is \"{}\"; expected one of {}", escaped(text), fmt::join(names, ", ")));
    }

    bool optional(Index node, const JsonPath& path, std::int64_t lowest, std::optional<std::int32_t>& out) {
        std::int32_t value = 0;
        if (!integer(node, path, lowest, kMost, value)) return false;
        out = value;
        return true;
    }

    bool strategy(Index node, const JsonPath& root, Strategy& made) {
        static constexpr std::array<JsonField, 19> kFields{{{"placement", false},
                                                            {"kernel", false},
                                                            {"tiles", false},
                                                            {"programs", false},
                                                            {"chunking", false},
                                                            {"split", false},
                                                            {"split_axis", false},
                                                            {"pull", false},
                                                            {"stored", false},
                                                            {"pulled", false},
                                                            {"one_step", false},
                                                            {"kernel_sums", false},
                                                            {"together", false},
                                                            {"backend", false},
                                                            {"engine_blocks", false},
                                                            {"sum_parts", false},
                                                            {"phases", false},
                                                            {"tile_order", false},
                                                            {"parts", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, root, kFields, at)) return false;
        const auto [placement, kernel, tiles, programs, chunking, split, split_axis, pull, stored, pulled,
                    one_step, kernel_sums, together, backend, engine_blocks, sum_parts, phases, tile_order,
                    parts] = at;
        const auto path = [&](std::string_view key) { return JsonPath{&root, key}; };
        if (has(kernel)) {
            if (!word(kernel, path("kernel"), kNumKernels, *made.kernel)) return false;
        } else if (!has(tiles)) {
            made.kernel.reset();
        }
        return (!has(placement) || word(placement, path("placement"), kNumPlacements, made.placement)) &&
               (!has(tiles) || tiles_at(tiles, path("tiles"), made)) &&
               (!has(programs) || optional(programs, path("programs"), 1, made.programs)) &&
               (!has(chunking) || chunking_at(chunking, path("chunking"), made.chunking)) &&
               (!has(split) || optional(split, path("split"), 1, made.split)) &&
               (!has(split_axis) || optional(split_axis, path("split_axis"), 0, made.split_axis)) &&
               (!has(pull) || boolean(pull, path("pull"), made.pull)) &&
               (!has(stored) || integer(stored, path("stored"), 0, kMost, made.stored)) &&
               (!has(pulled) || integer(pulled, path("pulled"), 0, kMost, made.pulled)) &&
               (!has(one_step) || boolean(one_step, path("one_step"), made.one_step)) &&
               (!has(kernel_sums) || boolean(kernel_sums, path("kernel_sums"), made.kernel_sums)) &&
               (!has(together) || boolean(together, path("together"), made.together)) &&
               (!has(backend) || word(backend, path("backend"), plan::kNumBackends, made.backend)) &&
               (!has(engine_blocks) ||
                optional(engine_blocks, path("engine_blocks"), 0, made.engine_blocks)) &&
               (!has(sum_parts) || integer(sum_parts, path("sum_parts"), 1, kMost, made.sum_parts)) &&
               (!has(phases) || boolean(phases, path("phases"), made.phases)) &&
               (!has(tile_order) ||
                word(tile_order, path("tile_order"), fuse::kNumTileOrders, made.tile_order)) &&
               (!has(parts) || parts_at(parts, path("parts"), made));
    }

    /// Of operators that are apart; those of one operator have no parts.
    bool parts_at(Index node, const JsonPath& path, Strategy& made) {
        if (path.parent->parent != nullptr) return fail(node, path, "are those of one operator");
        if (!list(node, path, "a list of strategies, one for each operator", kMostParts)) return false;
        return each(node, path, [&](Index entry, const JsonPath& entry_path) {
            return strategy(entry, entry_path, made.parts.emplace_back());
        });
    }

    bool tiles_at(Index node, const JsonPath& path, Strategy& made) {
        if (!list(node, path, "a list of tile configurations", kMostTiles)) return false;
        return each(node, path, [&](Index entry, const JsonPath& entry_path) {
            return tile(entry, entry_path, made.tiles.emplace_back());
        });
    }

    bool tile(Index node, const JsonPath& path, TileConfig& out) {
        static constexpr std::array<JsonField, 9> kFields{{{"block_m", true},
                                                           {"block_n", true},
                                                           {"block_k", true},
                                                           {"stages", true},
                                                           {"warps", false},
                                                           {"split_k", false},
                                                           {"num_wide", false},
                                                           {"group_m", false},
                                                           {"precision", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        const auto [block_m, block_n, block_k, stages, warps, split_k, num_wide, group_m, precision] = at;
        const auto figure = [&](Index value, std::string_view key, std::int64_t lowest, std::int32_t& place) {
            return !has(value) || integer(value, JsonPath{&path, key}, lowest, kMost, place);
        };
        if (!figure(block_m, "block_m", 1, out.block_m) || !figure(block_n, "block_n", 1, out.block_n) ||
            !figure(block_k, "block_k", 1, out.block_k) || !figure(stages, "stages", 1, out.stages) ||
            !figure(warps, "warps", 0, out.warps) || !figure(split_k, "split_k", 1, out.split_k) ||
            !figure(num_wide, "num_wide", -1, out.num_wide) || !figure(group_m, "group_m", 1, out.group_m))
            return false;
        if (!has(precision)) return true;
        std::string_view text;
        const JsonPath precision_path{&path, "precision"};
        if (!string(precision, precision_path, text)) return false;
        if (text != "tf32" && text != "ieee")
            return fail(precision, precision_path, "is \"" + escaped(text) + "\"; expected tf32 or ieee");
        out.precision = text;
        return true;
    }

    bool chunking_at(Index node, const JsonPath& path, Chunking& cut) {
        static constexpr std::array<JsonField, 3> kFields{
            {{"rows", false}, {"slices", false}, {"peer_by_peer", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        const auto [rows, slices, peer_by_peer] = at;
        if (has(rows) && !integer(rows, JsonPath{&path, "rows"}, 1, kMost, cut.rows)) return false;
        if (has(peer_by_peer) && !boolean(peer_by_peer, JsonPath{&path, "peer_by_peer"}, cut.peer_by_peer))
            return false;
        if (!has(slices)) return true;
        const JsonPath slices_path{&path, "slices"};
        if (document_.type(slices) == Type::integer)
            return integer(slices, slices_path, 1, kMost, cut.num_slices);
        if (!list(slices, slices_path, "a number of slices, or a list of their extents", kMostSlices))
            return false;
        return each(slices, slices_path, [&](Index entry, const JsonPath& entry_path) {
            return integer(entry, entry_path, 1, std::numeric_limits<std::int64_t>::max(),
                           cut.slices.emplace_back());
        });
    }
};

/// Members of an object, those that differ from what is usual.
class Members {
public:
    void add(std::string_view key, const std::string& value) {
        text_ += fmt::format("{}\"{}\": {}", text_.empty() ? "" : ", ", key, value);
    }
    template <typename T>
    void number(std::string_view key, const T& value, const T& usual) {
        if (value != usual) add(key, fmt::format("{}", value));
    }
    void optional(std::string_view key, const std::optional<std::int32_t>& value) {
        if (value) add(key, fmt::format("{}", *value));
    }
    [[nodiscard]] bool empty() const { return text_.empty(); }
    [[nodiscard]] std::string object() const { return "{" + text_ + "}"; }

private:
    std::string text_;
};

std::string quoted(std::string_view word) { return json_quoted(std::string(word)); }

std::string json_of(const TileConfig& tile) {
    const TileConfig usual;
    Members members;
    members.add("block_m", fmt::format("{}", tile.block_m));
    members.add("block_n", fmt::format("{}", tile.block_n));
    members.add("block_k", fmt::format("{}", tile.block_k));
    members.add("stages", fmt::format("{}", tile.stages));
    members.number("warps", tile.warps, usual.warps);
    members.number("split_k", tile.split_k, usual.split_k);
    members.number("num_wide", tile.num_wide, usual.num_wide);
    members.number("group_m", tile.group_m, usual.group_m);
    if (tile.precision != usual.precision) members.add("precision", quoted(tile.precision));
    return members.object();
}

}  // namespace

Result<Strategy> strategy_from_json(std::string_view text, const std::string& file_name) {
    const Result<JsonDocument> document = JsonDocument::parse(text, file_name);
    if (!document) return document.error();
    return StrategyDecoder(*document, text, file_name, "the strategy").decode();
}

std::string to_json(const Strategy& strategy) {
    const Strategy usual;
    Members members;
    if (strategy.placement != usual.placement) members.add("placement", quoted(name_of(strategy.placement)));
    if (strategy.kernel && (strategy.kernel != usual.kernel || strategy.tiles.empty()))
        members.add("kernel", quoted(name_of(*strategy.kernel)));
    if (!strategy.tiles.empty()) {
        std::vector<std::string> tiles;
        for (const TileConfig& tile : strategy.tiles) tiles.push_back(json_of(tile));
        members.add("tiles", fmt::format("[{}]", fmt::join(tiles, ", ")));
    }
    members.optional("programs", strategy.programs);
    Members cut;
    cut.number("rows", strategy.chunking.rows, usual.chunking.rows);
    if (strategy.chunking.slices.empty()) {
        cut.number("slices", strategy.chunking.num_slices, usual.chunking.num_slices);
    } else {
        cut.add("slices", fmt::format("[{}]", fmt::join(strategy.chunking.slices, ", ")));
    }
    cut.number("peer_by_peer", strategy.chunking.peer_by_peer, false);
    if (!cut.empty()) members.add("chunking", cut.object());
    members.optional("split", strategy.split);
    members.optional("split_axis", strategy.split_axis);
    members.number("pull", strategy.pull, usual.pull);
    members.number("stored", strategy.stored, usual.stored);
    members.number("pulled", strategy.pulled, usual.pulled);
    members.number("one_step", strategy.one_step, usual.one_step);
    members.number("kernel_sums", strategy.kernel_sums, usual.kernel_sums);
    members.number("together", strategy.together, usual.together);
    if (strategy.backend != usual.backend) members.add("backend", quoted(plan::name_of(strategy.backend)));
    members.optional("engine_blocks", strategy.engine_blocks);
    members.number("sum_parts", strategy.sum_parts, usual.sum_parts);
    members.number("phases", strategy.phases, usual.phases);
    if (strategy.tile_order != usual.tile_order)
        members.add("tile_order", quoted(name_of(strategy.tile_order)));
    std::vector<std::string> parts;
    for (const Strategy& part : strategy.parts) parts.push_back(to_json(part));
    if (!parts.empty()) members.add("parts", fmt::format("[{}]", fmt::join(parts, ", ")));
    return members.object();
}

}  // namespace syncopate::ops
