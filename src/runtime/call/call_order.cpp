#include "runtime/call/call_order.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "syncopate/runtime/cuda/engine/engine_table.hpp"

namespace syncopate::runtime {
namespace {

class Order {
public:
    Order(const fuse::RankSchedule& schedule, const fuse::StreamPlan& streams, int rank)
        : schedule_(schedule), streams_(streams), rank_(rank) {}

    Result<CallOrder> run(const std::string& name) {
        for (std::size_t i = 0; i < schedule_.transfers.size(); ++i) {
            if (is_late(streams_, i)) continue;
            const fuse::Transfer& transfer = schedule_.transfers[i];
            if (is_by_engine(transfer)) {
                beside_.push_back(i);
            } else if (streams_.steps[i].lane == fuse::Lane::before) {
                order_.collectives.push_back(i);
            } else if (transfer.backend != plan::Backend::copy_engine) {
                return error_at(
                    transfer.op,
                    fmt::format(
                        "op '{}': backend {} is not in this build; on cuda transfers go by copy_engine, "
                        "tma_dedicated or ldst_dedicated",
                        name, plan::name_of(transfer.backend)));
            } else if (is_local(transfer) && transfer.waits.empty() && may_go_first(i)) {
                order_.local.push_back(i);
            } else {
                order_.copies.push_back(i);
                beside_.push_back(i);
            }
        }
        order_.copies_start_first =
            order_.collectives.empty() &&
            std::ranges::none_of(order_.local, [&](std::size_t local) { return is_touched(local); });
        return std::move(order_);
    }

private:
    [[nodiscard]] bool is_local(const fuse::Transfer& transfer) const {
        return transfer.src_rank == rank_ && transfer.dst_rank == rank_;
    }
    [[nodiscard]] bool reads(const fuse::Transfer& transfer, const plan::Chunk& chunk) const {
        return transfer.src_rank == rank_ && plan::overlaps(transfer.src, chunk);
    }
    [[nodiscard]] bool writes(const fuse::Transfer& transfer, const plan::Chunk& chunk) const {
        return transfer.dst_rank == rank_ && plan::overlaps(transfer.dst, chunk);
    }

    /// Whether local transfer `index` touches nothing that earlier ones beside the caller's stream write
    /// here, and writes nothing that they read here: only then may it overtake them.
    [[nodiscard]] bool may_go_first(std::size_t index) const {
        const fuse::Transfer& local = schedule_.transfers[index];
        return std::ranges::none_of(beside_, [&](std::size_t before) {
            const fuse::Transfer& other = schedule_.transfers[before];
            return writes(other, local.src) || writes(other, local.dst) || reads(other, local.dst);
        });
    }

    /// Whether any other transfer of this rank reads or writes what local transfer `index` writes, or writes
    /// what it reads: then it starts after it.
    [[nodiscard]] bool is_touched(std::size_t index) const {
        const fuse::Transfer& local = schedule_.transfers[index];
        return std::ranges::any_of(schedule_.transfers, [&](const fuse::Transfer& other) {
            return &other != &local &&
                   (reads(other, local.dst) || writes(other, local.dst) || writes(other, local.src));
        });
    }

    const fuse::RankSchedule& schedule_;
    const fuse::StreamPlan& streams_;
    int rank_;
    std::vector<std::size_t> beside_;  ///< whose data the copy stream or the chunk engine moves
    CallOrder order_;
};

}  // namespace

bool is_late(const fuse::StreamPlan& streams, std::size_t index) {
    const fuse::Lane lane = streams.steps[index].lane;
    return lane == fuse::Lane::late || lane == fuse::Lane::sums;
}

Result<CallOrder> order_of(const fuse::RankSchedule& schedule, const fuse::StreamPlan& streams, int rank,
                           const std::string& name) {
    return Order(schedule, streams, rank).run(name);
}

}  // namespace syncopate::runtime
