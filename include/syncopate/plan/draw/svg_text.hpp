// What pictures of SVG have in common.
#pragma once

#include <string>
#include <string_view>

namespace syncopate::plan {

/// As text or an attribute of an element.
[[nodiscard]] std::string svg_escaped(std::string_view text);
/// A picture of so many pixels on white, with text of `font_size` unless an element says otherwise.
[[nodiscard]] std::string svg_document(double width, double height, int font_size, std::string_view elements);

}  // namespace syncopate::plan
