// An operator of the library from C++: its program, which is a plan with the library's kernels around it, fused,
// and what each of rank 0's first tiles waits for:
//
//     build/bin/example_operator all_gather_matmul:M=1024,N=512,K=512,ranks=4
//
// No GPU is needed: tiles are those that the strategy chosen for a machine has. Exit 1: the SPEC is wrong.
#include <algorithm>
#include <cstddef>
#include <iostream>
#include <string>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/machine/machine.hpp"

namespace {

using namespace syncopate;

constexpr std::size_t kShown = 8;  // tiles of each stage

void describe(const fuse::Schedule& schedule) {
    const fuse::RankSchedule& rank = schedule.ranks.front();
    for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
        const auto slots = schedule.slots_of(rank, stage);
        for (std::size_t slot = 0; slot < std::min(kShown, slots.size()); ++slot) {
            std::cout << "stage " << stage << ", tile " << slots[slot].tile << ": ";
            std::string after;
            const auto add = [&](const std::vector<fuse::Wait>& waits) {
                for (const fuse::Wait& wait : waits) {
                    const fuse::SignalMeaning& signal = rank.signals[static_cast<std::size_t>(wait.signal)];
                    after += (after.empty() ? "after op " : ", ") + std::to_string(signal.op.index) +
                             " of rank " + std::to_string(signal.op.rank);
                }
            };
            add(slots[slot].waits);
            for (const fuse::Phase& phase : slots[slot].phases) add(phase.waits);
            std::cout << (after.empty() ? "at once" : after) << '\n';
        }
    }
}

Status run(const std::string& spec) {
    const Result<ops::Problem> problem = ops::parse_problem(spec, 4);
    if (!problem) return problem.error();
    const Result<tune::Machine> machine = tune::find_machine("h200x4");
    if (!machine) return machine.error();
    const ops::Strategy strategy = tune::complete(*problem, *machine, {});
    std::cout << ops::name_of(strategy) << '\n';
    const Result<fuse::StagedProgram> program = ops::program(*problem, strategy);
    if (!program) return program.error();
    const Result<fuse::Schedule> schedule =
        fuse::fuse(*program, ops::fuse_options(strategy, fuse::Device::cuda));
    if (!schedule) return schedule.error();
    describe(*schedule);
    return Done{};
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: example_operator SPEC\n";
        return 2;
    }
    const Status done = run(argv[1]);
    if (!done) std::cerr << "error: " << done.error().to_string() << '\n';
    return done ? 0 : 1;
}
