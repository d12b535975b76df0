// Artifact: everything that a fused kernel is, as text: what `syncopate fuse -o DIR` writes and `run DIR`
// reads, and what the Python face makes in its own process. No file is touched here.
//
// schedule_json, schema `syncopate.schedule/1`:
//
//   {"schema": "syncopate.schedule/1",
//    "kernel": "matmul", "file": "matmul.py",
//    "parameters": [["a_ptr", "pointer"], ["M", "scalar"], ["BLOCK_M", "constant"], …],    of the user's
//    kernel "arguments": {"M": 512, "BLOCK_M": 128, "ACTIVATION": null, …}, "tensors": {"a_ptr": {"shape":
//    [512, 256], "dtype": "bf16", "strides": […], "block": […]}, …},   per parameter "bindings": {"a_ptr":
//    "A"}, "accumulates": ["c_ptr"] (only if there are some), "grid": [8, 1, 1], "num_sms": 132, "device":
//    "host", "plan": {…},            syncopate.plan/1 "schedule": {…}}        fuse/json.hpp
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/program.hpp"
#include "syncopate/fuse/schedule.hpp"
#include "syncopate/kernel/kernel.hpp"
#include "syncopate/plan/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::emit {

/// What a schedule file says.
struct Launch {
    std::string kernel;  ///< name of the function, in the user's file as in the fused one
    std::string file;    ///< the user's file, for messages
    std::vector<std::pair<std::string, kernel::ParamKind>> parameters;
    kernel::Arguments arguments;  ///< `arguments.grid` holds the grid
    std::map<std::string, std::string> bindings;
    /// Parameters bound to what the kernel makes that it also reads (atomic_add): they start as the user
    /// says.
    std::vector<std::string> accumulates{};
    fuse::Device device = fuse::Device::host;
    plan::Plan plan;
    fuse::Schedule schedule;

    [[nodiscard]] std::int64_t num_programs() const {
        const std::array<std::int64_t, 3> grid =
            arguments.grid.value_or(std::array<std::int64_t, 3>{1, 1, 1});
        return grid[0] * grid[1] * grid[2];
    }
};

[[nodiscard]] std::string to_json(const Launch& launch);

/// Strict, as schedule_from_json is. `file_name` is for messages.
[[nodiscard]] Result<Launch> launch_from_json(std::string_view text, const std::string& file_name = {});

struct Artifact {
    std::string kernel_source;    ///< kernel.py
    std::string original_source;  ///< original.py, byte for byte the user's file
    std::string schedule_json;    ///< schedule.json
    Launch launch;                ///< the same as schedule_json
};

/// Fuses a kernel that has been analysed.
[[nodiscard]] Result<Artifact> make_artifact(const fuse::Program& program, const fuse::Options& options = {});

/// The whole way from source text: analyses the kernel `name` of `source` and fuses it. Tensors that are
/// bound and not in `arguments` take shape and dtype from the plan.
[[nodiscard]] Result<Artifact> make_artifact(std::string source, std::string file, const std::string& name,
                                             kernel::Arguments arguments, plan::Plan plan,
                                             std::map<std::string, std::string> bindings,
                                             const fuse::Options& options = {});

}  // namespace syncopate::emit
