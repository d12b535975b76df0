// Executables, and torch's tensors as their calls take them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "syncopate/runtime/executable/executable.hpp"
#include "tensor_view.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

using namespace syncopate::runtime;

plan::Region region_of(const Box& box) {
    plan::Region region;
    for (const auto& [begin, end] : box) region.push_back({begin, end});
    return region;
}

using PartTuple = std::tuple<std::string, std::optional<Box>, std::vector<std::int64_t>>;
using OperandTuple = std::tuple<std::string, std::string, std::vector<std::int64_t>, int,
                                std::vector<PartTuple>, std::vector<PartTuple>>;

std::vector<Operand::Part> parts_of(const std::vector<PartTuple>& given) {
    std::vector<Operand::Part> parts;
    for (const auto& [tensor, box, at] : given)
        parts.push_back({tensor, box ? std::optional(region_of(*box)) : std::nullopt, at});
    return parts;
}

/// An array in memory as torch's, of integers as wide as its elements: who gets it views it as what it is.
nb::object array_of(const CallTensor& tensor, plan::DType dtype) {
    const std::vector<std::size_t> shape(tensor.shape.begin(), tensor.shape.end());
    const auto as = [&]<typename T>(T) {
        return nb::cast(nb::ndarray<nb::pytorch, T>(reinterpret_cast<void*>(tensor.address), shape.size(),
                                                    shape.data(), nb::handle(), tensor.strides.data()),
                        nb::rv_policy::reference);
    };
    switch (plan::size_of(dtype)) {
        case 1: return as(std::uint8_t{});
        case 2: return as(std::int16_t{});
        case 4: return as(std::int32_t{});
        default: return as(std::int64_t{});
    }
}

/// While it lives, Dynamo compiles no frame of this thread: behind a compiled graph it would take the kernels' interpreter.
class WithoutDynamo {
public:
    WithoutDynamo() {
        const nb::dict modules = nb::module_::import_("sys").attr("modules");
        const char* name = "torch._C._dynamo.eval_frame";
        if (!modules.contains(name)) return;
        set_ = nb::object(modules[name]).attr("set_eval_frame");
        before_ = set_(nb::none());
    }
    ~WithoutDynamo() {
        if (!set_.is_valid()) return;
        const nb::error_scope raised;  // of the kernels
        set_(before_);
    }
    WithoutDynamo(const WithoutDynamo&) = delete;
    WithoutDynamo& operator=(const WithoutDynamo&) = delete;

private:
    nb::object set_;
    nb::object before_;
};

/// Kernels that Python runs: kernels(tensors) -> whether they ran to their end.
Executable::HostKernels host_kernels(nb::object callable, std::vector<Operand> operands) {
    auto kept = shared_callable(std::move(callable));
    return [kept, operands = std::move(operands)](std::span<const CallTensor> tensors) -> Status {
        const GilHeld gil;
        const WithoutDynamo without_dynamo;
        nb::list given;
        for (std::size_t i = 0; i < tensors.size(); ++i)
            given.append(array_of(tensors[i], operands[i].dtype));
        if (nb::cast<bool>(call_python(*kept, given))) return Done{};
        return machine_error("a wait of the kernels has ended without its signal");
    };
}

std::shared_ptr<Executable> make(std::shared_ptr<FusedOp> op, const std::vector<OperandTuple>& operands,
                                 nb::object host) {
    Program program;
    for (const auto& [name, dtype, shape, layout, inputs, outputs] : operands)
        program.operands.push_back({.name = name,
                                    .dtype = to_dtype(dtype),
                                    .shape = shape,
                                    .layout = static_cast<Operand::Layout>(layout),
                                    .inputs = parts_of(inputs),
                                    .outputs = parts_of(outputs)});
    Executable::HostKernels kernels;
    if (!host.is_none()) kernels = host_kernels(std::move(host), program.operands);
    std::unique_ptr<Executable> made = unwrap(Executable::make(std::move(op), program, std::move(kernels)));
    made->use_graphs(GraphUse::of_many);  // where memory for them is torch's concern, not a caller's of C
    return made;
}

bool run(Executable& executable, nb::handle tensors, std::optional<CudaStream> stream) {
    CallTensors given;
    if (!given.read(executable, tensors)) return false;
    const CudaStream number = stream ? *stream : given.current_stream();
    const GilReleased released;
    const std::optional<std::size_t> form = executable.takes(given.all());
    if (!form) return false;
    unwrap(executable.run_taken(given.all(), *form, number));
    return true;
}

/// A form as Python makes one, argument by argument.
struct FormBuilder {
    Form form;
    std::vector<std::shared_ptr<CudaKernel>> kernels;

    void add(Argument argument) { form.stages.back().arguments.push_back(std::move(argument)); }
};

template <typename T>
void add_number(FormBuilder& builder, T value) {
    NumberArgument number{.bytes = sizeof(T)};
    std::memcpy(number.value.data(), &value, sizeof(T));
    builder.add(number);
}

Memory memory_of(const std::string& of, std::int32_t index, std::int64_t offset) {
    constexpr std::array<std::string_view, 9> kNames{"operand", "tensor", "heaps",     "table", "control",
                                                     "sums",    "own",    "workspace", "fixed"};
    for (std::size_t i = 0; i < kNames.size(); ++i) {
        if (kNames[i] == of) return {static_cast<Memory::Of>(i), index, offset};
    }
    throw Raised(usage_error("there is no memory \"" + of + "\""));
}

void bind_form(nb::module_& module) {
    nb::class_<FormBuilder>(module, "Form",
                            "Kernels for operands of one layout; see runtime/executable/executable.hpp.")
        .def(nb::init<>())
        .def(
            "stage",
            [](FormBuilder& builder, std::shared_ptr<CudaKernel> kernel,
               const std::array<std::uint32_t, 3>& grid) {
                builder.form.stages.push_back({.grid = {grid[0], grid[1], grid[2]}});
                builder.kernels.push_back(std::move(kernel));
            },
            "kernel"_a, "grid"_a, "The arguments that are added from now on are those of this stage.")
        .def(
            "add_i8", [](FormBuilder& b, std::int64_t v) { add_number(b, static_cast<std::int8_t>(v)); },
            "value"_a)
        .def(
            "add_i16", [](FormBuilder& b, std::int64_t v) { add_number(b, static_cast<std::int16_t>(v)); },
            "value"_a)
        .def(
            "add_i32", [](FormBuilder& b, std::int64_t v) { add_number(b, static_cast<std::int32_t>(v)); },
            "value"_a)
        .def(
            "add_i64", [](FormBuilder& b, std::int64_t v) { add_number(b, v); }, "value"_a)
        .def(
            "add_f32", [](FormBuilder& b, double v) { add_number(b, static_cast<float>(v)); }, "value"_a)
        .def(
            "add_f64", [](FormBuilder& b, double v) { add_number(b, v); }, "value"_a)
        .def(
            "add_pointer",
            [](FormBuilder& b, const std::string& of, std::int32_t index, std::int64_t offset) {
                b.add(PointerArgument{memory_of(of, index, offset)});
            },
            "of"_a, "index"_a = 0, "offset"_a = 0)
        .def("add_own_distance", [](FormBuilder& b) { b.add(OwnDistanceArgument{}); })
        .def(
            "add_tensor_map",
            [](FormBuilder& b, const std::string& of, std::int32_t index, std::int64_t offset,
               std::int32_t swizzle, std::int32_t element_bytes, std::int32_t element_type,
               std::vector<std::int64_t> block, std::vector<std::int64_t> shape,
               std::vector<std::int64_t> strides, bool pad_with_nan) {
                b.add(DescriptorArgument{.at = memory_of(of, index, offset),
                                         .map = {.shape = std::move(shape),
                                                 .strides = std::move(strides),
                                                 .block = std::move(block),
                                                 .element_bytes = element_bytes,
                                                 .element_type = element_type,
                                                 .swizzle = swizzle,
                                                 .pad_with_nan = pad_with_nan},
                                         .map_alone = false});
            },
            "of"_a, "index"_a, "offset"_a, "swizzle"_a, "element_bytes"_a, "element_type"_a, "block"_a,
            "shape"_a, "strides"_a, "pad_with_nan"_a, "The map, its shape and its strides.")
        .def_prop_rw(
            "strides", [](const FormBuilder& b) { return b.form.strides; },
            [](FormBuilder& b, std::vector<std::vector<std::int64_t>> v) { b.form.strides = std::move(v); })
        .def_prop_rw(
            "alignment", [](const FormBuilder& b) { return b.form.alignment; },
            [](FormBuilder& b, std::vector<std::int64_t> v) { b.form.alignment = std::move(v); });
}

}  // namespace

void bind_executable(nb::module_& module) {
    module.def("set_tensor_types", &CallTensors::set_types, "tensor"_a, "parameter"_a,
               "torch.Tensor and its Parameter, once, before any call.");
    bind_form(module);
    nb::class_<Executable>(module, "Executable",
                           "A compiled program on this rank; see runtime/executable/executable.hpp.")
        .def(nb::new_(&make), "op"_a, "operands"_a, "host"_a = nb::none(),
             "`operands`: of each (name, dtype, shape, layout, inputs, outputs); `host`: runs the kernels of "
             "a call on host.")
        .def("run", &run, "tensors"_a, "stream"_a = nb::none(),
             "One call; `stream`: None: torch's current one. False, and nothing has begun, where the tensors "
             "are not what the "
             "operands are, or no form is for them.")
        .def(
            "takes",
            [](const Executable& executable, nb::handle tensors) {
                CallTensors given;
                return given.read(executable, tensors) && executable.check(given.all());
            },
            "tensors"_a, "Whether the tensors are what the operands are.")
        .def(
            "place",
            [](Executable& executable, nb::handle tensors) {
                CallTensors given;
                if (!given.read(executable, tensors))
                    throw Raised(usage_error("these are not the operands' tensors"));
                unwrap(executable.check(given.all()));
                unwrap(executable.place(given.all()));
            },
            "tensors"_a, "Tells the op where its inputs and outputs are, as a call does.")
        .def(
            "add",
            [](Executable& executable, const FormBuilder& builder) {
                unwrap(executable.add(builder.form, builder.kernels));
            },
            "form"_a)
        .def_prop_ro("calls", &Executable::calls)
        .def_prop_ro("graph_launches", &Executable::graph_launches, "Calls that were one launch of a graph.")
        .def_prop_ro("captured", &Executable::captured, "Whether a CUDA graph may replay it.")
        .def_prop_ro(
            "handle",
            [](const std::shared_ptr<Executable>& e) { return reinterpret_cast<std::uintptr_t>(e.get()); })
        .def(
            "use_graphs", [](Executable& e, int use) { e.use_graphs(static_cast<GraphUse>(use)); }, "use"_a,
            "0 never, 1 of calls with many parts, 2 always.");
}

}  // namespace syncopate::bindings
