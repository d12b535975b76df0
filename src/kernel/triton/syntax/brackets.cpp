#include "kernel/triton/syntax/brackets.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace syncopate::kernel::triton {
namespace {

constexpr std::string_view kOpening = "([{";
constexpr std::string_view kClosing = ")]}";

SourceRange range_at(std::string_view source, std::size_t at) {
    const std::string_view before = source.substr(0, at);
    const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0: the first line
    return {.begin = static_cast<std::uint32_t>(at),
            .end = static_cast<std::uint32_t>(at + 1),
            .line = static_cast<std::int32_t>(std::count(before.begin(), before.end(), '\n')) + 1,
            .column = static_cast<std::int32_t>(at - line_start) + 1};
}

}  // namespace

std::size_t end_of_string(std::string_view source, std::size_t begin) {
    const char quote = source[begin];
    const bool triple = source.substr(begin, 3) == std::string(3, quote);
    for (std::size_t at = begin + (triple ? 3 : 1); at < source.size(); ++at) {
        if (source[at] == '\\') {
            ++at;
        } else if (triple && source.substr(at, 3) == std::string(3, quote)) {
            return at + 3;
        } else if (!triple && (source[at] == quote || source[at] == '\n')) {
            return at + 1;
        }
    }
    return source.size();
}

std::optional<BracketError> mismatched_bracket(std::string_view source) {
    std::vector<std::size_t> open;
    for (std::size_t at = 0; at < source.size();) {
        const char c = source[at];
        if (c == '#') {
            at = std::min(source.find('\n', at), source.size());
            continue;
        }
        if (c == '"' || c == '\'') {
            at = end_of_string(source, at);
            continue;
        }
        if (kOpening.find(c) != std::string_view::npos) open.push_back(at);
        if (const std::size_t kind = kClosing.find(c); kind != std::string_view::npos) {
            if (open.empty() || source[open.back()] != kOpening[kind]) {
                std::string message = std::string("`") + c + "` closes nothing: leave it out";
                if (!open.empty()) {
                    message = std::string("`") + c + "` does not close the `" + source[open.back()] +
                              "` of line " + std::to_string(range_at(source, open.back()).line) +
                              ": write `" + kClosing[kOpening.find(source[open.back()])] + "`";
                }
                return BracketError{range_at(source, at), std::move(message)};
            }
            open.pop_back();
        }
        ++at;
    }
    if (open.empty()) return std::nullopt;
    return BracketError{range_at(source, open.back()),
                        std::string("`") + source[open.back()] + "` is never closed: write `" +
                            kClosing[kOpening.find(source[open.back()])] + "`"};
}

}  // namespace syncopate::kernel::triton
