#include "syncopate/tune/store/results.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "syncopate/json_table.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/try.hpp"

namespace syncopate::tune {
namespace {

constexpr double kMost = 1e15;  // µs
constexpr std::int64_t kMostRows = std::int64_t{1} << 40;

/// The members of a file of results. `Json`: JsonReader or JsonWriter.
template <typename Json>
class ResultsTable : public Json {
public:
    using Json::Json;

private:
    // Walks come before their users, who need their types.
    auto us(auto& value) { return this->number(value, 0, kMost); }

    /// An object in the file; what is none (a name that someone keeps) is a string.
    auto strategy(auto& text) {
        return [this, &text](JsonAt at) {
            if constexpr (Json::kReads) {
                if (this->document_.type(at.node) != JsonDocument::Type::object) return this->text(text)(at);
                text = this->document_.compact(at.node);
                return true;
            } else {
                const bool is_object = text.starts_with('{') && JsonDocument::parse(text, {}).ok();
                return is_object ? this->put(text) : this->text(text)(at);
            }
        };
    }

public:
    bool file(JsonAt at, JsonOf<std::vector<TuningResult>> auto& results) {
        const auto one = [this](JsonAt inner, auto& made) { return result(inner, made); };
        return this->object(at, required("schema", this->schema("syncopate.tuning/1")),
                            required("results", this->lines(results, one)));
    }

private:
    bool result(JsonAt at, JsonOf<TuningResult> auto& made) {
        const auto trial = [this](JsonAt inner, auto& one) { return this->trial(inner, one); };
        auto& key = made.key;
        constexpr std::int64_t kDay = 24 * 60 * 60;  // clocks of machines differ
        return this->object(
            at, required("kernel", this->text(key.kernel)), required("device", this->text(key.device)),
            required("versions", this->text(key.versions)), required("family", this->text(key.family)),
            required("ranks", this->integer(key.ranks, 1, plan::kMaxRanks)),
            required("rows", this->integer(key.rows, 0, kMostRows)),
            required("strategy", strategy(made.strategy)), required("us", us(made.us)),
            required("default_us", us(made.default_us)), required("unfused_us", us(made.unfused_us)),
            // Nothing could follow what lies in the future.
            required("when", this->integer(made.when, 0, std::time(nullptr) + kDay)),
            optional("trials", !made.trials.empty(), this->list(made.trials, trial)));
    }

    bool trial(JsonAt at, JsonOf<Trial> auto& made) {
        return this->object(
            at, required("name", this->text(made.name)), required("strategy", strategy(made.strategy)),
            required("estimate_us", us(made.estimate_us)), required("us", us(made.us)),
            required("ratio", us(made.ratio)), required("rounds", this->integer(made.rounds, 0)),
            required("refused", this->text(made.refused)));
    }
};

/// Whether a problem that does not say it is the same.
bool is_usual(const Word& word) {
    static const std::array kUsual{Word{"kind", "auto"}, Word{"sharding", "contiguous"},
                                   Word{"part", "whole"}, Word{"parallel", "expert"}};
    return std::ranges::find(kUsual, word) != kUsual.end();
}

}  // namespace

ResultKey key_of(const Problem& problem, const Scope& scope) {
    ResultKey key{
        .kernel = scope.kernel, .device = scope.device, .versions = scope.versions, .ranks = problem.ranks};
    const std::string_view rows_name = problem.rows_name();
    key.rows = problem.extent(rows_name);
    key.family = problem.op + ":";
    for (const Extent& known : problem.extents) {
        if (known.name != rows_name) key.family += fmt::format("{}={},", known.name, known.value);
    }
    for (const Word& known : problem.words) {
        if (!is_usual(known)) key.family += fmt::format("{}={},", known.name, known.value);
    }
    if (problem.nodes > 1) key.family += fmt::format("nodes={},", problem.nodes);
    key.family += problem.dtypes();
    return key;
}

std::string results_to_json(const std::vector<TuningResult>& results) {
    ResultsTable<JsonWriter> table;
    table.spaced();
    (void)table.file({}, results);
    return table.take() + "\n";
}

Result<std::vector<TuningResult>> results_from_json(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    ResultsTable<JsonReader> table(document, text, file_name, "what `tune --export` writes");
    const JsonPath root;
    std::vector<TuningResult> results;
    if (!table.file({0, &root}, results)) return table.error();
    return results;
}

}  // namespace syncopate::tune
