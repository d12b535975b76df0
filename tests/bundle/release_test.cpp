// Giving a group's memory back at the wrong moment, or by some ranks alone.
#include "syncopate/runtime/heap/group_memory.hpp"

#include <barrier>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bundle/samples.hpp"
#include "syncopate/bundle/loaded.hpp"

namespace syncopate::bundle {
namespace {

using runtime::release;
using runtime::restore;
using testing::on_ranks;
using testing::sample;
using testing::Store;

constexpr std::int64_t kRows = 16, kN = 48, kK = 32;

/// A rank with two programs, whose heaps are made one after the other.
struct Rank {
    Rank(Store& store, int rank, int size) : rendezvous(store.rendezvous(rank, size)) {
        const std::string spec = "matmul_all_reduce:N=48,K=32,dtype=fp32,sms=4,ranks=" + std::to_string(size);
        auto opened = Loaded::open(std::make_shared<const Bundle>(sample(spec)), {}, rendezvous);
        EXPECT_TRUE(opened.ok()) << opened.error().to_string();
        loaded = *std::move(opened);
        for (auto& program : programs) {
            auto made = loaded->prepare(kRows);
            EXPECT_TRUE(made.ok()) << made.error().to_string();
            program = *std::move(made);
        }
    }
    ~Rank() {
        for (auto& program : programs) EXPECT_TRUE(program->destroy());
    }
    Rank(const Rank&) = delete;
    Rank& operator=(const Rank&) = delete;

    /// Of x and w of ones: K for each rank.
    void call(int program) {
        const std::vector<std::vector<std::int64_t>> shapes{{kRows, kK}, {kK, kN}, {kRows, kN}};
        const std::vector<std::vector<std::int64_t>> strides{{kK, 1}, {kN, 1}, {kN, 1}};
        std::vector<float> x(kRows * kK, 1), w(kK * kN, 1), y(kRows * kN, 0);
        std::vector<runtime::CallTensor> tensors;
        for (std::vector<float>* const one : {&x, &w, &y}) {
            const std::size_t i = tensors.size();
            tensors.push_back({reinterpret_cast<std::uint64_t>(one->data()), shapes[i], strides[i]});
        }
        const Status ran = programs[program]->run(tensors, 0);
        ASSERT_TRUE(ran.ok()) << ran.error().to_string();
        EXPECT_EQ(y, std::vector<float>(kRows * kN, static_cast<float>(kK * rendezvous->size())));
    }

    std::shared_ptr<runtime::Rendezvous> rendezvous;
    std::unique_ptr<Loaded> loaded;
    std::unique_ptr<Prepared> programs[2];
};

TEST(Release, InTheMiddleOfACallIsRefusedOnAllRanksAndNothingIsReleased) {
    for (const int busy : {0, 1}) {  // of which program; the first one's heap goes first
        Store store;
        on_ranks(2, [&](int number) {
            Rank rank(store, number, 2);
            rank.call(busy);
            runtime::FusedOp& op = rank.programs[busy]->op();
            ASSERT_TRUE(op.begin_call());
            const auto released = release(*rank.rendezvous);
            ASSERT_FALSE(released.ok());
            EXPECT_NE(released.error().to_string().find("is in the middle of a call"), std::string::npos)
                << released.error().to_string();
            EXPECT_EQ(rank.rendezvous->memory().bytes_released(), 0U);
            rank.call(1 - busy);
            EXPECT_FALSE(op.end_call(0, false)) << "its kernel has not run";
            ASSERT_TRUE(op.reset());
            ASSERT_TRUE(release(*rank.rendezvous));
            ASSERT_TRUE(restore(*rank.rendezvous));
            for (const int program : {0, 1}) rank.call(program);
        });
    }
}

TEST(Release, RestoredBySomeRanksAloneFailsByNameAndCanBeDoneLater) {
    Store store;
    std::barrier alone(2);
    on_ranks(2, [&](int number) {
        Rank rank(store, number, 2);
        rank.call(0);
        const auto released = release(*rank.rendezvous);
        ASSERT_TRUE(released.ok());
        const auto again = release(*rank.rendezvous);
        ASSERT_TRUE(again.ok());
        EXPECT_EQ(*again, 0U) << "all is released";
        if (number == 0) {
            rank.rendezvous->set_timeout(runtime::Milliseconds(50));
            const auto restored = restore(*rank.rendezvous);
            ASSERT_FALSE(restored.ok());
            EXPECT_NE(restored.error().to_string().find("rank 1"), std::string::npos)
                << restored.error().to_string();
            rank.rendezvous->set_timeout(runtime::kRendezvousTimeout);
        }
        alone.arrive_and_wait();
        EXPECT_GT(rank.rendezvous->memory().bytes_released(), 0U);
        const auto restored = restore(*rank.rendezvous);
        ASSERT_TRUE(restored.ok()) << restored.error().to_string();
        EXPECT_EQ(*restored, *released);
        for (const int program : {0, 1}) rank.call(program);
    });
}

TEST(Release, NothingIsPreparedWhileItIsAwayAndABudgetCountsIt) {
    Store store;
    on_ranks(2, [&](int number) {
        Rank rank(store, number, 2);
        runtime::GroupMemory& memory = rank.rendezvous->memory();
        const std::uint64_t bytes = memory.bytes();
        ASSERT_TRUE(release(*rank.rendezvous));
        EXPECT_EQ(memory.bytes(), bytes) << "it is to come back";
        EXPECT_EQ(memory.bytes_released(), bytes);
        const auto refused = rank.loaded->prepare(kRows);
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.error().to_string().find("released: restore it first"), std::string::npos)
            << refused.error().to_string();
        ASSERT_TRUE(restore(*rank.rendezvous));
        memory.set_budget(bytes);
        EXPECT_FALSE(rank.loaded->prepare(kRows).ok()) << "there is no room for a third";
        for (const int program : {0, 1}) rank.call(program);
    });
}

}  // namespace
}  // namespace syncopate::bundle
