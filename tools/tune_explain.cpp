#include "tools/tune_explain.hpp"

#include <algorithm>
#include <cctype>
#include <iostream>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "syncopate/io.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/play/attention.hpp"
#include "syncopate/tune/play/estimate.hpp"
#include "syncopate/tune/play/mixture.hpp"
#include "tools/commands.hpp"
#include "tools/operator_options.hpp"

namespace syncopate::tools {
namespace {

constexpr std::size_t kLongestName = 72;

/// All strategies of a problem, best first; of attention also the kernel that they take, of a mixture under which routing.
struct Ranked {
    std::vector<tune::Candidate> candidates;
    std::optional<tune::AttentionKernel> kernel{};
    std::string routing{};
    tune::Choice taken{};  ///< by a call where tuning has found nothing
};

nlohmann::ordered_json json_of(const tune::AttentionKernel& kernel) {
    const tune::TileConfig& tile = kernel.tile;
    return {
        {"name", tune::name_of(kernel.name)},
        {"block_m", tile.block_m},
        {"block_n", tile.block_n},
        {"stages", tile.stages},
        {"why", kernel.why.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(kernel.why)}};
}

void print_json(const tune::Problem& problem, const tune::Machine& machine, const Ranked& ranked) {
    nlohmann::ordered_json strategies = nlohmann::ordered_json::array();
    for (const tune::Candidate& candidate : ranked.candidates) {
        const tune::Estimate& e = candidate.estimate;
        nlohmann::ordered_json entry{{"name", candidate.name},
                                     {"us", e.us},
                                     {"parts",
                                      {{"compute", e.compute},
                                       {"communicate", e.communicate},
                                       {"exposed", e.exposed},
                                       {"fixed", e.fixed}}},
                                     {"pruned", nullptr}};
        if (!candidate.pruned.empty()) entry["pruned"] = candidate.pruned;
        if (ranked.kernel) entry["kernel"] = json_of(*ranked.kernel);
        entry["strategy"] = nlohmann::ordered_json::parse(tune::to_json(candidate.strategy));
        strategies.push_back(std::move(entry));
    }
    nlohmann::ordered_json answer{{"problem", problem.key()}, {"machine", machine.name}};
    if (!ranked.routing.empty()) answer["routing"] = ranked.routing;
    answer["taken"] = {{"name", tune::name_of(ranked.taken.strategy)}, {"why", ranked.taken.note}};
    answer["strategies"] = std::move(strategies);
    std::cout << answer.dump() << '\n';
}

void print_table(const tune::Problem& problem, const tune::Machine& machine, const Ranked& ranked) {
    std::cout << fmt::format("{} on {}\n", problem.key(), machine.name);
    if (!ranked.routing.empty())
        std::cout << fmt::format("routing: {}{}\n", ranked.routing,
                                 ranked.routing == "random" ? ", as many rows an expert on average" : "");
    if (const auto& kernel = ranked.kernel) {
        std::cout << fmt::format("kernel: {}, tiles of {} rows, {} rows of K and V at once{}\n",
                                 tune::name_of(kernel->name), kernel->tile.block_m, kernel->tile.block_n,
                                 kernel->why.empty() ? "" : ": " + kernel->why);
    }
    std::cout << fmt::format("{:>9} {:>9} {:>11} {:>9} {:>7}  strategy\n", "us", "compute", "communicate",
                             "exposed", "fixed");
    std::size_t pruned = 0;
    for (const tune::Candidate& candidate : ranked.candidates) {
        if (!candidate.pruned.empty()) {
            if (pruned++ == 0) std::cout << "pruned:\n";
            std::cout << fmt::format("  {}: {}\n", candidate.name.substr(0, kLongestName), candidate.pruned);
            continue;
        }
        const tune::Estimate& e = candidate.estimate;
        std::cout << fmt::format("{:9.1f} {:9.1f} {:11.1f} {:9.1f} {:7.1f}  {}\n", e.us, e.compute,
                                 e.communicate, e.exposed, e.fixed, candidate.name);
    }
    std::cout << fmt::format("a call takes {}: {}\n", tune::name_of(ranked.taken.strategy),
                             ranked.taken.note);
}

Ranked ranked_attention(const tune::Problem& problem, const tune::Machine& machine) {
    return {.candidates = tune::rank_candidates(problem, machine),
            .kernel = take(tune::attention_problem(problem, machine)).kernel};
}

/// `routing`: as of tune::parse_routing, or @FILE with the rows of each expert.
Ranked ranked_mixture(const tune::Problem& problem, const tune::Machine& machine,
                      const std::string& routing) {
    std::string text = routing.empty() ? "random" : routing;
    const bool in_file = text.starts_with('@');
    if (in_file) {
        text = take(read_file(text.substr(1)));
        std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0 || c == '[' || c == ']'; });
    }
    const tune::Routing rows = take(tune::parse_routing(problem, text));
    const bool is_word = !in_file && text.find_first_of("0123456789") == std::string::npos;
    return {.candidates = tune::rank_candidates(problem, machine, rows),
            .routing = is_word ? text : "as measured"};
}

}  // namespace

void explain(const std::string& spec, int ranks, const std::string& machine_name, const std::string& routing,
             bool json) {
    tune::Problem problem = problem_of({.spec = spec, .ranks = ranks});
    if (problem.op == "mlp_chain") problem.ranks = 1;  // it is of one GPU, however many run it
    const bool attention = problem.op == "attention";
    if (!attention && !problem.is_mixture() && problem.products().empty())
        fail(Error{fmt::format(
            "{}: the estimate is of attention, of moe, of chains and of operators around products",
            problem.op)});
    const tune::Machine machine = machine_of(machine_name, problem);
    if (const std::string objection = tune::estimate_objection(problem, machine); !objection.empty())
        fail(usage_error("tune: --explain: " + objection));
    if (!routing.empty() && !problem.is_mixture())
        fail(usage_error(fmt::format("tune: --routing: {} routes no rows to experts", problem.op)));
    Ranked ranked = attention              ? ranked_attention(problem, machine)
                    : problem.is_mixture() ? ranked_mixture(problem, machine, routing)
                                           : Ranked{tune::rank_candidates(problem, machine)};
    ranked.taken = tune::choose(problem, machine);
    if (attention) {  // by its name here
        const tune::Strategy& taken = ranked.taken.strategy;
        ranked.taken.strategy = {.placement = taken.placement, .kind = taken.kind, .inner = taken.inner};
    }
    if (json) {
        print_json(problem, machine, ranked);
    } else {
        print_table(problem, machine, ranked);
    }
}

}  // namespace syncopate::tools
