// `syncopate tune --list|--show|--forget|--export|--import`: what the store of tuning results holds.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "syncopate/io.hpp"
#include "syncopate/names.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/search/search.hpp"
#include "syncopate/tune/store/results.hpp"
#include "syncopate/tune/store/store.hpp"
#include "tools/tune_store.hpp"

namespace syncopate::tools {
namespace {

using tune::ResultKey;
using tune::Trial;
using tune::TuningResult;

std::string name_of_strategy(const std::string& json) {
    const Result<tune::Strategy> strategy = tune::strategy_from_json(json);
    return strategy ? tune::name_of(*strategy) : json;
}

/// As SPEC has it: "all_gather_matmul:M=4096,N=3584,K=8192,dtype=bf16".
std::string spec_of(const ResultKey& key) {
    const std::size_t colon = key.family.find(':');
    if (colon == std::string::npos || key.rows == 0) return key.family;
    const char* rows = key.family.starts_with("attention:") ? "S" : "M";
    return fmt::format("{}{}={},{}", key.family.substr(0, colon + 1), rows, key.rows,
                       key.family.substr(colon + 1));
}

std::string times_as_fast(double other, double us) {
    return other > 0 && us > 0 ? fmt::format("{:.2f}", other / us) : "-";
}

std::string day_of(std::int64_t when) {
    const auto seconds = static_cast<std::time_t>(when);
    std::tm parts{};
    ::gmtime_r(&seconds, &parts);
    return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                       parts.tm_hour, parts.tm_min);
}

/// Those of a problem, of an operator, or all of them ("").
std::vector<TuningResult> chosen(tune::StoreFile& store, const std::string& spec) {
    if (spec.find(':') == std::string::npos) return store.list(spec.empty() ? "" : spec + ":");
    if (spec.starts_with("fuse:")) return store.list(spec);  // kernels of a user, not a problem
    const Result<tune::Problem> problem = tune::parse_problem(spec);
    if (!problem) fail(problem.error());
    const ResultKey key = tune::key_of(*problem, {});
    std::vector<TuningResult> found = store.list(key.family);
    std::erase_if(found, [&](const TuningResult& one) {
        const bool other_ranks = spec.find("ranks=") != std::string::npos && one.key.ranks != key.ranks;
        return one.key.family != key.family || one.key.rows != key.rows || other_ranks;
    });
    return found;
}

void list(tune::StoreFile& store, const std::string& spec) {
    const std::vector<TuningResult> results = chosen(store, spec);
    if (results.empty()) {
        std::cout << fmt::format("nothing is stored{} in {}\n", spec.empty() ? "" : " for " + spec,
                                 store.path().string());
        return;
    }
    std::cout << fmt::format("{:64} {:>5} {:>10} {:>9} {:>9}  {:16}  {}\n", "problem", "ranks", "µs",
                             "x default", "x unfused", "when (UTC)", "strategy");
    for (const TuningResult& one : results) {
        std::cout << fmt::format("{:64} {:>5} {:>10.1f} {:>9} {:>9}  {:16}  {}\n", spec_of(one.key),
                                 one.key.ranks, one.us, times_as_fast(one.default_us, one.us),
                                 times_as_fast(one.unfused_us, one.us), day_of(one.when),
                                 name_of_strategy(one.strategy));
    }
}

/// How well the estimate orders what was measured: Spearman's rank correlation, and how much slower the one
/// that the estimate puts first is than the fastest.
void judge_estimate(const std::vector<Trial>& trials) {
    std::vector<Trial> both = trials;
    std::erase_if(both,
                  [](const Trial& t) { return t.rounds == 0 || t.estimate_us <= 0 || !t.refused.empty(); });
    if (both.size() < 3) return;
    const auto ranks_of = [&](double Trial::* value) {
        std::vector<double> ranks;
        for (const Trial& one : both) {
            double rank = 0;
            for (const Trial& other : both) {
                rank += other.*value < one.*value ? 1 : other.*value == one.*value ? 0.5 : 0;
            }
            ranks.push_back(rank - static_cast<double>(both.size()) / 2);
        }
        return ranks;
    };
    const std::vector<double> estimated = ranks_of(&Trial::estimate_us);
    const std::vector<double> measured = ranks_of(&Trial::ratio);
    double joint = 0;
    double one = 0;
    double two = 0;
    for (std::size_t i = 0; i < both.size(); ++i) {
        joint += estimated[i] * measured[i];
        one += estimated[i] * estimated[i];
        two += measured[i] * measured[i];
    }
    const auto by_estimate = std::ranges::min_element(both, {}, &Trial::estimate_us);
    const auto by_time = std::ranges::min_element(both, {}, &Trial::ratio);
    std::cout << fmt::format("estimate: rank correlation {:.2f} over {} strategies, regret {:.3f}\n",
                             one > 0 && two > 0 ? joint / std::sqrt(one * two) : 0.0, both.size(),
                             by_estimate->ratio / by_time->ratio);
}

/// Those of `spec`, which is to have some.
std::vector<TuningResult> some(tune::StoreFile& store, const std::string& spec) {
    std::vector<TuningResult> results = chosen(store, spec);
    if (results.empty() && !spec.empty())
        fail(Error{fmt::format("nothing is stored for {}", spec), {.file = store.path().string()}});
    return results;
}

void show(tune::StoreFile& store, const std::string& spec) {
    for (const TuningResult& one : some(store, spec)) {
        std::cout << fmt::format("{}\n  {} ranks on {}; {}; kernel {}\n  found {} UTC: {:.1f} µs by {}\n",
                                 spec_of(one.key), one.key.ranks, escaped(one.key.device),
                                 escaped(one.key.versions), escaped(one.key.kernel), day_of(one.when), one.us,
                                 name_of_strategy(one.strategy));
        std::cout << fmt::format("  {:>10} {:>11} {:>11} {:>7}  {}\n", "µs", "x default", "estimate",
                                 "rounds", "strategy");
        for (const Trial& trial : one.trials) {
            if (!trial.refused.empty()) {
                std::cout << fmt::format("  {:>10} {:>11} {:>11.1f} {:>7}  {}: {}\n", "-", "-",
                                         trial.estimate_us, "-", escaped(trial.name),
                                         escaped(trial.refused, 200));
            } else if (trial.rounds > 0) {
                std::cout << fmt::format("  {:>10.1f} {:>11.3f} {:>11.1f} {:>7}  {}\n", trial.us,
                                         trial.ratio > 0 ? 1 / trial.ratio : 0, trial.estimate_us,
                                         trial.rounds, escaped(trial.name));
            }
        }
        std::cout << "  ";
        judge_estimate(one.trials);
        std::cout << "\n";
    }
}

void forget(tune::StoreFile& store, const std::string& spec, bool json) {
    std::int64_t count = 0;
    if (spec == "all" || spec.find(':') == std::string::npos) {
        const Result<std::int64_t> forgotten = store.forget(spec == "all" ? "" : spec + ":");
        if (!forgotten) fail(forgotten.error());
        count = *forgotten;
    } else {
        for (const TuningResult& one : chosen(store, spec)) {
            if (const Status done = store.forget(one.key); !done) fail(done.error());
            ++count;
        }
    }
    std::cout << (json ? fmt::format("{{\"forgot\": {}}}\n", count)
                       : fmt::format("forgot {} result{}\n", count, count == 1 ? "" : "s"));
}

void import(tune::StoreFile& store, const std::vector<TuningResult>& results, bool json) {
    if (store.in_memory())
        fail(Error{"nothing is imported: the store cannot be written",
                   {.file = store.path().string()},
                   ErrorClass::machine});
    const Result<std::int64_t> changed = store.merge(results);
    if (!changed) fail(changed.error());
    std::cout << (json ? fmt::format("{{\"results\": {}, \"new\": {}}}\n", results.size(), *changed)
                       : fmt::format("{} of {} results are new here\n", *changed, results.size()));
}

/// What is missing for what is asked.
void require_spec(const TuneStoreOptions& options, const std::string& spec) {
    if (!spec.empty()) return;
    if (options.forget) fail(usage_error("--forget: name a problem, an operator, or all"));
    if (options.show) {
        fail(usage_error(
            "--show: name a problem or an operator, as `tune --show matmul_all_reduce`; --list shows which "
            "are stored"));
    }
}

}  // namespace

std::string_view asked_of_store(const TuneStoreOptions& options) {
    std::string_view asked;
    for (const auto& [given, name] :
         {std::pair{options.list, "--list"}, std::pair{options.show, "--show"},
          std::pair{options.forget, "--forget"}, std::pair{!options.export_to.empty(), "--export"},
          std::pair{!options.import_from.empty(), "--import"}}) {
        if (!given) continue;
        if (!asked.empty())
            fail(usage_error("one of --list, --show, --forget, --export and --import at a time"));
        asked = name;
    }
    return asked;
}

void run_tune_store(const TuneStoreOptions& options, const std::string& spec, bool json) {
    require_spec(options, spec);
    // What is imported is read first: a file that is wrong leaves the store as it is.
    std::vector<TuningResult> imported;
    if (!options.import_from.empty()) {
        imported = take(tune::results_from_json(take(read_file(options.import_from)), options.import_from));
    }
    tune::StoreFile store;
    if (!options.export_to.empty()) {
        const Status written = write_file_atomically(options.export_to, results_to_json(some(store, spec)));
        if (!written) fail(written.error());
    } else if (!options.import_from.empty()) {
        import(store, imported, json);
    } else if (options.forget) {
        forget(store, spec, json);
    } else if (json) {
        std::cout << results_to_json(options.show ? some(store, spec) : chosen(store, spec));
    } else if (options.list) {
        list(store, spec);
    } else {
        show(store, spec);
    }
    for (const std::string& message : store.messages()) std::cerr << "warning: " << message << '\n';
}

void add_tune_store_options(CLI::App& tune, TuneStoreOptions& options) {
    const std::string group = "The store of results";
    tune.add_flag("--list", options.list,
                  "one line for each stored result; with SPEC or an operator, for these")
        ->group(group);
    tune.add_flag("--show", options.show,
                  "all that searches of SPEC or an operator have measured, beside the estimate")
        ->group(group);
    tune.add_flag("--forget", options.forget, "forget what is stored for SPEC, for an operator, or for all")
        ->group(group);
    tune.add_option("--export", options.export_to, "write results to this file, as JSON")
        ->check(filled(kFile))
        ->group(group);
    tune.add_option("--import", options.import_from,
                    "add the results of such a file; of two the later one stays")
        ->check(filled(kFile))
        ->group(group);
}

}  // namespace syncopate::tools
