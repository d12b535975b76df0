// The chunk engine on real GPUs, one process each, against a reference: every kind of op that its table can
// hold, some calls with new data each, then the same call again and again, whose bits must not change; at the
// end a wait that nothing ends, which must fail at its deadline.
//
//   syncopate_check_engine [--scale N] [--calls N] [--repeats N] [--blocks N] [--only TEXT] [--no-fault]
//       [--verbose] [--device cuda|host]
//
// Rank and number of ranks come from the environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_PORT), as a
// launcher sets them. Exit 0 when all is right on this rank. It ends by itself: every wait has a deadline of
// ten seconds, or --deadline-ms.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/engine_cases.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {
namespace {

struct Arguments {
    int scale = 4;
    int calls = 3;
    int repeats = 100;
    int blocks = 8;
    std::int64_t deadline_ms = 10'000;
    std::string only;
    bool fault = true;
    bool verbose = false;  ///< rank 0 says what it begins with
    bool host = false;
};

bool parse(int argc, char** argv, Arguments& arguments) {
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "--no-fault") {
            arguments.fault = false;
            continue;
        }
        if (name == "--verbose") {
            arguments.verbose = true;
            continue;
        }
        if (i + 1 == argc) return false;
        const char* value = argv[++i];
        if (name == "--scale")
            arguments.scale = std::atoi(value);
        else if (name == "--calls")
            arguments.calls = std::atoi(value);
        else if (name == "--repeats")
            arguments.repeats = std::atoi(value);
        else if (name == "--blocks")
            arguments.blocks = std::atoi(value);
        else if (name == "--deadline-ms")
            arguments.deadline_ms = std::atoll(value);
        else if (name == "--device")
            arguments.host = std::strcmp(value, "host") == 0;
        else if (name == "--only")
            arguments.only = value;
        else
            return false;
    }
    return arguments.scale > 0 && arguments.calls > 0 && arguments.blocks > 0;
}

/// What is wrong with the case; empty when nothing is.
std::string judge(const testing::EngineCase& c, const std::shared_ptr<SymmetricHeap>& heap,
                  const Arguments& arguments) {
    const int rank = heap->rank();
    auto op = FusedOp::create(heap, fuse::decide_engine(c.schedule, fuse::Device::cuda, arguments.blocks),
                              {.name = c.name, .deadline_ms = arguments.deadline_ms});
    if (!op) return op.error().to_string();
    std::string wrong;
    testing::Memory before;
    testing::Memory after;
    for (int call = 1; call <= arguments.calls + arguments.repeats && wrong.empty(); ++call) {
        if (call <= arguments.calls) {
            std::vector<testing::Memory> memory;
            for (int other = 0; other < heap->size(); ++other)
                memory.push_back(testing::memory_before(c.schedule, other, static_cast<std::uint32_t>(call)));
            before = memory[static_cast<std::size_t>(rank)];
            testing::run_reference(c.schedule, memory);
            after = std::move(memory[static_cast<std::size_t>(rank)]);
        }
        wrong = testing::run_call(**op, before, after);
        if (!wrong.empty()) wrong = fmt::format("call {}: {}", call, wrong);
    }
    // A rank that found something wrong leaves no other one waiting: they fail at a deadline, and come here
    // too.
    if (Status gone = (*op)->destroy(); !gone && wrong.empty()) wrong = gone.error().to_string();
    return wrong;
}

std::string judge_fault(const std::shared_ptr<SymmetricHeap>& heap) {
    const testing::EngineCase c = testing::engine_case_without_end(heap->size());
    auto op =
        FusedOp::create(heap, c.schedule, {.name = c.name, .deadline_ms = heap->rank() == 0 ? 300 : 5'000});
    if (!op) return op.error().to_string();
    const testing::Memory before = testing::memory_before(c.schedule, heap->rank(), 1);
    const std::string wrong = testing::run_call(**op, before, before);
    const std::string expected =
        fmt::format("rank {} has not begun the call within 300 ms", heap->size() - 1);
    const bool named = heap->rank() != 0 || wrong.find(expected) != std::string::npos;
    // Only ranks 0 and 1 have to notice: what goes between the others has come.
    const bool noticed = heap->rank() > 1 || !wrong.empty();
    if (Status gone = (*op)->destroy(); !gone) return gone.error().to_string();
    return named && noticed ? std::string() : fmt::format("the fault was told as '{}'", wrong);
}

int run(const Arguments& arguments) {
    const auto environment = launch_environment();
    if (!environment) {
        fmt::print(stderr, "error: {}\n", environment.error().to_string());
        return 3;
    }
    auto rendezvous = environment_rendezvous();
    if (!rendezvous) {
        fmt::print(stderr, "error: {}\n", rendezvous.error().to_string());
        return 3;
    }
    Device device{Device::Kind::cuda, environment->local_rank};
    if (arguments.host) device = {};
    auto heap = SymmetricHeap::create(device, std::shared_ptr<Rendezvous>(std::move(rendezvous).value()),
                                      std::uint64_t{256} << 20);
    if (!heap) {
        fmt::print(stderr, "error: {}\n", heap.error().to_string());
        return 3;
    }
    int bad = 0;
    int good = 0;
    const auto say = [&](const std::string& name, const std::string& wrong) {
        wrong.empty() ? ++good : ++bad;
        if (!wrong.empty()) fmt::print("rank {}: FAILED {}: {}\n", (*heap)->rank(), name, wrong);
        std::fflush(stdout);
    };
    const auto start = std::chrono::steady_clock::now();
    for (const testing::EngineCase& c : testing::engine_cases((*heap)->size(), arguments.scale)) {
        if (c.name.find(arguments.only) == std::string::npos) continue;
        if (arguments.verbose && (*heap)->rank() == 0) {
            fmt::print("{}\n", c.name);
            std::fflush(stdout);
        }
        say(c.name, judge(c, *heap, arguments));
    }
    if (arguments.fault && (*heap)->size() > 1) say("a deadline", judge_fault(*heap));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fmt::print("rank {}: {} cases right, {} wrong ({:.1f} s)\n", (*heap)->rank(), good, bad, took.count());
    return bad == 0 && good > 0 ? 0 : 1;
}

}  // namespace
}  // namespace syncopate::runtime

int main(int argc, char** argv) {
    syncopate::runtime::Arguments arguments;
    if (!syncopate::runtime::parse(argc, argv, arguments)) {
        fmt::print(stderr,
                   "usage: syncopate_check_engine [--scale N] [--calls N] [--repeats N] [--blocks N] "
                   "[--deadline-ms N] [--only TEXT] [--no-fault] [--verbose] [--device cuda|host]\n");
        return 2;
    }
    return syncopate::runtime::run(arguments);
}
