// For what writes JSON by hand, a line at a time.
#pragma once

#include <string>

namespace syncopate {

/// `text` in quotes, as JSON has it; bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string json_quoted(const std::string& text);

/// A finite number as JSON has it, with a point or an exponent, so that it is not read as an integer; read
/// again, it is the same number.
[[nodiscard]] std::string json_number(double value);

}  // namespace syncopate
