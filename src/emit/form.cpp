#include "emit/form.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "syncopate/at.hpp"

namespace syncopate::emit {
namespace {

/// Whether some tile waits for more than that another rank has begun the call, or ended the last one.
bool awaits_chunks(const fuse::Schedule& schedule, std::size_t stage) {
    if (schedule.part) return schedule.part->stages[stage].awaits;
    using Kind = fuse::SignalMeaning::Kind;
    for (const fuse::RankSchedule& rank : schedule.ranks) {
        const auto of_op = [&](const fuse::Wait& wait) {
            const Kind kind = rank.signals[at(wait.signal)].kind;
            return kind != Kind::ready && kind != Kind::consumed;
        };
        for (const fuse::Slot& slot : schedule.slots_of(rank, stage)) {
            if (std::ranges::any_of(slot.waits, of_op)) return true;
            for (const fuse::Phase& phase : slot.phases) {
                if (std::ranges::any_of(phase.waits, of_op)) return true;
            }
        }
    }
    return false;
}

bool some_can_wait(const fuse::Schedule& schedule) {
    if (schedule.part) return schedule.part->can_wait;
    return std::ranges::any_of(schedule.ranks, [](const fuse::RankSchedule& rank) {
        return std::ranges::any_of(rank.chunks, [](const fuse::MadeChunk& made) { return !made.at_once; });
    });
}

/// Whether rows of `tensor` are multiples of 16 elements, as heaps and tensors begin at such.
bool rows_of_16(const fuse::Schedule& schedule, std::int32_t tensor) {
    const std::vector<std::int64_t>& shape = schedule.tensors[at(tensor)].shape;
    const std::int64_t row =
        std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>());
    return row % 16 == 0;
}

/// The parameter that `tensor` is bound to and that the kernel accesses so; empty if none is.
std::string param_of(const fuse::BoundKernel& program, const fuse::Schedule& schedule, std::int32_t tensor,
                     bool kernel::Param::* accessed) {
    for (const auto& [param, name] : program.bindings) {
        const kernel::Param* found = program.kernel.find_param(param);
        if (found != nullptr && found->*accessed && name == schedule.tensors[at(tensor)].name) return param;
    }
    return {};
}

}  // namespace

Form form_of(const fuse::BoundKernel& program, const fuse::Schedule& schedule, std::size_t stage) {
    Form form{.phased = schedule.stages[stage].phased,
              // Tiles that a call makes are this rank's: the kernel's own loop counts no other ones.
              .partial = schedule.stages[stage].is_partial() && schedule.stages[stage].most_slots == 0,
              .program_a_slot = schedule.stages[stage].program_a_slot(),
              .produces = schedule.produces(stage),
              .awaits_chunks = awaits_chunks(schedule, stage),
              .lets_next_start = stage + 1 < schedule.stages.size() && schedule.stages[stage + 1].overlaps,
              .can_wait = some_can_wait(schedule)};
    const auto param = [&](std::int32_t tensor, bool kernel::Param::* accessed) {
        return param_of(program, schedule, tensor, accessed);
    };
    if (const std::optional<fuse::Reach>& stores = schedule.stages[stage].stores) {
        form.stores = InlineForm{.param = param(stores->tensor, &kernel::Param::written),
                                 .rows_of_16 = rows_of_16(schedule, stores->tensor),
                                 .by_row = stores->by_row,
                                 .copies = schedule.most_stores(stage)};
    }
    if (const std::optional<fuse::Reach>& loads = schedule.stages[stage].loads) {
        form.loads = InlineForm{.param = param(loads->tensor, &kernel::Param::read),
                                .rows_of_16 = rows_of_16(schedule, loads->tensor),
                                .by_row = loads->by_row,
                                .own = loads->own};
    }
    return form;
}

}  // namespace syncopate::emit
