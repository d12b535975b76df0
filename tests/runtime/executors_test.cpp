#include "syncopate/runtime/call/executors.hpp"

#include <gtest/gtest.h>

#include <set>

#include "syncopate/fuse/model/backend.hpp"

namespace syncopate::runtime {
namespace {

TEST(Executors, EveryBackendOfAPlanHasOneRow) {
    std::set<plan::Backend> backends;
    for (const ExecutorRow& row : kExecutors) backends.insert(row.backend);
    EXPECT_EQ(backends.size(), kExecutors.size());
    EXPECT_FALSE(backends.contains(plan::Backend::automatic)) << "it stands for a choice that is still open";
    EXPECT_EQ(backends.size() + 1, plan::kNumBackends);
}

/// The other half of a backend's row is fuse's (fuse/model/backend.hpp).
TEST(Executors, CarryOutWhatFusePlacesOnTheirLanes) {
    using fuse::LaneKind;
    for (const ExecutorRow& row : kExecutors) {
        const LaneKind lane = fuse::traits_of(row.backend).lane;
        EXPECT_EQ(row.executor == Executor::streams, lane == LaneKind::copies);
        EXPECT_EQ(row.executor == Executor::library, lane == LaneKind::library);
        EXPECT_EQ(row.executor == Executor::engine, lane == LaneKind::engine);
        EXPECT_EQ(row.executor == Executor::kernel, lane == LaneKind::inlined);
        EXPECT_EQ(row.executor == Executor::cpu, lane == LaneKind::host);
    }
}

TEST(Executors, TheEngineMovesInBulkWhatTheTmaBackendMoves) {
    EXPECT_EQ(row_of(plan::Backend::tma_dedicated).method, device::EngineMethod::bulk);
    EXPECT_EQ(row_of(plan::Backend::ldst_dedicated).method, device::EngineMethod::ldst);
    EXPECT_TRUE(is_by_engine({.backend = plan::Backend::tma_dedicated}));
    EXPECT_FALSE(is_by_engine({.backend = plan::Backend::copy_engine}));
}

}  // namespace
}  // namespace syncopate::runtime
