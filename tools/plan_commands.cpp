// `syncopate plan check|show`; make and lower are in plan_make_commands.cpp. A plan file of "-" is standard
// input, an output of "-" standard output.
#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "syncopate/io.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/check/rounds.hpp"
#include "syncopate/plan/draw/show.hpp"
#include "syncopate/plan/draw/svg.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "tools/commands.hpp"

namespace syncopate::tools {
namespace {

plan::Plan load_plan(const std::string& path) { return take(plan::from_json(take(read_file(path)), path)); }

nlohmann::ordered_json to_json(const plan::Finding& finding) {
    return {{"kind", plan::name_of(finding.kind)},
            {"rank", finding.rank},
            {"op", finding.op},
            {"message", finding.message}};
}

/// Prints what is wrong as one line per finding, or as JSON; ends the command with exit code 1 unless nothing
/// is.
void report(const std::string& path, const std::vector<plan::Finding>& findings, bool as_json) {
    if (as_json) {
        nlohmann::ordered_json answer{{"ok", findings.empty()},
                                      {"findings", nlohmann::ordered_json::array()}};
        for (const plan::Finding& finding : findings) answer["findings"].push_back(to_json(finding));
        std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    } else {
        for (const plan::Finding& finding : findings)
            std::cerr << "error: " << path << ": " << finding.to_string() << '\n';
    }
    if (!findings.empty()) throw Exit{static_cast<int>(ErrorClass::input)};
}

/// Of a plan over nodes, how what goes between them meets.
std::string meetings(const plan::Plan& plan) {
    if (plan.mesh.num_nodes() == 1) return {};
    std::size_t sends = 0;
    std::int32_t rounds = 0;
    for (const std::vector<std::int32_t>& list : plan::rounds_between_nodes(plan)) {
        for (const std::int32_t round : list) {
            sends += round >= 0 ? 1 : 0;
            rounds = std::max(rounds, round + 1);
        }
    }
    return fmt::format("{} sends between {} nodes meet in {} rounds, ", sends, plan.mesh.num_nodes(), rounds);
}

void check(const std::string& path, bool as_json) {
    const std::string text = take(read_file(path));
    const Result<plan::Plan> loaded = plan::from_json(text, path);
    if (!loaded) {
        if (!as_json) fail(loaded.error());
        // A program that asked for JSON gets JSON: the one thing wrong, with its place in the file in the
        // message.
        const Error& error = loaded.error();
        Location place = error.location;
        place.rank = place.op = -1;
        report(path,
               {{plan::Finding::Kind::malformed, error.location.rank, error.location.op,
                 Error{error.message, place}.to_string()}},
               as_json);
    }
    report(path, plan::check(*loaded), as_json);
    if (as_json) return;
    std::size_t ops = 0;
    for (const auto& list : loaded->ranks) ops += list.size();
    std::cout << fmt::format("ok: {}: {} ranks, {} ops, {} tensors, {}no findings\n", path,
                             loaded->ranks.size(), ops, loaded->tensors.size(), meetings(*loaded));
}

void register_check(CLI::App& group) {
    struct Arguments {
        std::string path;
        bool json = false;
    };
    CLI::App* command =
        group.add_subcommand("check", "Verify a plan: no deadlock, nothing read before it arrives");
    auto arguments = std::make_shared<Arguments>();
    command->add_option("plan", arguments->path, "Plan file")->required();
    command->add_flag("--json", arguments->json, "Print the findings as JSON");
    command->callback([arguments] { check(arguments->path, arguments->json); });
}

/// Writes a picture of the plan's simulated run.
void draw(const std::string& path, const plan::Plan& plan, const std::string& topology_name,
          const std::string& output) {
    const plan::Topology topology = topology_name.empty() ? plan::default_topology(plan.num_ranks())
                                                          : take(plan::find_topology(topology_name));
    Result<plan::Simulation> simulation = plan::simulate(plan, topology);
    if (!simulation) {
        Error error = simulation.error();
        error.location.file = path;
        fail(error);
    }
    take(write_file_atomically(output, plan::to_svg(plan, topology, *simulation)));
}

void register_show(CLI::App& group) {
    struct Arguments {
        std::string path;
        bool all = false;
        std::string svg;
        std::string topology;
    };
    CLI::App* command = group.add_subcommand("show", "Print a plan as a table, or draw it");
    auto arguments = std::make_shared<Arguments>();
    command->add_option("plan", arguments->path, "Plan file")->required();
    command->add_flag("--all", arguments->all, "Every rank, op and holding of a long plan");
    command->add_option("--svg", arguments->svg, "Draw it instead, ranks by time, into this file")
        ->check(filled(kFile));
    command->add_option("--topology", arguments->topology,
                        "With --svg: the machine whose times are drawn, as plan simulate takes it");
    command->callback([arguments] {
        const auto refuse = [](const char* message) { fail(usage_error(message)); };
        if (arguments->svg.empty() && !arguments->topology.empty())
            refuse("plan show: --topology belongs to --svg");
        if (!arguments->svg.empty() && arguments->all)
            refuse("plan show: --all belongs to the table, without --svg");
        plan::TableOptions options;
        if (arguments->all)
            options.max_ranks = options.max_ops = options.max_holdings = static_cast<std::size_t>(-1);
        const plan::Plan plan = load_plan(arguments->path);
        if (arguments->svg.empty()) {
            std::cout << plan::to_table(plan, options);
        } else {
            draw(arguments->path, plan, arguments->topology, arguments->svg);
        }
    });
}

}  // namespace

void register_plan_commands(CLI::App& app) {
    CLI::App* group = app.add_subcommand("plan", "Make, verify and show communication plans");
    group->require_subcommand(1);
    register_plan_make_commands(*group);
    register_plan_import(*group);
    register_check(*group);
    register_show(*group);
    register_simulate_commands(*group);
    register_synth_command(*group);
}

}  // namespace syncopate::tools
