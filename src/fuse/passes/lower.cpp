#include "syncopate/fuse/passes/lower.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/fuse/passes/collective.hpp"
#include "syncopate/fuse/passes/sum_parts.hpp"
#include "syncopate/plan/model/chunk_key.hpp"
#include "syncopate/try.hpp"

namespace syncopate::fuse {
namespace {

using plan::Interval;
using plan::OpRef;
using plan::Region;

/// All that is reduced into one region of one rank.
struct Group {
    std::int32_t rank = 0;  ///< whose memory it is in
    plan::Chunk chunk;
    std::int32_t round = 0;
    plan::Reduce reduce = plan::Reduce::sum;
    std::vector<OpRef> contributions;  ///< in the order in which they are added
    std::vector<OpRef> writers;        ///< copies that bring what the destination itself holds
    std::int32_t own = -1;
    plan::Backend engine = plan::Backend::automatic;  ///< of all contributions, if that is the chunk engine
    std::vector<OpRef> direct;  ///< of the contributions, those that the sum reads where they are
    std::vector<OpRef> sums;    ///< one for each part of the chunk

    [[nodiscard]] bool is_direct(OpRef ref) const { return std::ranges::find(direct, ref) != direct.end(); }
    [[nodiscard]] std::int64_t num_slots() const {
        return static_cast<std::int64_t>(contributions.size() - direct.size());
    }
};

std::string name_of_chunk(const plan::Plan& plan, const plan::Chunk& chunk) {
    return plan.tensors[at(chunk.tensor)].name + to_string(chunk.region);
}

class Lowering {
public:
    /// `plan` outlives it.
    Lowering(const plan::Plan& plan, const LowerOptions& options)
        : plan_(plan), preferred_(options.preferred), parts_of_(options.parts_of) {
        for (const std::vector<plan::Op>& list : plan_.ranks) group_of_.emplace_back(list.size(), -1);
        rounds_ = group_of_;
    }

    Result<Lowered> run() {
        SYNCOPATE_TRY(collect());
        if (groups_.empty()) {
            copy_with_room();
            return std::move(result_);
        }
        for (const auto* holdings : {&plan_.initial, &plan_.produced}) {
            for (const plan::Holding& holding : *holdings)
                held_[{holding.rank, holding.chunk.tensor}].push_back(&holding.chunk.region);
        }
        for (Group& group : groups_) {
            SYNCOPATE_TRY(complete(group));
            auto [engine, direct] =
                assign_contributions(plan_, group.rank, group.chunk, group.contributions, preferred_);
            group.engine = engine;
            group.direct = std::move(direct);
        }
        copy_with_room();
        add_staging();
        add_sums();
        redirect();
        return std::move(result_);
    }

private:
    /// Makes the groups; two that overlap without being the same are refused.
    Status collect() {
        std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::size_t>> of_tensor;  // rank, tensor
        // By destination: the groups there, by round and chunk.
        std::vector<std::map<std::pair<std::int32_t, plan::ChunkKey>, std::size_t>> known(plan_.ranks.size());
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            const std::vector<plan::Op>& list = plan_.ranks[at(rank)];
            for (std::int32_t index = 0; index < static_cast<std::int32_t>(list.size()); ++index) {
                const OpRef ref{rank, index};
                const plan::Op& op = plan_.op(ref);
                if (op.reduce == plan::Reduce::none || op.kind == plan::OpKind::collective) continue;
                const std::int32_t destination = op.destination_rank(rank);
                const plan::DType dtype = plan_.tensors[at(op.dst.tensor)].dtype;
                if (!can_reduce(dtype)) {
                    return error_at(ref, "elements of type " + std::string(name_of(dtype)) +
                                             " are not reduced: use bf16, fp16, fp32 or int32");
                }
                const std::int32_t round = round_of(ref);
                const auto [found, is_new] =
                    known[at(destination)].try_emplace({round, key_of(op.dst)}, groups_.size());
                if (is_new) {
                    groups_.push_back(
                        {.rank = destination, .chunk = op.dst, .round = round, .reduce = op.reduce});
                    of_tensor[{destination, op.dst.tensor}].push_back(found->second);
                }
                Group& group = groups_[found->second];
                if (group.reduce != op.reduce) {
                    return error_at(ref, "it reduces by " + std::string(name_of(op.reduce)) + " into " +
                                             name_of_chunk(plan_, op.dst) + ", where another op reduces by " +
                                             std::string(name_of(group.reduce)));
                }
                group.contributions.push_back(ref);
                group_of_[at(rank)][at(index)] = static_cast<std::int32_t>(found->second);
            }
        }
        for (auto& [place, members] : of_tensor) {
            SYNCOPATE_TRY(check_disjoint(members));
        }
        return Done{};
    }

    /// How many contributions to the same place come one after another before this one: those of one round
    /// are summed together, after the rounds before.
    std::int32_t round_of(OpRef ref) {
        std::int32_t& known = rounds_[at(ref.rank)][at(ref.index)];
        if (known >= 0) return known;
        const plan::Op& op = plan_.op(ref);
        std::int32_t round = 0;
        for (const OpRef before : op.after) {
            const plan::Op& other = plan_.op(before);
            if (other.reduce == plan::Reduce::none || other.kind == plan::OpKind::collective) continue;
            if (other.destination_rank(before.rank) == op.destination_rank(ref.rank) && other.dst == op.dst)
                round = std::max(round, round_of(before) + 1);
        }
        return known = round;
    }

    [[nodiscard]] std::int32_t group_of(OpRef ref) const { return group_of_[at(ref.rank)][at(ref.index)]; }

    Status check_disjoint(std::vector<std::size_t>& members) const {
        const auto begin_of = [&](std::size_t g) {
            const Region& region = groups_[g].chunk.region;
            return region.empty() ? 0 : region[0].begin;
        };
        std::sort(members.begin(), members.end(),
                  [&](std::size_t a, std::size_t b) { return begin_of(a) < begin_of(b); });
        for (std::size_t i = 0; i < members.size(); ++i) {
            const Group& first = groups_[members[i]];
            for (std::size_t j = i + 1; j < members.size(); ++j) {
                const Group& second = groups_[members[j]];
                if (!first.chunk.region.empty() && begin_of(members[j]) >= first.chunk.region[0].end) break;
                if (!overlaps(first.chunk.region, second.chunk.region)) continue;
                if (first.chunk.region == second.chunk.region) continue;  // another round
                return error_at(second.contributions.front(),
                                "it reduces into " + name_of_chunk(plan_, second.chunk) +
                                    ", which overlaps " + name_of_chunk(plan_, first.chunk) +
                                    " that others reduce into: cut all contributions alike");
            }
        }
        return Done{};
    }

    Status complete(Group& group) {
        const auto source_of = [&](OpRef ref) { return plan_.op(ref).source_rank(ref.rank); };
        std::sort(group.contributions.begin(), group.contributions.end(),
                  [&](OpRef a, OpRef b) { return std::pair(source_of(a), a) < std::pair(source_of(b), b); });
        for (const OpRef ref : group.contributions) {
            for (const OpRef before : plan_.op(ref).after) {
                const plan::Op& op = plan_.op(before);
                if (group_of(before) < 0 && op.destination_rank(before.rank) == group.rank &&
                    overlaps(op.dst, group.chunk)) {
                    group.writers.push_back(before);
                }
            }
        }
        std::sort(group.writers.begin(), group.writers.end());
        group.writers.erase(std::unique(group.writers.begin(), group.writers.end()), group.writers.end());

        std::vector<Region> missing{group.chunk.region};
        bool any = group.round > 0;
        if (any) missing.clear();  // the rounds before have filled it
        for (const Region* region : held_[{group.rank, group.chunk.tensor}]) {
            if (!overlaps(*region, group.chunk.region)) continue;
            any = true;
            take(missing, *region);
        }
        for (const OpRef writer : group.writers) {
            any = true;
            take(missing, plan_.op(writer).dst.region);
        }
        if (!any) return Done{};
        if (!missing.empty()) {
            return error_at(group.contributions.front(),
                            "it reduces into " + name_of_chunk(plan_, group.chunk) + ", of which rank " +
                                std::to_string(group.rank) + " holds all but " + to_string(missing.front()) +
                                ": cut the contributions where that ends");
        }
        group.own =
            static_cast<std::int32_t>(std::count_if(group.contributions.begin(), group.contributions.end(),
                                                    [&](OpRef ref) { return source_of(ref) < group.rank; }));
        return Done{};
    }

    /// One staging tensor for each tensor that is reduced into, as large as the neediest rank asks.
    void add_staging() {
        std::map<std::int32_t, std::int64_t> slots;
        for (const Group& group : groups_) {
            if (group.num_slots() == 0) continue;
            Region& box = boxes_[{group.chunk.tensor, group.rank}];
            box = box.empty() ? group.chunk.region : bounding_box(box, group.chunk.region);
            std::int64_t& most = slots[group.chunk.tensor];
            most = std::max(most, group.num_slots());
        }
        for (const auto& [tensor, count] : slots) {
            const plan::Tensor& reduced = result_.plan.tensors[at(tensor)];
            plan::Tensor staging{reduced.name + ".staging", {count}, reduced.dtype};
            while (result_.plan.find_tensor(staging.name)) staging.name += "'";
            staging.shape.resize(1 + reduced.shape.size(), 0);
            for (const auto& [place, box] : boxes_) {
                if (place.first != tensor) continue;
                for (std::size_t axis = 0; axis < box.size(); ++axis)
                    staging.shape[1 + axis] = std::max(staging.shape[1 + axis], box[axis].size());
            }
            staging_[tensor] = static_cast<std::int32_t>(result_.plan.tensors.size());
            result_.plan.tensors.push_back(std::move(staging));
        }
    }

    /// Slots [first, last) of `region`, a part of what the group sums, in the staging tensor.
    [[nodiscard]] plan::Chunk staged(const Group& group, const Region& region, std::int64_t first,
                                     std::int64_t last) const {
        const Region& box = boxes_.at({group.chunk.tensor, group.rank});
        plan::Chunk chunk{staging_.at(group.chunk.tensor), {{first, last}}};
        for (std::size_t axis = 0; axis < box.size(); ++axis) {
            const Interval& interval = region[axis];
            chunk.region.push_back({interval.begin - box[axis].begin, interval.end - box[axis].begin});
        }
        return chunk;
    }

    /// What of the group's chunk each of its sums does.
    [[nodiscard]] std::vector<Region> parts_of(const Group& group) const {
        const bool whole = !group.direct.empty() || group.engine != plan::Backend::automatic || !parts_of_;
        return whole ? std::vector<Region>{group.chunk.region} : parts_of_(group.rank, group.chunk);
    }

    /// The given plan, with room for what its lists become: of many ranks they are most of what lowering holds.
    void copy_with_room() {
        std::vector<std::size_t> more(plan_.ranks.size(), 0);
        for (const Group& group : groups_) ++more[at(group.rank)];
        for (std::size_t rank = 0; rank < more.size(); ++rank) {
            for (const plan::Op& op : plan_.ranks[rank]) {
                const bool moves = op.kind == plan::OpKind::push || op.kind == plan::OpKind::pull;
                if (moves &&
                    plan_.mesh.node_of(static_cast<std::int32_t>(rank)) != plan_.mesh.node_of(op.peer))
                    ++more[at(op.peer)];  // its other side
            }
        }
        plan::Plan& plan = result_.plan;
        plan.mesh = plan_.mesh;
        plan.tensors = plan_.tensors;
        plan.initial = plan_.initial;
        plan.produced = plan_.produced;
        plan.final = plan_.final;
        plan.ranks.resize(plan_.ranks.size());
        for (std::size_t rank = 0; rank < more.size(); ++rank) {
            std::vector<plan::Op>& list = plan.ranks[rank];
            list.reserve(plan_.ranks[rank].size() + more[rank]);
            list.assign(plan_.ranks[rank].begin(), plan_.ranks[rank].end());
        }
    }

    void add_sums() {
        for (Group& group : groups_) {
            const std::int64_t slots = group.num_slots();
            std::vector<plan::Op>& list = result_.plan.ranks[at(group.rank)];
            for (const Region& part : parts_of(group)) {
                const OpRef ref{group.rank, static_cast<std::int32_t>(list.size())};
                group.sums.push_back(ref);
                plan::Op& sum = list.emplace_back();
                sum.kind = plan::OpKind::local;
                sum.dst = {group.chunk.tensor, part};
                sum.src = slots == 0 ? group.chunk : staged(group, part, 0, slots);
                sum.reduce = group.reduce;
                if (group.engine != plan::Backend::automatic) result_.engine[ref] = group.engine;
                if (!group.direct.empty()) {
                    result_.direct[ref] = group.direct;
                    result_.sources[ref] = sources_of(group);
                }
                sum.after = group.contributions;
                sum.after.insert(sum.after.end(), group.writers.begin(), group.writers.end());
                result_.own[ref] = group.own;
            }
            std::int64_t slot = 0;
            for (const OpRef ref : group.contributions) {
                if (group.is_direct(ref)) {
                    leave_in_place(group, ref);
                } else {
                    send_to_slot(group, ref, slot++);
                }
            }
        }
    }

    /// Where the contributions are, in the order in which they are added.
    [[nodiscard]] std::vector<Source> sources_of(const Group& group) const {
        std::vector<Source> sources;
        std::int64_t slot = 0;
        for (const OpRef ref : group.contributions) {
            if (group.is_direct(ref)) {
                sources.push_back({result_.plan.op(ref).peer, result_.plan.op(ref).src});
            } else {
                sources.push_back({group.rank, staged(group, group.chunk.region, slot, slot + 1)});
                ++slot;
            }
        }
        return sources;
    }

    /// A contribution that is read where it is.
    void leave_in_place(const Group& group, OpRef ref) {
        plan::Op& op = op_of(ref);
        op.reduce = plan::Reduce::none;
        result_.done_with[ref] = group.sums.front();
    }

    [[nodiscard]] plan::Op& op_of(OpRef ref) { return result_.plan.ranks[at(ref.rank)][at(ref.index)]; }

    /// A contribution as it is sent: to its slot.
    void send_to_slot(const Group& group, OpRef ref, std::int64_t slot) {
        plan::Op& op = op_of(ref);
        op.reduce = plan::Reduce::none;
        op.dst = staged(group, group.chunk.region, slot, slot + 1);
        // It no longer touches what a writer writes, unless it reads that.
        erase_if(op.after, [&](OpRef before) {
            return std::binary_search(group.writers.begin(), group.writers.end(), before) &&
                   (op.source_rank(ref.rank) != group.rank || op.src.tensor != group.chunk.tensor);
        });
    }

    /// Whoever waited for a contribution waits for its sums.
    void redirect() {
        for (std::size_t rank = 0; rank < group_of_.size(); ++rank) {
            for (std::size_t index = 0; index < group_of_[rank].size(); ++index) {
                plan::OpRefs& after = result_.plan.ranks[rank][index].after;
                if (std::ranges::none_of(after, [&](OpRef ref) { return group_of(ref) >= 0; }) &&
                    std::ranges::adjacent_find(after, std::greater_equal<>()) == after.end())
                    continue;  // most are, and are as they should be
                const auto has_one_sum = [&](OpRef ref) {
                    return group_of(ref) < 0 || groups_[at(group_of(ref))].sums.size() == 1;
                };
                if (std::ranges::all_of(after, has_one_sum)) {
                    for (OpRef& ref : after) {
                        if (group_of(ref) >= 0) ref = groups_[at(group_of(ref))].sums.front();
                    }
                    std::ranges::sort(after);
                    after.erase(std::unique(after.begin(), after.end()), after.end());
                    continue;
                }
                std::vector<OpRef> redirected;
                for (const OpRef ref : after) {
                    const std::int32_t reduced = group_of(ref);
                    if (reduced < 0) {
                        redirected.push_back(ref);
                    } else {
                        const std::vector<OpRef>& sums = groups_[at(reduced)].sums;
                        redirected.insert(redirected.end(), sums.begin(), sums.end());
                    }
                }
                std::sort(redirected.begin(), redirected.end());
                redirected.erase(std::unique(redirected.begin(), redirected.end()), redirected.end());
                after = redirected;
            }
        }
    }

    const plan::Plan& plan_;  ///< the given one
    plan::Backend preferred_;
    const std::function<std::vector<Region>(std::int32_t, const plan::Chunk&)>& parts_of_;
    std::vector<Group> groups_;
    std::vector<std::vector<std::int32_t>> group_of_;  ///< by rank and index; -1: the op reduces nothing
    std::vector<std::vector<std::int32_t>> rounds_;    ///< by rank and index; -1: not known yet
    /// By rank and tensor: what the rank holds from the start, and what its kernel makes.
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<const Region*>> held_;
    std::map<std::pair<std::int32_t, std::int32_t>, Region> boxes_;  ///< by tensor and rank
    std::map<std::int32_t, std::int32_t> staging_;                   ///< by tensor
    Lowered result_;
};

/// Chunks into which something reduces that some op comes after, and so after the sum.
std::set<plan::ChunkKey> sent_on(const plan::Plan& given) {
    std::vector<std::vector<bool>> followed;  // by rank and index
    for (const std::vector<plan::Op>& list : given.ranks) followed.emplace_back(list.size(), false);
    for (const std::vector<plan::Op>& list : given.ranks) {
        for (const plan::Op& op : list) {
            for (const plan::OpRef before : op.after) followed[at(before.rank)][at(before.index)] = true;
        }
    }
    std::set<plan::ChunkKey> keys;
    for (std::size_t rank = 0; rank < followed.size(); ++rank) {
        for (std::size_t index = 0; index < followed[rank].size(); ++index) {
            const plan::Op& op = given.ranks[rank][index];
            if (followed[rank][index] && op.reduce != plan::Reduce::none) keys.insert(plan::key_of(op.dst));
        }
    }
    return keys;
}

/// The parts in which `chunk` is summed: where some kernel makes what this rank adds to it. What is sent on
/// stays as it is: one sum can store it at the peers.
std::vector<plan::Region> parts_of_sum(const StagedProgram& program, const std::set<plan::ChunkKey>& sent,
                                       const plan::Chunk& chunk, const Options& options) {
    const std::string& tensor = program.plan.tensors[at(chunk.tensor)].name;
    for (const Stage& stage : program.stages) {
        const std::int64_t programs = options.num_programs.value_or(stage.kernel.num_programs());
        std::vector<plan::Region> parts = sum_parts(stage, tensor, chunk.region, programs,
                                                    !sent.contains(plan::key_of(chunk)), options.costs);
        if (parts.size() > 1) return parts;
    }
    return {chunk.region};
}

}  // namespace

plan::Plan transfers_of(const Lowered& lowered, const std::vector<std::vector<plan::Backend>>& backends) {
    plan::Plan plan = lowered.plan;
    for (std::size_t rank = 0; rank < backends.size(); ++rank) {
        for (std::size_t index = 0; index < backends[rank].size(); ++index)
            plan.ranks[rank][index].backend = backends[rank][index];
    }
    std::map<std::int32_t, std::int32_t> added;  // by tensor: the one whose parts are added up to it
    for (std::vector<plan::Op>& list : plan.ranks) {
        for (plan::Op& op : list) {
            if (op.kind == plan::OpKind::collective) continue;
            if (!is_sum(op)) {
                if (op.src.region.size() != op.dst.region.size()) op.dst = op.src;
                continue;
            }
            const auto [at, first] =
                added.try_emplace(op.dst.tensor, static_cast<std::int32_t>(plan.tensors.size()));
            if (first) {
                plan::Tensor tensor = plan.tensors[static_cast<std::size_t>(op.dst.tensor)];
                tensor.name += ".contributions";
                plan.tensors.push_back(std::move(tensor));
            }
            op.src = {at->second, op.dst.region};
        }
    }
    return plan;
}

bool can_reduce(plan::DType dtype) {
    using enum plan::DType;
    return dtype == bf16 || dtype == fp16 || dtype == fp32 || dtype == int32;
}

Result<Lowered> lower(const plan::Plan& plan, const LowerOptions& options) {
    std::optional<plan::Plan> changed;
    if (has_collectives(plan)) changed = with_participants(plan);
    Result<Lowered> lowered = Lowering(changed ? *changed : plan, options).run();
    if (!lowered) return lowered;
    SYNCOPATE_TRY(split_between_nodes(*lowered));
    return lowered;
}

Result<Lowered> lower(const StagedProgram& program, const Options& options) {
    const std::set<plan::ChunkKey> sent = sent_on(program.plan);
    const bool in_kernel = options.kernel_sums && options.device == Device::cuda;
    std::map<plan::ChunkKey, std::vector<plan::Region>> known;  // all tiles are asked of each chunk
    const auto parts_of = [&](std::int32_t rank, const plan::Chunk& chunk) {
        if (in_kernel) return std::vector{asked_of_sum(program.plan, rank, chunk)};
        const auto [found, is_new] = known.try_emplace(plan::key_of(chunk));
        if (is_new) found->second = parts_of_sum(program, sent, chunk, options);
        return found->second;
    };
    return lower(program.plan, {.preferred = options.preferred, .parts_of = parts_of});
}

}  // namespace syncopate::fuse
