// What the parts of the extension share: errors as exceptions, and one function per part.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/names.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/model/region.hpp"
#include "syncopate/result.hpp"
#include "syncopate/tune/store/store.hpp"

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

/// The value that a name stands for, or a UsageError with the names that there are.
template <typename T>
T named(std::optional<T> value, const char* what, const std::string& name,
        std::span<const std::string_view> known) {
    if (value) return *value;
    std::string all;
    for (const std::string_view one : known) all += (all.empty() ? "" : ", ") + std::string(one);
    throw Raised(usage_error(std::string("there is no ") + what + " \"" + escaped(name) + "\"; there are " +
                             all + did_you_mean(name, known)));
}

/// The names of an enumeration's values, from the first on.
template <typename Enum>
std::vector<std::string_view> names_of(std::size_t count) {
    std::vector<std::string_view> names;
    for (std::size_t value = 0; value < count; ++value) names.push_back(name_of(static_cast<Enum>(value)));
    return names;
}

[[nodiscard]] inline nanobind::tuple to_tuple(const std::vector<std::string_view>& names) {
    nanobind::list made;
    for (const std::string_view name : names) made.append(nanobind::str(name.data(), name.size()));
    return nanobind::tuple(made);
}

[[nodiscard]] plan::DType to_dtype(const std::string& name);
[[nodiscard]] plan::Backend to_backend(const std::string& name);

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
void bind_executable(nanobind::module_& module);   // executable.cpp
void bind_torch_ops(nanobind::module_& module);    // torch_ops.cpp
void bind_functions(nanobind::module_& module);    // functions.cpp
void bind_plan(nanobind::module_& module);         // plan.cpp
void bind_compiler(nanobind::module_& module);     // compiler.cpp
void bind_artifact(nanobind::module_& module);     // artifact.cpp
void bind_templates(nanobind::module_& module);    // templates.cpp
void bind_attention(nanobind::module_& module);    // attention.cpp
void bind_simulate(nanobind::module_& module);     // simulate.cpp
void bind_ingest(nanobind::module_& module);       // ingest.cpp
void bind_layout(nanobind::module_& module);       // layout.cpp
void bind_problem(nanobind::module_& module);      // problem.cpp
void bind_strategy(nanobind::module_& module);     // strategy.cpp
void bind_tune(nanobind::module_& module);         // tune.cpp
void bind_tune_search(nanobind::module_& module);  // tune_search.cpp
void bind_ops(nanobind::module_& module);
void bind_bundle(nanobind::module_& module);  // ops.cpp

}  // namespace syncopate::bindings
