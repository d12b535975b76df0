// What the parts of the extension share: errors as exceptions, and one function per part.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/plan/model/region.hpp"
#include "syncopate/result.hpp"
#include "syncopate/tune/store.hpp"

namespace syncopate::bindings {

/// Becomes a Python SyncopateError: InputError, UsageError or MachineError, by the error's class.
struct Raised : std::runtime_error {
    explicit Raised(Error e) : std::runtime_error(e.to_string()), error(std::move(e)) {}
    Error error;
};

/// The value, or its error as an exception.
template <typename T>
T unwrap(Result<T> result) {
    if (!result) throw Raised(result.error());
    return std::move(result).value();
}
inline void unwrap(Status status) {
    if (!status) throw Raised(status.error());
}

/// The value that a name stands for, or a UsageError.
template <typename T>
T named(std::optional<T> value, const char* what, const std::string& name) {
    if (!value)
        throw Raised(Error{std::string("there is no ") + what + " \"" + name + "\"", {}, ErrorClass::usage});
    return *value;
}

/// (begin, end) per axis.
using Box = std::vector<std::pair<std::int64_t, std::int64_t>>;

[[nodiscard]] inline Box to_box(const plan::Region& region) {
    Box box;
    for (const plan::Interval& interval : region) box.emplace_back(interval.begin, interval.end);
    return box;
}

/// Warns of what the store had to set aside.
void warn_of(const tune::StoreFile& store);

void bind_errors(nanobind::module_& module);
void bind_runtime(nanobind::module_& module);      // runtime.cpp
void bind_plan(nanobind::module_& module);         // plan.cpp
void bind_compiler(nanobind::module_& module);     // compiler.cpp
void bind_artifact(nanobind::module_& module);     // artifact.cpp
void bind_templates(nanobind::module_& module);    // templates.cpp
void bind_attention(nanobind::module_& module);    // attention.cpp
void bind_simulate(nanobind::module_& module);     // simulate.cpp
void bind_ingest(nanobind::module_& module);       // ingest.cpp
void bind_layout(nanobind::module_& module);       // layout.cpp
void bind_tune(nanobind::module_& module);         // tune.cpp
void bind_tune_search(nanobind::module_& module);  // tune_search.cpp

}  // namespace syncopate::bindings
