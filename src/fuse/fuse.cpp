#include "syncopate/fuse/fuse.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "syncopate/fuse/cost.hpp"
#include "syncopate/fuse/depend.hpp"
#include "syncopate/fuse/guards.hpp"
#include "syncopate/fuse/order.hpp"
#include "syncopate/fuse/pack.hpp"
#include "syncopate/fuse/precedence.hpp"
#include "syncopate/fuse/synchronize.hpp"
#include "syncopate/plan/check.hpp"

namespace syncopate::fuse {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape, plan::DType dtype) {
    std::string text;
    for (const std::int64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
    return text + ":" + std::string(name_of(dtype));
}

bool is_row_major(const kernel::TensorArgument& tensor) {
    if (tensor.strides.empty()) return true;
    if (tensor.strides.size() != tensor.shape.size()) return false;
    std::int64_t stride = 1;
    for (std::size_t axis = tensor.shape.size(); axis-- > 0; stride *= tensor.shape[axis]) {
        if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) return false;
    }
    return true;
}

std::string names_of(const std::vector<kernel::Param>& params) {
    std::string text;
    for (const kernel::Param& param : params) text += (text.empty() ? "" : ", ") + param.name;
    return text;
}

/// By slot, the program that runs it.
Result<std::vector<std::int64_t>> programs_of_slots(const kernel::Kernel& kernel, const Options& options) {
    const std::int64_t own = kernel.num_programs();
    const std::int64_t programs = options.num_programs.value_or(own);
    if (programs < 1) return Error{"a grid of " + std::to_string(programs) + " programs runs nothing"};
    std::vector<std::int64_t> result;
    result.reserve(kernel.tiles.size());
    if (programs != own) {
        if (!kernel.sites.persistent) {
            return Error{kernel.name + " runs one tile per program, so its grid has " + std::to_string(own) +
                         " programs, not " + std::to_string(programs)};
        }
        for (std::size_t slot = 0; slot < kernel.tiles.size(); ++slot) {
            result.push_back(static_cast<std::int64_t>(slot) % programs);
        }
    } else {
        for (const kernel::Tile& tile : kernel.tiles) result.push_back(tile.program);
    }
    return result;
}

/// Replaces the order of a persistent kernel's tiles where these take unequal times.
void repack(const kernel::Kernel& kernel, const Dependence& dependence,
            const std::vector<std::int64_t>& arrivals, const std::vector<std::int64_t>& program_of,
            std::vector<std::vector<std::int64_t>>& tiles) {
    const std::vector<double> times = estimate_tile_times(kernel);
    if (!differ(times)) return;
    const std::int64_t programs = 1 + *std::max_element(program_of.begin(), program_of.end());
    for (std::size_t slot = 0; slot < program_of.size(); ++slot) {
        if (program_of[slot] != static_cast<std::int64_t>(slot) % programs)
            return;  // another way of counting
    }
    std::vector<double> ready(times.size());
    for (std::size_t rank = 0; rank < tiles.size(); ++rank) {
        for (std::size_t tile = 0; tile < times.size(); ++tile) {
            ready[tile] = 0;
            for (const Need& need :
                 dependence.needs[rank][static_cast<std::size_t>(dependence.class_of[tile])]) {
                ready[tile] =
                    std::max(ready[tile], static_cast<double>(arrivals[need.op]) / kLinkBytesPerMicrosecond);
            }
        }
        tiles[rank] = pack_tiles(times, ready, programs);
    }
}

/// The signals of one rank, as they are numbered.
class SignalTable {
public:
    void add(SignalMeaning meaning) {
        index_.emplace(key_of(meaning.kind, meaning.op), static_cast<std::int32_t>(signals_.size()));
        signals_.push_back(meaning);
    }
    [[nodiscard]] std::int32_t of_op(plan::OpRef op) const {
        return index_.at(key_of(SignalMeaning::Kind::arrived, op));
    }
    [[nodiscard]] std::int32_t of_rank(SignalMeaning::Kind kind, std::int32_t rank) const {
        return index_.at(key_of(kind, {rank, -1}));
    }
    [[nodiscard]] const std::vector<SignalMeaning>& signals() const { return signals_; }

private:
    using Key = std::pair<SignalMeaning::Kind, plan::OpRef>;
    static Key key_of(SignalMeaning::Kind kind, plan::OpRef op) {
        // An op has one signal on a rank, whatever it is called there.
        return {kind == SignalMeaning::Kind::fetched ? SignalMeaning::Kind::arrived : kind, op};
    }
    std::vector<SignalMeaning> signals_;
    std::map<Key, std::int32_t> index_;
};

}  // namespace

Status check_bindings(const Program& program) {
    const kernel::Kernel& kernel = program.kernel;
    for (const auto& [name, tensor_name] : program.bindings) {
        const kernel::Param* param = kernel.find_param(name);
        if (param == nullptr) {
            return Error{"kernel " + kernel.name + " has no parameter " + name + " to bind; it has " +
                         names_of(kernel.params)};
        }
        Location where;
        where.file = kernel.file;
        where.line = param->where.line;
        where.column = param->where.column;
        if (param->kind != kernel::ParamKind::pointer && param->kind != kernel::ParamKind::descriptor) {
            return Error{"parameter " + name + " is not a tensor, so it cannot be bound to " + tensor_name,
                         where};
        }
        const auto index = program.plan.find_tensor(tensor_name);
        if (!index) {
            std::string names;
            for (const plan::Tensor& tensor : program.plan.tensors)
                names += (names.empty() ? "" : ", ") + tensor.name;
            return Error{"the plan has no tensor " + tensor_name + " to bind " + name + " to; it has " +
                         names};
        }
        const plan::Tensor& tensor = program.plan.tensors[*index];
        const auto argument = kernel.arguments.tensors.find(name);
        if (argument == kernel.arguments.tensors.end()) {
            return Error{"parameter " + name + " is bound to " + tensor_name +
                             " but the kernel was read without its " + "shape: give --tensor " + name + "=" +
                             shape_text(tensor.shape, tensor.dtype),
                         where};
        }
        if (argument->second.shape != tensor.shape || argument->second.dtype != tensor.dtype) {
            return Error{"parameter " + name + " is " +
                             shape_text(argument->second.shape, argument->second.dtype) + " but tensor " +
                             tensor_name + " of the plan is " + shape_text(tensor.shape, tensor.dtype),
                         where};
        }
        if (!is_row_major(argument->second)) {
            return Error{"parameter " + name + " is bound to " + tensor_name +
                             ", which lies contiguous in row-major " +
                             "order, so its strides cannot be others: leave them out",
                         where};
        }
    }
    return Done{};
}

Result<Schedule> fuse(const Program& program, const Options& options) {
    const kernel::Kernel& kernel = program.kernel;
    const plan::Plan& plan = program.plan;
    if (const auto findings = plan::check(plan); !findings.empty()) {
        Error error{std::string("the plan is wrong (") + std::string(plan::name_of(findings.front().kind)) +
                    "): " + findings.front().message};
        error.location.rank = findings.front().rank;
        error.location.op = findings.front().op;
        return error;
    }
    if (Status status = check_bindings(program); !status) return status.error();
    if (kernel.tiles.empty()) return Error{"kernel " + kernel.name + " has no tiles for these arguments"};
    const auto program_of = programs_of_slots(kernel, options);
    if (!program_of) return program_of.error();

    const auto backends = assign(plan, options.device, options.preferred);
    if (!backends) return backends.error();
    const auto precedence = precede(plan, *backends);
    if (!precedence) return precedence.error();
    auto dependence = depend(program, *precedence);
    if (!dependence) return dependence.error();
    std::vector<std::int64_t> arrivals;
    if (options.topology) {
        auto simulated = expect_arrivals(plan, *precedence, *backends, *options.topology);
        if (!simulated) return simulated.error();
        arrivals = *std::move(simulated);
    } else {
        arrivals = expect_arrivals(plan, *precedence);
    }

    // Phases only where some tile would otherwise wait for a chunk before an iteration that does not read it.
    const auto& reduction = kernel.sites.reduction;
    const bool can_cut = options.phases && reduction && !reduction->bound.empty() && reduction->trips > 1;
    Synchronization sync;
    std::vector<std::vector<std::int64_t>> tiles;
    bool phased = false;
    if (can_cut) {
        tiles = order_tiles(*dependence, arrivals, true);
        sync = synchronize(*precedence, *dependence, tiles, *program_of, reduction->trips);
        for (const auto& slots : sync.slots) {
            phased |= std::any_of(slots.begin(), slots.end(),
                                  [](const SlotWaits& s) { return s.phases.size() > 1; });
        }
    }
    if (!phased) {
        tiles = order_tiles(*dependence, arrivals, false);
        if (kernel.sites.persistent) repack(kernel, *dependence, arrivals, *program_of, tiles);
        sync = synchronize(*precedence, *dependence, tiles, *program_of, 0);
    }
    const Guards guards = guard(plan, *precedence, *dependence, sync);

    // Who has to see which op, so that signals can be numbered.
    const auto num_ranks = static_cast<std::size_t>(plan.num_ranks());
    std::vector<std::vector<std::int32_t>> observed = guards.end_ops;
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        const auto& seen = sync.seen_by_kernel[rank];
        observed[rank].insert(observed[rank].end(), seen.begin(), seen.end());
    }
    for (std::int32_t id = 0; id < precedence->num_ops(); ++id) {
        auto& here = observed[precedence->ops[id].rank];
        here.insert(here.end(), sync.transfers[id].begin(), sync.transfers[id].end());
    }
    std::vector<std::vector<Post>> posts(precedence->ops.size());
    std::vector<SignalTable> signals(num_ranks);
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        auto& ids = observed[rank];
        std::sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
            return std::pair(arrivals[a], a) < std::pair(arrivals[b], b);
        });
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        for (const std::int32_t id : ids) {
            const plan::OpRef ref = precedence->ops[id];
            const plan::Op& op = plan.op(ref);
            const bool fetched = op.kind == plan::OpKind::pull && op.peer == static_cast<std::int32_t>(rank);
            posts[id].push_back(
                {static_cast<std::int32_t>(rank), static_cast<std::int32_t>(signals[rank].signals().size())});
            signals[rank].add({fetched ? SignalMeaning::Kind::fetched : SignalMeaning::Kind::arrived, ref});
        }
    }
    for (const Acknowledgement& ack : guards.ready)
        signals[ack.to].add({SignalMeaning::Kind::ready, {ack.from, -1}});
    for (const Acknowledgement& ack : guards.consumed) {
        signals[ack.to].add({SignalMeaning::Kind::consumed, {ack.from, -1}});
    }

    Schedule schedule;
    schedule.mesh = plan.mesh;
    schedule.tensors = plan.tensors;
    schedule.num_slots = static_cast<std::int64_t>(kernel.tiles.size());
    schedule.phased = phased;
    schedule.ranks.resize(num_ranks);
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
        RankSchedule& out = schedule.ranks[rank];
        const SignalTable& table = signals[rank];
        const auto waits_for = [&](const std::vector<std::int32_t>& ids) {
            std::vector<Wait> waits;
            waits.reserve(ids.size());
            for (const std::int32_t id : ids) waits.push_back({table.of_op(precedence->ops[id]), 0});
            std::sort(waits.begin(), waits.end());
            return waits;
        };
        out.signals = table.signals();
        out.slots.reserve(tiles[rank].size());
        for (std::size_t slot = 0; slot < tiles[rank].size(); ++slot) {
            const SlotWaits& waits = sync.slots[rank][slot];
            Slot& to = out.slots.emplace_back(Slot{tiles[rank][slot], waits_for(waits.ops), {}});
            for (const SlotWaits::Phase& phase : waits.phases) {
                to.phases.push_back({phase.iteration_end, waits_for(phase.ops)});
            }
        }
        for (const std::int32_t id : precedence->start_order[rank]) {
            const plan::OpRef ref = precedence->ops[id];
            const plan::Op& op = plan.op(ref);
            out.transfers.push_back({ref, (*backends)[ref.rank][ref.index], op.source_rank(ref.rank),
                                     op.destination_rank(ref.rank), op.src, op.dst, op.reduce,
                                     waits_for(sync.transfers[id]), posts[id]});
        }
        out.end_waits = waits_for(guards.end_ops[rank]);
    }
    for (const Acknowledgement& ack : guards.ready) {
        const std::int32_t signal = signals[ack.to].of_rank(SignalMeaning::Kind::ready, ack.from);
        schedule.ranks[ack.from].begin_posts.push_back({ack.to, signal});
        schedule.ranks[ack.to].begin_waits.push_back({signal, 0});
    }
    for (const Acknowledgement& ack : guards.consumed) {
        const std::int32_t signal = signals[ack.to].of_rank(SignalMeaning::Kind::consumed, ack.from);
        RankSchedule& from = schedule.ranks[ack.from];
        (ack.at_end ? from.end_posts : from.kernel_posts).push_back({ack.to, signal});
        schedule.ranks[ack.to].begin_waits.push_back({signal, 1});
    }
    return schedule;
}

}  // namespace syncopate::fuse
