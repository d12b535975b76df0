// Python's lock, let go in calls and taken for callbacks. A daemon thread that comes back to Python while that is ending
// is ended there: before Python 3.14 by unwinding its stack, which destructors of C++ do not survive ("terminate called
// without an active exception"). Such a thread stays where it is until its process is gone, as from 3.14 on.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <utility>

namespace syncopate::bindings {

/// What `python` returns; does not return where Python ends the thread in it.
template <typename Function>
decltype(auto) or_stay(const Function& python) {
    try {
        return python();
    } catch (const abi::__forced_unwind&) {
        for (;;) pause();
    }
}

class GilReleased {
public:
    GilReleased() : thread_(PyEval_SaveThread()) {}
    ~GilReleased() {
        or_stay([this] { PyEval_RestoreThread(thread_); });
    }
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;

private:
    PyThreadState* thread_;
};

using ReleaseGil = nanobind::call_guard<GilReleased>;

class GilHeld {
public:
    GilHeld() : before_(or_stay([] { return PyGILState_Ensure(); })) {}
    ~GilHeld() { PyGILState_Release(before_); }
    GilHeld(const GilHeld&) = delete;
    GilHeld& operator=(const GilHeld&) = delete;

private:
    PyGILState_STATE before_;
};

/// callable(arguments…), from a thread that holds the lock. An exception of Python's is thrown.
template <typename... Arguments>
nanobind::object call_python(const nanobind::object& callable, Arguments&&... arguments) {
    const nanobind::tuple all = nanobind::make_tuple(std::forward<Arguments>(arguments)...);
    PyObject* const result = or_stay([&] { return PyObject_CallObject(callable.ptr(), all.ptr()); });
    if (result == nullptr) throw nanobind::python_error();
    return nanobind::steal(result);
}

}  // namespace syncopate::bindings
