// Parameters: what the kernels of an operator take in a launch beside what the plan moves, of operators whose kernels are
// not products: with it a process that has no Python can launch them (bundle/).
//
//     topk_ids, w1, y    operands: tensors of the call
//     position, seen     scratch: memory that the kernels of a call share, zero before the first call and kept from
//                        call to call; only `seen` outlives sy_release. Calls of one op follow each other, so that one
//                        place does
//     dispatch_ptr       the table of a later stage, which this one makes in each call
//     rank, stride       numbers that differ from rank to rank, or with the heap
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::ops {

struct Parameter {
    enum class Of : std::uint8_t {
        operand,   ///< the call's tensor `name`, its rows contiguous
        scratch,   ///< the memory `name`
        tensor,    ///< the plan's `name` on this rank, of a stage whose statement does not have it
        table,     ///< of stage `stage`
        rank,      ///< this rank
        stride,    ///< elements from one rank's tensor `name` of the plan to the next one's
        constant,  ///< compiled in: `value`, or the kernel is of another problem
    };
    Of of = Of::operand;
    std::string name{};
    plan::DType dtype = plan::DType::int32;  ///< of an operand, or scratch
    std::vector<std::int64_t> shape{};       ///< likewise
    bool written = false;                    ///< an operand that the call makes
    std::int32_t stage = 0;
    std::int64_t value = 0;
    bool operator==(const Parameter&) const = default;
};

/// By name, of a stage; those that the kernel does not have do no harm.
using Parameters = std::map<std::string, Parameter>;

}  // namespace syncopate::ops
