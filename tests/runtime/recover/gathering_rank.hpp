// A rank that gathers what all ranks of its group say, call by call, and goes on after faults.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/played_kernel.hpp"
#include "runtime/schedules.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/recover/recover.hpp"

namespace syncopate::runtime::testing {

/// Where a rank is in a call; `working`: a tile has what it awaits, and reads it next.
enum class Phase : std::uint8_t { begun, working, worked, ended };

class GatheringRank {
public:
    static constexpr std::int64_t kPart = 16;

    explicit GatheringRank(std::shared_ptr<Rendezvous> group, std::int64_t deadline_ms)
        : group_(std::move(group)), deadline_ms_(deadline_ms) {}

    [[nodiscard]] const std::shared_ptr<Rendezvous>& group() const { return group_; }
    [[nodiscard]] FusedOp* op() const { return op_.get(); }
    [[nodiscard]] SymmetricHeap& heap() const { return *heap_; }
    [[nodiscard]] bool renewed() const { return renewed_; }
    [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
    /// In the middle of a kernel.
    std::function<void()> in_kernel = [] {};
    /// What it does there before it goes on.
    std::function<void(Phase)> at = [](Phase) {};

    /// Collective.
    Status make() {
        op_.reset();
        Result<std::shared_ptr<SymmetricHeap>> heap = SymmetricHeap::create({}, group_, 1 << 16);
        if (!heap) return heap.error();
        heap_ = *heap;
        Result<std::unique_ptr<FusedOp>> op =
            FusedOp::create(heap_, direct_all_gather(group_->size(), pull, {group_->size(), kPart}, backend),
                            {.name = "gather", .deadline_ms = deadline_ms_});
        if (!op) return op.error();
        op_ = std::move(op).value();
        return Done{};
    }
    plan::Backend backend = plan::Backend::host;
    bool pull = false;
    /// Its part of op and heap is gone, nobody is asked.
    void drop() { op_.reset(), heap_.reset(); }

    /// What each rank said, all kPart words alike; an error of class input where words of one differ: wrong data.
    Result<std::vector<std::int32_t>> call(std::int32_t says) {
        auto* all = reinterpret_cast<std::int32_t*>(op_->tensor_address("A").value());
        const std::vector<std::int32_t> mine(kPart, says);
        const plan::Region region = rows_of(op_->schedule().tensors[0], group_->rank(), group_->size());
        if (Status set = op_->set_input("A", region, reinterpret_cast<std::uint64_t>(mine.data()),
                                        std::vector<std::int64_t>{kPart, 1});
            !set)
            return set.error();
        if (Status begun = op_->begin_call(); !begun) return begun.error();
        at(Phase::begun);
        std::vector<std::int32_t> said(static_cast<std::size_t>(group_->size()));
        bool whole = true;
        (void)run_kernel(*op_, [&](int rank) {
            in_kernel();
            at(Phase::working);
            said[static_cast<std::size_t>(rank)] = all[rank * kPart];
            for (std::int64_t i = 1; i < kPart; ++i)
                whole = whole && all[rank * kPart + i] == all[rank * kPart];
            return true;
        });
        at(Phase::worked);
        if (Status ended = op_->end_call(); !ended) return ended.error();
        at(Phase::ended);
        if (Status checked = op_->check(); !checked) return checked.error();
        if (!whole) return Error{"wrong data", {}, ErrorClass::input};
        return said;
    }

    Status recover(Milliseconds deadline, const std::shared_ptr<Rendezvous>& to = nullptr) {
        Result<Recovered> recovered = runtime::recover(group_, to, deadline);
        if (!recovered) return recovered.error();
        group_ = recovered->group;
        ranks_ = recovered->ranks;
        renewed_ = recovered->renewed;
        return Done{};
    }

private:
    std::shared_ptr<Rendezvous> group_;
    std::int64_t deadline_ms_;
    std::shared_ptr<SymmetricHeap> heap_;
    std::unique_ptr<FusedOp> op_;
    std::vector<int> ranks_;
    bool renewed_ = false;
};

/// `count` calls in which each rank says which of the store's ranks it is, rank r 100 + r, and 1,000 more in each call.
inline bool gathers(GatheringRank& rank, const std::vector<int>& ranks, int count = 3) {
    for (int call = 0; call < count; ++call) {
        const auto word = [&](std::size_t of) { return 100 + 1000 * call + ranks[of]; };
        RANK_CHECK(static_cast<std::size_t>(rank.group()->size()) == ranks.size(), "another group");
        const auto said = rank.call(word(static_cast<std::size_t>(rank.group()->rank())));
        RANK_CHECK(said, said.error().to_string());
        for (std::size_t of = 0; of < ranks.size(); ++of)
            RANK_CHECK((*said)[of] == word(of), "wrong data in call " + std::to_string(call) + " of rank " +
                                                    std::to_string(of) + ": " + std::to_string((*said)[of]));
    }
    return true;
}

/// A store, beside what else is in it, by which a rank does something at a key.
class WatchedStore final : public Rendezvous {
public:
    WatchedStore(std::shared_ptr<Rendezvous> store, std::function<void(const std::string& key)> at)
        : Rendezvous(store->rank(), store->size()), store_(std::move(store)), at_(std::move(at)) {}
    Status put(const std::string& key, const Bytes& value) override {
        at_(key);
        return store_->put("w." + key, value);
    }
    Result<Bytes> get(const std::string& key, Milliseconds timeout) override {
        return store_->get("w." + key, timeout);
    }
    Result<Bytes> put_first(const std::string& key, const Bytes& value) override {
        at_(key);
        return store_->put_first("w." + key, value);
    }

private:
    std::shared_ptr<Rendezvous> store_;
    std::function<void(const std::string&)> at_;
};

inline std::shared_ptr<Rendezvous> meet(const TemporaryDirectory& directory, int rank, int size,
                                        const std::string& run = "run") {
    auto made = FileRendezvous::create(directory.path(), rank, size, run);
    if (!made) return nullptr;
    return std::shared_ptr<Rendezvous>(std::move(made).value());
}

}  // namespace syncopate::runtime::testing
