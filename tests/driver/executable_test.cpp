// What an executable tells the driver: arguments that follow a call's tensors, and nothing else that changes.
#include "syncopate/runtime/executable/executable.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "driver/two_gpus.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "runtime/fork.hpp"

namespace syncopate::runtime {
namespace {

using testing::all_ranks;
using testing::make_gpu_heap;
using testing::run_ranks;
using testing::TemporaryDirectory;

constexpr std::int64_t kRows = 32;
constexpr std::int64_t kColumns = 64;

/// What the kernel of `program` is given.
struct Given {
    std::uint64_t pointer = 0;
    std::int32_t number = 0;
    std::uint64_t heap = 0;
    std::uint64_t table = 0;
    std::uint64_t control = 0;
    std::uint64_t map = 0;
    std::int32_t rows = 0;
    std::int64_t pitch = 0;
};

NumberArgument number(std::int32_t value) {
    NumberArgument made{.bytes = sizeof(value)};
    std::memcpy(made.value.data(), &value, sizeof(value));
    return made;
}

/// x [32, 64] is this rank's part of A; w [4, 8] goes to the kernel, by a pointer 16 bytes behind it and by a descriptor.
Program program() {
    using Of = Memory::Of;
    DescriptorArgument descriptor{
        .at = {Of::operand, 1},
        .map = {.shape = {4, 8}, .strides = {8, 1}, .block = {4, 8}, .element_bytes = 4},
        .map_alone = false};
    Form form{.stages = {{.code = 0,
                          .grid = {2},
                          .arguments = {PointerArgument{{Of::operand, 1, 16}}, number(7),
                                        PointerArgument{{Of::tensor, 0}}, PointerArgument{{Of::table}},
                                        PointerArgument{{Of::control}}, descriptor}}},
              .strides = {{}, {8, 1}},
              .alignment = {0, 16}};
    Program made;
    made.operands = {{.name = "x",
                      .dtype = plan::DType::int32,
                      .shape = {kRows, kColumns},
                      .layout = Operand::Layout::rows},
                     {.name = "w", .dtype = plan::DType::fp32, .shape = {4, 8}}};
    made.codes = {{.image = std::vector<std::byte>(8), .entry = "kernel"}};
    made.forms = {form};
    return made;
}

/// The operand x is what the rank holds of A.
Program program_of(int rank) {
    Program made = program();
    made.operands[0].inputs = {
        {.tensor = "A", .region = plan::Region{{rank * kRows, (rank + 1) * kRows}, {0, kColumns}}}};
    return made;
}

/// Two arrays for x, and two for w.
struct Arrays {
    alignas(64) std::array<std::int32_t, 2 * kRows * kColumns> x{};
    alignas(64) std::array<float, 2 * 64> w{};

    [[nodiscard]] std::array<CallTensor, 2> call(std::size_t number, std::size_t shifted = 0) const {
        static constexpr std::array<std::int64_t, 2> of_x{kRows, kColumns}, apart_x{kColumns, 1}, of_w{4, 8},
            apart_w{8, 1};
        return {CallTensor{reinterpret_cast<std::uint64_t>(&x[number * kRows * kColumns]), of_x, apart_x},
                CallTensor{reinterpret_cast<std::uint64_t>(&w[number * 64 + shifted]), of_w, apart_w}};
    }
};

/// `judge(executable, seen)` on each of two ranks; `seen` is what the last launch of the kernel was given.
template <typename Judge>
void on_two_gpus(Judge judge, plan::Backend backend = plan::Backend::copy_engine) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const fuse::Schedule schedule = testing::gathered(backend);
        auto op = FusedOp::create(*heap, schedule, {.name = "op"});
        RANK_CHECK(op, op.error().to_string());
        auto made = Executable::make(std::shared_ptr<FusedOp>(std::move(*op)), program_of(rank));
        RANK_CHECK(made, made.error().to_string());
        static Given seen;
        fake_cuda::on_launch([](const std::string& name, void** parameters) {
            if (name != "kernel") return;
            const auto read = [&](std::size_t index, auto& value) {
                std::memcpy(&value, parameters[index], sizeof(value));
            };
            read(0, seen.pointer);
            read(1, seen.number);
            read(2, seen.heap);
            read(3, seen.table);
            read(4, seen.control);
            read(5, seen.map);
            read(6, seen.rows);
            read(8, seen.pitch);
        });
        const bool good = judge(**made, seen);
        fake_cuda::on_launch({});
        return good && (*made)->op().destroy().ok();
    });
}

TEST(AnExecutable, WritesWhatFollowsTheTensorsOfACallAndLeavesTheRest) {
    on_two_gpus([](Executable& executable, const Given& seen) {
        static const Arrays arrays;
        for (const std::size_t turn : {0, 1, 0}) {
            const auto tensors = arrays.call(turn);
            const Status ran = executable.run(tensors, 0);
            RANK_CHECK(ran, ran.error().to_string());
            RANK_CHECK(seen.pointer == tensors[1].address + 16, "the pointer does not follow w");
            RANK_CHECK(seen.map == tensors[1].address, "the descriptor does not follow w");
            RANK_CHECK(seen.number == 7 && seen.rows == 4 && seen.pitch == 8, "numbers have changed");
            RANK_CHECK(seen.heap == executable.op().tensor_address("A").value(), "the tensor of the plan");
            RANK_CHECK(seen.table == executable.op().table_address(), "the table");
            RANK_CHECK(seen.control == executable.op().control_address(), "the control block");
        }
        return executable.calls() == 3 && !executable.captured();
    });
}

/// What its own thread and stream are is asked once, also with the calls whose kernels wait for other ranks, which take turns.
TEST(AnExecutable, AsksTheDriverOnceACallForContextAndCapture) {
    for (const plan::Backend backend : {plan::Backend::copy_engine, plan::Backend::tma_dedicated}) {
        on_two_gpus(
            [](Executable& executable, const Given&) {
                static const Arrays arrays;
                const auto asked = [&](GraphUse use, std::size_t number) {
                    executable.use_graphs(use);
                    const std::size_t before[] = {fake_cuda::calls_of("cuCtxGetCurrent"),
                                                  fake_cuda::calls_of("cuStreamIsCapturing")};
                    RANK_CHECK(executable.run(arrays.call(number), 0), "a call");
                    RANK_CHECK(fake_cuda::calls_of("cuCtxGetCurrent") == before[0] + 1, "its context");
                    RANK_CHECK(fake_cuda::calls_of("cuStreamIsCapturing") == before[1] + 1, "its stream");
                    return true;
                };
                return asked(GraphUse::never, 0) && asked(GraphUse::never, 1) &&
                       asked(GraphUse::of_many, 0) && asked(GraphUse::of_many, 0);
            },
            backend);
    }
}

TEST(AnExecutable, RefusesTensorsThatAreNotItsOperandsBeforeACallBegins) {
    on_two_gpus([](Executable& executable, const Given&) {
        static const Arrays arrays;
        const auto says = [&](const std::array<CallTensor, 2>& tensors, const std::string& what) {
            const Status ran = executable.run(tensors, 0);
            return !ran && ran.error().error_class == ErrorClass::usage &&
                   ran.error().message.find(what) != std::string::npos;
        };
        static constexpr std::array<std::int64_t, 2> longer{kRows + 1, kColumns}, turned{1, kRows},
            apart{16, 1};
        auto tensors = arrays.call(0);
        tensors[0].shape = longer;
        RANK_CHECK(says(tensors, "x: expected shape [32, 64], got [33, 64]"), "a shape");
        tensors = arrays.call(0);
        tensors[0].strides = turned;
        RANK_CHECK(says(tensors, "x: expected a contiguous last axis"), "a layout");
        tensors = arrays.call(0);
        tensors[1].strides = apart;
        RANK_CHECK(!executable.form_of(tensors) && says(tensors, "there are 1 forms"),
                   "strides that no form has");
        RANK_CHECK(says(arrays.call(0, 1), "there are 1 forms"), "an address that no form takes");
        RANK_CHECK(executable.run(arrays.call(1), 0), "the next call is as ever");
        return executable.calls() == 1;
    });
}

TEST(AnExecutable, KnowsThatAUsersGraphHasACallOfIt) {
    on_two_gpus([](Executable& executable, const Given&) {
        static const Arrays arrays;
        RANK_CHECK(executable.run(arrays.call(0), 0) && !executable.captured(), "an eager call");
        fake_cuda::capture(true);
        const Status ran = executable.run(arrays.call(0), 0);
        fake_cuda::capture(false);
        return ran.ok() && executable.captured();
    });
}

TEST(AnExecutable, LaunchesAGraphForAddressesThatHaveComeTwiceAndNoneInAUsers) {
    on_two_gpus([](Executable& executable, const Given&) {
        static const Arrays arrays;
        const auto called = [&](std::size_t number) { return executable.run(arrays.call(number), 0).ok(); };
        RANK_CHECK(called(0) && called(0) && executable.graph_launches() == 0, "graphs are off");
        executable.use_graphs(GraphUse::of_many);
        RANK_CHECK(called(0) && executable.graph_launches() == 0, "a first time");
        RANK_CHECK(called(0) && called(0) && executable.graph_launches() == 2, "a second and a third");
        RANK_CHECK(called(1) && executable.graph_launches() == 2, "other addresses");
        RANK_CHECK(called(0) && executable.graph_launches() == 3, "the first ones again");
        fake_cuda::capture(true);
        const bool by_user = called(0);
        fake_cuda::capture(false);
        RANK_CHECK(by_user && executable.graph_launches() == 3, "in a graph of the user's");
        executable.use_graphs(GraphUse::never);
        return called(0) && executable.graph_launches() == 3 && executable.calls() == 9;
    });
}

/// As where layers of a model share an executable.
TEST(AnExecutable, KeepsAGraphForEachOfAHundredWeights) {
    on_two_gpus([](Executable& executable, const Given&) {
        static const std::array<Arrays, 50> layers;
        executable.use_graphs(GraphUse::of_many);
        for (std::uint64_t turn = 0; turn < 3; ++turn) {
            for (const Arrays& layer : layers) {
                RANK_CHECK(executable.run(layer.call(0), 0) && executable.run(layer.call(1), 0), "a call");
            }
            RANK_CHECK(executable.graph_launches() == turn * 100, "not each was one launch");
        }
        return true;
    });
}

/// Whatever of it fails, nothing has been enqueued: the call is made singly, and counted once.
TEST(AnExecutable, GoesOnWithoutGraphsWhereTheDriverMakesNone) {
    for (const char* const function :
         {"cuStreamCreateWithPriority", "cuStreamBeginCapture", "cuStreamEndCapture",
          "cuGraphInstantiateWithFlags", "cuGraphLaunch"}) {
        on_two_gpus([&](Executable& executable, const Given&) {
            static const Arrays arrays;
            executable.use_graphs(GraphUse::of_many);
            const auto called = [&](std::size_t number) {
                return executable.run(arrays.call(number), 0).ok();
            };
            RANK_CHECK(called(0), "a first time");
            fake_cuda::fail_every(function);
            RANK_CHECK(called(0), std::string("it makes no graph: ") + function);
            fake_cuda::fail_every("");
            RANK_CHECK(called(0) && called(1) && called(1), "and asks for no other");
            return executable.graph_launches() == 0 && executable.calls() == 5;
        });
    }
}

/// A part of a call fails while it is captured, and then singly, too: the other rank is told.
TEST(AnExecutable, TellsTheOthersOfACallThatCannotBeMadeAtAll) {
    on_two_gpus([](Executable& executable, const Given&) {
        static const Arrays arrays;
        executable.use_graphs(GraphUse::of_many);
        RANK_CHECK(executable.run(arrays.call(0), 0), "a first time");
        fake_cuda::fail_every("cuLaunchKernelEx");
        const Status failed = executable.run(arrays.call(0), 0);
        fake_cuda::fail_every("");
        RANK_CHECK(!failed, "no kernel was launched");
        return !executable.op().poll() && !executable.run(arrays.call(0), 0);
    });
}

TEST(AnExecutable, AsksOftenerBeforeItMakesGraphsThatAreGivenUpUnused) {
    on_two_gpus([](Executable& executable, const Given&) {
        static const std::array<Arrays, 200> layers;
        executable.use_graphs(GraphUse::of_many);
        const auto twice = [&](const Arrays& layer) {
            return executable.run(layer.call(0), 0).ok() && executable.run(layer.call(0), 0).ok();
        };
        for (int turn = 0; turn < 3; ++turn) {
            for (const Arrays& layer : layers) RANK_CHECK(twice(layer), "a call");
        }
        return executable.graph_launches() < 250;
    });
}

TEST(AnExecutable, IsMadeAndDroppedAHundredTimesWithoutALeak) {
    const TemporaryDirectory directory;
    run_ranks(all_ranks(2), [&](int rank) {
        const auto heap = make_gpu_heap(directory.path(), rank);
        RANK_CHECK(heap, heap.error().to_string());
        const fuse::Schedule schedule = testing::gathered(plan::Backend::copy_engine);
        std::string left;
        for (int turn = 0; turn < 100; ++turn) {
            auto op = FusedOp::create(*heap, schedule, {.name = "op"});
            RANK_CHECK(op, op.error().to_string());
            auto made = Executable::make(std::shared_ptr<FusedOp>(std::move(*op)), program_of(rank));
            RANK_CHECK(made && (*made)->op().destroy(), "not made");
            made = Error{"dropped"};
            if (turn == 0) left = fake_cuda::left();
        }
        RANK_CHECK((*heap)->bytes_allocated() == 0, "memory of the heap is left");
        RANK_CHECK(fake_cuda::left() == left, "left: " + fake_cuda::left());
        return true;
    });
}

TEST(AnExecutable, SaysWhichPartOfAProgramMakesNoSense) {
    on_two_gpus([](Executable& executable, const Given&) {
        const auto says = [&](Program program, const std::string& what) {
            const auto made = Executable::make(executable.shared_op(), program);
            return !made && made.error().message.find(what) != std::string::npos;
        };
        Program odd = program();
        odd.forms[0].stages[0].code = 3;
        RANK_CHECK(says(odd, "a stage names code 3 of 1"), "a code");
        odd = program();
        odd.forms[0].stages.clear();
        RANK_CHECK(says(odd, "0 stages and 0 kernels, where the program has 1"), "stages");
        odd = program();
        odd.forms[0].strides[1] = {1};
        RANK_CHECK(says(odd, "operand w has 2 axes, not 1"), "strides");
        odd = program();
        odd.forms[0].stages[0].arguments[0] = PointerArgument{{Memory::Of::operand, 9}};
        RANK_CHECK(says(odd, "operand 9, which there is not"), "an operand");
        odd = program();
        odd.forms[0].stages[0].arguments[0] = PointerArgument{{Memory::Of::sums}};
        odd.operands[0].inputs = {{.tensor = "B"}};
        RANK_CHECK(says(odd, "has no tensor B"), "a tensor");
        odd = program();
        odd.forms[0].stages[0].arguments[1] = NumberArgument{.bytes = 3};
        RANK_CHECK(says(odd, "bytes: 3"), "a number");
        return true;
    });
}

}  // namespace
}  // namespace syncopate::runtime
