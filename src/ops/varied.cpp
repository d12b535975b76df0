#include "syncopate/ops/varied.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "syncopate/names.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::ops {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 5> kFlags{"pull", "one_step", "kernel_sums", "together",
                                                 "chunking.peer_by_peer"};

Json value_of(const Word& given) {
    if (const std::optional<std::int64_t> number = whole_number<std::int64_t>(given.value)) {
        if (std::ranges::find(kFlags, given.name) != kFlags.end()) return *number != 0;
        return *number;
    }
    if (given.value == "true" || given.value == "false") return given.value == "true";
    return given.value;
}

void set(Json& strategy, const Word& given) {
    const Json value = value_of(given);
    const std::size_t dot = given.name.find('.');
    const std::string member = given.name.substr(0, dot);
    if (given.name == "unfused" || given.name == "apart") {
        if (value != 0 && value != false) strategy["placement"] = given.name;
    } else if (dot == std::string::npos) {
        strategy[member] = value;
    } else if (member == "tiles") {
        for (Json& tile : strategy["tiles"]) tile[given.name.substr(dot + 1)] = value;
    } else {
        strategy[member][given.name.substr(dot + 1)] = value;
    }
}

Result<Strategy> with(const Strategy& usual, std::span<const Word> values) {
    Json strategy = Json::parse(to_json(usual));
    for (const Word& value : values) set(strategy, value);
    if (strategy.contains("tiles") && strategy["tiles"].is_null()) strategy.erase("tiles");
    Result<Strategy> made = strategy_from_json(strategy.dump());
    return made ? made : usage_error(made.error().message);
}

}  // namespace

Result<Strategy> varied(const Strategy& usual, std::span<const Word> values) {
    Strategy fused = usual;
    fused.placement = Placement::fused;
    fused.parts.clear();
    Result<Strategy> made = with(fused, values);
    if (!made) return made;
    if (made->backend != fused.backend) fused.engine_blocks.reset();
    if (made->backend != usual.backend || made->engine_blocks != usual.engine_blocks ||
        made->together != usual.together)
        fused.programs.reset();
    if (made->kernel != usual.kernel) fused.tiles.clear();
    return with(fused, values);
}

Result<std::vector<Variation>> variations(std::span<const std::string> texts) {
    if (texts.empty()) return std::vector<Variation>{};
    std::vector<Variation> made(1);
    for (const std::string& text : texts) {
        const std::size_t equals = text.find('=');
        if (equals == std::string::npos || equals + 1 == text.size())
            return usage_error(
                fmt::format("--vary {}: expected KEY=VALUE,VALUE,…, such as split=1,2,4", escaped(text)));
        std::vector<Variation> longer;
        for (const Variation& one : made) {
            for (std::size_t at = equals; at != std::string::npos; at = text.find(',', at + 1)) {
                const std::size_t end = text.find(',', at + 1);
                const Word value{text.substr(0, equals), text.substr(at + 1, end - at - 1)};
                Variation& more = longer.emplace_back(one);
                more.name += fmt::format("{}{}={}", one.name.empty() ? "" : ",", value.name, value.value);
                more.values.push_back(value);
            }
        }
        made = std::move(longer);
    }
    for (const Variation& one : made) {
        const Result<Strategy> possible = varied({.tiles = {TileConfig{}}}, one.values);
        if (!possible) return usage_error(fmt::format("--vary {}: {}", one.name, possible.error().message));
    }
    return made;
}

}  // namespace syncopate::ops
