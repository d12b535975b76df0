// How a chain's stages are launched, by each way.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>

#include "fake_cuda/fake_cuda.hpp"
#include "sync/chains.hpp"
#include "syncopate/sync/launch.hpp"

namespace syncopate::sync::test {
namespace {

std::unique_ptr<DeviceChain> make(const std::string& text, Launching launching = Launching::programmatic) {
    const auto context = runtime::CudaContext::retain(0);
    const Result<Chain> chain = chain_from_json(text, "chain.json");
    auto made = DeviceChain::make(*context, *chain, 1'000, launching);
    return made ? *std::move(made) : nullptr;
}

/// Both stages of `products`, by a handle; the launches as the driver saw them: "up 2x1x1 early".
Status call(DeviceChain& chain, Blocks blocks = {}, runtime::CudaStream stream = 0) {
    static std::string name = "kernel";
    for (std::size_t stage = 0; stage < 2; ++stage) {
        StageArguments arguments = chain.arguments(stage, blocks);
        std::array<void*, 1> parameters{&arguments};
        const Function function{&name, {128, 1, 1}};
        if (Status launched = chain.launch(stage, function, parameters, stream, blocks); !launched)
            return launched;
    }
    return Done{};
}

std::vector<std::string> launches(DeviceChain& chain, Blocks blocks = {}) {
    fake_cuda::take_launches();
    EXPECT_TRUE(call(chain, blocks).ok());
    return fake_cuda::take_launches();
}

using Lines = std::vector<std::string>;

TEST(DeviceChain, LaunchesTilesByTicketsBesideEachOther) {
    const auto chain = make(products(""));
    ASSERT_NE(chain, nullptr);
    EXPECT_TRUE(chain->overlaps());
    EXPECT_EQ(chain->way(), Way::tiles);
    EXPECT_EQ(launches(*chain), (Lines{"16x1x1", "8x1x1 early"}));
    EXPECT_EQ(launches(*chain, {.persistent = 6}), (Lines{"6x1x1", "6x1x1 early"}));
    EXPECT_EQ(launches(*chain, {.cluster = 4}),
              (Lines{"16x1x1 in clusters of 4", "8x1x1 early in clusters of 4"}));
}

TEST(DeviceChain, LaunchesTheKernelsOwnGridsInStreamOrder) {
    const auto chain = make(products(""));
    const StageArguments by_tiles = chain->arguments(1);
    chain->use(Way::stream);
    EXPECT_EQ(launches(*chain), (Lines{"8x2x1", "4x2x1"}));
    const StageArguments in_order = chain->arguments(1);
    EXPECT_EQ(in_order.ordered, 0U);
    EXPECT_EQ(in_order.awaits, 0U);
    EXPECT_EQ(by_tiles.awaits, 1U);
    EXPECT_NE(in_order.ticket, by_tiles.ticket);  // calls that post nothing do not count
    EXPECT_EQ(launches(*chain, {.persistent = 6}), (Lines{"6x1x1", "6x1x1"}));
    EXPECT_EQ(chain->arguments(1, {.persistent = 6}).ordered, 1U);
}

TEST(DeviceChain, KeepsTheOrderOfTilesWhereCallsOverlap) {
    const auto chain = make(products("", R"(, "guards": {"Y": "auto"})", R"(, "calls": "overlapped")"));
    ASSERT_NE(chain, nullptr);
    EXPECT_EQ(launches(*chain), (Lines{"16x1x1 early", "8x1x1 early"}));
    chain->use(Way::stream);
    EXPECT_EQ(launches(*chain), (Lines{"16x1x1", "8x1x1"}));  // an epoch for each call, as before
}

TEST(DeviceChain, ChoosesByMeasuringBothWaysAndLeavesNothing) {
    std::string left;
    {
        const auto chain = make(products(""), Launching::start_events);
        left = fake_cuda::left();
        int calls = 0;
        const auto times = chain->choose([&](runtime::CudaStream stream) {
            ++calls;
            return call(*chain, {}, stream);
        });
        ASSERT_TRUE(times.ok()) << times.error().to_string();
        EXPECT_EQ(times->tiles.size(), 9U);
        EXPECT_EQ(times->stream.size(), 9U);
        EXPECT_EQ(calls, 22);
        EXPECT_EQ(chain->way(), Way::stream);  // this driver takes one time for everything
        EXPECT_EQ(fake_cuda::left(), left);
    }
}

TEST(DeviceChain, KeepsItsWayWhereAMeasurementFails) {
    const auto chain = make(products(""));
    const std::string left = fake_cuda::left();
    for (std::size_t number = 1; number < 200; ++number) {
        fake_cuda::fail(fake_cuda::num_calls() + number);
        const auto times =
            chain->choose([&](runtime::CudaStream stream) { return call(*chain, {}, stream); });
        const std::string failed = fake_cuda::failed();
        fake_cuda::fail(0);
        EXPECT_EQ(fake_cuda::left(), left) << failed;
        if (failed.empty()) {
            ASSERT_TRUE(times.ok());
            break;
        }
        ASSERT_FALSE(times.ok()) << failed;
        EXPECT_NE(times.error().message.find(failed), std::string::npos);
        EXPECT_EQ(chain->way(), Way::tiles);
    }
}

TEST(DeviceChain, RefusesLaunchesThatMakeNoSense) {
    const auto chain = make(products(""));
    const auto message = [&](std::size_t stage, Blocks blocks) {
        StageArguments arguments = chain->arguments(stage, blocks);
        std::array<void*, 1> parameters{&arguments};
        const Status status = chain->launch(stage, Function{}, parameters, 0, blocks);
        return status ? std::string() : status.error().message;
    };
    EXPECT_EQ(message(2, {}), "there is no stage 2: the chain has 2");
    EXPECT_EQ(message(0, {.cluster = 3}),
              "stage up has 16 tiles and 16 blocks, no multiple of a cluster's 3 blocks");
    EXPECT_EQ(message(0, {.persistent = 6, .cluster = 4}),
              "stage up has 16 tiles and 6 blocks, no multiple of a cluster's 4 blocks");
    EXPECT_EQ(message(0, {.cluster = 0}), "stage up: a cluster has at least one block");
    EXPECT_FALSE(chain->input(2, "Y").ok());
    const auto free = make(products(R"(, "tickets": false)"));
    ASSERT_NE(free, nullptr);
    StageArguments arguments = free->arguments(1);
    std::array<void*, 1> parameters{&arguments};
    EXPECT_FALSE(free->launch(1, Function{}, parameters, 0, {.persistent = 4}).ok());
    EXPECT_FALSE(free->launch(1, Function{}, parameters, 0, {.cluster = 2}).ok());
}

}  // namespace
}  // namespace syncopate::sync::test
