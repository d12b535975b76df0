// Artifact: everything that a fused kernel is, as text: what `syncopate fuse -o DIR` writes and `run DIR`
// reads, and what the Python face makes in its own process. No file is touched here.
//
// schedule_json, schema `syncopate.schedule/1`:
//
//   {"schema": "syncopate.schedule/1",
//    "stages": [                            one for each kernel
//     {"kernel": "matmul", "file": "matmul.py",
//      "parameters": [["a_ptr", "pointer"], ["M", "scalar"], ["BLOCK_M", "constant"], …],   of the user's
//      kernel "arguments": {"M": 512, "BLOCK_M": 128, "ACTIVATION": null, …}, "tensors": {"a_ptr": {"shape":
//      [512, 256], "dtype": "bf16", "strides": […], "block": […], "values": […]}, …},
//      "bindings": {"a_ptr": "A"},
//      "accumulates": ["c_ptr"],            only if there are some
//      "programs_per_tile": 2,              only if they share tiles
//      "grid": [8, 1, 1]}],
//    "num_sms": 132, "device": "host",
//    "files": {"kernel.py": "0f3c…", "original.py": …, "helpers.py": …},   digests (digest.hpp) of what lies beside it
//    "plan": {…},                           syncopate.plan/1
//    "schedule": {…}}                       fuse/model/json.hpp
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/model/region.hpp"
#include "syncopate/result.hpp"

namespace syncopate::emit {

/// One kernel of a launch, with what it is called with.
struct KernelLaunch {
    std::string kernel;     ///< name of the function, in the user's file as in the fused one
    std::string file;       ///< the user's file, for messages
    std::int64_t line = 0;  ///< where the user's file has several of that name, of this one's
    std::vector<std::pair<std::string, kernel::ParamKind>> parameters;
    kernel::Arguments arguments;  ///< `arguments.grid` holds the grid
    std::map<std::string, std::string> bindings;
    /// Parameters bound to what the kernel makes, to which it adds (atomic_add), or of which it may leave
    /// elements as they are (a mask that depends on data): they start as the user says.
    std::vector<std::string> accumulates{};
    std::int64_t programs_per_tile = 1;  ///< as kernel::Kernel's

    /// Those that share tiles count as one.
    [[nodiscard]] std::int64_t num_programs() const {
        const std::array<std::int64_t, 3> grid =
            arguments.grid.value_or(std::array<std::int64_t, 3>{1, 1, 1});
        return grid[0] * grid[1] * grid[2] / programs_per_tile;
    }
};

/// What a schedule file says.
struct ScheduleFile {
    std::vector<KernelLaunch> stages;  ///< at least one
    fuse::Device device = fuse::Device::host;
    std::map<std::string, std::string> files{};  ///< digest by name of each other file of the folder
    plan::Plan plan;
    fuse::Schedule schedule;

    /// The grid that `rank` launches the stage's kernel with.
    [[nodiscard]] std::array<std::int64_t, 3> grid_of(std::size_t stage, std::int32_t rank) const;

    /// Programs of all stages of `rank` that end a call: of those that share tiles one does so for all.
    [[nodiscard]] std::int64_t programs_of(std::int32_t rank) const;
};

[[nodiscard]] std::string to_json(const ScheduleFile& launch);

/// Strict, as schedule_from_json is. `file_name` is for messages.
[[nodiscard]] Result<ScheduleFile> schedule_file_from_json(std::string_view text,
                                                           const std::string& file_name = {});

/// A stage's files.
struct StageSource {
    std::string kernel;    ///< kernel.py; of several stages kernel_0.py, …
    std::string original;  ///< original.py (original_0.py, …), byte for byte the user's file
    std::string suffix;    ///< of both: that of the language
};

struct Artifact {
    std::vector<StageSource> sources;  ///< by stage
    std::string schedule_json;         ///< schedule.json; empty: `launch` is of one node's part
    ScheduleFile launch;               ///< the same as schedule_json
    std::vector<std::pair<std::string, std::string>>
        imports{};  ///< what the kernels import, by name: add_import
    /// A call made again, with the same input, leaves the same: no stage writes what it or an earlier one
    /// reads.
    bool repeatable = false;
    /// By stage, the parameters to which its kernel writes.
    std::vector<std::vector<std::string>> written{};
    std::vector<std::string> warnings{};  ///< of all kernels: Kernel::warnings

    [[nodiscard]] const std::string& kernel_source() const { return sources.front().kernel; }
};

/// The name of a stage's file, `stem` kernel or original: kernel.py, of several stages kernel_0.py, ….
[[nodiscard]] std::string kernel_file(const Artifact& artifact, const std::string& stem, std::size_t stage);

/// Adds a file, by its path in the folder, that kernels import from there; false where another one has its name.
[[nodiscard]] bool add_import(Artifact& artifact, const std::string& path, const std::string& text);

/// The names and texts of the files that make up a folder for `syncopate run`: of one stage original.py and
/// kernel.py, of several original_0.py, kernel_0.py, …, what they import, and, last, schedule.json, which knows the
/// others' digests. The texts are the artifact's own.
[[nodiscard]] std::vector<std::pair<std::string, const std::string*>> files_of(const Artifact& artifact);

/// Boxes by parameter.
using BoxesOfParameters = std::map<std::string, std::vector<plan::Region>>;

/// By stage, what those tiles write that `rank` runs, of the tensors that no plan moves; nullopt: the rank
/// runs all tiles that any rank runs. Else analyses the user's kernel again: its errors are those of that. Fails of a part.
[[nodiscard]] Result<std::vector<std::optional<BoxesOfParameters>>> own_writes(const Artifact& artifact,
                                                                               std::int32_t rank);

/// What a program is launched with by the schedule that fuse made of it; of no files.
[[nodiscard]] ScheduleFile schedule_file_of(const fuse::StagedProgram& program, fuse::Schedule schedule,
                                            const fuse::Options& options);

/// Fuses the stages of a program that have been analysed. `rank`: for whom alone: of several nodes that one's is made
/// (fuse_part), and warnings are of its tiles, as elements of integer tensors may be its own.
[[nodiscard]] Result<Artifact> make_artifact(const fuse::StagedProgram& program,
                                             const fuse::Options& options = {},
                                             std::optional<std::int32_t> rank = {});

/// Fuses a kernel that has been analysed.
[[nodiscard]] Result<Artifact> make_artifact(const fuse::Program& program, const fuse::Options& options = {});

/// The whole way from source text: analyses the kernel `name` of `source` and fuses it. Tensors that are
/// bound and not in `arguments` take shape and dtype from the plan.
[[nodiscard]] Result<Artifact> make_artifact(std::string source, std::string file, const std::string& name,
                                             kernel::Arguments arguments, plan::Plan plan,
                                             std::map<std::string, std::string> bindings,
                                             const fuse::Options& options = {});

/// One stage's kernel, still as text.
struct StageText {
    std::string source;
    std::string file;  ///< for messages
    std::string name;  ///< of the kernel
    kernel::Arguments arguments;
    std::map<std::string, std::string> bindings;
};

/// The program that these texts and the plan are, each kernel analysed. Tensors that are bound and not in
/// `arguments` take shape and dtype from the plan.
[[nodiscard]] Result<fuse::StagedProgram> analyse_stages(std::vector<StageText> stages, plan::Plan plan);

/// The same for several stages.
[[nodiscard]] Result<Artifact> make_artifact(std::vector<StageText> stages, plan::Plan plan,
                                             const fuse::Options& options = {},
                                             std::optional<std::int32_t> rank = {});

}  // namespace syncopate::emit
