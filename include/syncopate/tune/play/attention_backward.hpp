// The backward of attention over a sharded sequence: which kind is likely to be the quickest on a machine. It need not
// be the forward's: where K and V are passed around, their gradients go back in fp32, twice as many bytes, and
// from all ranks; where ranks exchange heads, everything moves once, as the operands' dtype.
//
// A kind's plan is simulated on the machine's links. What of it the kernel does not hide is told by rules that four and
// two H200s gave (bench/results/attention_training_4xH200.csv):
//
//     K and V go around     where tiles differ in length, four fifths: the longest ones begin, and gradients are complete
//                           when most of the work is done; where tiles are alike, what half of the work does not hide
//     heads are exchanged   one part of the heads: the first one before tiles begin, the last one behind them; and all of
//                           dQ, which is complete at the end
#pragma once

#include <vector>

#include "syncopate/ops/attention_backward.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/play/attention.hpp"

namespace syncopate::tune {

/// All kinds that a backward may be asked for, as rank_attention has them; the kind of `task` does not count.
[[nodiscard]] std::vector<Candidate> rank_attention_backward(const ops::AttentionBackwardTask& task,
                                                             const Machine& machine);

}  // namespace syncopate::tune
