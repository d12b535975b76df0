#include "fuse/passes/check_program.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "syncopate/at.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/model/ragged.hpp"

namespace syncopate::fuse {
namespace {

/// On cuda, a library's collective needs multiprocessors, which a kernel that waits for it may hold. So it
/// must have come before the kernel.
Status check_library(const Decisions& decisions, const Schedule& schedule) {
    std::set<plan::OpRef> late;
    for (const RankSchedule& own : schedule.ranks) {
        for (const Transfer& transfer : own.transfers) {
            if (transfer.collective() && transfer.step.launch == Launch::late) late.insert(transfer.op);
        }
    }
    for (std::size_t rank = 0; rank < schedule.ranks.size() && !late.empty(); ++rank) {
        const std::vector<bool> awaited =
            completed_with(decisions.placement, decisions.synchronization.seen_by_kernel[rank]);
        for (const plan::OpRef ref : late) {
            if (!awaited[at(decisions.graph.op(ref))]) continue;
            return error_at(
                ref, "the kernel of rank " + std::to_string(rank) + " would wait for " +
                         std::string(plan::name_of(decisions.lowered.plan.op(ref).collective)) +
                         ", which follows other ops and needs multiprocessors that a waiting kernel holds: "
                         "expand it by a template (plan lower)");
        }
    }
    return Done{};
}

}  // namespace

Status check_program(const StagedProgram& program, const Options& options) {
    if (const auto findings = plan::check(program.plan); !findings.empty()) {
        return plan::error_at({findings.front().rank, findings.front().op},
                              "the plan is wrong (" + std::string(plan::name_of(findings.front().kind)) +
                                  "): " + findings.front().message);
    }
    if (program.stages.empty()) return Error{"a program has at least one stage"};
    if (program.stages.size() > 1 && options.num_programs) {
        return Error{"the number of programs of several stages is that of each kernel's own grid"};
    }
    std::set<std::int32_t> moved;
    for (const std::vector<plan::Op>& ops : program.plan.ranks) {
        for (const plan::Op& op : ops) moved.insert({op.src.tensor, op.dst.tensor});
    }
    std::map<std::string, const Stage*> writer;  // by tensor
    for (const Stage& stage : program.stages) {
        const BoundKernel one(stage, program.plan);
        if (Status status = check_bindings(one); !status) return status;
        if (stage.kernel.tiles.empty())
            return Error{"kernel " + stage.kernel.name + " has no tiles for these arguments"};
        for (const auto& [param, tensor] : stage.bindings) {
            if (!stage.kernel.find_param(param)->written ||
                !moved.contains(*program.plan.find_tensor(tensor)))
                continue;
            const Stage* const first = writer.emplace(tensor, &stage).first->second;
            if (first == &stage) continue;
            return Error{"tensor " + tensor + " is moved by the plan and written by two stages, " +
                         first->kernel.name + " and " + stage.kernel.name +
                         ": only one can say when it is made"};
        }
    }
    return Done{};
}

Status check_stage_order(const StagedProgram& program, const Graph& graph, const Placement& placement,
                         Device device) {
    if (graph.stages.size() < 2) return Done{};
    constexpr std::int32_t kNone = -1;
    std::vector<std::int32_t> made_by(placement.awaits.size(),
                                      kNone);  // the last stage whose chunks an op needs
    for (std::size_t op = 0; op < made_by.size(); ++op) {
        for (const NodeId chunk : placement.awaits[op])
            made_by[op] = std::max(made_by[op], graph[chunk].stage);
    }
    for (const Graph::Elsewhere& made : graph.elsewhere)
        made_by[at(made.op)] = std::max(made_by[at(made.op)], made.stage);
    for (std::size_t stage = 0; stage < graph.stages.size(); ++stage) {
        const Graph::StageNodes& nodes = graph.stages[stage];
        const std::string& kernel = program.stages[stage].kernel.name;
        std::vector<NodeId> needed;
        for (const NodeId first : nodes.first) {
            for (std::int32_t c = 0; c < nodes.num_classes; ++c) {
                for (const Edge& edge : graph.in[first + c]) needed.push_back(edge.from);
            }
        }
        const std::vector<bool> earlier = completed_with(placement, needed);
        for (NodeId op = 0; op < graph.num_ops(); ++op) {
            if (!earlier[op]) continue;
            const plan::OpRef ref = graph.ref(op);
            if (made_by[op] > static_cast<std::int32_t>(stage)) {
                return error_at(ref, "the op sends what " + program.stages[made_by[op]].kernel.name +
                                         " makes, and a tile of " + kernel +
                                         ", an earlier stage, would wait for it: that stage would never end");
            }
            if (device == Device::cuda && graph[op].kind == Node::Kind::sum) {
                return error_at(ref, "a tile of " + kernel +
                                         " would wait for a sum, which needs multiprocessors that the "
                                         "waiting kernel holds: make it a program of its own");
            }
        }
    }
    return Done{};
}

namespace {

/// How many tiles make a chunk the call finds out for one group, or for all groups of a stage together.
Status check_groups(const StagedProgram& program, const Schedule& schedule) {
    for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
        const StageSlots& slots = schedule.stages[stage];
        for (std::size_t rank = 0; rank < schedule.ranks.size() && slots.most_slots > 0; ++rank) {
            for (const MadeChunk& chunk : schedule.ranks[rank].chunks) {
                const auto own = static_cast<std::int64_t>(chunk.counting.size());
                if (own == 0 || chunk.counting.front() < slots.first ||
                    chunk.counting.front() >= slots.first + slots.count || own == 1 || own == slots.count)
                    continue;
                return plan::error_at(
                    {static_cast<std::int32_t>(rank), -1},
                    "chunk " +
                        plan::region_text(schedule.tensors[at(chunk.chunk.tensor)], chunk.chunk.region) +
                        " is made by " + std::to_string(own) + " of the " + std::to_string(slots.count) +
                        " groups of " + program.stages[stage].kernel.name +
                        ", whose tiles only a call knows: send what one group makes, or what all make");
            }
        }
    }
    return Done{};
}

}  // namespace

Status check_schedule(const StagedProgram& program, const Decisions& decisions, const Schedule& schedule,
                      const Options& options) {
    if (Status status = check_groups(program, schedule); !status) return status;
    if (options.device != Device::cuda) return Done{};
    if (Status status = check_kernel_sums(schedule); !status) return status;
    return check_library(decisions, schedule);
}

}  // namespace syncopate::fuse
