// Stages as Python gives them: what the compiler and the tuner take alike.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "syncopate/emit/artifact.hpp"

namespace syncopate::bindings {

using TensorTuple =
    std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::string, std::vector<std::int64_t>>;

using Grid = std::optional<std::tuple<std::int64_t, std::int64_t, std::int64_t>>;

/// A stage as Python gives it: source, file, kernel, bindings, scalars, tensors, grid.
using StageTuple = std::tuple<std::string, std::string, std::string, std::map<std::string, std::string>,
                              nanobind::dict, std::map<std::string, TensorTuple>, Grid>;

/// By parameter, the elements of integer tensors that the host knows.
using Values = std::map<std::string, std::vector<std::int64_t>>;

/// `values`: of each stage, or none at all.
std::vector<emit::StageText> texts_of(const std::vector<StageTuple>& stages, std::int32_t num_sms,
                                      const std::vector<Values>& values);

}  // namespace syncopate::bindings
