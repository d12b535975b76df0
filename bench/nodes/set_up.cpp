// What it takes a rank to set up an operator over many ranks: CPU seconds of making its plan, its node's part of the
// schedule and its kernels' text, and the most memory.
//
//   cmake --preset release -DSYNCOPATE_BENCHMARKS=ON && cmake --build build --target bench_nodes_set_up
//   build/bin/bench_nodes_set_up all_gather_matmul:M=8192,N=3584,K=8192,ranks=1024,nodes=128
//
// One line of CSV: operator, ranks, seconds, gb, and of these seconds those of the plan. The strategy is the default one.
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "syncopate/emit/artifact.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/tune/choose.hpp"

namespace {

using namespace syncopate;

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Not getrusage's: that begins with what the process had that started this one.
double most_gb() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1e6;
    }
    return 0;
}

int fail(const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.to_string().c_str());
    return 1;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench_nodes_set_up SPEC\n");
        return 2;
    }
    const auto problem = tune::parse_problem(argv[1], 8, 132);
    if (!problem) return fail(problem.error());
    const auto machine = tune::find_machine("h200x8");
    if (!machine) return fail(machine.error());
    const tune::Strategy strategy = tune::complete(*problem, *machine, {});
    const double begin = cpu_seconds();
    const auto program = ops::program(*problem, strategy);
    if (!program) return fail(program.error());
    const double planned = cpu_seconds();
    const auto artifact =
        emit::make_artifact(*program, ops::fuse_options(strategy, fuse::Device::cuda), problem->ranks - 1);
    if (!artifact) return fail(artifact.error());
    std::printf("%s,%d,%.1f,%.2f,%.1f\n", problem->op.c_str(), problem->ranks, cpu_seconds() - begin,
                most_gb(), planned - begin);
    return 0;
}
