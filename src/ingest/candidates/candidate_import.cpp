// From a text to one of its candidates as a plan: what `plan import` does for HLO and StableHLO.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"
#include "syncopate/ingest/candidates/candidates.hpp"
#include "syncopate/ingest/hlo/hlo.hpp"
#include "syncopate/ingest/stablehlo/stablehlo.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ingest {
namespace {

Result<TensorProgram> program_of(std::string_view text, const std::string& file_name, Format format,
                                 const ImportOptions& options) {
    Result<TensorProgram> program = format == Format::hlo ? read_hlo(text, file_name, options.module)
                                                          : read_stablehlo(text, file_name, options.module);
    if (!program) return program;
    const std::int64_t said =
        std::max<std::int64_t>(program->replicas, 1) * std::max<std::int64_t>(program->partitions, 1);
    if (options.ranks > 0 && said > 1 && said != options.ranks) {
        return Error{
            fmt::format("is a program of {} devices; --ranks says {}: leave it out", said, options.ranks),
            {file_name},
            ErrorClass::usage};
    }
    program->devices = options.ranks;
    return program;
}

/// What to say to someone who picked none, or one that is not there.
Error choose_one(const std::vector<Candidate>& candidates, const std::vector<std::string>& modules,
                 const std::string& file_name, std::int32_t pick) {
    Error error{{}, {file_name}, ErrorClass::input};
    if (candidates.empty()) {
        error.message = "holds no collective";
    } else if (pick >= 0) {
        error.message = fmt::format("has no candidate {}; there are 0 to {}, --list shows them", pick,
                                    candidates.size() - 1);
        error.error_class = ErrorClass::usage;
    } else {
        error.message = fmt::format("holds {} collectives; choose one with --pick 0 to {}, --list shows them",
                                    candidates.size(), candidates.size() - 1);
        error.error_class = ErrorClass::usage;
        if (modules.size() > 1) {
            constexpr std::size_t kListed = 32;
            for (std::size_t i = 0; i < modules.size() && i <= kListed; ++i) {
                const std::string name = i < kListed ? escaped(modules[i]) : "…";
                error.message += (i == 0 ? "; or a module with --module: " : ", ") + name;
            }
        }
    }
    return error;
}

std::string groups_text(const Candidate& candidate) {
    if (candidate.groups.size() == 1) return fmt::format("{}", candidate.groups[0].size());
    if (candidate.groups.empty()) return fmt::format("{}", candidate.num_ranks);
    return fmt::format("{} groups of {}", candidate.groups.size(), candidate.groups[0].size());
}

void rename(plan::Plan& plan, const plan::Tensor& given, const std::string& file_name,
            std::optional<Error>& error) {
    const auto refuse = [&](std::string message) {
        error = Error{"--tensor " + given.name + ": " + std::move(message), {file_name}, ErrorClass::usage};
    };
    if (plan.tensors.size() != 1) {
        return refuse(
            fmt::format("the candidate moves {} arrays; a name can be given to one", plan.tensors.size()));
    }
    plan::Tensor& tensor = plan.tensors[0];
    if (tensor.shape != given.shape || tensor.dtype != given.dtype) {
        return refuse(
            fmt::format("the candidate moves {}:{}", fmt::join(tensor.shape, "x"), name_of(tensor.dtype)));
    }
    tensor.name = given.name;
}

Result<Import> import_candidate(std::string_view text, const std::string& file_name, Format format,
                                const ImportOptions& options) {
    SYNCOPATE_TAKE(const TensorProgram program, program_of(text, file_name, format, options));
    const std::vector<Candidate> found = list_candidates(program);
    const auto count = static_cast<std::int32_t>(found.size());
    const std::int32_t number = options.pick < 0 && count == 1 ? 0 : options.pick;
    if (number < 0 || number >= count) return choose_one(found, program.modules, file_name, options.pick);
    const Candidate& candidate = found[at(number)];
    SYNCOPATE_TAKE(plan::Plan plan, plan_of(candidate));

    Import made;
    made.format = format;
    made.plan = std::move(plan);
    if (options.tensor) {
        std::optional<Error> error;
        rename(made.plan, *options.tensor, file_name, error);
        if (error) return *error;
    }
    made.name = escaped(candidate.name);
    made.claims = {{"collective", candidate.kind}, {"ranks", groups_text(candidate)}};
    if (const std::string name = candidate.operator_name(); !name.empty())
        made.claims.emplace_back("operator", name);
    if (!candidate.source.empty())
        made.claims.emplace_back("at", escaped(short_source(candidate.source), 60));
    if (const std::string spec = candidate.spec(); !spec.empty()) made.claims.emplace_back("run", spec);
    if (candidate.groups.size() > 1) {
        made.warnings.push_back(
            fmt::format("each of the {} groups has arrays of its own; in the plan they share a name",
                        candidate.groups.size()));
    }
    if (candidate.in_loop && !candidate.windowed) {
        made.warnings.push_back(fmt::format(
            "{} stands in a loop{}; the plan is that of one iteration", made.name,
            candidate.trips >= 0 ? fmt::format(" of {} iterations", candidate.trips) : std::string()));
    }
    for (const std::vector<plan::Op>& ops : made.plan.ranks) {
        made.origins.emplace_back(ops.size(), Origin{candidate.where.line, made.name});
    }
    return made;
}

}  // namespace

Result<std::vector<Candidate>> list_candidates(std::string_view text, const std::string& file_name,
                                               Format format, const ImportOptions& options) {
    if (format == Format::automatic) format = detect(text).value_or(Format::automatic);
    if (format != Format::hlo && format != Format::stablehlo) {
        return Error{
            format == Format::automatic
                ? std::string("is neither HLO nor StableHLO, or it cannot be told; name it with --format")
                : fmt::format("is {}, which has no candidates; hlo and stablehlo have", name_of(format)),
            {file_name}};
    }
    SYNCOPATE_TAKE(const TensorProgram program, program_of(text, file_name, format, options));
    return list_candidates(program);
}

Result<Import> import_hlo(std::string_view text, const std::string& file_name, const ImportOptions& options) {
    return import_candidate(text, file_name, Format::hlo, options);
}

Result<Import> import_stablehlo(std::string_view text, const std::string& file_name,
                                const ImportOptions& options) {
    return import_candidate(text, file_name, Format::stablehlo, options);
}

}  // namespace syncopate::ingest
