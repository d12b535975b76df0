#include "syncopate/tune/store/results.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "syncopate/names.hpp"

namespace syncopate::tune {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "syncopate.tuning/1";

/// A strategy is an object in the file; what is none (a name that someone keeps) is a string.
Json strategy_to_json(const std::string& strategy) {
    Json parsed = Json::parse(strategy, nullptr, false);
    return parsed.is_object() ? parsed : Json(strategy);
}

/// Reads one object of the file; the first thing that is wrong is kept, with its path.
class Reader {
public:
    Reader(const Json& json, std::string path, std::string& problem)
        : json_(json), path_(std::move(path)), problem_(problem) {}

    [[nodiscard]] bool object(std::initializer_list<std::string_view> known) {
        if (!json_.is_object()) return fail("", "expected an object");
        for (const auto& [name, value] : json_.items()) {
            bool found = false;
            for (const std::string_view key : known) found = found || key == name;
            if (!found) return fail(name, "unknown key");
        }
        return true;
    }
    void text(const char* name, std::string& out) {
        if (const Json* value = find(name); value != nullptr && value->is_string()) {
            out = value->get<std::string>();
        } else {
            fail(name, "expected a string");
        }
    }
    void strategy(std::string& out) {
        const Json* value = find("strategy");
        if (value != nullptr && value->is_object()) {
            out = value->dump();
        } else {
            text("strategy", out);
        }
    }
    template <typename Int>
    void integer(const char* name, Int& out) {
        const Json* value = find(name);
        if (value != nullptr && value->is_number_integer() && value->get<double>() >= 0 &&
            value->get<double>() <= 0.5 * static_cast<double>(std::numeric_limits<Int>::max())) {
            out = static_cast<Int>(value->get<std::int64_t>());
        } else {
            fail(name, "expected a whole number that is not negative");
        }
    }
    void number(const char* name, double& out) {
        const Json* value = find(name);
        if (value != nullptr && value->is_number() && std::isfinite(value->get<double>()) &&
            value->get<double>() >= 0) {
            out = value->get<double>();
        } else {
            fail(name, "expected a number that is not negative");
        }
    }
    [[nodiscard]] const Json* find(const char* name) const {
        const auto at = json_.find(name);
        return at == json_.end() ? nullptr : &*at;
    }
    bool fail(const std::string& name, const std::string& what) {
        if (problem_.empty()) problem_ = path_ + (name.empty() ? "" : "." + name) + ": " + what;
        return false;
    }

private:
    const Json& json_;
    std::string path_;
    std::string& problem_;
};

Trial read_trial(const Json& json, const std::string& path, std::string& problem) {
    Trial trial;
    Reader reader(json, path, problem);
    if (!reader.object({"name", "strategy", "estimate_us", "us", "ratio", "rounds", "refused"})) return trial;
    reader.text("name", trial.name);
    reader.strategy(trial.strategy);
    reader.number("estimate_us", trial.estimate_us);
    reader.number("us", trial.us);
    reader.number("ratio", trial.ratio);
    reader.integer("rounds", trial.rounds);
    reader.text("refused", trial.refused);
    return trial;
}

TuningResult read_result(const Json& json, const std::string& path, std::string& problem) {
    TuningResult result;
    Reader reader(json, path, problem);
    if (!reader.object({"kernel", "device", "versions", "family", "ranks", "rows", "strategy", "us",
                        "default_us", "unfused_us", "when", "trials"})) {
        return result;
    }
    reader.text("kernel", result.key.kernel);
    reader.text("device", result.key.device);
    reader.text("versions", result.key.versions);
    reader.text("family", result.key.family);
    reader.integer("ranks", result.key.ranks);
    reader.integer("rows", result.key.rows);
    reader.strategy(result.strategy);
    reader.number("us", result.us);
    reader.number("default_us", result.default_us);
    reader.number("unfused_us", result.unfused_us);
    reader.integer("when", result.when);
    constexpr std::int64_t kDay = 24 * 60 * 60;  // clocks of machines differ
    if (result.key.ranks < 1) reader.fail("ranks", "expected at least 1");
    if (result.when > std::time(nullptr) + kDay)
        reader.fail("when", "lies in the future, so nothing could follow it");
    const Json* trials = reader.find("trials");
    if (trials == nullptr) return result;
    if (!trials->is_array()) reader.fail("trials", "expected a list");
    for (std::size_t i = 0; trials->is_array() && i < trials->size(); ++i) {
        const std::string at = path + ".trials[" + std::to_string(i) + "]";
        result.trials.push_back(read_trial((*trials)[i], at, problem));
    }
    return result;
}

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
    Json list = Json::array();
    for (const TuningResult& result : results) {
        Json trials = Json::array();
        for (const Trial& trial : result.trials) {
            trials.push_back({{"name", trial.name},
                              {"strategy", strategy_to_json(trial.strategy)},
                              {"estimate_us", trial.estimate_us},
                              {"us", trial.us},
                              {"ratio", trial.ratio},
                              {"rounds", trial.rounds},
                              {"refused", trial.refused}});
        }
        list.push_back({{"kernel", result.key.kernel},
                        {"device", result.key.device},
                        {"versions", result.key.versions},
                        {"family", result.key.family},
                        {"ranks", result.key.ranks},
                        {"rows", result.key.rows},
                        {"strategy", strategy_to_json(result.strategy)},
                        {"us", result.us},
                        {"default_us", result.default_us},
                        {"unfused_us", result.unfused_us},
                        {"when", result.when},
                        {"trials", std::move(trials)}});
    }
    const Json file = {{"schema", kSchema}, {"results", std::move(list)}};
    return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<TuningResult>> results_from_json(std::string_view text, const std::string& file_name) {
    Json json;
    try {
        json = Json::parse(text);
    } catch (const Json::parse_error& error) {
        // What the parser says follows the place, which it names, too: "[…] parse error at line 1, column 1:
        // …".
        const std::string what = error.what();
        const std::size_t said = what.find("parse error");
        return Error{fmt::format("is no JSON, so nothing that `tune --export` wrote: {}",
                                 escaped(what.substr(said == what.npos ? 0 : said), 200)),
                     {.file = file_name}};
    }
    if (!json.is_object() || !json.contains("schema") || json["schema"] != kSchema) {
        return Error{fmt::format("is nothing that `tune --export` wrote: \"schema\" is not \"{}\"", kSchema),
                     {.file = file_name}};
    }
    std::string problem;
    Reader reader(json, "the file", problem);
    std::vector<TuningResult> results;
    if (reader.object({"schema", "results"})) {
        const Json* list = reader.find("results");
        if (list == nullptr || !list->is_array()) {
            reader.fail("results", "expected a list");
        } else {
            for (std::size_t i = 0; i < list->size() && problem.empty(); ++i) {
                results.push_back(read_result((*list)[i], "results[" + std::to_string(i) + "]", problem));
            }
        }
    }
    if (!problem.empty()) return Error{problem, {.file = file_name}};
    return results;
}

}  // namespace syncopate::tune
