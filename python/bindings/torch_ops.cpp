// The library of torch's ops (python/torch_ops): its table, recipes as Python makes them, and how errors of a call get back to
// Python through torch.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "interface.hpp"
#include "syncopate/runtime/executable/executable.hpp"
#include "tensor_view.hpp"

namespace pybind11 {

/// As pybind11 declares it: what torch's faces catch, and let set Python's error itself. So an error keeps its type on the way
/// through torch.
class __attribute__((visibility("default"))) builtin_exception : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
    virtual void set_error() const = 0;
};

}  // namespace pybind11

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

using namespace syncopate::torch_ops;

const Interface* ops = nullptr;
std::shared_ptr<nb::object> failed_callback;  ///< failed(handle): an executable is not to be called again

/// An exception of Python's on its way through C++.
class PythonError final : public pybind11::builtin_exception {
public:
    explicit PythonError(nb::object value)
        : builtin_exception(nb::cast<std::string>(nb::str(value))),
          value_(shared_callable(std::move(value))) {}
    void set_error() const override {
        const GilHeld gil;
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value_->ptr())), value_->ptr());
    }

private:
    std::shared_ptr<nb::object> value_;
};

/// Exceptions that set-up ops have left, by thread.
thread_local PyObject* pending = nullptr;

void raise_pending() {
    if (pending == nullptr) return;
    const GilHeld gil;
    throw PythonError(nb::steal(std::exchange(pending, nullptr)));
}

void set_pending(nb::object value) {
    Py_XDECREF(pending);
    pending = value.release().ptr();
}

/// The exception that is being handled, as Python's.
nb::object as_python(const Error& error) {
    nb::object type = nb::module_::import_("syncopate._syncopate")
                          .attr(error.error_class == ErrorClass::machine ? "MachineError"
                                : error.error_class == ErrorClass::usage ? "UsageError"
                                                                         : "InputError");
    nb::object made = type(error.to_string());
    made.attr("exit_code") = static_cast<int>(error.error_class);
    made.attr("rank") = error.location.rank;
    made.attr("op") = error.location.op;
    return made;
}

void forget(runtime::Executable* executable, const nb::object& error) {
    if (failed_callback != nullptr)
        call_python(*failed_callback, reinterpret_cast<std::uintptr_t>(executable), error);
}

[[noreturn]] void fail(runtime::Executable* executable, nb::object error, const std::string& module) {
    forget(executable, error);
    if (!module.empty() && nb::hasattr(error, "add_note")) error.attr("add_note")("in " + module);
    throw PythonError(std::move(error));
}

bool run_executable(void* handle, const TensorArgument* tensors, std::size_t count, std::uint64_t stream,
                    const std::string& module) {
    auto* executable = static_cast<runtime::Executable*>(handle);
    std::optional<GilReleased> released;
    if (PyGILState_Check() != 0) released.emplace();  // torch keeps it in calls by kernels in Python
    constexpr std::size_t kMost = 16;
    runtime::CallTensor given[kMost];
    if (count > kMost) return false;
    for (std::size_t i = 0; i < count; ++i)
        given[i] = {
            tensors[i].address, {tensors[i].sizes, tensors[i].axes}, {tensors[i].strides, tensors[i].axes}};
    const std::span<const runtime::CallTensor> all(given, count);
    const std::optional<std::size_t> form = executable->takes(all);
    if (!form) return false;
    try {
        const Status ran = executable->run_taken(all, *form, stream);
        if (ran) return true;
        const GilHeld gil;
        const std::shared_ptr<runtime::FusedOp> op = executable->shared_op();
        if (op->calls_differ() && op->had_been_told()) {
            forget(executable, as_python(ran.error()));
            return false;  // what ended it is no news to this rank: it is set up anew
        }
        fail(executable, as_python(ran.error()), module);
    } catch (nb::python_error& raised) {  // of kernels in the interpreter
        const GilHeld gil;
        fail(executable, nb::borrow(raised.value()), module);
    }
}

/// (kind, op or variable, …) of each step; see torch/recipes.py.
using ArgumentTuple = std::tuple<std::string, bool, nb::object>;
using CallTuple = std::tuple<std::string, std::string, std::vector<ArgumentTuple>, int>;

StepArgument argument_of(const ArgumentTuple& given) {
    const auto& [kind, optional, value] = given;
    StepArgument made;
    made.optional = optional;
    using Kind = StepArgument::Kind;
    if (kind == "variable" || kind == "integer" || kind == "truth") {
        made.kind = kind == "variable" ? Kind::variable : kind == "integer" ? Kind::integer : Kind::truth;
        made.number = nb::cast<std::int64_t>(value);
    } else if (kind == "text") {
        made.kind = Kind::text;
        made.text = nb::cast<std::string>(value);
    } else if (kind == "integers") {
        made.kind = Kind::integers;
        made.numbers = nb::cast<std::vector<std::int64_t>>(value);
    }
    return made;
}

struct RecipeBuilder {
    Recipe recipe;
    std::shared_ptr<runtime::Executable> executable;
};

void bind_recipe(nb::module_& module) {
    nb::class_<RecipeBuilder>(
        module, "Recipe",
        "How calls of an op of one kind are carried out; see python/torch_ops/interface.hpp.")
        .def(
            "__init__",
            [](RecipeBuilder* made, std::string op, std::string outcome, std::uint64_t token,
               std::string group, int inputs) {
                new (made) RecipeBuilder;
                made->recipe.op = std::move(op);
                made->recipe.outcome = std::move(outcome);
                made->recipe.token = token;
                made->recipe.group = std::move(group);
                made->recipe.inputs = made->recipe.variables = inputs;
            },
            "op"_a, "outcome"_a, "token"_a, "group"_a, "inputs"_a)
        .def(
            "variable", [](RecipeBuilder& builder) { return builder.recipe.variables++; },
            "A new variable's number.")
        .def(
            "constant",
            [](RecipeBuilder& builder, int variable, std::uintptr_t held) {
                builder.recipe.constants.emplace_back(variable, reinterpret_cast<void*>(held));
            },
            "variable"_a, "held"_a,
            "The tensor that every call has in it; `held`: what torch.ops.syncopate._hold says of it. The "
            "recipe gives it back, once it is learnt.")
        .def(
            "empty",
            [](RecipeBuilder& builder, const std::vector<std::int64_t>& sizes, int of, int dtype) {
                Step step{.kind = Step::Kind::empty,
                          .of = of,
                          .result = builder.recipe.variables++,
                          .sizes = sizes,
                          .dtype = dtype};
                builder.recipe.steps.push_back(step);
                return step.result;
            },
            "sizes"_a, "of"_a, "dtype"_a = -1)
        .def(
            "rows",
            [](RecipeBuilder& b, int of) { b.recipe.steps.push_back({.kind = Step::Kind::rows, .of = of}); },
            "of"_a)
        .def(
            "contiguous",
            [](RecipeBuilder& b, int of) {
                b.recipe.steps.push_back({.kind = Step::Kind::contiguous, .of = of});
            },
            "of"_a)
        .def(
            "run",
            [](RecipeBuilder& builder, std::shared_ptr<runtime::Executable> executable,
               const std::vector<int>& operands) {
                builder.recipe.executable = executable.get();
                builder.executable = std::move(executable);
                builder.recipe.steps.push_back({.kind = Step::Kind::run, .operands = operands});
            },
            "executable"_a, "operands"_a)
        .def(
            "call",
            [](RecipeBuilder& builder, const std::string& name, const std::string& overload,
               const std::vector<ArgumentTuple>& arguments, bool keeps) {
                Step step{.kind = Step::Kind::call, .name = name, .overload = overload};
                for (const ArgumentTuple& argument : arguments)
                    step.arguments.push_back(argument_of(argument));
                if (keeps) step.result = builder.recipe.variables++;
                builder.recipe.steps.push_back(step);
                return step.result;
            },
            "name"_a, "overload"_a, "arguments"_a, "keeps"_a = true,
            "An op of torch's; the variable of its result.")
        .def(
            "give",
            [](RecipeBuilder& builder, const std::vector<int>& results) { builder.recipe.results = results; },
            "results"_a)
        .def(
            "learn",
            [](RecipeBuilder& builder) {
                builder.recipe.keep = [kept = builder.executable] {};
                const Recipe recipe = builder.recipe;
                const GilReleased released;
                ops->add(recipe);
            },
            "The call whose set-up op runs in this thread is carried out so from now on.");
}

}  // namespace

std::uint64_t tick() {
    static std::uint64_t without_ops = 0;
    return ops != nullptr ? ops->tick() : ++without_ops;
}

void bind_torch_ops(nb::module_& module) {
    module.def(
        "load_torch_ops",
        [](const std::string& path, nb::object failed) {
            void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (library == nullptr) throw Raised(machine_error(dlerror()));
            const auto table =
                reinterpret_cast<const Interface* (*)()>(dlsym(library, "syncopate_torch_ops"));
            if (table == nullptr || table()->version != kInterfaceVersion)
                throw Raised(machine_error(path + " is of another version of syncopate"));
            ops = table();
            failed_callback = shared_callable(std::move(failed));
            ops->connect(&run_executable, &raise_pending);
            return ops->schemas();
        },
        "path"_a, "failed"_a, "The schemas of the ops, to be defined before start_torch_ops.");
    module.def("start_torch_ops", [] { ops->start(true); });
    bind_recipe(module);
    module.def("set_pending", &set_pending, "error"_a,
               "What the set-up op that this thread is in raises, once it has returned.");
    const auto released = ReleaseGil();
    module.def("drop_recipes", [](std::uint64_t token) { ops->drop(token); }, "token"_a, released);
    module.def(
        "drop_recipes_of_group", [](const std::string& name) { ops->drop_group(name.c_str()); }, "name"_a,
        released);
    module.def("drop_all_recipes", [] { ops->drop_all(); }, released);
    module.def("set_generation", [](std::int64_t number) { ops->set_generation(number); }, "number"_a);
    module.def("bypass_recipes", [](int change) { ops->bypass(change); }, "change"_a);
    module.def("last_use", [](std::uint64_t token) { return ops->last_use(token); }, "token"_a, released);
    module.def("tick", &tick);
    module.def("recipe_counts", [] {
        std::vector<std::tuple<std::string, std::string, std::uint64_t>> all;
        for (const Count& count : ops->counts()) all.emplace_back(count.op, count.outcome, count.calls);
        return all;
    });
    module.def("clear_recipe_counts", [] { ops->clear_counts(); });
    module.def(
        "is_nested", [] { return ops->is_nested(); },
        "Whether an op in C++ is around this, which raises what set_pending is given.");
    module.def("know_rows", [](const std::string& rows) { ops->know_rows(rows); }, "rows"_a);
}

}  // namespace syncopate::bindings
