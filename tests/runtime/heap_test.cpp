#include "syncopate/runtime/heap/heap.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "runtime/fork.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"
#include "syncopate/runtime/cuda/driver/launch.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::run_ranks;
using testing::TemporaryDirectory;

Result<std::shared_ptr<SymmetricHeap>> make_heap(const TemporaryDirectory& directory, int rank, int size,
                                                 std::uint64_t bytes, Device device = {},
                                                 Milliseconds timeout = Milliseconds{20'000}) {
    auto rendezvous = FileRendezvous::create(directory.path(), rank, size, "run", timeout);
    if (!rendezvous) return rendezvous.error();
    return SymmetricHeap::create(device, std::shared_ptr<Rendezvous>(std::move(rendezvous).value()), bytes,
                                 timeout);
}

class Heap : public ::testing::TestWithParam<int> {};

TEST_P(Heap, EveryRankReadsWhatEveryOtherWrote) {
    const TemporaryDirectory directory;
    const int size = GetParam();
    run_ranks(all_ranks(size), [&](int rank) {
        auto heap = make_heap(directory, rank, size, 100'000);
        RANK_CHECK(heap, heap.error().to_string());
        RANK_CHECK((*heap)->stride() >= 100'000 && (*heap)->stride() % 4096 == 0, "stride");
        const auto word = [&](int r, std::uint64_t i) {
            return reinterpret_cast<std::uint32_t*>((*heap)->address(r, 4 * i));
        };
        for (int r = 0; r < size; ++r) RANK_CHECK(*word(r, 24'999) == 0, "not zeroed");
        if (Status met = barrier((*heap)->rendezvous(), "zeros"); !met) return false;
        for (std::uint64_t i = 0; i < 25'000; ++i)
            *word(rank, i) = static_cast<std::uint32_t>(rank * 1'000'000) + static_cast<std::uint32_t>(i);
        if (Status met = barrier((*heap)->rendezvous(), "written"); !met) return false;
        for (int r = 0; r < size; ++r) {
            for (std::uint64_t i = 0; i < 25'000; ++i) {
                RANK_CHECK(*word(r, i) == static_cast<std::uint32_t>(r * 1'000'000) + i, "wrong word");
            }
        }
        return bool(barrier((*heap)->rendezvous(), "read"));
    });
}

INSTANTIATE_TEST_SUITE_P(OnHost, Heap, ::testing::Values(1, 2, 3, 5, 8));

TEST(SymmetricHeap, SeveralCoexist) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto rendezvous = FileRendezvous::create(directory.path(), rank, 2);
        RANK_CHECK(rendezvous, rendezvous.error().to_string());
        const std::shared_ptr<Rendezvous> shared = std::move(rendezvous).value();
        auto one = SymmetricHeap::create({}, shared, 4096);
        auto two = SymmetricHeap::create({}, shared, 8192);
        RANK_CHECK(one && two, "heaps");
        RANK_CHECK((*one)->base() != (*two)->base(), "bases");
        return true;
    });
}

TEST(SymmetricHeap, NamesTheSizesWhenRanksDisagree) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2, rank == 0 ? 4096 : 8192);
        RANK_CHECK(!heap, "made");
        RANK_CHECK(heap.error().message.find("4096 (host), 8192 (host)") != std::string::npos,
                   heap.error().message);
        return true;
    });
}

TEST(SymmetricHeap, TellsEveryRankThatOneHasTooLittleMemory) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        auto heap = make_heap(directory, rank, 2, rank == 0 ? 4096 : std::uint64_t{1} << 44);
        RANK_CHECK(!heap, "made");
        RANK_CHECK(heap.error().message.find("too little memory for a heap of 17592186044416 bytes") !=
                       std::string::npos,
                   heap.error().message);
        RANK_CHECK(heap.error().error_class == ErrorClass::machine, "class");
        if (rank == 0)
            RANK_CHECK(heap.error().to_string().starts_with("rank 1: failed"), heap.error().to_string());
        return true;
    });
}

TEST(SymmetricHeap, CountsTheHeapsOfAllRanksOnHost) {
    const TemporaryDirectory directory;
    const std::uint64_t half = memory_info(Device{})->free / 2;
    run_ranks(all_ranks(3), [&](int rank) {
        auto heap = make_heap(directory, rank, 3, half);
        RANK_CHECK(!heap, "made");
        RANK_CHECK(heap.error().message.find("too little memory for 3 heaps of") != std::string::npos,
                   heap.error().message);
        return true;
    });
}

TEST(SymmetricHeap, NamesTheRankThatNeverCame) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(3), [&](int rank) {
        auto rendezvous = FileRendezvous::create(directory.path(), rank, 3);
        RANK_CHECK(rendezvous, rendezvous.error().to_string());
        if (rank == 2) return true;
        auto heap = SymmetricHeap::create({}, std::shared_ptr<Rendezvous>(std::move(rendezvous).value()),
                                          4096, Milliseconds{1000});
        RANK_CHECK(!heap, "made");
        RANK_CHECK(heap.error().message.find("rank 2 of 3 did not come to 'heap'") != std::string::npos,
                   heap.error().message);
        return true;
    });
}

class OneRankHeap : public ::testing::Test {
protected:
    void SetUp() override {
        auto heap = make_heap(directory_, 0, 1, 64 * 1024);
        ASSERT_TRUE(heap) << heap.error().to_string();
        heap_ = *heap;
    }
    TemporaryDirectory directory_;
    std::shared_ptr<SymmetricHeap> heap_;
};

TEST_F(OneRankHeap, AllocatesTheLowestGapThatFits) {
    const auto a = heap_->allocate(1000);
    const auto b = heap_->allocate(1000);
    const auto c = heap_->allocate(1000);
    ASSERT_TRUE(a && b && c);
    EXPECT_EQ(*a, 0u);
    EXPECT_EQ(*b, 1024u);
    heap_->free(*b);
    EXPECT_EQ(*heap_->allocate(2000), 3072u);
    EXPECT_EQ(*heap_->allocate(900), 1024u);
    EXPECT_EQ(*heap_->allocate(1, 16384), 16384u);
}

TEST_F(OneRankHeap, SaysHowMuchRoomThereIs) {
    ASSERT_TRUE(heap_->allocate(40'000));
    const auto more = heap_->allocate(40'000);
    ASSERT_FALSE(more);
    EXPECT_NE(more.error().message.find(
                  "no room for 40000 bytes: 40000 of 65536 are in use, the largest gap has 25344"),
              std::string::npos)
        << more.error().message;
    EXPECT_FALSE(heap_->allocate(~std::uint64_t{0}));
    EXPECT_FALSE(heap_->allocate(8, 0));
    EXPECT_EQ(*heap_->allocate(8, 3), 40'002u) << "a multiple of any number of bytes";
}

// On a machine without a GPU everything of cuda fails as the machine's fault, with a way out, and nothing
// crashes.
TEST(Cuda, IsRefusedWithAReasonWhereThereIsNone) {
    if (cuda_device_count()) GTEST_SKIP() << "there is a GPU";
    const TemporaryDirectory directory;
    const Device cuda{Device::Kind::cuda, 0};
    const std::byte image[1] = {};
    const std::vector<Error> errors{
        cuda_device_count().error(),
        CudaContext::retain(0).error(),
        memory_info(cuda).error(),
        make_heap(directory, 0, 1, 4096, cuda).error(),
        make_tensor_map({.address = 4096, .shape = {64}, .strides = {1}, .block = {64}}).error(),
    };
    for (const Error& error : errors) {
        EXPECT_EQ(error.error_class, ErrorClass::machine) << error.message;
        EXPECT_NE(error.message.find("NVIDIA driver"), std::string::npos) << error.message;
    }
    EXPECT_FALSE(CudaKernel::load(nullptr, image, "kernel", {}));
}

}  // namespace
}  // namespace syncopate::runtime
