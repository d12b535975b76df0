#include "syncopate/emit/artifact.hpp"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/digest.hpp"
#include "syncopate/emit/emit.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/fuse/model/bindings.hpp"
#include "syncopate/try.hpp"

namespace syncopate::emit {
namespace {

/// Whether what the parameter's tensor holds before the launch is a part of what it holds after: the kernel
/// adds to it, or some tile may leave elements as they are.
bool starts_from_its_content(const kernel::Kernel& kernel, const kernel::Param& param) {
    if (!param.written) return false;
    return param.read || std::ranges::any_of(kernel.tiles, [&](const kernel::Tile& tile) {
               return tile.inexact_writes.contains(param.name);
           });
}

KernelLaunch launch_of_stage(const fuse::Stage& stage, const plan::Plan& plan, const fuse::Options& options) {
    const kernel::Kernel& kernel = stage.kernel;
    KernelLaunch launch;
    launch.kernel = kernel.name;
    launch.file = kernel.file;
    if (kernel.by_line) launch.line = kernel.line;
    for (const kernel::Param& param : kernel.params) launch.parameters.emplace_back(param.name, param.kind);
    launch.arguments = kernel.arguments;
    launch.arguments.grid =
        options.num_programs ? std::array<std::int64_t, 3>{*options.num_programs, 1, 1} : kernel.grid;
    launch.bindings = stage.bindings;
    launch.programs_per_tile = kernel.programs_per_tile;
    for (const auto& [name, tensor] : stage.bindings) {
        const kernel::Param* param = kernel.find_param(name);
        const auto makes = [&, t = plan.find_tensor(tensor)](const plan::Holding& holding) {
            return holding.chunk.tensor == *t;
        };
        if (starts_from_its_content(kernel, *param) && std::ranges::any_of(plan.produced, makes))
            launch.accumulates.push_back(name);
    }
    return launch;
}

/// Whether a stage leaves alone what it reads.
bool spares_its_input(const fuse::Stage& stage) {
    std::set<std::string> read, written;  // by tensor, or of one that is not bound by parameter
    for (const kernel::Param& param : stage.kernel.params) {
        if (param.read && param.written) return false;
        const auto bound = stage.bindings.find(param.name);
        const std::string name = bound == stage.bindings.end() ? "parameter " + param.name : bound->second;
        if (param.read) read.insert(name);
        if (param.written) written.insert(name);
    }
    return std::ranges::none_of(written, [&](const std::string& name) { return read.contains(name); });
}

}  // namespace

std::array<std::int64_t, 3> ScheduleFile::grid_of(std::size_t stage, std::int32_t rank) const {
    const fuse::RankSchedule& own = schedule.ranks[at(rank)];
    if (schedule.stages[stage].program_a_slot()) {
        const auto slots = static_cast<std::int64_t>(schedule.slots_of(own, stage).size());
        return {slots * stages[stage].programs_per_tile, 1, 1};
    }
    return stages[stage].arguments.grid.value_or(std::array<std::int64_t, 3>{1, 1, 1});
}

std::int64_t ScheduleFile::programs_of(std::int32_t rank) const {
    std::int64_t programs = 0;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
        const std::array<std::int64_t, 3> grid = grid_of(stage, rank);
        programs += grid[0] * grid[1] * grid[2] / stages[stage].programs_per_tile;
    }
    return programs;
}

std::string kernel_file(const Artifact& artifact, const std::string& stem, std::size_t stage) {
    const std::string number = artifact.sources.size() > 1 ? "_" + std::to_string(stage) : "";
    return stem + number + artifact.sources[stage].suffix;
}

std::vector<std::pair<std::string, const std::string*>> files_of(const Artifact& artifact) {
    std::vector<std::pair<std::string, const std::string*>> files;
    for (std::size_t stage = 0; stage < artifact.sources.size(); ++stage) {
        files.emplace_back(kernel_file(artifact, "original", stage), &artifact.sources[stage].original);
        files.emplace_back(kernel_file(artifact, "kernel", stage), &artifact.sources[stage].kernel);
    }
    for (const auto& [path, text] : artifact.imports) files.emplace_back(path, &text);
    files.emplace_back("schedule.json", &artifact.schedule_json);
    return files;
}

bool add_import(Artifact& artifact, const std::string& path, const std::string& text) {
    const auto same = [&](const auto& file) { return file.first == path; };
    const auto files = files_of(artifact);
    if (const auto found = std::ranges::find_if(files, same); found != files.end())
        return *found->second == text;
    artifact.imports.emplace_back(path, text);
    artifact.launch.files[path] = digest(text);
    if (!artifact.launch.schedule.part) artifact.schedule_json = to_json(artifact.launch);
    return true;
}

Result<std::vector<std::optional<BoxesOfParameters>>> own_writes(const Artifact& artifact,
                                                                 std::int32_t rank) {
    if (artifact.launch.schedule.part)
        return Error{"the schedule is of one node's ranks: what others run is not known here"};
    std::vector<std::optional<BoxesOfParameters>> writes;
    for (std::size_t stage = 0; stage < artifact.sources.size(); ++stage) {
        const KernelLaunch& launch = artifact.launch.stages[stage];
        const fuse::Schedule& schedule = artifact.launch.schedule;
        std::set<std::int64_t> own, run;  // by this rank, by any
        for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
            for (const fuse::Slot& slot : schedule.slots_of(schedule.ranks[r], stage)) {
                run.insert(slot.tile);
                if (static_cast<std::int32_t>(r) == rank) own.insert(slot.tile);
            }
        }
        std::optional<BoxesOfParameters>& boxes = writes.emplace_back();
        if (own.size() == run.size()) continue;
        const StageSource& source = artifact.sources[stage];
        const std::string asked =
            launch.line == 0 ? launch.kernel : fmt::format("{}@{}", launch.kernel, launch.line);
        SYNCOPATE_TAKE(
            const auto kernel,
            language_of(launch.file).analyse(source.original, launch.file, asked, launch.arguments));
        boxes.emplace();
        for (const kernel::Tile& tile : kernel.tiles) {
            if (!own.contains(tile.id)) continue;
            for (const auto& [name, written] : tile.write_boxes) {
                if (launch.bindings.contains(name)) continue;
                std::vector<plan::Region>& all = (*boxes)[name];
                all.insert(all.end(), written.begin(), written.end());
            }
        }
    }
    return writes;
}

/// What each rank runs, or `only` this one.
static std::vector<std::set<std::int64_t>> tiles_by_rank(const fuse::Schedule& schedule, std::size_t stage,
                                                         std::optional<std::int32_t> only) {
    std::vector<std::set<std::int64_t>> tiles;
    for (const fuse::RankSchedule& rank : schedule.ranks) {
        if (only && &rank != &schedule.ranks.at(static_cast<std::size_t>(*only))) continue;
        std::set<std::int64_t>& own = tiles.emplace_back();
        for (const fuse::Slot& slot : schedule.slots_of(rank, stage)) own.insert(slot.tile);
    }
    return tiles;
}

ScheduleFile schedule_file_of(const fuse::StagedProgram& program, fuse::Schedule schedule,
                              const fuse::Options& options) {
    ScheduleFile launch;
    for (const fuse::Stage& stage : program.stages)
        launch.stages.push_back(launch_of_stage(stage, program.plan, options));
    launch.device = options.device;
    launch.plan = program.plan;
    launch.schedule = std::move(schedule);
    return launch;
}

Result<Artifact> make_artifact(const fuse::StagedProgram& program, const fuse::Options& options,
                               std::optional<std::int32_t> rank) {
    SYNCOPATE_TAKE(auto schedule,
                   rank ? fuse::fuse_part(program, options, *rank) : fuse::fuse(program, options));
    Artifact artifact;
    ScheduleFile& launch = artifact.launch;
    for (const fuse::Stage& stage : program.stages) {
        SYNCOPATE_TAKE(const auto language, language_of(stage.kernel));
        SYNCOPATE_TAKE(auto source, language->emit({stage.kernel, program.plan, stage.bindings}, schedule,
                                                   artifact.sources.size()));
        artifact.sources.push_back(
            {std::move(source), language->original(stage.kernel), suffix_of(stage.kernel.file)});
        const std::vector<std::string> warnings =
            language->warnings(stage.kernel, tiles_by_rank(schedule, artifact.sources.size() - 1, rank));
        artifact.warnings.insert(artifact.warnings.end(), warnings.begin(), warnings.end());
        std::vector<std::string>& written = artifact.written.emplace_back();
        for (const kernel::Param& param : stage.kernel.params) {
            if (param.written) written.push_back(param.name);
        }
    }
    launch = schedule_file_of(program, std::move(schedule), options);
    artifact.repeatable =
        std::ranges::all_of(program.stages, spares_its_input) &&
        std::ranges::all_of(launch.schedule.stages.begin() + 1, launch.schedule.stages.end(),
                            [](const fuse::StageSlots& stage) { return stage.overlaps; });
    for (const auto& [name, text] : files_of(artifact)) launch.files[name] = digest(*text);
    launch.files.erase("schedule.json");
    if (!launch.schedule.part) artifact.schedule_json = to_json(launch);
    return artifact;
}

Result<Artifact> make_artifact(const fuse::Program& program, const fuse::Options& options) {
    return make_artifact(fuse::StagedProgram{{{program.kernel, program.bindings}}, program.plan}, options);
}

Result<fuse::StagedProgram> analyse_stages(std::vector<StageText> stages, plan::Plan plan) {
    fuse::StagedProgram program{{}, std::move(plan)};
    for (StageText& stage : stages) {
        for (const auto& [param, tensor_name] : stage.bindings) {
            const auto tensor = program.plan.find_tensor(tensor_name);
            if (!tensor) return fuse::no_tensor_to_bind(program.plan, tensor_name, param);
            if (program.plan.tensors[*tensor].ragged)
                return Error{fmt::format("{}: {} has rows in groups, of which only a call knows how many: a "
                                         "kernel that is read finds "
                                         "its rows by numbers. Where the counts are known before the call, "
                                         "fuse plan.counted(counts); "
                                         "where only the device knows them, sy.fuse in Python takes it",
                                         param, tensor_name),
                             {.file = stage.file},
                             ErrorClass::usage};
            stage.arguments.tensors.try_emplace(
                param, kernel::TensorArgument{
                           program.plan.tensors[*tensor].shape, {}, program.plan.tensors[*tensor].dtype, {}});
        }
        SYNCOPATE_TAKE(
            auto kernel,
            language_of(stage.file).analyse(stage.source, stage.file, stage.name, stage.arguments));
        program.stages.push_back({std::move(kernel), std::move(stage.bindings)});
    }
    return program;
}

Result<Artifact> make_artifact(std::vector<StageText> stages, plan::Plan plan, const fuse::Options& options,
                               std::optional<std::int32_t> rank) {
    SYNCOPATE_TAKE(const auto program, analyse_stages(std::move(stages), std::move(plan)));
    return make_artifact(program, options, rank);
}

Result<Artifact> make_artifact(std::string source, std::string file, const std::string& name,
                               kernel::Arguments arguments, plan::Plan plan,
                               std::map<std::string, std::string> bindings, const fuse::Options& options) {
    std::vector<StageText> stages;
    stages.push_back({std::move(source), std::move(file), name, std::move(arguments), std::move(bindings)});
    return make_artifact(std::move(stages), std::move(plan), options);
}

}  // namespace syncopate::emit
