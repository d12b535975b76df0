#include "syncopate/fuse/passes/assign.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/inline/inline.hpp"
#include "syncopate/fuse/inline/inline_reads.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/inline/sum_stores.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/passes/collective.hpp"
#include "syncopate/fuse/passes/lower.hpp"
#include "syncopate/try.hpp"

namespace syncopate::fuse {
namespace {

using plan::Backend;

/// What each collective goes by; fails where it cannot.
class CollectiveBackends {
public:
    CollectiveBackends(const plan::Plan& plan, Device device)
        : plan_(plan), device_(device), collectives_(collectives_of(plan)) {}

    Result<Backend> of(plan::OpRef ref, Backend named) {
        const auto found = collectives_.find(ref);
        if (found == collectives_.end()) return error_at(ref, "a collective without its other participants");
        const auto [why, is_new] = why_.try_emplace(found->second.number);
        if (is_new) why->second = collective_objection(plan_, found->second);
        if (!why->second.empty()) return error_at(ref, why->second);
        const auto& members = found->second.members;
        const bool one_node = std::ranges::all_of(members, [&](const Collective::Member& member) {
            return plan_.mesh.node_of(member.op.rank) == plan_.mesh.node_of(ref.rank);
        });
        if (device_ == Device::host && !one_node)
            return error_at(ref,
                            "its ranks are of several nodes, which no library joins on host: expand it by a "
                            "template (plan lower)");
        if (device_ == Device::host) return named == Backend::nccl ? named : Backend::host;
        if (named == Backend::host)
            return error_at(ref, "backend host does not exist on device cuda: use \"auto\"");
        return Backend::nccl;
    }

private:
    const plan::Plan& plan_;
    Device device_;
    Collectives collectives_;
    std::map<std::int32_t, std::string> why_;  ///< by number: the objection
};

constexpr std::array kInline{Backend::tma_inline, Backend::ldst_inline};

/// Copies within a rank that need not be made: the tile that makes the data stores it at the copy's place, or
/// the tiles that read the copy read its source. A kernel stores tiles of one tensor so, and reads one tensor
/// so: the tensor whose ops have an inline backend in the plan, else the first one of the plan.
class LocalCopies {
public:
    LocalCopies(const plan::Plan& plan, const Backends& named, const InlineObjection& kernel,
                const InlineObjection& own, Backend preferred)
        : plan_(plan), named_(named), kernel_(kernel), own_(own), preferred_(preferred) {
        for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
            for (std::int32_t index = 0; index < std::ssize(named[at(rank)]); ++index) {
                const plan::OpRef ref{rank, index};
                if (!is_inline(named[at(rank)][at(index)])) continue;
                if (is_fetched(plan, ref)) {
                    fetches_ = true;
                } else {
                    stored_ = plan.op(ref).src.tensor;
                }
            }
        }
    }
    std::optional<Backend> of(plan::OpRef ref) {
        const plan::Op& op = plan_.op(ref);
        if (op.kind != plan::OpKind::local || op.reduce != plan::Reduce::none) return std::nullopt;
        return is_fetched(plan_, ref) ? read(ref) : stored(ref);
    }

private:
    std::optional<Backend> stored(plan::OpRef ref) {
        const std::int32_t tensor = plan_.op(ref).src.tensor;
        if (!kernel_ || preferred_ != Backend::automatic || (stored_ && *stored_ != tensor))
            return std::nullopt;
        for (const Backend backend : kInline) {
            if (!kernel_(ref, backend).empty()) continue;
            stored_ = tensor;
            return backend;
        }
        return std::nullopt;
    }
    std::optional<Backend> read(plan::OpRef ref) {
        const std::int32_t tensor = plan_.op(ref).dst.tensor;
        if (!own_ || is_inline(preferred_) || fetches_ || (read_ && *read_ != tensor)) return std::nullopt;
        const auto [found, is_new] = reads_.try_emplace({ref.rank, tensor});
        if (is_new) found->second = reads_all(ref.rank, tensor);
        if (found->second) read_ = tensor;
        return found->second;
    }
    /// How tiles read all that the rank has of the tensor itself: some tile may read of several copies.
    [[nodiscard]] std::optional<Backend> reads_all(std::int32_t rank, std::int32_t tensor) const {
        const std::vector<plan::Op>& list = plan_.ranks[at(rank)];
        for (const Backend backend : kInline) {
            bool all = true;
            for (std::int32_t index = 0; all && index < static_cast<std::int32_t>(list.size()); ++index) {
                const plan::Op& op = list[at(index)];
                const plan::OpRef ref{rank, index};
                all = named_[at(rank)][at(index)] == Backend::channel || op.kind != plan::OpKind::local ||
                      op.reduce != plan::Reduce::none || op.dst.tensor != tensor || !is_fetched(plan_, ref) ||
                      own_(ref, backend).empty();
            }
            if (all) return backend;
        }
        return std::nullopt;
    }

    const plan::Plan& plan_;
    const Backends& named_;
    const InlineObjection& kernel_;
    const InlineObjection& own_;
    Backend preferred_;
    bool fetches_ = false;  ///< the plan itself names what tiles fetch
    std::optional<std::int32_t> stored_;
    std::optional<std::int32_t> read_;
    std::map<std::pair<std::int32_t, std::int32_t>, std::optional<Backend>> reads_;  ///< by rank and tensor
};

/// Whether what the op sends, which only sums make, is best stored at the peer by the sum. `last`: of the
/// rank's sums; `sum`: what the first sum goes by.
bool sum_should_store(const plan::Plan& plan, const plan::Op& op, Backend sum, Backend preferred,
                      const Costs& costs, bool last) {
    const bool by_engine = is_engine(sum);
    if (by_engine) return preferred == Backend::automatic || is_engine(preferred);
    if (preferred == Backend::ldst_inline) return true;
    return (preferred == Backend::automatic || is_inline(preferred)) &&
           static_cast<double>(plan.bytes(op.src)) <=
               kMib * (last ? costs.last_store_mib : costs.summed_store_mib);
}

/// Chooses op by op, in the order of ranks and their lists.
class Assigning {
public:
    Assigning(const plan::Plan& plan, const Backends& named, Device device, Backend preferred,
              const InlineObjection& kernel, const InlineObjection& own, const Costs& costs)
        : plan_(plan),
          named_(named),
          costs_(costs),
          device_(device),
          preferred_(preferred),
          kernel_(kernel),
          locals_(plan, named, kernel, own, preferred),
          collectives_(plan, device),
          last_sums_(plan.ranks.size()) {
        for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
            for (std::int32_t index = 0; index < static_cast<std::int32_t>(plan.ranks[rank].size());
                 ++index) {
                if (follows_sums(plan, {rank, index})) last_sums_[rank] = plan.ranks[rank][index].after;
            }
        }
    }

    Result<Backend> choose(plan::OpRef ref) {
        const plan::Op& op = plan_.op(ref);
        const Backend named = named_of(ref);
        if (op.kind == plan::OpKind::collective) return collectives_.of(ref, named);
        if (named != Backend::automatic) return if_legal(ref, named);
        if (const auto inlined = locals_.of(ref)) return *inlined;
        if (kernel_ && plan_.num_ranks() <= kMostSumStores + 1 && follows_sums(plan_, ref) &&
            sum_should_store(plan_, op, named_of(op.after.front()), preferred_, costs_,
                             op.after == last_sums_[ref.rank]) &&
            if_legal(ref, Backend::ldst_inline))
            return Backend::ldst_inline;
        if (preferred_ != Backend::automatic && if_legal(ref, preferred_)) return preferred_;
        return if_legal(ref, device_ == Device::host ? Backend::host : Backend::copy_engine);
    }

private:
    [[nodiscard]] Backend named_of(plan::OpRef ref) const { return named_[at(ref.rank)][at(ref.index)]; }
    [[nodiscard]] Result<Backend> if_legal(plan::OpRef ref, Backend backend) const {
        std::string why = backend_objection({plan_, ref, backend, named_of(ref), kernel_}, device_);
        if (!why.empty()) return error_at(ref, std::move(why));
        return backend;
    }

    const plan::Plan& plan_;
    const Backends& named_;
    const Costs& costs_;
    Device device_;
    Backend preferred_;
    const InlineObjection& kernel_;
    LocalCopies locals_;
    CollectiveBackends collectives_;
    /// By rank: those that the last op of its list follows.
    std::vector<plan::OpRefs> last_sums_;
};

/// Why the kernels of a program cannot carry out an op of its lowered plan as they store or load, nor its
/// sums.
class InlineObjections {
public:
    InlineObjections(const StagedProgram& program, const Lowered& lowered)
        : program_(program),
          lowered_(lowered),
          staged_(program.stages.size() > 1),
          first_(program.stages.front(), lowered.plan) {}

    [[nodiscard]] std::string of_any(plan::OpRef ref, Backend backend) const {
        if (sender_of(program_, lowered_.plan.op(ref)) != nullptr)
            return backend == Backend::ldst_inline
                       ? send_objection(program_, lowered_.plan, ref)
                       : "the kernel sends it itself, by " + std::string(name_of(Backend::ldst_inline));
        if (is_sum(lowered_.plan.op(ref))) {
            if (backend != Backend::ldst_inline || staged_)
                return "a sum of contributions is not done by " + std::string(name_of(backend));
            return kernel_sum_objection(first_, lowered_, ref);
        }
        if (lowered_.done_with.contains(ref)) return "a sum reads it, not a tile";
        if (follows_sums(lowered_.plan, ref)) {
            if (backend == Backend::ldst_inline) return sum_store_objection(lowered_.plan, ref);
            return std::string(name_of(backend)) +
                   " is for what tiles make, this op sends a sum: use ldst_inline";
        }
        if (staged_) return "a program of several stages sends nothing inline yet";
        return is_fetched(lowered_.plan, ref) ? load_objection(first_, uses(), ref, backend)
                                              : store_objection(first_, ref, backend);
    }
    /// The same for what tiles may read where the rank was given it.
    [[nodiscard]] std::string of_given(plan::OpRef ref, Backend backend) const {
        if (staged_) return "a program of several stages fetches nothing inline yet";
        return own_load_objection(first_, uses(), ref, backend);
    }

private:
    /// They are of all ops, and few programs ask for them.
    [[nodiscard]] const MemoryUses& uses() const {
        if (!uses_) uses_.emplace(lowered_.plan);
        return *uses_;
    }

    const StagedProgram& program_;
    const Lowered& lowered_;
    bool staged_;
    BoundKernel first_;
    mutable std::optional<MemoryUses> uses_{};
};

/// `named`: by op, what it names or has to go by.
Result<Backends> assign_all(const plan::Plan& plan, const Backends& named, Device device, Backend preferred,
                            const InlineObjection& kernel, const InlineObjection& own, const Costs& costs) {
    Assigning assigning(plan, named, device, preferred, kernel, own, costs);
    Backends backends(plan.ranks.size());
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        backends[at(rank)].reserve(plan.ranks[at(rank)].size());
        for (std::int32_t index = 0; index < static_cast<std::int32_t>(plan.ranks[rank].size()); ++index) {
            SYNCOPATE_TAKE(const auto backend, assigning.choose({rank, index}));
            backends[rank].push_back(backend);
        }
    }
    return backends;
}

}  // namespace

Result<Backends> assign(const StagedProgram& program, const Lowered& lowered, const Options& options) {
    const InlineObjections objections(program, lowered);
    const plan::Plan& plan = lowered.plan;
    Backends named = name_implied(lowered, options.kernel_sums && options.device == Device::cuda);
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        for (std::int32_t index = 0; index < std::ssize(plan.ranks[at(rank)]); ++index) {
            const plan::Op& op = plan.op({rank, index});
            Backend& backend = named[at(rank)][at(index)];
            const auto ragged = [&](const plan::Chunk& chunk) {
                return plan.tensors[at(chunk.tensor)].ragged.has_value();
            };
            if (backend == Backend::automatic && op.kind != plan::OpKind::collective &&
                sender_of(program, op) != nullptr) {
                backend = Backend::ldst_inline;
            } else if (ragged(op.src) && sender_of(program, op) == nullptr) {
                return plan::error_at(
                    {rank, index},
                    "how many rows it moves only the call knows: a kernel that states that it "
                    "sends them itself (`sends`) has to store them");
            }
        }
    }
    auto backends = assign_all(
        plan, named, options.device, options.preferred,
        [&](plan::OpRef ref, Backend backend) { return objections.of_any(ref, backend); },
        [&](plan::OpRef ref, Backend backend) { return objections.of_given(ref, backend); }, options.costs);
    if (!backends) return backends;
    SYNCOPATE_TRY(check_sum_stores(lowered.plan, *backends));
    SYNCOPATE_TRY(check_kernel_sums(lowered.plan, *backends));
    return backends;
}

Result<Backends> assign(const plan::Plan& plan, Device device, Backend preferred,
                        const InlineObjection& kernel, const InlineObjection& own, const Costs& costs) {
    return assign_all(plan, backends_named(plan), device, preferred, kernel, own, costs);
}

}  // namespace syncopate::fuse
