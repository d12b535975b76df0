// syncopate.plans.Mesh and Tensor as arguments.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace nanobind::detail {

template <>
struct type_caster<syncopate::plan::Mesh> {
    NB_TYPE_CASTER(syncopate::plan::Mesh, const_name("syncopate.plans.Mesh"))
    bool from_python(handle given, std::uint8_t, cleanup_list*) noexcept {
        try {
            for (auto& [name, size] :
                 cast<std::vector<std::pair<std::string, std::int32_t>>>(given.attr("axes")))
                value.axes.push_back({name, size});
            return true;
        } catch (const std::exception&) {
            return false;
        }
    }
};

template <>
struct type_caster<syncopate::plan::Tensor> {
    NB_TYPE_CASTER(syncopate::plan::Tensor, const_name("syncopate.plans.Tensor"))
    bool from_python(handle given, std::uint8_t, cleanup_list*) noexcept {
        try {
            value = {cast<std::string>(given.attr("name")),
                     cast<std::vector<std::int64_t>>(given.attr("shape")),
                     syncopate::bindings::to_dtype(cast<std::string>(given.attr("dtype")))};
            return true;
        } catch (const std::exception&) {  // Tensor has looked at its parts
            return false;
        }
    }
};

}  // namespace nanobind::detail
