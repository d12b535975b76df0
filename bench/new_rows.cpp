// How long a bundle's program takes to be made for rows that it never saw: the passes and the tables, in a process
// that calls; and how long a bundle takes to be read.
//
//   cmake --preset release -DSYNCOPATE_BENCHMARKS=ON && cmake --build build --target bench_new_rows
//   build/bin/bench_new_rows [--benchmark_out=FILE.json]
//
// "tiles" is how many the schedule has, "us_per_100" what 100 of them take.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "syncopate/bundle/bundle.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/machine/machine.hpp"

namespace {

using namespace syncopate;

/// An operator as it is chosen for two H200, of a bucket of so many rows. Its kernels are left out: only lower() is
/// asked.
bundle::OperatorPart chosen(const std::string& spec, std::int64_t rows) {
    ops::Problem problem = *ops::parse_problem(spec + ",M=" + std::to_string(rows), 2);
    const tune::Machine machine = *tune::find_machine("h200x2");
    problem.num_sms = machine.num_sms;
    bundle::OperatorPart made{.problem = problem};
    made.buckets.push_back(
        {.rows = rows, .strategy = tune::choose(problem, machine, nullptr, {.unfused = false}).strategy});
    return made;
}

void new_rows(benchmark::State& state, const std::string& spec, std::int64_t rows) {
    const bundle::OperatorPart part = chosen(spec, rows);
    std::int64_t tiles = 0;
    std::int64_t asked = rows;
    for (auto _ : state) {
        asked = asked == rows ? rows / 2 : rows;  // another than the last one
        const Result<bundle::Lowered> made =
            bundle::lower(part, part.buckets.front(), asked, fuse::Device::cuda);
        if (!made) return state.SkipWithError(made.error().to_string().c_str());
        tiles = made->launch.schedule.num_slots();
    }
    state.counters["tiles"] = static_cast<double>(tiles);
    state.counters["us_per_100"] =
        benchmark::Counter(static_cast<double>(tiles) * 1e-8,
                           benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(new_rows, gather_112_tiles, "all_gather_matmul:N=3584,K=8192", 128)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(new_rows, scatter_128_tiles, "matmul_reduce_scatter:N=8192,K=3584", 512)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(new_rows, reduce_128_tiles, "matmul_all_reduce:N=8192,K=3584", 64)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(new_rows, gather_10000_tiles, "all_gather_matmul:N=20480,K=8192", 16384)
    ->Unit(benchmark::kMicrosecond);

/// A file of three buckets and so many bytes of code, as it is opened: read, checked, its manifest understood. Bar: 50 ms.
void load(benchmark::State& state) {
    bundle::Bundle made{.name = "a program", .made_by = "bench", .arch = std::string(bundle::kHost)};
    made.op = chosen("all_gather_matmul:N=3584,K=8192", 4096);
    for (const std::int64_t rows : {1024, 256})
        made.op->buckets.insert(made.op->buckets.begin(),
                                chosen("all_gather_matmul:N=3584,K=8192", rows).buckets.front());
    made.sections["source/code"] = std::string(static_cast<std::size_t>(state.range(0)), 'x');
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / fmt::format("bench_new_rows_{}.sybundle", getpid());
    if (const Status written = bundle::write_bundle(made, file); !written)
        return state.SkipWithError(written.error().to_string().c_str());
    for (auto _ : state) {
        if (!bundle::read_bundle(file)) state.SkipWithError("it is not read again");
    }
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * state.range(0));
    std::filesystem::remove(file);
}
BENCHMARK(load)->Arg(1 << 20)->Arg(16 << 20)->Unit(benchmark::kMillisecond);

}  // namespace
