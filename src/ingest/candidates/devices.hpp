// Who takes part in a collective of XLA, as ranks; and which of XLA's element types a plan can move.
//
// XLA's devices are replicas × partitions, rank = replica × partitions + partition. What the numbers in
// replica_groups mean depends on the collective (XLA's GetCollectiveOpGroupMode):
//
//     channel_id   use_global_device_ids   all-gather, all-reduce, reduce-scatter   all-to-all, permute,
//     broadcast no           no                      replicas, for each partition             replicas, for
//     each partition yes          no                      replicas, all their partitions partitions, for each
//     replica yes          yes                     ranks                                    ranks
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/ingest/program/tensor_program.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

struct Participants {
    std::int32_t num_ranks = 0;
    std::vector<std::vector<std::int32_t>> groups;             ///< none for a permute
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;  ///< permute: source and target rank
};

/// `kind`: the collective's opcode without "-start". Where the program does not say how many replicas and
/// partitions there are, the largest number in the groups tells, or for "everybody" the shapes. Fails, in
/// words that follow the collective's name, if the numbers do not fit or nothing tells.
[[nodiscard]] Result<Participants> participants(const TensorProgram& program, const std::string& kind,
                                                const Instruction& collective);

/// The plan's dtype of the same bits; nullopt if there is none.
[[nodiscard]] std::optional<plan::DType> plan_dtype(const std::string& hlo);

/// Why a plan cannot move (and reduce) elements of this type; empty if it can.
[[nodiscard]] std::string dtype_problem(const std::string& hlo, plan::Reduce reduce);

}  // namespace syncopate::ingest
