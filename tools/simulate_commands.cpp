// `syncopate plan simulate` and `syncopate plan topology`.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "syncopate/io.hpp"
#include "syncopate/plan/draw/trace.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/model/notation.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "tools/commands.hpp"

namespace syncopate::tools {
namespace {

void print(std::ostream& out, const plan::Plan& plan, const plan::Topology& topology,
           const plan::Simulation& simulation) {
    std::size_t ops = 0;
    for (const auto& list : plan.ranks) ops += list.size();
    out << fmt::format("{} ranks, {} ops on {} ({} devices)\n", plan.num_ranks(), ops, topology.name,
                       topology.num_devices());
    out << fmt::format("makespan      {:.1f} µs\n", simulation.makespan_us);
    if (simulation.bound.us > 0) {
        out << fmt::format("lower bound   {:.1f} µs ({}); makespan is {:.2f} times that\n",
                           simulation.bound.us, simulation.bound.reason,
                           simulation.makespan_us / simulation.bound.us);
    }
    if (simulation.busiest_link >= 0) {
        const auto link = static_cast<std::size_t>(simulation.busiest_link);
        out << fmt::format("busiest link  {}, {} carried, {:.0f} % of its {:g} GB/s\n",
                           topology.link_name(link), plan::human_bytes(simulation.links[link].bytes),
                           100 * simulation.links[link].utilisation, topology.links[link].gbps);
    }
}

nlohmann::ordered_json to_json(const plan::Topology& topology, const plan::Simulation& simulation) {
    nlohmann::ordered_json answer{
        {"topology", topology.name},
        {"makespan_us", simulation.makespan_us},
        {"bound", {{"us", simulation.bound.us}, {"reason", simulation.bound.reason}}},
        {"busiest_link", nullptr},
        {"links", nlohmann::ordered_json::array()},
        {"ranks", nlohmann::ordered_json::array()}};
    const auto link_json = [&](std::size_t link) {
        return nlohmann::ordered_json{{"from", topology.vertex_name(topology.links[link].from)},
                                      {"to", topology.vertex_name(topology.links[link].to)},
                                      {"bytes", simulation.links[link].bytes},
                                      {"utilisation", simulation.links[link].utilisation}};
    };
    if (simulation.busiest_link >= 0)
        answer["busiest_link"] = link_json(static_cast<std::size_t>(simulation.busiest_link));
    for (std::size_t link = 0; link < simulation.links.size(); ++link)
        answer["links"].push_back(link_json(link));
    for (std::size_t rank = 0; rank < simulation.ops.size(); ++rank) {
        nlohmann::ordered_json ops = nlohmann::ordered_json::array();
        for (const plan::OpTime& time : simulation.ops[rank]) {
            ops.push_back({{"engine", plan::name_of(time.engine)},
                           {"lane", time.lane},
                           {"start_us", time.start_us},
                           {"end_us", time.end_us}});
        }
        answer["ranks"].push_back({{"rank", rank}, {"ops", std::move(ops)}});
    }
    return answer;
}

struct SimulateArguments {
    std::string path;
    std::string topology;
    std::string trace;
    bool json = false;
};

void simulate(const SimulateArguments& arguments) {
    refuse_two_answers("--trace", arguments.trace, arguments.json, "--json");
    const plan::Plan plan = take(plan::from_json(take(read_file(arguments.path)), arguments.path));
    const plan::Topology topology = arguments.topology.empty()
                                        ? plan::default_topology(plan.num_ranks())
                                        : take(plan::find_topology(arguments.topology));
    Result<plan::Simulation> simulation = plan::simulate(plan, topology);
    if (!simulation) {
        Error error = simulation.error();
        error.location.file = arguments.path;
        fail(error);
    }
    if (!arguments.trace.empty())
        take(write_file_atomically(arguments.trace, plan::to_trace(plan, topology, *simulation)));
    if (arguments.json) {
        std::cout << to_json(topology, *simulation).dump() << '\n';
    } else {
        print(arguments.trace == "-" ? std::cerr : std::cout, plan, topology, *simulation);
    }
}

void register_simulate(CLI::App& group) {
    CLI::App* command = group.add_subcommand(
        "simulate", "When each op would run on a machine: makespan, bound, busiest link");
    auto arguments = std::make_shared<SimulateArguments>();
    command->add_option("plan", arguments->path, "Plan file")->required();
    command->add_option("--topology", arguments->topology,
                        "Name (plan topology lists them), ring:8, torus:4x4, …, or a file; default: h200x8, "
                        "h200x8x2 above 8 ranks, a switch above 16");
    command
        ->add_option("--trace", arguments->trace, "File to write the ops to, as a trace that Perfetto opens")
        ->check(filled(kFile));
    command->add_flag("--json", arguments->json,
                      "Print all as JSON: every op's start and end, every link's load");
    command->callback([arguments] { simulate(*arguments); });
}

void register_topology(CLI::App& group) {
    struct Arguments {
        std::string name;
        std::string output = "-";
    };
    CLI::App* command = group.add_subcommand(
        "topology", "Write a topology as JSON, to start one's own from; or list the names");
    auto arguments = std::make_shared<Arguments>();
    command->add_option("name", arguments->name,
                        "Name, ring:8, torus:4x4, …, or a file; without: list the names");
    command->add_option("-o,--output", arguments->output, "File to write")->check(filled(kFile));
    command->callback([arguments] {
        if (arguments->name.empty()) {
            for (const std::string& name : plan::topology_names()) {
                const plan::Topology topology = take(plan::find_topology(name));
                std::cout << fmt::format("{:10} {}\n", name, topology.about);
            }
            return;
        }
        take(write_file_atomically(arguments->output,
                                   plan::to_json(take(plan::find_topology(arguments->name)))));
    });
}

}  // namespace

void register_simulate_commands(CLI::App& group) {
    register_simulate(group);
    register_topology(group);
}

}  // namespace syncopate::tools
