#include "kernel/triton/syntax/repair.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernel/triton/syntax/brackets.hpp"

namespace syncopate::kernel::triton {
namespace {

/// A statement's line, with those that go on with it.
struct Line {
    std::size_t begin = 0;  ///< of its first line
    std::size_t end = 0;    ///< after the newline of its last one
    std::size_t first = 0;  ///< its first character that is no blank
    std::int32_t number = 1;
    std::size_t indent = 0;
};

bool begins_with_word(std::string_view text, std::string_view word) {
    const auto is_word = [](char c) { return c == '_' || (c >= '0' && c <= '9') || (c | 32) >= 'a'; };
    return text.starts_with(word) && (text.size() == word.size() || !is_word(text[word.size()]));
}

template <std::size_t N>
bool begins_with_any(std::string_view text, const std::array<std::string_view, N>& words) {
    return std::ranges::any_of(words, [&](std::string_view word) { return begins_with_word(text, word); });
}

/// What begins a statement even where a bracket before it was never closed.
bool begins_anew(std::string_view text) {
    static constexpr std::array<std::string_view, 6> kWords{"def", "class", "import", "from", "async", "if"};
    return text.starts_with('@') || begins_with_any(text, kWords);
}

std::vector<Line> lines_of(std::string_view source) {
    std::vector<Line> lines;
    std::int32_t number = 1, depth = 0;
    bool goes_on = false;
    for (std::size_t at = 0; at < source.size(); ++number) {
        const std::size_t begin = at;
        std::size_t indent = 0;
        for (; at < source.size() && (source[at] == ' ' || source[at] == '\t'); ++at)
            indent = source[at] == '\t' ? indent / 8 * 8 + 8 : indent + 1;
        const std::string_view rest = source.substr(at);
        const bool is_blank = rest.empty() || rest[0] == '\n' || rest[0] == '\r' || rest[0] == '#';
        if (depth > 0 && indent == 0 && begins_anew(rest)) depth = 0;
        if (!is_blank && !goes_on && depth == 0) lines.push_back({begin, begin, at, number, indent});
        goes_on = false;
        while (at < source.size() && source[at] != '\n') {
            const char c = source[at];
            if (c == '#') {
                at = std::min(source.find('\n', at), source.size());
            } else if (c == '"' || c == '\'') {
                const std::size_t end = std::min(end_of_string(source, at), source.size());
                number += static_cast<std::int32_t>(
                    std::count(source.begin() + static_cast<std::ptrdiff_t>(at),
                               source.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
                at = end;
                if (source[end - 1] == '\n') --at, --number;  // one that is not closed ends with its line
            } else {
                if (c == '(' || c == '[' || c == '{') ++depth;
                if ((c == ')' || c == ']' || c == '}') && depth > 0) --depth;
                goes_on = c == '\\';
                ++at;
            }
        }
        at = std::min(at + 1, source.size());
        if (!lines.empty()) lines.back().end = at;
    }
    return lines;
}

class Repair {
public:
    Repair(std::string_view source, const std::function<bool(std::string_view)>& parses)
        : source_(source), parses_(parses), lines_(lines_of(source)) {
        made_.text = source;
    }
    Repaired run() {
        statements(0, lines_.size(), 0);
        return std::move(made_);
    }

private:
    static constexpr int kDeepest = 64;
    /// Of indentation, as in Python's own grammar: beyond, nothing parses, and to try that over and over takes long.
    static constexpr std::size_t kMostLevels = 100;

    [[nodiscard]] std::string_view line(std::size_t i) const { return source_.substr(lines_[i].first); }

    /// Repairs the statements that lines [first, last) are.
    void statements(std::size_t first, std::size_t last, int depth) {
        while (first < last) {
            const std::size_t next = end_of_statement(first, last);
            if (depth == 0 && levels(first, next) > kMostLevels)
                leave_out(first, next, true);
            else if (!is_right(first, next))
                statement(first, next, depth);
            first = next;
        }
    }

    /// Decorators belong to what follows them, and `else` and its like to what comes before.
    [[nodiscard]] std::size_t end_of_statement(std::size_t first, std::size_t last) const {
        static constexpr std::array<std::string_view, 4> kClauses{"else", "elif", "except", "finally"};
        const std::size_t indent = lines_[first].indent;
        std::size_t next = first + 1;
        bool decorates = line(first).starts_with('@');
        for (; next < last; ++next) {
            const bool inside = lines_[next].indent > indent;
            if (inside) continue;
            if (!decorates && !(lines_[next].indent == indent && begins_with_any(line(next), kClauses)))
                break;
            decorates = line(next).starts_with('@');
        }
        return next;
    }

    /// How many blocks lie in each other.
    [[nodiscard]] std::size_t levels(std::size_t first, std::size_t last) const {
        std::vector<std::size_t> open;
        std::size_t most = 0;
        for (std::size_t i = first; i < last; ++i) {
            while (!open.empty() && open.back() >= lines_[i].indent) open.pop_back();
            open.push_back(lines_[i].indent);
            most = std::max(most, open.size());
        }
        return most;
    }

    void statement(std::size_t first, std::size_t last, int depth) {
        const std::size_t indent = lines_[first].indent;
        bool has_inside = false;
        for (std::size_t i = first; i < last && depth < kDeepest; ++i) {
            if (lines_[i].indent <= indent) continue;
            std::size_t end = i;
            while (end < last && lines_[end].indent > indent) ++end;
            statements(i, end, depth + 1);
            has_inside = true;
            i = end;
        }
        if (!has_inside || !is_right(first, last)) leave_out(first, last, has_inside);
    }

    [[nodiscard]] bool is_right(std::size_t first, std::size_t last) const {
        const std::size_t begin = lines_[first].begin;
        const std::string text = made_.text.substr(begin, lines_[last - 1].end - begin);
        return parses_(lines_[first].indent > 0 ? "if 1:\n" + text : text);
    }

    void leave_out(std::size_t first, std::size_t last, bool whole) {
        const std::size_t begin = lines_[first].first, end = lines_[last - 1].end;
        for (std::size_t at = begin; at < end; ++at)
            if (made_.text[at] != '\n' && made_.text[at] != '\r') made_.text[at] = ' ';
        made_.text[begin] = '0';
        const SourceRange range{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end),
                                lines_[first].number,
                                static_cast<std::int32_t>(begin - lines_[first].begin) + 1};
        std::erase_if(made_.left_out, [&](const SourceRange& r) { return r.begin >= begin && r.end <= end; });
        made_.left_out.push_back(range);
        if (whole) made_.whole.push_back(range);
    }

    std::string_view source_;
    const std::function<bool(std::string_view)>& parses_;
    std::vector<Line> lines_;
    Repaired made_;
};

}  // namespace

Repaired repaired(std::string_view source, const std::function<bool(std::string_view)>& parses) {
    return Repair(source, parses).run();
}

}  // namespace syncopate::kernel::triton
