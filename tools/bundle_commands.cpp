// `syncopate compile` and `syncopate bundle`: programs compiled ahead, for processes without Python. Only code for a
// GPU needs it: then the work is handed to Triton's compiler, with the strategies that are chosen here.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "syncopate/bundle/bundle.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/emit/folder.hpp"
#include "syncopate/io.hpp"
#include "syncopate/names.hpp"
#include "syncopate/ops/operators.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/try.hpp"
#include "syncopate/tune/candidates/mixture.hpp"
#include "syncopate/tune/choose.hpp"
#include "tools/bundle_run.hpp"
#include "tools/commands.hpp"
#include "tools/operator_options.hpp"
#include "tools/python_command.hpp"

namespace syncopate::tools {
namespace {

using nlohmann::ordered_json;

constexpr std::int32_t kProgramsOnHost = 4;

struct CompileOptions {
    std::string what;
    std::vector<std::int64_t> rows;
    std::string arch = "sm_90";
    std::int32_t ranks = 0;
    std::string strategy;
    std::string machine;
    bool w_transposed = false;
    std::string activation;
    bool drops = false;
    bool int32_ids = false;
    std::string output;
    bool json = false;
};

bool is_mixture(const std::string& op) { return ops::Problem{.op = op}.is_mixture(); }

/// SPEC with M, or T of a mixture, where --rows says it.
std::string with_rows(const CompileOptions& options) {
    const std::size_t colon = options.what.find(':');
    const std::string rest = colon == std::string::npos ? "" : options.what.substr(colon + 1);
    const std::string name = is_mixture(options.what.substr(0, colon)) ? "T=" : "M=";
    const bool has_rows = rest.starts_with(name) || rest.find("," + name) != std::string::npos;
    if (has_rows || options.rows.empty()) return options.what;
    return fmt::format("{}{}{}{}", options.what, rest.empty() ? (colon == std::string::npos ? ":" : "") : ",",
                       name, options.rows.front());
}

/// What a call of the problem's operator is, beside its rows. Fails for what the operator does not have.
void take_call(const CompileOptions& options, bundle::OperatorPart& made) {
    const bool mixture = made.problem.is_mixture();
    made.call.w_transposed = options.w_transposed;
    made.activation = options.activation.empty() && mixture ? "silu"
                      : options.activation == "none"        ? std::string()
                                                            : options.activation;
    made.drops = options.drops;
    made.int32_ids = options.int32_ids;
    const auto refuse = [&](bool asked, const std::string& what) {
        if (asked) fail(usage_error(fmt::format("{}: not of {}", what, made.problem.op)));
    };
    refuse(options.drops && !mixture, "--drop");
    refuse(options.int32_ids && !mixture, "--int32-ids");
    refuse(options.w_transposed && mixture, "--w-transposed");
    const auto known = ops::operator_row(made.problem.op)->activations;
    refuse(!made.activation.empty() && std::ranges::find(known, made.activation) == std::end(known),
           "--activation " + escaped(made.activation));
}

bundle::Bucket bucket_for(const CompileOptions& options, tune::Problem problem, std::int64_t rows) {
    problem = problem.with_rows(rows);
    if (const std::string why = tune::problem_objection(problem); !why.empty()) fail(usage_error(why));
    const bool host = options.arch == bundle::kHost;
    tune::Machine machine = machine_of(options.machine, problem);
    tune::Strategy given;
    const tune::ChooseOptions choose{.unfused = false,
                                     .device = host ? fuse::Device::host : fuse::Device::cuda,
                                     .gluon = options.arch.starts_with("sm_90")};
    if (!options.strategy.empty()) {
        given = take(tune::strategy_from_json(options.strategy, "--strategy"));
    } else if (host) {
        const tune::TileConfig usual{.block_m = 16, .block_n = 16, .block_k = 16, .stages = 1};
        given.tiles = {problem.is_mixture() ? tune::mixture_tile(problem, fuse::Device::host) : usual};
        given.programs = kProgramsOnHost;
    }
    tune::Strategy strategy;
    if (options.strategy.empty() && !host)
        strategy = tune::choose(problem, machine, nullptr, choose).strategy;
    const bool fuses = !host && options.strategy.empty() && strategy.placement == tune::Placement::fused;
    if (!fuses) strategy = tune::complete(problem, machine, given, choose);
    if (const std::string why = tune::strategy_objection(problem, strategy); !why.empty())
        fail(usage_error(fmt::format("{} rows: {}", rows, why)));
    if (strategy.placement != tune::Placement::fused)
        fail(usage_error(
            fmt::format("{} rows: {} is no program that a bundle holds", rows, tune::name_of(strategy))));
    return {.rows = rows, .strategy = strategy};
}

/// Whether the bucket's strategy takes all rows after `before`, by some that are no multiples of a tile.
bool takes_all(const bundle::OperatorPart& part, const bundle::Bucket& bucket, std::int64_t before,
               fuse::Device device) {
    const tune::Problem& problem = part.problem;
    if (part.takes_exact_rows()) return true;
    const std::int64_t step = tune::operator_row(problem.op)->equal_blocks ? problem.ranks : 1;
    for (const std::int64_t less :
         {step, 2 * step, 3 * step, std::int64_t{16} * problem.ranks, (bucket.rows - before) / 2}) {
        const std::int64_t rows = (bucket.rows - less) / step * step;
        if (rows > before && !bundle::lower(part, bucket, rows, device)) return false;
    }
    return true;
}

bool is_compiled(const ops::OperatorRow& row) {
    return row.kind != ops::OperatorRow::Kind::other || row.parameters != nullptr;
}

/// The operator is one that bundles hold, and its rows are known.
void require_compiled(const CompileOptions& options) {
    const std::string name = options.what.substr(0, options.what.find(':'));
    const ops::OperatorRow* const row = ops::operator_row(name);
    const auto refuse = [](std::string message) { fail(usage_error(std::move(message))); };
    if (row == nullptr || !is_compiled(*row)) {
        std::vector<std::string_view> known;
        for (const ops::OperatorRow& one : ops::operators())
            if (is_compiled(one)) known.push_back(one.name);
        const std::string hint = did_you_mean(name, known);
        refuse(fmt::format(
            "{}: {}{}", escaped(name),
            row == nullptr ? "there is no such folder, nor an operator of this name"
                           : "bundles do not hold this operator",
            row == nullptr && !hint.empty()
                ? hint
                : fmt::format("; bundles hold {}, and folders of `syncopate fuse`", fmt::join(known, ", "))));
    }
    const std::string rows = is_mixture(name) ? "T" : "M";
    const std::string text = with_rows(options);
    if (text.find(":" + rows + "=") == std::string::npos && text.find("," + rows + "=") == std::string::npos)
        refuse(
            fmt::format("{}: how many rows a call has is not said: give --rows 16,64,1024, or {} in the SPEC",
                        escaped(options.what), rows));
}

bundle::OperatorPart operator_of(const CompileOptions& options) {
    require_compiled(options);
    OperatorArguments arguments{.spec = with_rows(options), .ranks = options.ranks};
    tune::Problem problem = problem_of(arguments);
    std::set<std::int64_t> rows(options.rows.begin(), options.rows.end());
    if (rows.empty()) rows.insert(problem.extent(problem.calls_name()));
    if (problem.num_sms == 0) problem.num_sms = machine_of(options.machine, problem).num_sms;
    bundle::OperatorPart made;
    made.problem = problem.with_rows(*rows.rbegin());
    take_call(options, made);
    if (problem.is_mixture())
        (void)take(ops::operator_row(problem.op)->parameters(made.problem, {}, made.called()));
    const fuse::Device device = options.arch == bundle::kHost ? fuse::Device::host : fuse::Device::cuda;
    std::int64_t before = 0;
    for (const std::int64_t count : rows) {
        made.buckets.push_back(bucket_for(options, problem, count));
        if (!takes_all(made, made.buckets.back(), before, device)) {
            CompileOptions usual = options;  // which takes any rows
            usual.strategy = "{}";
            made.buckets.push_back(bucket_for(usual, problem, count));
        }
        before = count;
    }
    return made;
}

void print(const ordered_json& answer) {
    std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
}

void write(const bundle::Bundle& made, const CompileOptions& options) {
    const std::string& output = options.output;
    if (const Status written = bundle::write_bundle(made, output); !written) fail(written.error());
    if (options.json)
        return print({{"output", output},
                      {"name", made.name},
                      {"arch", made.arch},
                      {"ranks", made.ranks()},
                      {"kernels", made.kernels.size()}});
    (output == "-" ? std::cerr : std::cout)
        << output << ": " << made.name << " for " << made.arch << ", " << made.ranks() << " ranks\n";
}

/// Hands what is to be compiled for a GPU to Triton's compiler.
void compile_by_python(std::vector<std::string> words, const CompileOptions& options) {
    words.insert(words.end(), {"-o", options.output});
    if (options.json) words.emplace_back("--json");
    run_python("syncopate.command.compile", words);
}

void compile_operator(const CompileOptions& options) {
    bundle::Bundle made{
        .name = options.what, .made_by = "syncopate " SYNCOPATE_VERSION, .arch = options.arch};
    made.op = operator_of(options);
    if (made.on_host()) {
        for (const bundle::Bucket& bucket : made.op->buckets)
            (void)take(bundle::lower(*made.op, bucket, bucket.rows, fuse::Device::host));
        return write(made, options);
    }
    compile_by_python({"--operator", bundle::manifest_to_json(made)}, options);
}

void compile_folder(const CompileOptions& options) {
    const emit::Artifact artifact = take(emit::artifact_from_folder(options.what));
    const bool host = options.arch == bundle::kHost;
    if ((artifact.launch.device == fuse::Device::host) != host)
        fail(usage_error(fmt::format(
            "{}: fused for {}; fuse it with --device {}, or compile it with --arch {}", options.what,
            host ? "cuda" : "host", host ? "host" : "cuda", host ? "sm_90" : "host")));
    if (!options.rows.empty()) fail(usage_error("--rows: a folder has the rows that it was fused for"));
    bundle::Bundle made{.made_by = "syncopate " SYNCOPATE_VERSION, .arch = options.arch};
    for (const emit::KernelLaunch& stage : artifact.launch.stages)
        made.name += (made.name.empty() ? "" : ", ") + stage.kernel;
    made.folder = bundle::FolderPart{.ranks = artifact.launch.plan.num_ranks()};
    for (const auto& [name, text] : emit::files_of(artifact)) made.sections["folder/" + name] = *text;
    const std::filesystem::path folder(options.what);
    for (const auto& [name, digest] : artifact.launch.files) {
        if (!made.sections.contains("folder/" + name))
            made.sections["folder/" + name] = take(read_file((folder / name).string()));
    }
    if (host) return write(made, options);
    compile_by_python({"--folder", options.what, "--manifest", bundle::manifest_to_json(made)}, options);
}

/// The kernels are written for what Hopper began: bulk copies by the tensor memory accelerator, and 227 KiB of shared
/// memory.
void require_arch(const std::string& arch) {
    constexpr int kOldest = 90;
    if (arch == bundle::kHost) return;
    std::string_view number = arch;
    const bool named = number.starts_with("sm_");
    if (named) number.remove_prefix(3);
    if (number.ends_with('a')) number.remove_suffix(1);
    int value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    const bool is_number = named && error == std::errc{} && end == number.data() + number.size();
    if (is_number && value >= kOldest) return;
    fail(usage_error(fmt::format(
        "--arch {}: {}", escaped(arch),
        is_number ? "bundles are for sm_90 and later, or host" : "expected host, or a GPU's such as sm_90")));
}

void compile(const CompileOptions& options) {
    refuse_two_answers("--output", options.output, options.json, "--json");
    require_arch(options.arch);
    std::error_code error;
    if (std::filesystem::is_directory(options.what, error)) return compile_folder(options);
    compile_operator(options);
}

void show(const std::string& file, bool json) {
    const bundle::Bundle made = take(bundle::read_bundle(file));
    if (json) {
        std::cout << bundle::manifest_to_json(made);
        return;
    }
    std::cout << bundle::describe(made);
    const auto tell = [&](std::int64_t rows, const std::string& what) {
        const bundle::Planned planned = take(bundle::plan_rows(made, rows));
        const bundle::Needs needs = bundle::needs_of(made, planned, 0);
        std::cout << fmt::format(
            "{}: {} bytes of a rank's device: {} mapped by all ranks, {} that kernels keep, {} of "
            "tables\n",
            what, needs.all(), needs.heap, needs.workspace, needs.tables);
        if (!planned.grouped) return;
        for (const runtime::Operand& operand : bundle::operands_of(planned, 0))
            std::cout << fmt::format("tensor {}: {} {}{}\n", escaped(operand.name),
                                     plan::name_of(operand.dtype), fmt::join(operand.shape, " x "),
                                     planned.writes(operand.name) ? ", which a call makes" : "");
    };
    if (made.grouped) return tell(0, "rows of any counts");
    if (!made.op) return;
    for (const bundle::Bucket& bucket : made.op->buckets)
        tell(bucket.rows, fmt::format("{} rows", bucket.rows));
}

/// Bytes that a rank's heap takes: in units of a device's pages.
std::uint64_t heap_of(const bundle::Needs& needs) { return round_up(needs.heap, std::uint64_t{2} << 20); }

struct Whole {
    std::size_t sections = 0;
    std::size_t programs = 0;
    std::int32_t ranks = 0;
    double read_ms = 0;
};

/// Whether every program of it can be made on every rank, with no device.
Result<Whole> whole(const std::string& file) {
    const auto started = std::chrono::steady_clock::now();
    SYNCOPATE_TAKE(const bundle::Bundle made, bundle::read_bundle(file));
    const std::chrono::duration<double, std::milli> read = std::chrono::steady_clock::now() - started;
    std::vector<std::int64_t> rows;
    if (made.op) {
        for (const bundle::Bucket& bucket : made.op->buckets) rows.push_back(bucket.rows);
    } else {
        rows.push_back(0);
    }
    for (const std::int64_t count : rows) {
        SYNCOPATE_TAKE(const bundle::Planned planned, bundle::plan_rows(made, count));
        for (std::int32_t rank = 0; rank < made.ranks(); ++rank) {
            const std::vector<runtime::Operand> operands = bundle::operands_of(planned, rank);
            SYNCOPATE_TAKE(const auto form, bundle::form_of(made, planned, rank, operands,
                                                            heap_of(bundle::needs_of(made, planned, rank)) *
                                                                static_cast<std::uint64_t>(made.ranks())));
        }
    }
    return Whole{made.sections.size() + 1, rows.size(), made.ranks(), read.count()};
}

void check(const std::string& file, bool json) {
    const Result<Whole> found = whole(file);
    if (json) {
        ordered_json answer{{"ok", static_cast<bool>(found)}, {"findings", ordered_json::array()}};
        if (found) {
            answer["sections"] = found->sections;
            answer["programs"] = found->programs;
            answer["ranks"] = found->ranks;
        } else {
            answer["findings"].push_back({{"message", found.error().to_string()}});
        }
        print(answer);
        if (!found) throw Exit{static_cast<int>(found.error().error_class)};
        return;
    }
    if (!found) fail(found.error());
    std::cout << fmt::format("{}: {} sections and {} programs of {} ranks are whole; read in {:.1f} ms\n",
                             file, found->sections, found->programs, found->ranks, found->read_ms);
}

}  // namespace

void register_bundle_commands(CLI::App& app) {
    const auto options = std::make_shared<CompileOptions>();
    CLI::App* one = app.add_subcommand("compile", "Compile a program ahead, for processes without Python");
    one->add_option("spec", options->what,
                    "an operator (all_gather_matmul:N=3584,K=8192), or a folder made by `syncopate fuse`")
        ->required()
        ->check(filled("an operator or a folder"));
    one->add_option("--rows", options->rows,
                    "buckets of rows: 16,64,1024; a call has any number of rows up to the last; of a mixture "
                    "of experts "
                    "tokens of each rank, and a call has those of a bucket")
        ->delimiter(',')
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
    one->add_option("--arch", options->arch, "sm_90, or host");
    one->add_option("--ranks", options->ranks, "ranks, if the SPEC has none")
        ->check(CLI::Range(1, plan::kMaxRanks));
    one->add_option("--strategy", options->strategy,
                    "how it is done, as JSON; default: chosen for each bucket");
    one->add_option("--machine", options->machine, "for which it is chosen, a name or a file");
    one->add_flag("--w-transposed", options->w_transposed, "weights are given as [N, K]");
    one->add_option("--activation", options->activation,
                    "of the first product: relu, gelu or silu; of a mixture silu, relu or none")
        ->check(CLI::IsMember({"relu", "gelu", "silu", "none"}));
    one->add_flag("--drop", options->drops,
                  "of a mixture: rows over its bound add nothing; default: they are an error");
    one->add_flag("--int32-ids", options->int32_ids, "of a mixture: its topk_ids are int32; default: int64");
    one->add_option("-o,--output", options->output, "the file to write")->required()->check(filled("a file"));
    one->add_flag("--json", options->json, "print what was written as JSON");
    one->callback([options] { compile(*options); });

    CLI::App* group = app.add_subcommand("bundle", "Look at, check and run what was compiled ahead");
    group->require_subcommand(1);
    const auto file = std::make_shared<std::string>();
    const auto json = std::make_shared<bool>(false);
    const auto run_options = std::make_shared<BundleRunOptions>();
    CLI::App* shown = group->add_subcommand("show", "What is in it, and what it needs");
    shown->add_option("file", *file)->required();
    shown->add_flag("--json", *json, "print the manifest");
    shown->callback([file, json] { show(*file, *json); });
    CLI::App* checked = group->add_subcommand("check", "Whether all of it is whole");
    checked->add_option("file", *file)->required();
    checked->add_flag("--json", *json, "print the findings as JSON");
    checked->callback([file, json] { check(*file, *json); });
    CLI::App* run = group->add_subcommand("run", "Run it on all ranks, as threads of this process");
    run->add_option("file", run_options->file)->required();
    run->add_option("--rows", run_options->rows,
                    "rows of the calls; default: of each bucket, and one that no bucket has")
        ->delimiter(',');
    run->add_flag("--check", run_options->check, "compare with products added up in double precision");
    run->add_option("--calls", run_options->calls, "calls, each with fresh data")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    run->add_flag("--json", run_options->json, "print the result as JSON");
    run->callback([run_options] { run_bundle(*run_options); });
}

}  // namespace syncopate::tools
