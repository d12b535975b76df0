// Program: what a bundle runs for so many rows. No file is read, nothing is compiled and no device is touched: an
// operator's schedule is made by the passes for the rows of the day, the kernels' arguments by what they name.
//
//   plan_rows      rows → the launch, with its schedule, and which of the bundle's kernels run it
//   needs_of       → bytes of a rank's device, before any is allocated
//   operands_of    → the tensors of a call on a rank
//   form_of        → the arguments of a rank's launches, once its heap has an address
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "syncopate/bundle/bundle.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/ops/parameters.hpp"
#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/ragged.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/executable/executable.hpp"

namespace syncopate::bundle {

struct Planned {
    emit::ScheduleFile launch;
    std::vector<std::int32_t> kernels;  ///< of the bundle, by stage; none on host
    /// What tiles touch.
    fuse::StagedProgram program;
    /// By stage and parameter the name of the call's tensor, where that is another one.
    std::vector<std::map<std::string, std::string>> names;
    /// Of an operator: a call's tensors that the plan moves, by the plan's tensor.
    std::map<std::string, std::string> moved;
    std::vector<std::string> order;  ///< of the call's tensors, as far as it matters
    std::string activation;          ///< of the first product, on host
    bool w_transposed = false;
    std::string what;  ///< in messages, with its rows
    /// Of an operator, for these rows.
    ops::Problem problem;
    ops::Strategy strategy;
    /// By stage, of an operator that has some (ops/parameters.hpp), and of grouped kernels.
    std::vector<ops::Parameters> parameters;
    /// Of grouped kernels; else null.
    std::shared_ptr<const ops::RaggedProgram> grouped;
    /// The scratch in which kernels write down what in calls is wrong; "": none do. And what of it two looks say; "" nothing.
    std::string seen;
    std::function<std::string(std::span<const std::uint32_t> before, std::span<const std::uint32_t> now)>
        judge;

    /// Whether a kernel writes the call's tensor of this name.
    [[nodiscard]] bool writes(const std::string& operand) const;
};

/// Strides of contiguous rows, elements.
[[nodiscard]] std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape);

/// `rows`: of an operator, M; of a user's program, and of grouped kernels, 0. `rank`: for whom alone: of an operator over nodes its node's part
/// (fuse_part). Fails for rows that the bundle has no bucket for, and where the
/// schedule of these rows asks for a kernel that is not in the bundle.
[[nodiscard]] Result<Planned> plan_rows(const Bundle& bundle, std::int64_t rows,
                                        std::optional<std::int32_t> rank = {});

/// The launch of an operator for so many rows, and the traits of its stages; `programs`: of the grid of a plain
/// kernel, which is compiled for it. `rank`: as of plan_rows.
struct Lowered {
    fuse::StagedProgram program;
    emit::ScheduleFile launch;
    std::vector<Traits> traits;
    std::map<std::string, std::string> moved;  ///< as of Planned
};
[[nodiscard]] Result<Lowered> lower(const OperatorPart& op, const Bucket& bucket, std::int64_t rows,
                                    fuse::Device device, std::optional<std::int32_t> rank = {});

/// Memory that the kernels of a call share (ops::Parameter::Of::scratch), one after another.
struct Scratch {
    struct Place {
        std::uint64_t offset = 0;
        std::uint64_t bytes = 0;
    };
    std::map<std::string, Place, std::less<>> places;
    std::uint64_t bytes = 0;
};
[[nodiscard]] Scratch scratch_of(const Planned& planned);

/// Bytes of a rank's device.
struct Needs {
    std::uint64_t heap = 0;       ///< that peers map, and scratch; what release() gives back
    std::uint64_t workspace = 0;  ///< partial sums of kernels that split K
    std::uint64_t tables = 0;     ///< of the schedule, about
    [[nodiscard]] std::uint64_t all() const { return heap + workspace + tables; }
};
[[nodiscard]] Needs needs_of(const Bundle& bundle, const Planned& planned, std::int32_t rank);

/// In the order of calls: inputs as the operator names them, then outputs.
[[nodiscard]] std::vector<runtime::Operand> operands_of(const Planned& planned, std::int32_t rank);

/// `heaps_bytes`: of all ranks' heaps together (FusedOp::flat_view). `scratch`: the address of scratch_of's memory. Fails for
/// a parameter of which the program says nothing.
[[nodiscard]] Result<runtime::Form> form_of(const Bundle& bundle, const Planned& planned, std::int32_t rank,
                                            const std::vector<runtime::Operand>& operands,
                                            std::uint64_t heaps_bytes, std::uint64_t scratch = 0);

/// As of an op's options: what the ranks have to have alike, and call.
[[nodiscard]] runtime::OpOptions op_options(const Bundle& bundle, const Planned& planned);

}  // namespace syncopate::bundle
