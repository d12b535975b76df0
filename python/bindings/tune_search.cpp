// Searching for strategies, and the store of what was found. Measuring is Python's: callbacks. Strategies
// and results cross as JSON.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "problem.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/search/search.hpp"
#include "syncopate/tune/search/tune.hpp"
#include "syncopate/tune/store/results.hpp"
#include "syncopate/tune/store/store.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

/// (name, strategy, estimate in µs, whether it is a baseline)
using Entry = std::tuple<std::string, std::string, double, bool>;

tune::ResultKey result_key(const GivenProblem& problem, const std::string& kernel, const std::string& device,
                           const std::string& versions) {
    return tune::key_of(problem_of(problem), {.kernel = kernel, .device = device, .versions = versions});
}

tune::Measuring measuring_of(const nb::object& measurer) {
    tune::Measuring made{
        .prepare = [=](std::size_t i) { return nb::cast<std::string>(measurer.attr("prepare")(i)); },
        .measure =
            [=](std::span<const std::size_t> which) {
                const std::vector<std::size_t> list(which.begin(), which.end());
                return nb::cast<std::vector<double>>(measurer.attr("measure")(list));
            },
        .release = [=](std::size_t i) { measurer.attr("release")(i); },
        .seconds = [=] { return nb::cast<double>(measurer.attr("seconds")()); },
        .progress = [=](double share, const std::string& what) { measurer.attr("progress")(share, what); }};
    if (nb::hasattr(measurer, "asks_eager") && nb::cast<bool>(measurer.attr("asks_eager")))
        made.eager = [=](std::span<const std::size_t> which) {
            const std::vector<std::size_t> list(which.begin(), which.end());
            return nb::cast<std::vector<double>>(measurer.attr("eager")(list));
        };
    return made;
}

nb::dict search_for(const tune::ResultKey& key, const std::vector<Entry>& entries, std::ptrdiff_t unfused,
                    double budget, bool again, const nb::object& measurer,
                    const std::shared_ptr<runtime::Rendezvous>& rendezvous) {
    std::vector<tune::Contender> contenders;
    for (const auto& [name, strategy, estimate, baseline] : entries) {
        contenders.push_back(
            {.name = name, .strategy = strategy, .estimate_us = estimate, .baseline = baseline});
    }
    std::optional<tune::StoreFile> store;
    if (rendezvous->rank() == 0) store.emplace();
    const tune::Tuned tuned =
        unwrap(tune::tune_problem(key, contenders, unfused, {.budget = budget}, measuring_of(measurer),
                                  *rendezvous, store ? &*store : nullptr, again));
    nb::dict made;
    made["winner"] = tuned.winner;
    made["strategy"] = tuned.result.strategy;
    made["us"] = tuned.result.us;
    made["default_us"] = tuned.result.default_us;
    made["unfused_us"] = tuned.result.unfused_us;
    made["resumed"] = tuned.resumed;
    made["in_time"] = tuned.in_time;
    made["instead"] = tuned.instead;
    nb::list trials;
    for (const tune::Trial& trial : tuned.result.trials) {
        nb::dict entry;
        entry["name"] = trial.name;
        entry["strategy"] = trial.strategy;
        entry["estimate_us"] = trial.estimate_us;
        entry["us"] = trial.us;
        entry["ratio"] = trial.ratio;
        entry["rounds"] = trial.rounds;
        entry["refused"] = trial.refused;
        trials.append(entry);
    }
    made["trials"] = trials;
    if (store) warn_of(*store);
    return made;
}

nb::dict tune_problem(const GivenProblem& problem, const std::string& kernel, const std::string& device,
                      const std::string& versions, const std::vector<Entry>& entries, std::ptrdiff_t unfused,
                      double budget, bool again, const nb::object& measurer,
                      const std::shared_ptr<runtime::Rendezvous>& rendezvous) {
    return search_for(result_key(problem, kernel, device, versions), entries, unfused, budget, again,
                      measurer, rendezvous);
}

/// A user's program is known by the hash of its kernels, plan and arguments; its family is for people.
tune::ResultKey program_key(const std::string& family, std::int32_t ranks, const std::string& kernel,
                            const std::string& device, const std::string& versions) {
    return {.kernel = kernel, .device = device, .versions = versions, .family = family, .ranks = ranks};
}

nb::dict tune_program(const std::string& family, std::int32_t ranks, const std::string& kernel,
                      const std::string& device, const std::string& versions,
                      const std::vector<Entry>& entries, double budget, bool again,
                      const nb::object& measurer, const std::shared_ptr<runtime::Rendezvous>& rendezvous) {
    return search_for(program_key(family, ranks, kernel, device, versions), entries, -1, budget, again,
                      measurer, rendezvous);
}

/// The exact winner's strategy; "" where there is none.
std::string winner_of(const tune::ResultKey& key) {
    tune::StoreFile store;
    const auto found = store.exact(key);
    warn_of(store);
    return found ? found->strategy : std::string();
}

/// "", too, where it is not legal here, as of Winners::find.
std::string stored(const GivenProblem& given, const std::string& kernel, const std::string& device,
                   const std::string& versions) {
    const std::string found = winner_of(result_key(given, kernel, device, versions));
    const auto strategy = tune::strategy_from_json(found, "the store of tuning results");
    return strategy && tune::strategy_objection(problem_of(given), *strategy).empty() ? found : "";
}

std::string stored_program(const std::string& family, std::int32_t ranks, const std::string& kernel,
                           const std::string& device, const std::string& versions) {
    return winner_of(program_key(family, ranks, kernel, device, versions));
}

std::string mode() {
    switch (unwrap(tune::tune_mode())) {
        case tune::TuneMode::off: return "off";
        case tune::TuneMode::read: return "read";
        case tune::TuneMode::tune: return "auto";
    }
    return "read";
}

}  // namespace

void warn_of(const tune::StoreFile& store) {
    for (const std::string& message : store.messages()) {
        nb::module_::import_("warnings").attr("warn")(message, "stacklevel"_a = 2);
    }
}

void bind_tune_search(nb::module_& module) {
    nb::module_ tune = module.def_submodule("tune");
    tune.def("search", &tune_problem, "problem"_a, "kernel"_a, "device"_a, "versions"_a, "contenders"_a,
             "unfused"_a, "budget"_a, "again"_a, "measurer"_a, "rendezvous"_a,
             "Measures until one of (name, strategy, estimate, baseline) is found the fastest, and stores "
             "it. The measurer "
             "has prepare(i) -> str, measure([i]) -> [µs], release(i), seconds() and progress(share, what). "
             "Collective.");
    tune.def("search_program", &tune_program, "family"_a, "ranks"_a, "kernel"_a, "device"_a, "versions"_a,
             "contenders"_a, "budget"_a, "again"_a, "measurer"_a, "rendezvous"_a,
             "The same for a user's program, which `kernel`, a hash, stands for.");
    tune.def("stored_program", &stored_program, "family"_a, "ranks"_a, "kernel"_a, "device"_a, "versions"_a);
    tune.def("stored", &stored, "problem"_a, "kernel"_a, "device"_a, "versions"_a);
    tune.def("store_path", [] { return tune::store_path().string(); }, "The file of measured strategies.");
    tune.def("mode", &mode, "SYNCOPATE_TUNE: off, read or auto.");
    module.attr("version") = SYNCOPATE_VERSION;
    tune.def("progress_line", &tune::progress_line, "share"_a, "what"_a, "width"_a = 80);
    tune.def(
        "largest",
        [](runtime::Rendezvous& rendezvous, const std::vector<double>& values) {
            return unwrap(tune::largest(rendezvous, values));
        },
        "rendezvous"_a, "values"_a, ReleaseGil(),
        "The maximum over ranks of each value, on all ranks. Collective.");
    tune.def(
        "share",
        [](runtime::Rendezvous& rendezvous, const std::string& text) {
            return unwrap(tune::share(rendezvous, text));
        },
        "rendezvous"_a, "text"_a, ReleaseGil(), "Rank 0's text, on all ranks. Collective.");
}

}  // namespace syncopate::bindings
