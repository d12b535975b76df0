// The rows of the table, each from the file of its operator; their order is that in which help lists them.
#pragma once

#include <array>

#include "syncopate/ops/operators.hpp"

namespace syncopate::ops {

OperatorRow all_gather_matmul();
OperatorRow all_to_all_matmul();
OperatorRow matmul_reduce_scatter();
OperatorRow matmul_all_reduce();
OperatorRow matmul_all_to_all();
OperatorRow feed_forward();
OperatorRow attention();
OperatorRow attention_backward();
OperatorRow mlp_chain();
OperatorRow moe();

inline std::span<const OperatorRow> all_rows() {
    static const std::array kRows{all_gather_matmul(),
                                  all_to_all_matmul(),
                                  matmul_reduce_scatter(),
                                  matmul_all_reduce(),
                                  matmul_all_to_all(),
                                  feed_forward(),
                                  attention(),
                                  attention_backward(),
                                  mlp_chain(),
                                  moe()};
    return kRows;
}

}  // namespace syncopate::ops
