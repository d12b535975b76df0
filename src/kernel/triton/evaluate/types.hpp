// Element types of values of which nothing else may be known; types.cpp says what a kernel asks for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::kernel::triton {

/// 1 + a plan::DType, so that a Value holds it in a byte; 0: not known.
using Element = std::uint8_t;
inline constexpr Element kNoElement = 0;

[[nodiscard]] constexpr Element element_of(plan::DType dtype) {
    return static_cast<Element>(static_cast<int>(dtype) + 1);
}
[[nodiscard]] constexpr std::optional<plan::DType> dtype_of(Element element) {
    return element == kNoElement ? std::nullopt : std::optional(static_cast<plan::DType>(element - 1));
}
/// The name of an element type that is known, as dtype_name() has it.
[[nodiscard]] const std::string& name_of(Element element);
/// Of "fp16", "float16", "int32", …; null: it names none.
[[nodiscard]] const Element* element_named(std::string_view name);
/// Whether two texts are equal, or name one type; nullopt: not all of it is known.
[[nodiscard]] std::optional<bool> same_type(std::string_view a, std::string_view b);

}  // namespace syncopate::kernel::triton
