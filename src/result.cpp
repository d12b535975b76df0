#include "syncopate/result.hpp"

#include <fmt/format.h>

namespace syncopate {

std::string Location::to_string() const {
    std::string text = file;
    if (line > 0) text += fmt::format("{}{}", text.empty() ? "line " : ":", line);
    if (line > 0 && column > 0) text += fmt::format(":{}", column);
    if (rank >= 0) text += fmt::format("{}rank {}", text.empty() ? "" : ": ", rank);
    if (op >= 0) text += fmt::format("{}op {}", text.empty() ? "" : (rank >= 0 ? " " : ": "), op);
    return text;
}

std::string Error::to_string() const {
    const std::string where = location.to_string();
    const std::string text = where.empty() ? message : where + ": " + message;
    return excerpt.empty() ? text : text + "\n" + excerpt;
}

}  // namespace syncopate
