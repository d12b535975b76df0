// How long kernel::triton::analyse takes as the number of tiles grows: the kernels of examples/, and forms
// that corpora have many of (attention, normalisation, split-K, one axis, transposed and batched operands).
//
//   cmake --preset release -DSYNCOPATE_BENCHMARKS=ON && cmake --build build --target bench_kernel_analyse
//   build/bin/bench_kernel_analyse --benchmark_out=FILE.json [--benchmark_filter=/10000]
//
// corpus/NAME: every launch in the file that SYNCOPATE_LAUNCHES names, which bench/kernel_analyse_corpus.py
// writes for the kernels of tests/corpus.
//
// The argument of each is the number of tiles asked for; "tiles" what it came to, "us/tile" the time of one.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernel/launches.hpp"
#include "syncopate/io.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/kernel/triton/analyse/analyse.hpp"

namespace {

using namespace syncopate;
using kernel::Arguments;

Arguments arguments(const std::string& scalars, std::initializer_list<std::string> tensors) {
    Arguments made;
    made.scalars = *kernel::parse_scalars(scalars);
    for (const std::string& tensor : tensors) made.tensors.insert(*kernel::parse_tensor(tensor));
    return made;
}

std::string text(std::int64_t number) { return std::to_string(number); }

/// Rows and columns of tiles: about as many as asked for, no multiple of a power of two.
std::pair<std::int64_t, std::int64_t> rows_and_columns(std::int64_t tiles) {
    const auto rows = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(tiles))));
    return {rows, (tiles + rows - 1) / rows};
}

Arguments matmul(std::int64_t tiles, const char* form) {
    const auto [rows, columns] = rows_and_columns(tiles);
    const std::string m = text(rows * 128 - 5), n = text(columns * 128 - 3), k = "4096";
    const std::string blocks =
        "M=" + m + ",N=" + n + ",K=" + k + ",BLOCK_M=128,BLOCK_N=128,BLOCK_K=64,GROUP_M=8";
    if (std::string(form) == "pointers") {
        return arguments(blocks + ",stride_am=" + k + ",stride_ak=1,stride_bk=" + n +
                             ",stride_bn=1,stride_cm=" + n + ",stride_cn=1",
                         {"a_ptr=" + m + "x" + k + ":bf16", "b_ptr=" + k + "x" + n + ":bf16",
                          "c_ptr=" + m + "x" + n + ":bf16"});
    }
    const bool host = std::string(form) == "host";
    const std::string end = host ? "_desc=" : "_ptr=";
    return arguments(blocks + ",NUM_SMS=132", {"a" + end + m + "x" + k + ":bf16" + (host ? "@128x64" : ""),
                                               "b" + end + n + "x" + k + ":bf16" + (host ? "@128x64" : ""),
                                               "c" + end + m + "x" + n + ":bf16" + (host ? "@128x128" : "")});
}

const std::string kStart = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n";

const std::string kAttention =
    kStart +
    R"(def inner(acc, q, k_desc, v_desc, offset, start, n, BM: tl.constexpr, BN: tl.constexpr, STAGE: tl.constexpr):
    if STAGE == 1:
        lo, hi = 0, start * BM
    else:
        lo, hi = start * BM, (start + 1) * BM
    row = offset + lo
    for j in tl.range(lo, hi, BN):
        k = k_desc.load([row, 0])
        p = tl.dot(q, k.T)
        if STAGE == 2:
            p = tl.where(start * BM + tl.arange(0, BM)[:, None] >= j + tl.arange(0, BN)[None, :], p, -1.0e6)
        acc = tl.dot(p, v_desc.load([row, 0]), acc)
        row += BN
    return acc


@triton.jit
def attention(q_desc, k_desc, v_desc, o_desc, n, H, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    start = tl.program_id(0)
    head = tl.program_id(1)
    batch = head // H
    offset = batch * (n * H) + (head % H) * n
    row = offset + start * BM
    q = q_desc.load([row, 0])
    acc = tl.zeros([BM, D], dtype=tl.float32)
    acc = inner(acc, q, k_desc, v_desc, offset, start, n, BM, BN, 1)
    acc = inner(acc, q, k_desc, v_desc, offset, start, n, BM, BN, 2)
    o_desc.store([row, 0], acc.to(tl.bfloat16))
)";

Arguments attention(std::int64_t tiles) {
    const std::int64_t blocks = 32, heads = (tiles + blocks - 1) / blocks;
    const std::string rows = text(heads * blocks * 128);
    Arguments made =
        arguments("n=" + text(blocks * 128) + ",H=8,BM=128,BN=64,D=128",
                  {"q_desc=" + rows + "x128:bf16@128x128", "k_desc=" + rows + "x128:bf16@64x128",
                   "v_desc=" + rows + "x128:bf16@64x128", "o_desc=" + rows + "x128:bf16@128x128"});
    made.grid = {blocks, heads, 1};
    return made;
}

const std::string kSoftmax = kStart + R"(def softmax(x_ptr, y_ptr, rows, columns, stride, B: tl.constexpr):
    first = tl.program_id(0)
    step = tl.num_programs(0)
    for row in tl.range(first, rows, step):
        at = tl.arange(0, B)
        x = tl.load(x_ptr + row * stride + at, mask=at < columns, other=-float("inf"))
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * stride + at, e / tl.sum(e, axis=0), mask=at < columns)
)";

Arguments softmax(std::int64_t tiles) {
    const std::string shape = text(tiles) + "x1000:fp32";
    Arguments made = arguments("rows=" + text(tiles) + ",columns=1000,stride=1000,B=1024",
                               {"x_ptr=" + shape, "y_ptr=" + shape});
    made.grid = {132, 1, 1};
    return made;
}

const std::string kAdd = kStart + R"(def add(x_ptr, y_ptr, z_ptr, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    mask = at < n
    tl.store(z_ptr + at, tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask), mask=mask)
)";

Arguments add(std::int64_t tiles) {
    const std::string n = text(tiles * 1024 - 7);
    return arguments("n=" + n + ",B=1024",
                     {"x_ptr=" + n + ":fp32", "y_ptr=" + n + ":fp32", "z_ptr=" + n + ":fp32"});
}

const std::string kSplitK =
    kStart +
    R"(def split_k(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, S: tl.constexpr):
    pid = tl.program_id(0)
    part = tl.program_id(1)
    columns = tl.cdiv(N, BN)
    rm = (pid // columns) * BM + tl.arange(0, BM)
    rn = (pid % columns) * BN + tl.arange(0, BN)
    rk = part * BK + tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK * S)):
        left = K - k * (BK * S)
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < left), other=0.0)
        b = tl.load(b_ptr + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < left) & (rn[None, :] < N), other=0.0)
        acc += tl.dot(a, b)
        rk += BK * S
    tl.atomic_add(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))
)";

Arguments split_k(std::int64_t tiles) {
    const auto [rows, columns] = rows_and_columns((tiles + 3) / 4);
    const std::string m = text(rows * 64 - 3), n = text(columns * 64 - 1), k = "4096";
    Arguments made = arguments("M=" + m + ",N=" + n + ",K=" + k + ",BM=64,BN=64,BK=32,S=4",
                               {"a_ptr=" + m + "x" + k + ":fp32", "b_ptr=" + k + "x" + n + ":fp32",
                                "c_ptr=" + m + "x" + n + ":fp32"});
    made.grid = {rows * columns, 4, 1};
    return made;
}

const std::string kBlockPointers =
    kStart +
    R"(def batched(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0)
    n = tl.program_id(1)
    z = tl.program_id(2)
    a = tl.make_block_ptr(a_ptr + z * M * K, (M, K), (K, 1), (m * BM, 0), (BM, BK), (1, 0))
    b = tl.make_block_ptr(b_ptr + z * K * N, (K, N), (N, 1), (0, n * BN), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        acc += tl.dot(tl.load(a, boundary_check=(0, 1)), tl.load(b, boundary_check=(0, 1)))
        a = tl.advance(a, (0, BK))
        b = tl.advance(b, (BK, 0))
    c = tl.make_block_ptr(c_ptr + z * M * N, (M, N), (N, 1), (m * BM, n * BN), (BM, BN), (1, 0))
    tl.store(c, acc, boundary_check=(0, 1))
)";

Arguments block_pointers(std::int64_t tiles) {
    const auto [rows, columns] = rows_and_columns((tiles + 3) / 4);
    const std::string m = text(rows * 64 - 3), n = text(columns * 64 - 1), k = "1024";
    Arguments made = arguments("M=" + m + ",N=" + n + ",K=" + k + ",BM=64,BN=64,BK=32",
                               {"a_ptr=4x" + m + "x" + k + ":fp32", "b_ptr=4x" + k + "x" + n + ":fp32",
                                "c_ptr=4x" + m + "x" + n + ":fp32"});
    made.grid = {rows, columns, 4};
    return made;
}

void measure(benchmark::State& state, const std::string& source, const Arguments& arguments,
             const std::string& file = "kernel.py", const std::string& name = "") {
    std::size_t tiles = 0;
    for ([[maybe_unused]] auto turn : state) {
        const auto analysed = kernel::triton::analyse(source, file, name, arguments);
        if (!analysed) {
            state.SkipWithError(analysed.error().to_string().c_str());
            return;
        }
        tiles = analysed->tiles.size();
    }
    state.counters["tiles"] = static_cast<double>(tiles);
    state.counters["us/tile"] =
        benchmark::Counter(static_cast<double>(tiles) / 1e6,
                           benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// Run from the root of the repository, or name it.
std::string in_root(const std::string& path) {
    const char* root = std::getenv("SYNCOPATE_ROOT");
    return (root != nullptr ? std::string(root) : std::string(".")) + "/" + path;
}

std::string example(const std::string& name) {
    const auto source = read_file(in_root("examples/" + name));
    return source ? *source : std::string();
}

void add_benchmark(const std::string& name, const std::string& source,
                   const std::function<Arguments(std::int64_t)>& arguments) {
    for (const std::int64_t tiles : {100, 1'000, 10'000, 100'000}) {
        benchmark::RegisterBenchmark((name + "/" + text(tiles)).c_str(), [=](benchmark::State& state) {
            measure(state, source, arguments(tiles));
        })->Unit(benchmark::kMillisecond);
    }
}

/// A line of the file of launches.
void add_launch(const std::string& line) {
    const std::optional<kernel::triton::test::Launch> launch = kernel::triton::test::launch_of(line);
    if (!launch) return;
    benchmark::RegisterBenchmark(("corpus/" + launch->name).c_str(), [=](benchmark::State& state) {
        const std::string file = in_root(launch->file);
        const auto source = read_file(file);
        measure(state, source ? *source : std::string(), launch->arguments, file, launch->kernel);
    })->Unit(benchmark::kMillisecond);
}

const bool kRegistered = [] {
    if (const char* launches = std::getenv("SYNCOPATE_LAUNCHES")) {
        std::ifstream lines(launches);
        for (std::string line; std::getline(lines, line);) add_launch(line);
    }
    add_benchmark("matmul_pointers", example("matmul_pointers.py"),
                  [](auto t) { return matmul(t, "pointers"); });
    add_benchmark("matmul_device_tma", example("matmul_persistent_device_tma.py"),
                  [](auto t) { return matmul(t, "device"); });
    add_benchmark("matmul_host_tma", example("matmul_persistent_host_tma.py"),
                  [](auto t) { return matmul(t, "host"); });
    add_benchmark("matmul_block_pointers", kBlockPointers, block_pointers);
    add_benchmark("matmul_split_k", kSplitK, split_k);
    add_benchmark("attention", kAttention, attention);
    add_benchmark("softmax_rows", kSoftmax, softmax);
    add_benchmark("add", kAdd, add);
    return true;
}();

}  // namespace
