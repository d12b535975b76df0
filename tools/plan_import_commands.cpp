// `syncopate plan import`: plans of other systems into syncopate.plan/1.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "syncopate/ingest/candidates/candidates.hpp"
#include "syncopate/ingest/ingest.hpp"
#include "syncopate/io.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/plan/model/notation.hpp"
#include "tools/commands.hpp"
#include "tools/lowering_options.hpp"

namespace syncopate::tools {
namespace {

struct Arguments {
    std::string path;
    std::string format = "auto";
    std::string tensor;
    std::string output = "-";
    bool unchecked = false;
    bool list = false;
    bool json = false;
    LoweringArguments lowering;
    ingest::ImportOptions options;
};

std::string summary(const ingest::Import& import) {
    std::string text = std::string(ingest::name_of(import.format));
    if (!import.name.empty()) text += fmt::format(" \"{}\"", import.name);
    for (const auto& [key, value] : import.claims) text += fmt::format(", {} {}", key, value);
    return text;
}

/// What could be imported, as a table or as JSON.
void list(const Arguments& arguments, ingest::Format format) {
    const std::string text = take(read_file(arguments.path));
    const std::vector<ingest::Candidate> candidates =
        take(ingest::list_candidates(text, arguments.path, format, arguments.options));
    std::cout << (arguments.json ? ingest::candidates_json(candidates)
                                 : ingest::candidates_table(candidates));
}

/// With --lower: transfers in the place of collectives.
plan::Plan lowered(const Arguments& arguments, const plan::Plan& plan) {
    const bool asked = !arguments.lowering.words.empty();
    if (!asked && (!arguments.lowering.topology.empty() || arguments.lowering.seed != 0))
        fail(usage_error("--topology and --seed belong to --lower synth"));
    if (!asked) return plan;
    if (arguments.unchecked)
        fail(usage_error("--lower needs a plan that has been checked; leave out --no-check"));
    Result<plan::Plan> lowered = plan::lower_collectives(plan, take(to_options(arguments.lowering)));
    if (!lowered) {
        Error error = lowered.error();
        if (error.error_class == ErrorClass::input) error.location.file = arguments.path;
        fail(error);
    }
    return *std::move(lowered);
}

void import(const Arguments& arguments) {
    const ingest::Format format = take(ingest::format_from(arguments.format));
    if (arguments.list) return list(arguments, format);
    if (arguments.json) fail(usage_error("--json belongs to --list"));
    ingest::ImportOptions options = arguments.options;
    if (!arguments.tensor.empty()) options.tensor = take(plan::parse_tensor(arguments.tensor));
    const std::string text = take(read_file(arguments.path));
    const ingest::Import imported = take(ingest::import_plan(text, arguments.path, format, options));
    for (const std::string& warning : imported.warnings)
        std::cerr << "warning: " << arguments.path << ": " << warning << '\n';
    if (!arguments.unchecked) {
        const std::vector<ingest::Finding> findings = ingest::check_import(imported);
        for (const ingest::Finding& finding : findings)
            std::cerr << "error: " << finding.to_string(arguments.path) << '\n';
        if (!findings.empty()) throw Exit{static_cast<int>(ErrorClass::input)};
    }
    const plan::Plan plan = lowered(arguments, imported.plan);
    take(write_file_atomically(arguments.output, plan::to_json(plan)));
    std::size_t ops = 0;
    for (const auto& list : plan.ranks) ops += list.size();
    (arguments.output == "-" ? std::cerr : std::cout)
        << fmt::format("ok: {}: {}; {} ops, {}\n", arguments.path, summary(imported), ops,
                       arguments.unchecked ? "not checked" : "no findings");
}

}  // namespace

void register_plan_import(CLI::App& group) {
    CLI::App* command =
        group.add_subcommand("import", "Bring in a plan that another system made, and verify it");
    auto arguments = std::make_shared<Arguments>();
    command->add_option("file", arguments->path, "File to import")->required();
    command->add_option("--format", arguments->format, "auto, msccl_xml, mscclpp_json, …");
    command->add_option("--tensor", arguments->tensor,
                        "NAME:SHAPE:DTYPE of the tensor that the plan moves, such as A:8192x4096:bf16");
    command
        ->add_option("--fifo-slots", arguments->options.fifo_slots,
                     "MSCCL: messages that a connection holds before its sender waits")
        ->check(CLI::Range(1, 1 << 20));
    command->add_flag("--list", arguments->list,
                      "HLO, StableHLO: show the collectives and the dots they feed or drain, and stop");
    command->add_flag("--json", arguments->json, "With --list: as JSON");
    command->add_option("--pick", arguments->options.pick, "HLO, StableHLO: the number of the one to import")
        ->check(CLI::Range(0, 1 << 30));
    command
        ->add_option("--ranks", arguments->options.ranks,
                     "HLO, StableHLO: number of devices, where the text does not say")
        ->check(CLI::Range(1, plan::kMaxRanks));
    command->add_option(
        "--module", arguments->options.module,
        "HLO, StableHLO: the module to read, by its name or its number from 0, where there are "
        "several");
    add_lowering_options(*command, "--lower", arguments->lowering);
    command->add_flag("--no-check", arguments->unchecked, "Write the plan even if it is wrong");
    command->add_option("-o,--output", arguments->output, "Plan file to write")->check(filled(kFile));
    command->callback([arguments] { import(*arguments); });
}

}  // namespace syncopate::tools
