// What is chosen for a GPU is what the compiler takes: operators over rows, ranks and hidden sizes.
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include <fmt/format.h>

#include "syncopate/ops/program.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/machine/machine.hpp"

namespace syncopate::tune {
namespace {

struct Sizes {
    std::int64_t hidden;
    std::int64_t f;  ///< of eight ranks
};
constexpr std::array kSizes{Sizes{4096, 14336}, Sizes{5120, 13824}, Sizes{16384, 53248}};

void expect_fused(const std::string& spec, const Machine& machine, int& fused) {
    const Result<Problem> problem = parse_problem(spec);
    if (!problem) return;  // rows that an exchange cannot divide
    const Strategy chosen = choose(*problem, machine).strategy;
    if (chosen.placement != Placement::fused) return;
    const Result<fuse::StagedProgram> program = ops::program(*problem, chosen);
    ASSERT_TRUE(program) << spec << ", " << name_of(chosen) << ": " << program.error().to_string();
    const Result<fuse::Schedule> schedule =
        fuse::fuse(*program, ops::fuse_options(chosen, fuse::Device::cuda));
    EXPECT_TRUE(schedule) << spec << ", " << name_of(chosen) << ": " << schedule.error().to_string();
    ++fused;
}

TEST(Defaults, OfAllOperatorsFuse) {
    int fused = 0;
    for (const auto& [ranks, name] :
         {std::pair{2, "h100x2"}, std::pair{4, "h100x4"}, std::pair{8, "h200x8"}}) {
        const Result<Machine> machine = find_machine(name);
        ASSERT_TRUE(machine);
        for (const OperatorRow& row : operators()) {
            if (row.kind == OperatorRow::Kind::block || row.kind == OperatorRow::Kind::other) continue;
            const bool before =
                row.kind == OperatorRow::Kind::gathers || row.kind == OperatorRow::Kind::exchanges;
            for (const auto& [hidden, f] : kSizes) {
                for (const int m : {16, 48, 64, 128, 192, 256, 512, 1000, 2048}) {
                    expect_fused(fmt::format("{}:M={},N={},K={},ranks={},sms=132", row.name, m,
                                             before ? f / 8 : hidden, before ? hidden : f / 8, ranks),
                                 *machine, fused);
                }
            }
        }
    }
    EXPECT_GT(fused, 250);
}

}  // namespace
}  // namespace syncopate::tune
