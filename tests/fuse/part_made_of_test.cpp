// Of what a node's part of a schedule was made: whatever nodes must have alike tells them apart by it.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fuse/passes/part.hpp"
#include "fuse/sample.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"
#include "syncopate/plan/topology/topology.hpp"

namespace syncopate::fuse {
namespace {

/// B's rows, over which tiles loop, come from all ranks; C is summed over them.
StagedProgram gathering() {
    const plan::Mesh mesh{{{"node", 2}, {"gpu", 2}}, "node"};
    const plan::Tensor c{"C", {48, 8}, plan::DType::bf16};
    StagedProgram program{{{sample::gemm({48, 8, 8, 4, 4, 4, 3}), {{"b_ptr", "B"}, {"c_ptr", "C"}}}},
                          plan::push_reduce(mesh, c, {.split = 2}).value()};
    program.plan.tensors.push_back({"B", {8, 8}, plan::DType::bf16});
    const auto b = static_cast<std::int32_t>(program.plan.tensors.size()) - 1;
    for (std::int32_t rank = 0; rank < 4; ++rank)
        program.plan.initial.push_back({rank, {b, program.plan.tensors.back().whole()}});
    return program;
}

class MadeOf : public ::testing::Test {
protected:
    [[nodiscard]] std::string of(const StagedProgram& program, const Options& options = {}) const {
        return part_of(program, options, decisions_).made_of;
    }

    StagedProgram program_ = gathering();
    Decisions decisions_ = decide(program_, {}, Scope::node_of(program_.plan.mesh, 3)).value();
};

TEST_F(MadeOf, TellsProgramsApartByEachThingThatPassesLookAt) {
    using Change = std::function<void(StagedProgram&)>;
    const auto kernel = [](const std::function<void(kernel::Kernel&)>& change) -> Change {
        return [change](StagedProgram& program) { change(program.stages[0].kernel); };
    };
    const auto tile = [&](const std::function<void(kernel::Tile&)>& change) {
        return kernel([change](kernel::Kernel& k) { change(k.tiles[1]); });
    };
    const auto plan = [](const std::function<void(plan::Plan&)>& change) -> Change {
        return [change](StagedProgram& program) { change(program.plan); };
    };
    const auto op = [&](const std::function<void(plan::Op&)>& change) {
        return plan([change](plan::Plan& p) { change(p.ranks[2].back()); });
    };
    const plan::Region box{{0, 3}, {0, 5}};
    const std::map<std::string, Change> changes{
        {"name", kernel([](auto& k) { k.name += "x"; })},
        {"grid", kernel([](auto& k) { k.grid[1] += 1; })},
        {"num_sms", kernel([](auto& k) { k.arguments.num_sms += 1; })},
        {"persistent", kernel([](auto& k) { k.persistent = !k.persistent; })},
        {"programs_per_tile", kernel([](auto& k) { k.programs_per_tile += 1; })},
        {"traversal", kernel([](auto& k) { k.traversal = {1, 0}; })},
        {"tiles_differ", kernel([](auto& k) { k.tiles_differ = !k.tiles_differ; })},
        {"sums", kernel([](auto& k) { k.sums = !k.sums; })},
        {"head_start", kernel([](auto& k) { k.head_start = !k.head_start; })},
        {"operations", kernel([](auto& k) { k.operations += 1; })},
        {"most_slots", kernel([](auto& k) { k.most_slots += 1; })},
        {"a tile more", kernel([](auto& k) { k.tiles.push_back(k.tiles.back()); })},
        {"axis count", kernel([](auto& k) { k.axes[0].count += 1; })},
        {"axis block", kernel([](auto& k) { k.axes[0].block += 1; })},
        {"loop", kernel([](auto& k) { k.loops.push_back({.variable = "j", .trips = 2}); })},
        {"loop trips", kernel([](auto& k) { k.loops[0].trips += 1; })},
        {"loop divisible", kernel([](auto& k) { k.loops[0].divisible = !k.loops[0].divisible; })},
        {"loop any_order", kernel([](auto& k) { k.loops[0].any_order = !k.loops[0].any_order; })},
        {"loop slice", kernel([](auto& k) { k.loops[0].slices.push_back({"c_ptr", 1, 0, 4, 4}); })},
        {"param kind", kernel([](auto& k) {
             for (kernel::Param& param : k.params) {
                 if (param.name == "c_ptr") param.kind = kernel::ParamKind::descriptor;
             }
         })},
        {"param read", kernel([](auto& k) {
             for (kernel::Param& param : k.params) {
                 if (param.name == "c_ptr") param.read = !param.read;
             }
         })},
        {"param sent", kernel([](auto& k) {
             for (kernel::Param& param : k.params) {
                 if (param.name == "c_ptr") param.sent = !param.sent;
             }
         })},
        {"access", kernel([](auto& k) { k.accesses.push_back({.param = "c_ptr", .rows = 16}); })},
        {"access fixed", kernel([](auto& k) { k.accesses.push_back({.param = "c_ptr", .fixed = "why"}); })},
        {"tile program", tile([](auto& t) { t.program += 1; })},
        {"tile reads", tile([&](auto& t) { t.reads["c_ptr"] = box; })},
        {"tile writes", tile([&](auto& t) { t.writes["c_ptr"] = box; })},
        {"tile read_boxes", tile([&](auto& t) { t.read_boxes["c_ptr"] = kernel::SharedBoxes({box}); })},
        {"tile write_boxes", tile([&](auto& t) { t.write_boxes["c_ptr"] = kernel::SharedBoxes({box}); })},
        {"tile inexact_reads", tile([](auto& t) { t.inexact_reads.insert("c_ptr"); })},
        {"tile inexact_writes", tile([](auto& t) { t.inexact_writes.insert("c_ptr"); })},
        {"tile loop_reads", tile([](auto& t) {
             t.loop_reads["c_ptr"] = std::make_shared<const std::vector<kernel::LoopRead>>(1);
         })},
        {"tile trips",
         tile([](auto& t) { t.trips = std::make_shared<const std::vector<std::int64_t>>(1, 7); })},
        {"binding", [](StagedProgram& program) { program.stages[0].bindings["a_ptr"] = "C"; }},
        {"stage", [](StagedProgram& program) { program.stages.push_back(program.stages[0]); }},
        {"mesh axis", plan([](auto& p) { p.mesh.axes[1].name = "place"; })},
        {"mesh size", plan([](auto& p) { p.mesh.axes[1].size = 4; })},
        {"mesh nodes", plan([](auto& p) { p.mesh.nodes = ""; })},
        {"tensor name", plan([](auto& p) { p.tensors[0].name = "D"; })},
        {"tensor dtype", plan([](auto& p) { p.tensors[0].dtype = plan::DType::fp16; })},
        {"tensor shape", plan([](auto& p) { p.tensors[0].shape[0] += 1; })},
        {"tensor ragged", plan([](auto& p) { p.tensors[0].ragged = plan::Ragged{0, {"g"}, 8, 4}; })},
        {"tensor ragged rows", plan([](auto& p) { p.tensors[0].ragged = plan::Ragged{0, {"g"}, 9, 4}; })},
        {"tensor ragged bound", plan([](auto& p) { p.tensors[0].ragged = plan::Ragged{0, {"g"}, 8, 5}; })},
        {"tensor ragged group", plan([](auto& p) { p.tensors[0].ragged = plan::Ragged{0, {"h"}, 8, 4}; })},
        {"produced", plan([](auto& p) { p.produced.back().rank = 0; })},
        {"initial", plan([](auto& p) { p.initial.push_back(p.produced.back()); })},
        {"final of", plan([](auto& p) { p.final.back().of.push_back(1); })},
        {"final of all", plan([](auto& p) { p.final.back().of_all = !p.final.back().of_all; })},
        {"partial", plan([](auto& p) { p.produced.back().partial = !p.produced.back().partial; })},
        {"op kind", op([](auto& o) { o.kind = plan::OpKind::pull; })},
        {"op peer", op([](auto& o) { o.peer += 1; })},
        {"op src", op([](auto& o) { o.src.region[0].begin -= 1; })},
        {"op dst", op([](auto& o) { o.dst.tensor += 1; })},
        {"op after", op([](auto& o) { o.after.push_back({1, 0}); })},
        {"op reduce", op([](auto& o) { o.reduce = plan::Reduce::max; })},
        {"op backend", op([](auto& o) { o.backend = plan::Backend::copy_engine; })},
        {"op channel", op([](auto& o) { o.channel = std::string("c"); })},
        {"op collective", op([](auto& o) { o.collective = plan::CollectiveKind::broadcast; })},
        {"op ranks", op([](auto& o) { o.ranks = std::vector{3}; })},
        {"an op of another rank", plan([](auto& p) {
             p.ranks[3].push_back(p.ranks[2].back());
             p.ranks[2].pop_back();
         })},
    };
    std::map<std::string, std::string> known{{of(program_), "nothing"}};
    EXPECT_EQ(of(gathering()), known.begin()->first);
    for (const auto& [name, change] : changes) {
        StagedProgram changed = program_;
        change(changed);
        const auto [found, is_new] = known.emplace(of(changed), name);
        EXPECT_TRUE(is_new) << name << " is taken for " << found->second;
    }
}

TEST_F(MadeOf, TellsOptionsApart) {
    using Change = std::function<void(Options&)>;
    const std::vector<Change> changes{
        [](Options& o) { o.device = Device::cuda; },
        [](Options& o) { o.num_programs = 0; },
        [](Options& o) { o.preferred = plan::Backend::copy_engine; },
        [](Options& o) { o.engine_blocks += 1; },
        [](Options& o) { o.kernel_sums = true; },
        [](Options& o) { o.together = true; },
        [](Options& o) { o.topology = plan::ring_topology(4); },
        [](Options& o) { o.costs.copy_stream_gbps += 1; },
        [](Options& o) { o.costs.sm_tflops += 1; },
        [](Options& o) { o.costs.tile_us += 1; },
        [](Options& o) { o.costs.two_streams_mib += 1; },
        [](Options& o) { o.costs.summed_store_mib += 1; },
        [](Options& o) { o.costs.last_store_mib += 1; },
        [](Options& o) { o.costs.part_rounds += 1; },
    };
    std::set<std::string> known{of(program_)};
    for (const Change& change : changes) {
        Options options;
        change(options);
        EXPECT_TRUE(known.insert(of(program_, options)).second) << &change - changes.data();
    }
}

/// Ranks may give elements of integer tensors of their own, by which tiles touch what no plan moves.
TEST_F(MadeOf, SaysNothingOfWhatNoPlanMoves) {
    StagedProgram changed = program_;
    changed.stages[0].kernel.tiles[1].reads["a_ptr"] = {{0, 3}, {0, 5}};
    changed.stages[0].kernel.tiles[1].read_boxes["a_ptr"] =
        kernel::SharedBoxes(std::vector<plan::Region>{{{0, 3}, {0, 5}}});
    EXPECT_EQ(of(changed), of(program_));
}

}  // namespace
}  // namespace syncopate::fuse
