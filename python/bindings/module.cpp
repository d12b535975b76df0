// The extension module syncopate._syncopate.
#include <nanobind/stl/string.h>

#include <exception>

#include "bindings.hpp"
#include "syncopate/cache_folder.hpp"

namespace nb = nanobind;

namespace syncopate::bindings {
namespace {

// Created once per process and never freed, as the interpreter's own exception types are.
PyObject* input_error = nullptr;
PyObject* usage_error = nullptr;
PyObject* machine_error = nullptr;

PyObject* new_exception(nb::module_& module, const char* name, const char* about, PyObject* bases) {
    PyObject* type = PyErr_NewExceptionWithDoc((std::string("syncopate._syncopate.") + name).c_str(), about,
                                               bases, nullptr);
    if (type == nullptr) nb::raise_python_error();
    module.attr(name) = nb::handle(type);
    return type;
}

PyObject* type_of(ErrorClass error_class) {
    switch (error_class) {
        case ErrorClass::input: return input_error;
        case ErrorClass::usage: return usage_error;
        case ErrorClass::machine: return machine_error;
    }
    return machine_error;
}

void translate(const std::exception_ptr& thrown, void*) {
    try {
        std::rethrow_exception(thrown);
    } catch (const Raised& raised) {
        PyObject* type = type_of(raised.error.error_class);
        nb::object exception = nb::steal(PyObject_CallFunction(type, "s", raised.what()));
        if (!exception.is_valid()) return;  // the call has set another error
        exception.attr("exit_code") = static_cast<int>(raised.error.error_class);
        exception.attr("rank") = raised.error.location.rank;
        exception.attr("op") = raised.error.location.op;
        PyErr_SetObject(type, exception.ptr());
    }
}

}  // namespace

void bind_errors(nb::module_& module) {
    PyObject* base = new_exception(
        module, "SyncopateError",
        "Something that Syncopate was asked for cannot be done. exit_code: 1 the input is wrong, 2 the "
        "call is wrong, 3 the machine lacks something or a signal did not come; rank, op: -1 if none.",
        PyExc_RuntimeError);
    nb::handle(base).attr("exit_code") = 1;
    nb::handle(base).attr("rank") = -1;
    nb::handle(base).attr("op") = -1;
    const nb::tuple value_bases = nb::make_tuple(nb::handle(base), nb::handle(PyExc_ValueError));
    input_error = new_exception(module, "InputError", "The input is wrong.", value_bases.ptr());
    usage_error = new_exception(module, "UsageError", "The call is wrong.", value_bases.ptr());
    machine_error =
        new_exception(module, "MachineError", "The machine lacks something, or a signal did not come.", base);
    // Also of one that Python raises.
    for (const ErrorClass one : {ErrorClass::input, ErrorClass::usage, ErrorClass::machine})
        nb::handle(type_of(one)).attr("exit_code") = static_cast<int>(one);
    nb::register_exception_translator(translate, nullptr);
}

}  // namespace syncopate::bindings

NB_MODULE(_syncopate, module) {
    // Groups and ops are kept in module-level caches, which the interpreter does not empty at its end.
    nanobind::set_leak_warnings(false);
    module.doc() = "Syncopate's C++ side: thin bindings, no logic.";
    module.attr("VERSION") = SYNCOPATE_VERSION;
    module.def(
        "cache_folder", [] { return syncopate::cache_folder().string(); },
        "Where what can be made again is kept; \"\" where no folder is named.");
    module.def(
        "make_private_folder",
        [](const std::string& folder) {
            syncopate::bindings::unwrap(syncopate::make_private_folder(folder));
        },
        nanobind::arg("folder"),
        "Makes a folder for what is executed; MachineError where others may write there.");
    syncopate::bindings::bind_errors(module);
    syncopate::bindings::bind_plan(module);
    syncopate::bindings::bind_problem(module);
    syncopate::bindings::bind_strategy(module);
    syncopate::bindings::bind_compiler(module);
    syncopate::bindings::bind_artifact(module);
    syncopate::bindings::bind_templates(module);
    syncopate::bindings::bind_ops(module);
    syncopate::bindings::bind_bundle(module);
    syncopate::bindings::bind_attention(module);
    syncopate::bindings::bind_simulate(module);
    syncopate::bindings::bind_ingest(module);
    syncopate::bindings::bind_layout(module);
    syncopate::bindings::bind_tune(module);
    syncopate::bindings::bind_runtime(module);
    syncopate::bindings::bind_executable(module);
    syncopate::bindings::bind_torch_ops(module);
    syncopate::bindings::bind_functions(module);
    syncopate::bindings::bind_tune_search(module);
}
