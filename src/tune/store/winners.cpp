#include "syncopate/tune/store/winners.hpp"

#include <ctime>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace syncopate::tune {
namespace {

std::string day_of(std::int64_t when) {
    const auto seconds = static_cast<std::time_t>(when);
    std::tm parts{};
    if (::gmtime_r(&seconds, &parts) == nullptr) return "?";
    return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

}  // namespace

std::optional<Stored> Winners::find(const Problem& problem) const {
    const ResultKey key = key_of(problem, scope_);
    std::optional<Strategy> strategy;
    const auto legal = [&](const std::string& text) {
        Result<Strategy> read = strategy_from_json(text, "the store of tuning results");
        strategy.reset();
        if (read && strategy_objection(problem, *read).empty()) strategy = *std::move(read);
        return strategy.has_value();
    };
    const std::optional<TuningResult> found = file_.nearest(key, legal);
    if (!found || !strategy) return std::nullopt;
    Stored stored{.strategy = *std::move(strategy),
                  .us = found->us,
                  .note = fmt::format("tuned {}", day_of(found->when)),
                  .usual_us = found->default_us};
    if (found->key.rows != key.rows) {
        stored.rows = found->key.rows;
        stored.note += fmt::format(" for {} rows", stored.rows);
    }
    return stored;
}

}  // namespace syncopate::tune
