// The words of ops/ that this layer speaks: what is to be done, and how it may be done.
#pragma once

#include "syncopate/ops/attention_kernel.hpp"
#include "syncopate/ops/operators.hpp"
#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/strategy.hpp"

namespace syncopate::tune {

using ops::attention_tiles;
using ops::AttentionKernel;
using ops::AttentionKernelName;
using ops::AttentionTarget;
using ops::choose_attention_kernel;
using ops::Chunking;
using ops::Extent;
using ops::kNumPlacements;
using ops::name_of;
using ops::Operands;
using ops::operator_row;
using ops::OperatorRow;
using ops::operators;
using ops::padded_head;
using ops::parse_problem;
using ops::Placement;
using ops::Problem;
using ops::problem_objection;
using ops::ProductKernel;
using ops::ProductShape;
using ops::Scales;
using ops::Strategy;
using ops::strategy_from_json;
using ops::TileConfig;
using ops::to_json;
using ops::Word;

}  // namespace syncopate::tune
