// From a loop nest to transfers: walks the iterations of the shifting loops, and finds for each rank and
// shard who worked on it before.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "syncopate/ingest/loops/loop_ir.hpp"
#include "syncopate/ingest/partition/partition_ir.hpp"
#include "syncopate/plan/model/region.hpp"

namespace syncopate::ingest {
namespace {

using plan::Region;
using Coordinates = std::vector<std::int32_t>;  // one for each mesh axis

class Walker {
public:
    explicit Walker(const LoopNest& nest) : nest_(nest), num_ranks_(nest.mesh.num_ranks()) {
        plan_.mesh = nest.mesh;
        plan_.ranks.resize(static_cast<std::size_t>(num_ranks_));
        for (const Loop& loop : nest.loops) {
            if (loop.over >= 0) rings_.push_back(&loop);
        }
    }

    Result<plan::Plan> walk() {
        for (std::size_t tensor = 0; tensor < nest_.tensors.size(); ++tensor) {
            plan_.tensors.push_back(nest_.tensors[tensor].tensor);
            prepare(static_cast<std::int32_t>(tensor));
        }
        auto visits = static_cast<std::int64_t>(num_ranks_) * static_cast<std::int64_t>(moving_.size());
        for (const Loop* loop : rings_) {
            if (__builtin_mul_overflow(visits, loop->steps, &visits) || visits > kMaxVisits) {
                return Error{fmt::format("loops: the ranks would work on more than {} shards", kMaxVisits)};
            }
        }
        std::vector<std::int64_t> at(rings_.size());
        do {
            for (Moving& moving : moving_) {
                const std::optional<Error> error = iteration(moving, at);
                if (error) return *error;
            }
            ++iteration_;
        } while (next(at));
        for (Moving& moving : moving_) finish(moving);
        emit();
        return std::move(plan_);
    }

private:
    /// A shard at a rank: since which iteration, and the transfers that brought its chunks; none: it was
    /// there.
    struct Arrival {
        std::int64_t since = 0;
        std::vector<std::size_t> by;
    };

    /// A push to be. Its place in its owner's list follows from when it may start, then from when it is
    /// wanted.
    struct Transfer {
        std::int32_t owner = 0;
        std::int64_t from = 0, until = 0;  // iterations
        plan::Op op;
        std::optional<std::size_t> after;
    };

    /// What is known of one tensor that moves.
    struct Moving {
        std::int32_t tensor = -1;
        std::vector<std::int64_t> grain;  // elements of a chunk along each axis; 0: all of it
        std::vector<bool> shifts;         // by ring loop: whether it moves this tensor
        std::vector<std::map<std::int32_t, Arrival>> here;  // per rank, by the rank that the shard belongs to
        std::vector<std::map<std::int32_t, std::vector<std::int32_t>>> contributors;  // carried: so far
    };

    void prepare(std::int32_t tensor) {
        Moving moving;
        moving.tensor = tensor;
        moving.grain.resize(nest_.tensors[static_cast<std::size_t>(tensor)].tensor.shape.size());
        moving.shifts.resize(rings_.size());
        bool moves = false;
        for (const CommunicationPoint& point : nest_.points) {
            if (point.tensor != tensor) continue;
            moves = true;
            for (std::size_t i = 0; i < rings_.size(); ++i) {
                if (rings_[i] == &nest_.loops[static_cast<std::size_t>(point.at)]) moving.shifts[i] = true;
            }
            for (const auto& [block, count] : point.chunk) {
                const Loop& loop = nest_.loops[static_cast<std::size_t>(block)];
                for (const auto& [of, axis] : loop.tiles) {
                    std::int64_t size = 0;
                    if (of != tensor || __builtin_mul_overflow(loop.size, count, &size)) continue;
                    // Points may differ in granularity: the finest holds, so that a chunk can be passed on.
                    std::int64_t& grain = moving.grain[static_cast<std::size_t>(axis)];
                    grain = grain == 0 ? size : std::min(grain, size);
                }
            }
        }
        if (!moves) return;
        moving.here.resize(static_cast<std::size_t>(num_ranks_));
        moving.contributors.resize(static_cast<std::size_t>(num_ranks_));
        const bool carried = nest_.tensors[static_cast<std::size_t>(tensor)].carry != plan::Reduce::none;
        for (std::int32_t rank = 0; rank < num_ranks_ && !carried; ++rank) {
            moving.here[static_cast<std::size_t>(rank)][rank];  // its own shard is with it from the begin
        }
        moving_.push_back(std::move(moving));
    }

    /// The next iteration, the last loop fastest; false after the last one.
    bool next(std::vector<std::int64_t>& at) const {
        for (std::size_t i = at.size(); i-- > 0;) {
            if (++at[i] < rings_[i]->steps) return true;
            at[i] = 0;
        }
        return false;
    }

    [[nodiscard]] std::int32_t rank_at(const Coordinates& at) const {
        std::int32_t rank = 0;
        for (std::size_t axis = 0; axis < at.size(); ++axis)
            rank = rank * nest_.mesh.axes[axis].size + at[axis];
        return rank;
    }

    /// `rank` with its coordinate along the loop's mesh axis moved by `by`.
    [[nodiscard]] std::int32_t moved(std::int32_t rank, const Loop& loop, std::int64_t by) const {
        Coordinates at = coordinates_of(nest_.mesh, rank);
        const auto axis = static_cast<std::size_t>(loop.over);
        const std::int64_t size = nest_.mesh.axes[axis].size;
        at[axis] = static_cast<std::int32_t>(((at[axis] + by % size) % size + size) % size);
        return rank_at(at);
    }

    /// The rank whose shard `rank` works on in iteration `at`.
    [[nodiscard]] std::int32_t shard_at(const Moving& moving, std::int32_t rank,
                                        const std::vector<std::int64_t>& at) const {
        for (std::size_t i = 0; i < rings_.size(); ++i) {
            if (moving.shifts[i]) rank = moved(rank, *rings_[i], rings_[i]->start + rings_[i]->shift * at[i]);
        }
        return rank;
    }

    /// Who worked, in the iteration before of the loop that has advanced, on the shard that `rank` works on
    /// now; its own owner at the begin. -1: this loop does not move the tensor, so `rank` itself works on it
    /// still.
    [[nodiscard]] std::int32_t predecessor(const Moving& moving, std::int32_t rank,
                                           const std::vector<std::int64_t>& at) const {
        std::size_t advanced = at.size();  // the innermost loop that is not at its begin
        for (std::size_t i = 0; i < at.size(); ++i) {
            if (at[i] > 0) advanced = i;
        }
        if (advanced == at.size()) return shard_at(moving, rank, at);
        const bool carried =
            nest_.tensors[static_cast<std::size_t>(moving.tensor)].carry != plan::Reduce::none;
        // What is read came along when the outer loop began; what is carried comes when the inner ones have
        // ended.
        std::int32_t from = rank;
        if (moving.shifts[advanced]) from = moved(from, *rings_[advanced], rings_[advanced]->shift);
        for (std::size_t i = advanced + 1; carried && i < at.size(); ++i) {
            if (moving.shifts[i]) from = moved(from, *rings_[i], -rings_[i]->shift * (rings_[i]->steps - 1));
        }
        return from;
    }

    [[nodiscard]] Region region(const Moving& moving, std::int32_t shard) const {
        const LoopTensor& tensor = nest_.tensors[static_cast<std::size_t>(moving.tensor)];
        return region_of(nest_.mesh, tensor.tensor, {tensor.shard, {}, plan::Reduce::none}, shard,
                         nest_.uneven);
    }

    /// The chunks of a shard: the same on every rank, in order.
    [[nodiscard]] std::optional<std::vector<Region>> chunks(const Moving& moving, std::int32_t shard) const {
        const Region whole = region(moving, shard);
        if (is_empty(whole)) return std::vector<Region>{};
        std::vector<Region> boxes{whole};
        for (std::size_t axis = 0; axis < whole.size(); ++axis) {
            const std::int64_t grain = moving.grain[axis];
            if (grain == 0 || grain >= whole[axis].size()) continue;
            if ((whole[axis].size() / grain + 1) > kMaxPlannedOps / static_cast<std::int64_t>(boxes.size())) {
                return std::nullopt;
            }
            std::vector<Region> finer;
            for (const Region& box : boxes) {
                for (std::int64_t begin = box[axis].begin; begin < box[axis].end; begin += grain) {
                    finer.push_back(box);
                    finer.back()[axis] = {begin, std::min(begin + grain, box[axis].end)};
                }
            }
            boxes = std::move(finer);
        }
        return boxes;
    }

    std::optional<Error> iteration(Moving& moving, const std::vector<std::int64_t>& at) {
        const LoopTensor& tensor = nest_.tensors[static_cast<std::size_t>(moving.tensor)];
        const bool carried = tensor.carry != plan::Reduce::none;
        // What arrives in this iteration, noted when all ranks are done: all of them pass on at once.
        std::vector<std::pair<std::int32_t, Arrival>> arrived(static_cast<std::size_t>(num_ranks_));
        std::vector<std::vector<std::int32_t>> joined(static_cast<std::size_t>(num_ranks_));
        bool first = true;
        for (const std::int64_t step : at) first = first && step == 0;
        for (std::int32_t rank = 0; rank < num_ranks_; ++rank) {
            const std::int32_t shard = shard_at(moving, rank, at);
            arrived[static_cast<std::size_t>(rank)] = {shard, {iteration_, {}}};
            auto& mine = moving.here[static_cast<std::size_t>(rank)];
            const std::int32_t from = carried && first ? rank : predecessor(moving, rank, at);
            if (carried) {
                if (mine.contains(shard) && from != rank) {
                    return Error{
                        fmt::format("tensors.{}: rank {} works on the shard of rank {} a second time in the "
                                    "loops; its contribution would count twice",
                                    tensor.tensor.name, rank, shard)};
                }
                if (!first) {
                    joined[static_cast<std::size_t>(rank)] =
                        moving.contributors[static_cast<std::size_t>(from)][shard];
                }
                std::vector<std::int32_t>& by = joined[static_cast<std::size_t>(rank)];
                if (std::find(by.begin(), by.end(), rank) == by.end()) by.push_back(rank);
            } else if (mine.contains(shard)) {
                continue;
            }
            if (from == rank) continue;
            const auto held = moving.here[static_cast<std::size_t>(from)].find(shard);
            const bool there = held != moving.here[static_cast<std::size_t>(from)].end();
            const auto boxes = chunks(moving, shard);
            if (!boxes || static_cast<std::int64_t>(transfers_.size() + boxes->size()) > kMaxPlannedOps) {
                return Error{fmt::format("tensors.{}: the plan would have more than {} ops",
                                         tensor.tensor.name, kMaxPlannedOps)};
            }
            for (std::size_t i = 0; i < boxes->size(); ++i) {
                Transfer made;
                made.owner = from;
                made.until = iteration_;
                made.op.kind = plan::OpKind::push;
                made.op.peer = rank;
                made.op.reduce = tensor.carry;
                made.op.src = made.op.dst = {moving.tensor, (*boxes)[i]};
                if (there) {
                    made.from = held->second.since;
                    if (i < held->second.by.size()) made.after = held->second.by[i];
                }
                arrived[static_cast<std::size_t>(rank)].second.by.push_back(transfers_.size());
                transfers_.push_back(std::move(made));
            }
        }
        for (std::int32_t rank = 0; rank < num_ranks_; ++rank) {
            auto& [shard, arrival] = arrived[static_cast<std::size_t>(rank)];
            moving.here[static_cast<std::size_t>(rank)].emplace(shard, std::move(arrival));
            if (carried) {
                moving.contributors[static_cast<std::size_t>(rank)][shard] =
                    std::move(joined[static_cast<std::size_t>(rank)]);
            }
        }
        return std::nullopt;
    }

    void finish(Moving& moving) {
        const bool carried =
            nest_.tensors[static_cast<std::size_t>(moving.tensor)].carry != plan::Reduce::none;
        std::vector<std::int64_t> last;
        for (const Loop* loop : rings_) last.push_back(loop->steps - 1);
        for (std::int32_t rank = 0; rank < num_ranks_; ++rank) {
            const auto holding = [&](std::int32_t shard) {
                plan::Holding made;
                made.rank = rank;
                made.chunk = {moving.tensor, region(moving, shard)};
                return made;
            };
            if (!carried && !is_empty(region(moving, rank))) plan_.initial.push_back(holding(rank));
            for (const auto& [shard, arrival] : moving.here[static_cast<std::size_t>(rank)]) {
                plan::Holding made = holding(shard);
                if (is_empty(made.chunk.region)) continue;
                if (!carried) {
                    plan_.final.push_back(std::move(made));
                    continue;
                }
                made.partial = true;
                plan_.produced.push_back(made);
                if (shard != shard_at(moving, rank, last)) continue;
                made.partial = false;
                made.of = moving.contributors[static_cast<std::size_t>(rank)][shard];
                std::sort(made.of.begin(), made.of.end());
                made.of_all = static_cast<std::int32_t>(made.of.size()) == num_ranks_;
                if (made.of_all) made.of.clear();
                plan_.final.push_back(std::move(made));
            }
        }
    }

    void emit() {
        std::vector<std::size_t> order(transfers_.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            const Transfer& x = transfers_[a];
            const Transfer& y = transfers_[b];
            return std::pair(x.from, x.until) < std::pair(y.from, y.until);
        });
        std::vector<plan::OpRef> at(transfers_.size());
        std::vector<std::int32_t> counts(static_cast<std::size_t>(num_ranks_));
        for (const std::size_t i : order) {
            const std::int32_t owner = transfers_[i].owner;
            at[i] = {owner, counts[static_cast<std::size_t>(owner)]++};
        }
        for (const std::size_t i : order) {
            Transfer& transfer = transfers_[i];
            if (transfer.after) transfer.op.after = {at[*transfer.after]};
            plan_.ranks[static_cast<std::size_t>(transfer.owner)].push_back(std::move(transfer.op));
        }
    }

    const LoopNest& nest_;
    std::int32_t num_ranks_;
    std::vector<const Loop*> rings_;
    std::vector<Moving> moving_;
    std::vector<Transfer> transfers_;
    std::int64_t iteration_ = 0;
    plan::Plan plan_;
};

}  // namespace

Result<plan::Plan> plan_of(const LoopNest& nest) { return Walker(nest).walk(); }

}  // namespace syncopate::ingest
