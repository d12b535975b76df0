// A strategy as JSON.
#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "syncopate/json_table.hpp"
#include "syncopate/ops/attention.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kMostParts = 2;
constexpr std::array<std::string_view, 2> kPrecisions{"tf32", "ieee"};

/// The members of a strategy: what is as by default is not written.
template <typename Json>
class StrategyTable : public Json {
public:
    using Json::Json;

    bool value(JsonAt at, JsonOf<Strategy> auto& made) {
        const Strategy usual;
        const auto flag = [&](std::string_view key, auto& field) {
            return optional(key, field, this->flag(field));
        };
        const auto open = [&](std::string_view key, auto& field, std::int64_t low) {
            return optional(key, field.has_value(), maybe(field, low));
        };
        if constexpr (Json::kReads) made.kernel.reset();
        const bool good = this->object(
            at, optional("placement", made.placement != usual.placement, placement(made.placement)),
            optional("kernel", made.kernel && (made.kernel != usual.kernel || made.tiles.empty()),
                     kernel(made.kernel)),
            optional("tiles", !made.tiles.empty(), all(made.tiles)), open("programs", made.programs, 1),
            optional("chunking", made.chunking != usual.chunking, of(made.chunking)),
            open("split", made.split, 1), open("split_axis", made.split_axis, 0), flag("pull", made.pull),
            optional("stored", made.stored != usual.stored, this->integer(made.stored, 0, kMost)),
            removed("pulled", "the number of contributions that owners read", "the number 0"),
            flag("one_step", made.one_step), flag("kernel_sums", made.kernel_sums),
            flag("together", made.together),
            optional("backend", made.backend != usual.backend,
                     this->name(made.backend, "backend", names_of<plan::Backend, plan::kNumBackends>())),
            open("engine_blocks", made.engine_blocks, 0),
            removed("sum_parts", "another number of parts of a sum than eight", "the number 8"),
            removed("phases", "loops that wait for all that they read", "true"),
            removed("tile_order", "another order of tiles than the kernel's", "the string \"kernel\""),
            optional("parts", !made.parts.empty(), parts(made.parts)),
            optional("kind", !made.kind.empty(), kind(made.kind)),
            optional("inner", made.inner != 0, this->integer(made.inner, 0, kMost)),
            optional("head_parts", made.head_parts != 0, this->integer(made.head_parts, 0, kMost)));
        if constexpr (Json::kReads) {
            if (good && !made.kernel && !made.tiles.empty()) made.kernel = ProductKernel::plain;
        }
        return good;
    }

    bool value(JsonAt at, JsonOf<TileConfig> auto& tile) {
        const TileConfig usual;
        const auto figure = [&](std::string_view key, auto& field, const auto& by_default, std::int64_t low) {
            return optional(key, field != by_default, this->integer(field, low, kMost));
        };
        return this->object(
            at, required("block_m", this->integer(tile.block_m, 1, kMost)),
            required("block_n", this->integer(tile.block_n, 1, kMost)),
            required("block_k", this->integer(tile.block_k, 1, kMost)),
            required("stages", this->integer(tile.stages, 1, kMost)),
            figure("warps", tile.warps, usual.warps, 0), figure("split_k", tile.split_k, usual.split_k, 1),
            figure("num_wide", tile.num_wide, usual.num_wide, -1),
            figure("group_m", tile.group_m, usual.group_m, 1),
            optional("precision", tile.precision != usual.precision, precision(tile.precision)));
    }

    bool value(JsonAt at, JsonOf<Chunking> auto& cut) {
        return this->object(at, optional("rows", cut.rows != 1, this->integer(cut.rows, 1, kMost)),
                            optional("slices", !cut.slices.empty() || cut.num_slices != 1, slices(cut)),
                            optional("peer_by_peer", cut.peer_by_peer, this->flag(cut.peer_by_peer)));
    }

private:
    template <typename T>
    auto of(T& field) {
        return [this, &field](JsonAt at) { return value(at, field); };
    }
    template <typename T>
    auto all(T& fields) {
        return this->list(fields, [this](JsonAt at, auto& field) { return value(at, field); });
    }
    template <typename T>
    auto maybe(T& field, std::int64_t low) {
        return [this, &field, low](JsonAt at) {
            if constexpr (Json::kReads) field.emplace();
            return this->integer(*field, low, kMost)(at);
        };
    }
    template <typename T>
    auto placement(T& field) {
        return [this, &field](JsonAt at) {
            if constexpr (Json::kReads) {
                if (this->document_.type(at.node) == JsonDocument::Type::string &&
                    this->document_.text(at.node) == "after")
                    return this->fail(at,
                                      "is \"after\", a plain kernel with the chunk engine behind it: that "
                                      "was taken out, and fused is as quick; tune anew");
            }
            return this->name(field, "placement", names_of<Placement, kNumPlacements>())(at);
        };
    }
    template <typename T>
    auto kernel(T& field) {
        return [this, &field](JsonAt at) {
            if constexpr (Json::kReads) field.emplace();
            return this->name(*field, "kernel", names_of<ProductKernel, 2>())(at);
        };
    }
    template <typename T>
    auto precision(T& field) {
        return word(field, "precision", kPrecisions);
    }
    template <typename T>
    auto kind(T& field) {
        return word(field, "kind", kAttentionKinds);
    }
    /// A text that is one of `known`.
    template <typename T, typename Known>
    auto word(T& field, std::string_view what, const Known& known) {
        // One that is not is written as it is: whoever reads it refuses it by name.
        if constexpr (!Json::kReads) {
            return this->text(field);
        } else {
            return [this, &field, what, &known](JsonAt at) {
                std::size_t index = 0;
                const bool good = this->name(index, what, known)(at);
                if (good) field = known[index];
                return good;
            };
        }
    }
    /// A number of slices, or a list of their extents.
    template <typename T>
    auto slices(T& cut) {
        return [this, &cut](JsonAt at) {
            bool number = cut.slices.empty();
            if constexpr (Json::kReads) number = this->document_.type(at.node) == JsonDocument::Type::integer;
            if (number) return this->integer(cut.num_slices, 1, kMost)(at);
            return this->list(cut.slices, [this](JsonAt inner, auto& extent) {
                return this->integer(extent, 1)(inner);
            })(at);
        };
    }
    /// Of operators that are apart; those of one operator have no parts.
    template <typename T>
    auto parts(T& strategies) {
        return [this, &strategies](JsonAt at) {
            if constexpr (Json::kReads) {
                if (at.path->parent->parent != nullptr) return this->fail(at, "are those of one operator");
                if (this->document_.size(at.node) > kMostParts)
                    return this->fail(at, fmt::format("has {} entries; a block has {} operators",
                                                      this->document_.size(at.node), kMostParts));
            }
            return all(strategies)(at);
        };
    }
    /// What strategies of before may say: read, and dropped where it says what is always so.
    auto removed(std::string_view key, std::string_view what, std::string_view usual) {
        return unlisted(key, [this, what, usual](JsonAt at) {
            if constexpr (Json::kReads) {
                const bool says_nothing = this->document_.describe(at.node) == usual;
                return says_nothing ||
                       this->fail(at,
                                  fmt::format("asks for {}: no measurement defended that, and it was taken "
                                              "out; tune anew",
                                              what));
            }
            return true;
        });
    }
};

}  // namespace

Result<Strategy> strategy_from_json(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    StrategyTable<JsonReader> table(document, text, file_name, "the strategy");
    const JsonPath root;
    Strategy made;
    if (!table.value({0, &root}, made)) return table.error();
    return made;
}

std::string to_json(const Strategy& strategy) {
    StrategyTable<JsonWriter> table;
    table.spaced();
    table.value({}, strategy);
    return table.take();
}

}  // namespace syncopate::ops
