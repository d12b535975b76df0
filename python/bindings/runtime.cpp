// Rendezvous, heap, ops, and launching what Triton compiled.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/runtime/call/channel_way.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"
#include "syncopate/runtime/cuda/driver/launch.hpp"
#include "syncopate/runtime/heap/group_memory.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"
#include "syncopate/runtime/recover/recover.hpp"
#include "tensor_view.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

using namespace syncopate::runtime;

template <typename T>
using TorchArray = nb::ndarray<nb::pytorch, T, nb::ndim<1>>;

nb::bytes to_bytes(const Bytes& bytes) { return nb::bytes(bytes.data(), bytes.size()); }
Bytes from_bytes(const nb::bytes& bytes) { return Bytes(bytes.c_str(), bytes.size()); }
/// Below 0: the rendezvous' own.
Milliseconds seconds(double timeout) {
    return timeout < 0 ? kOfGroup : Milliseconds(static_cast<std::int64_t>(timeout * 1000));
}

Device device_of(const std::string& kind, int ordinal) {
    if (kind == "host") return Device{};
    if (kind == "cuda") return Device{Device::Kind::cuda, ordinal};
    throw Raised(usage_error("there is no device '" + kind + "': use \"host\" or \"cuda\""));
}

plan::Region region_of(const Box& box) {
    plan::Region region;
    for (const auto& [begin, end] : box) region.push_back({begin, end});
    return region;
}

/// `bytes` bytes of the heap as a torch tensor of T; it keeps the heap alive.
template <typename T>
TorchArray<T> array_in(const std::shared_ptr<SymmetricHeap>& heap, std::uint64_t address,
                       std::uint64_t bytes) {
    const nb::capsule owner(new std::shared_ptr<SymmetricHeap>(heap), [](void* kept) noexcept {
        delete static_cast<std::shared_ptr<SymmetricHeap>*>(kept);
    });
    const bool cuda = heap->device().kind == Device::Kind::cuda;
    return TorchArray<T>(reinterpret_cast<void*>(address), {static_cast<std::size_t>(bytes / sizeof(T))},
                         owner, {}, nb::dtype<T>(), cuda ? nb::device::cuda::value : nb::device::cpu::value,
                         cuda ? heap->device().ordinal : 0);
}

/// "TimeoutError: nothing at k": of an exception what it says in its first line, without where it came from.
std::string in_a_line(const nb::python_error& failure) {
    std::string text = nb::cast<std::string>(failure.type().attr("__name__"));
    try {
        const std::string said = nb::cast<std::string>(nb::str(failure.value()));
        if (!said.empty()) text += ": " + said.substr(0, said.find('\n'));
    } catch (const nb::python_error&) {  // of its own text
    }
    return text;
}

/// What a store of Python's is asked. Its exceptions end here, while the GIL is held; the text goes on, and of a value that is
/// none, `wrong`. `again`: the meeting asks again, and an interrupt that is raised each time ends it as a store that fails; what it
/// puts at last takes the interrupt away.
template <typename Call>
Bytes asked(const Call& call, const char* wrong, bool again = false) {
    const GilHeld gil;
    std::string failed;
    try {
        return call();
    } catch (const nb::python_error& failure) {
        failed = in_a_line(failure);
        if (again && failure.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
    } catch (const nb::cast_error&) {
        failed = wrong;
    }
    throw std::runtime_error(failed);
}

std::shared_ptr<CallbackRendezvous> callback_rendezvous(int rank, int size, nb::object put, nb::object get,
                                                        nb::object put_first) {
    const auto bytes_of = [](const nb::object& given) { return from_bytes(nb::cast<nb::bytes>(given)); };
    CallbackRendezvous::PutFirst decide;
    if (!put_first.is_none())
        decide = [=, kept = shared_callable(std::move(put_first))](const std::string& key,
                                                                   const Bytes& value) {
            return asked([&] { return bytes_of(call_python(*kept, key, to_bytes(value))); },
                         "the store's put_first must return bytes");
        };
    return std::make_shared<CallbackRendezvous>(
        rank, size,
        [kept = shared_callable(std::move(put))](const std::string& key, const Bytes& value) {
            asked([&] { return call_python(*kept, key, to_bytes(value)), Bytes(); }, "");
        },
        [=, kept = shared_callable(std::move(get))](const std::string& key, Milliseconds timeout) {
            const auto within = static_cast<std::int64_t>(timeout.count());
            return asked([&] { return bytes_of(call_python(*kept, key, within)); },
                         "the store's get must return bytes", true);
        },
        std::move(decide));
}

std::unique_ptr<FusedOp> make_op(const std::shared_ptr<SymmetricHeap>& heap, const emit::Artifact& artifact,
                                 const std::string& name, std::int64_t deadline_ms, std::int64_t max_delay_us,
                                 std::uint64_t seed, const std::vector<std::string>& read_in_place,
                                 const std::string& what) {
    std::vector<std::pair<std::string, std::string>> content;
    for (const emit::StageSource& stage : artifact.sources)
        content.emplace_back("emitted kernel", stage.kernel);
    return unwrap(FusedOp::create(heap, artifact.launch,
                                  {.name = name,
                                   .what = what,
                                   .content = std::move(content),
                                   .deadline_ms = deadline_ms,
                                   .read_in_place = read_in_place,
                                   .max_delay_us = max_delay_us,
                                   .seed = seed}));
}

Grid grid_of(const std::vector<std::uint32_t>& sizes) {
    if (sizes.empty() || sizes.size() > 3) {
        throw Raised(usage_error("a grid has one to three axes"));
    }
    Grid grid{sizes[0]};
    if (sizes.size() > 1) grid.y = sizes[1];
    if (sizes.size() > 2) grid.z = sizes[2];
    return grid;
}

TensorMap tensor_map(std::uint64_t address, std::int32_t swizzle, std::int32_t element_bytes,
                     std::int32_t element_type, std::vector<std::int64_t> block,
                     std::vector<std::int64_t> shape, std::vector<std::int64_t> strides, bool pad_with_nan,
                     bool fp4_padded) {
    return unwrap(make_tensor_map({.address = address,
                                   .shape = std::move(shape),
                                   .strides = std::move(strides),
                                   .block = std::move(block),
                                   .element_bytes = element_bytes,
                                   .element_type = element_type,
                                   .swizzle = swizzle,
                                   .pad_with_nan = pad_with_nan,
                                   .fp4_padded = fp4_padded}));
}

void bind_rendezvous(nb::module_& module) {
    nb::class_<Rendezvous>(module, "Rendezvous",
                           "How ranks find each other; see runtime/heap/rendezvous.hpp.")
        .def_prop_ro("rank", &Rendezvous::rank)
        .def_prop_ro("size", &Rendezvous::size)
        .def_prop_rw(
            "ranks_of_node", &Rendezvous::ranks_of_node,
            [](Rendezvous& of, int ranks) {
                if (ranks < 1 || of.size() % ranks != 0)
                    throw nb::value_error(
                        fmt::format("{} ranks are not alike on nodes of {}", of.size(), ranks).c_str());
                of.set_ranks_of_node(ranks);
            },
            "Ranks that map each other's memory: so many from a multiple of it on. Set before anything is "
            "made.")
        .def_prop_rw(
            "timeout", [](const Rendezvous& of) { return static_cast<double>(of.timeout().count()) / 1000; },
            [](Rendezvous& of, double value) { of.set_timeout(seconds(value)); },
            "Seconds that ranks wait for each other where they set up, meet and close.")
        .def_prop_rw("caller", &Rendezvous::caller, &Rendezvous::set_caller,
                     "Whose set-up the next meetings are part of, for messages; the same on all ranks.")
        .def(
            "set_budget", [](Rendezvous& of, std::uint64_t bytes) { of.memory().set_budget(bytes); },
            "bytes"_a, "Bytes that the group's heaps may take together on this rank's device; 0: no bound.")
        .def(
            "share_budget",
            [](Rendezvous& of, Rendezvous& other) { of.memory().share_budget(other.memory()); }, "other"_a,
            "The budget of `other`'s group bounds what both take together.")
        .def_prop_ro(
            "memory",
            [](Rendezvous& of) {
                const GroupMemory& memory = of.memory();
                return std::tuple(memory.bytes(), memory.bytes_released(), memory.budget());
            },
            "Bytes of the group's heaps, of those what is released, and the budget.")
        .def(
            "release", [](Rendezvous& of) { return unwrap(release(of)); }, ReleaseGil(),
            "Gives their memory back; the bytes. Collective; see runtime/heap/group_memory.hpp.")
        .def(
            "restore", [](Rendezvous& of) { return unwrap(restore(of)); }, ReleaseGil(),
            "Takes it again at the same addresses; the bytes. Collective.")
        .def_prop_ro("calls_differ", &Rendezvous::calls_differ,
                     "Whether ranks came to different meetings the last time, or called something else.");
    nb::class_<FileRendezvous, Rendezvous>(module, "FileRendezvous")
        .def(nb::new_([](const std::string& directory, int rank, int size, const std::string& run_id,
                         double timeout) {
                 return std::shared_ptr<FileRendezvous>(
                     unwrap(FileRendezvous::create(directory, rank, size, run_id, seconds(timeout))));
             }),
             "directory"_a, "rank"_a, "size"_a, "run_id"_a = "run", "timeout"_a = 60.0, ReleaseGil())
        .def_static(
            "rejoin",
            [](const std::string& directory, int rank, int size, const std::string& run_id) {
                return std::shared_ptr<FileRendezvous>(
                    unwrap(FileRendezvous::rejoin(directory, rank, size, run_id)));
            },
            "directory"_a, "rank"_a, "size"_a, "run_id"_a = "run",
            "Of a rank that was started again: for recover alone.");
    nb::class_<CallbackRendezvous, Rendezvous>(
        module, "CallbackRendezvous",
        "put(key: str, value: bytes), get(key: str, timeout_ms: int) -> bytes, and maybe put_first(key: str, "
        "value: bytes) -> bytes, which puts it unless there is something, and gives what is there then")
        .def(nb::new_(&callback_rendezvous), "rank"_a, "size"_a, "put"_a, "get"_a,
             "put_first"_a = nb::none());
    module.def(
        "recover",
        [](const std::shared_ptr<Rendezvous>& group, const std::shared_ptr<Rendezvous>& to, double deadline) {
            const Recovered made = unwrap(recover(group, to, seconds(deadline)));
            return std::tuple(made.group, made.ranks, made.renewed);
        },
        "group"_a, "to"_a.none() = nb::none(), "deadline"_a = -1.0, ReleaseGil(),
        "Those that go on: their rendezvous, which ranks they were, and whether their ops go on. See "
        "runtime/recover/recover.hpp.");
    module.def(
        "barrier",
        [](Rendezvous& rendezvous, const std::string& label, double timeout) {
            unwrap(barrier(rendezvous, label, seconds(timeout)));
        },
        "rendezvous"_a, "label"_a, "timeout"_a = -1.0, ReleaseGil());
    module.def(
        "all_gather",
        [](Rendezvous& rendezvous, const std::string& label, const std::string& text, double timeout,
           bool failed) { return unwrap(all_gather(rendezvous, label, text, seconds(timeout), failed)); },
        "rendezvous"_a, "label"_a, "text"_a, "timeout"_a = -1.0, "failed"_a = false, ReleaseGil(),
        "Every rank's text, by rank. Collective. `failed`: others may be in the middle of what failed here.");
}

void bind_heap(nb::module_& module) {
    nb::class_<SymmetricHeap>(module, "SymmetricHeap",
                              "Every rank's memory in one range; see runtime/heap/heap.hpp.")
        .def(nb::new_([](const std::string& device, int ordinal, std::shared_ptr<Rendezvous> rendezvous,
                         std::uint64_t bytes_per_rank, double timeout) {
                 return unwrap(SymmetricHeap::create(device_of(device, ordinal), std::move(rendezvous),
                                                     bytes_per_rank, seconds(timeout)));
             }),
             "device"_a, "ordinal"_a, "rendezvous"_a, "bytes_per_rank"_a, "timeout"_a = -1.0, ReleaseGil())
        .def_prop_ro("rank", &SymmetricHeap::rank)
        .def_prop_ro("size", &SymmetricHeap::size)
        .def_prop_ro("base", &SymmetricHeap::base)
        .def_prop_ro("stride", &SymmetricHeap::stride)
        .def_prop_ro("device",
                     [](const SymmetricHeap& heap) {
                         return heap.device().kind == Device::Kind::host ? "host" : "cuda";
                     })
        .def_prop_ro("ordinal", [](const SymmetricHeap& heap) { return heap.device().ordinal; })
        .def(
            "allocate",
            [](SymmetricHeap& heap, std::uint64_t bytes, std::uint64_t alignment) {
                return unwrap(heap.allocate(bytes, alignment));
            },
            "bytes"_a, "alignment"_a = 256)
        .def(
            "array",
            [](const std::shared_ptr<SymmetricHeap>& heap, int rank, std::uint64_t offset,
               std::uint64_t bytes) {
                if (rank < 0 || rank >= heap->size() || offset > heap->stride() ||
                    bytes > heap->stride() - offset) {
                    throw Raised(usage_error("this is not in the heap"));
                }
                return array_in<std::uint8_t>(heap, heap->address(rank, offset), bytes);
            },
            "rank"_a, "offset"_a, "bytes"_a, "Memory of a rank as a torch tensor of uint8.");
    module.def(
        "free_memory",
        [](const std::string& device, int ordinal) {
            return unwrap(memory_info(device_of(device, ordinal))).free;
        },
        "device"_a, "ordinal"_a = 0, "Bytes that can be had; on host, by all ranks together.");
    module.def("channel_on_cuda", &channel_on_cuda,
               "What carries the channel between nodes, of the NCCL that is loaded, and what else could.");
    module.def("cuda_device_count", [] { return unwrap(cuda_device_count()); });
    module.def(
        "raise_fault",
        [](std::uint64_t control, std::int32_t signal, std::uint32_t seen, std::uint32_t awaited,
           std::int32_t where) {
            const HostControl block(control);
            block.raise(signal, seen, awaited, block.load(emit::control::epoch), where);
        },
        "control"_a, "signal"_a, "seen"_a, "awaited"_a, "where"_a,
        "Of a kernel on host whose wait for `signal` (word `awaited`, last `seen`) did not end within the "
        "deadline, in slot "
        "`where`: the fault of the control block at address `control`, unless it has one.");
}

using StageLaunch = std::tuple<CudaKernel*, std::vector<std::uint32_t>, const KernelArguments*>;

void require_stage(const FusedOp& op, std::size_t stage) {
    if (stage >= op.schedule().stages.size())
        throw Raised(usage_error("there is no stage " + std::to_string(stage)));
}

std::vector<std::int32_t> table_words(const FusedOp& op, std::size_t stage) {
    require_stage(op, stage);
    const std::span<const std::int32_t> words = op.table(stage);
    return {words.begin(), words.end()};
}

TorchArray<std::int32_t> table_tensor(nb::handle self, std::size_t stage) {
    const auto& op = nb::cast<const FusedOp&>(self);
    require_stage(op, stage);
    const bool cuda = op.heap()->device().kind == Device::Kind::cuda;
    return {reinterpret_cast<void*>(op.table_address(stage)),
            {op.table(stage).size()},
            self,
            {},
            nb::dtype<std::int32_t>(),
            cuda ? nb::device::cuda::value : nb::device::cpu::value,
            cuda ? op.heap()->device().ordinal : 0};
}

void bind_op(nb::module_& module) {
    nb::class_<FusedOp>(module, "FusedOp", "A fused operator in memory on one rank; see runtime/call/op.hpp.")
        .def(nb::new_(&make_op), "heap"_a, "artifact"_a, "name"_a = "op", "deadline_ms"_a = 30'000,
             "max_delay_us"_a = 0, "seed"_a = 0, "read_in_place"_a = std::vector<std::string>{},
             "what"_a = "", ReleaseGil())
        .def_prop_ro("rank", &FusedOp::rank)
        .def_prop_ro("heap", &FusedOp::heap)
        .def(
            "tensor",
            [](const FusedOp& op, const std::string& tensor, std::optional<int> rank) {
                return array_in<std::uint8_t>(op.heap(),
                                              unwrap(op.tensor_address(tensor, rank.value_or(op.rank()))),
                                              unwrap(op.tensor_bytes(tensor)));
            },
            "tensor"_a, "rank"_a = nb::none(),
            "The tensor's full buffer on this rank (or `rank`) as torch uint8.")
        .def(
            "flat_heaps",
            [](const FusedOp& op) {
                const FusedOp::FlatView view = op.flat_view();
                return array_in<std::uint8_t>(op.heap(), view.address, view.bytes);
            },
            "All ranks' heaps, as torch uint8.")
        .def_prop_ro("control_address", [](const FusedOp& op) { return op.control_address(); })
        .def_prop_ro("table", [](const FusedOp& op) { return table_words(op, 0); })
        .def_prop_ro(
            "control_tensor",
            [](const FusedOp& op) {
                return array_in<std::int32_t>(op.heap(), op.control_address(), op.control_bytes());
            },
            nb::rv_policy::automatic, "This rank's control block as torch int32.")
        .def_prop_ro(
            "table_tensor", [](nb::handle self) { return table_tensor(self, 0); }, nb::rv_policy::automatic,
            "The schedule table as torch int32.")
        .def("table_tensor_of", &table_tensor, "stage"_a, nb::rv_policy::automatic,
             "The table of a stage as torch int32.")
        .def(
            "set_input",
            [](FusedOp& op, const std::string& tensor, std::uint64_t address,
               const std::vector<std::int64_t>& strides, const std::optional<Box>& region) {
                unwrap(region ? op.set_input(tensor, region_of(*region), address, strides)
                              : op.set_input(tensor, address, strides));
            },
            "tensor"_a, "address"_a, "strides"_a, "region"_a = nb::none(),
            "Strides in elements; see runtime/call/op.hpp.")
        .def(
            "set_output",
            [](FusedOp& op, const std::string& tensor, std::uint64_t address,
               const std::vector<std::int64_t>& strides,
               const Box& region) { unwrap(op.set_output(tensor, region_of(region), address, strides)); },
            "tensor"_a, "address"_a, "strides"_a, "region"_a, "Strides in elements; see runtime/call/op.hpp.")
        .def(
            "own_place",
            [](const FusedOp& op) -> std::optional<std::tuple<std::uint64_t, std::uint64_t, std::int64_t>> {
                const std::optional<FusedOp::OwnPlace> place = op.own_place();
                if (!place) return std::nullopt;
                return std::tuple(place->address, place->pitch, place->elements + emit::table::own_base);
            },
            "Where tiles read what this rank was given: address, pitch and the number for sy_own of a kernel "
            "that loads "
            "through pointers; see runtime/call/op.hpp.")
        .def("sum_place", &FusedOp::sum_place,
             "Where the kernel's programs put what they sum (an address), if they do; see "
             "runtime/call/op.hpp.")
        .def(
            "own_rows",
            [](const FusedOp& op, std::uint64_t bytes) {
                const std::optional<FusedOp::OwnPlace> place = op.own_place();
                if (!place) throw Raised(usage_error("the kernel reads nothing that is the rank's own"));
                return array_in<std::uint8_t>(op.heap(), place->address, bytes);
            },
            "bytes"_a, "So many bytes from there on, as torch uint8.")
        .def(
            "begin_call", [](FusedOp& op, CudaStream stream) { unwrap(op.begin_call(stream)); },
            "stream"_a = 0, ReleaseGil())
        .def(
            "end_call", [](FusedOp& op, CudaStream stream, bool ran) { unwrap(op.end_call(stream, ran)); },
            "stream"_a = 0, "ran"_a = true, ReleaseGil())
        .def(
            "call",
            [](FusedOp& op, CudaKernel& kernel, const std::vector<std::uint32_t>& grid, CudaStream stream,
               const KernelArguments& arguments) {
                const Grid sizes = grid_of(grid);
                const GilReleased released;
                unwrap(op.call(kernel, sizes, stream, arguments));
            },
            "kernel"_a, "grid"_a, "stream"_a, "arguments"_a, "begin_call, launch and end_call in one.")
        .def(
            "call_stages",
            [](FusedOp& op, const std::vector<StageLaunch>& stages, CudaStream stream) {
                std::vector<FusedOp::StageLaunch> launches;
                launches.reserve(stages.size());
                for (const auto& [kernel, grid, arguments] : stages)
                    launches.push_back({kernel, grid_of(grid), arguments});
                const GilReleased released;
                unwrap(op.call(launches, stream));
            },
            "stages"_a, "stream"_a, "The same for several stages: (kernel, grid, arguments) of each.")
        .def(
            "require_room",
            [](const FusedOp& op, std::size_t stage, const CudaKernel& kernel,
               const std::vector<std::uint32_t>& grid) {
                unwrap(op.require_room(stage, kernel, grid_of(grid)));
            },
            "stage"_a, "kernel"_a, "grid"_a,
            "Raises UsageError where the stage's kernel, launched so, could wait for ever.")
        .def(
            "check",
            [](FusedOp& op, bool synchronize) {
                if (synchronize) unwrap(op.synchronize());
                unwrap(op.check());
            },
            "synchronize"_a = true, ReleaseGil(), "Raises the fault of an earlier call.")
        .def("give_up", &FusedOp::give_up, ReleaseGil(),
             "Ends the calls of it that other ranks have begun: this rank cannot make them.")
        .def_prop_ro(
            "calls_differ", [](const FusedOp& op) { return op.calls_differ() || !op.retired().empty(); },
            "Whether the ranks called different ops in a call of it, or its group has gone on without it.")
        .def_prop_ro("retired", &FusedOp::retired,
                     "Why it takes no more calls, if its group has gone on without it.")
        .def(
            "reset", [](FusedOp& op) { unwrap(op.reset()); }, ReleaseGil(),
            "Collective; see runtime/call/op.hpp.")
        .def(
            "when_renewed",
            [](FusedOp& op, nb::object done) {
                op.when_renewed([kept = shared_callable(std::move(done))]() -> Status {
                    const GilHeld held;
                    (void)call_python(*kept);
                    return Done{};
                });
            },
            "done"_a, "What follows each reset, and each recovery of its group.")
        .def_prop_ro("is_told", &FusedOp::is_told, "Whether this rank has been told so.")
        .def_prop_ro("had_been_told", &FusedOp::had_been_told,
                     "Whether this rank had been told so before its last call of it.")
        .def(
            "poll", [](const FusedOp& op) { unwrap(op.poll()); }, "As check, without waiting for anything.")
        .def(
            "synchronize", [](FusedOp& op) { unwrap(op.synchronize()); }, ReleaseGil())
        .def("destroy", [](FusedOp& op) { unwrap(op.destroy()); }, ReleaseGil(), "Collective.");
}

void bind_launch(nb::module_& module) {
    nb::class_<KernelArguments>(module, "KernelArguments", "See runtime/cuda/driver/launch.hpp.")
        .def(nb::init<>())
        .def("__len__", &KernelArguments::size)
        .def("add_pointer", &KernelArguments::add_pointer, "address"_a)
        .def(
            "add_i8", [](KernelArguments& a, std::int64_t v) { return a.add(static_cast<std::int8_t>(v)); },
            "value"_a)
        .def(
            "add_i16", [](KernelArguments& a, std::int64_t v) { return a.add(static_cast<std::int16_t>(v)); },
            "value"_a)
        .def(
            "add_i32", [](KernelArguments& a, std::int64_t v) { return a.add(static_cast<std::int32_t>(v)); },
            "value"_a)
        .def(
            "add_i64", [](KernelArguments& a, std::int64_t v) { return a.add(v); }, "value"_a)
        .def(
            "add_f32", [](KernelArguments& a, double v) { return a.add(static_cast<float>(v)); }, "value"_a)
        .def(
            "add_f64", [](KernelArguments& a, double v) { return a.add(v); }, "value"_a)
        .def(
            "add_tensor_map",
            [](KernelArguments& a, std::uint64_t address, std::int32_t swizzle, std::int32_t element_bytes,
               std::int32_t element_type, std::vector<std::int64_t> block, std::vector<std::int64_t> shape,
               std::vector<std::int64_t> strides, bool pad_with_nan, bool fp4_padded) {
                return a.add_tensor_map(tensor_map(address, swizzle, element_bytes, element_type,
                                                   std::move(block), std::move(shape), std::move(strides),
                                                   pad_with_nan, fp4_padded));
            },
            "address"_a, "swizzle"_a, "element_bytes"_a, "element_type"_a, "block"_a, "shape"_a, "strides"_a,
            "pad_with_nan"_a = false, "fp4_padded"_a = false,
            "The map alone; its shape (i32) and strides (i64) are arguments that follow.");
    nb::class_<CudaKernel>(module, "CudaKernel",
                           "A kernel that Triton compiled; see runtime/cuda/driver/launch.hpp.")
        .def(nb::new_([](const nb::bytes& image, const std::string& name, std::int32_t shared_bytes,
                         std::int32_t num_warps, std::int32_t num_ctas, std::int64_t global_scratch_size,
                         std::int64_t global_scratch_align, std::optional<int> ordinal, bool beside,
                         bool triton) {
                 const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(image.c_str()),
                                                        image.size());
                 const GilReleased released;
                 return unwrap(CudaKernel::load(
                     unwrap(ordinal ? CudaContext::retain(*ordinal) : CudaContext::current()), bytes, name,
                     {.num_warps = num_warps,
                      .num_ctas = num_ctas,
                      .shared_bytes = shared_bytes,
                      .global_scratch_size = global_scratch_size,
                      .global_scratch_align = global_scratch_align,
                      .triton = triton,
                      .beside = beside}));
             }),
             "image"_a, "name"_a, "shared_bytes"_a, "num_warps"_a, "num_ctas"_a = 1,
             "global_scratch_size"_a = 0, "global_scratch_align"_a = 1, "ordinal"_a = nb::none(),
             "beside"_a = false, "triton"_a = true)
        .def(
            "launch",
            [](CudaKernel& kernel, const std::vector<std::uint32_t>& grid, CudaStream stream,
               const KernelArguments& arguments, bool early) {
                const Grid sizes = grid_of(grid);
                const GilReleased released;
                unwrap(kernel.launch(sizes, stream, arguments, early));
            },
            "grid"_a, "stream"_a, "arguments"_a, "early"_a = false,
            "`early`: programmatically, so it may start beside the kernel before it, which it awaits by "
            "itself.")
        .def(
            "prepare",
            [](CudaKernel& kernel, const std::vector<std::uint32_t>& grid) {
                unwrap(kernel.prepare(grid_of(grid)));
            },
            "grid"_a);
}

}  // namespace

std::shared_ptr<nb::object> shared_callable(nb::object callable) {
    return {new nb::object(std::move(callable)), [](nb::object* kept) {
                if (!Py_IsInitialized()) return;
                const GilHeld gil;
                delete kept;
            }};
}

void bind_runtime(nb::module_& module) {
    bind_rendezvous(module);
    bind_heap(module);
    bind_op(module);
    bind_launch(module);
}

}  // namespace syncopate::bindings
