#include "ingest/hlo/source_lines.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "syncopate/ingest/program/tensor_program.hpp"

namespace syncopate::ingest {
namespace {

constexpr std::array<std::string_view, 4> kTables{"FileNames", "FunctionNames", "FileLocations",
                                                  "StackFrames"};

bool is_octal(char c) { return c >= '0' && c <= '7'; }

/// What stands between quotes, without the escapes of C.
std::string unescaped(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '\\' || i + 1 == text.size()) {
            out += text[i];
        } else if (i + 3 < text.size() && std::all_of(&text[i + 1], &text[i + 4], is_octal)) {
            out +=
                static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
            i += 3;
        } else {
            const char c = text[++i];
            out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
        }
    }
    return out;
}

/// The value of KEY=… in "{a=1 b="x" c={…}}": a word, or a string with its quotes; nothing if there is none.
std::optional<std::string_view> field(std::string_view braces, std::string_view key) {
    static const std::string kNoFile;
    TextCursor at(braces, kNoFile);
    at.take("{");
    while (!at.at_end() && at.peek() != '}') {
        const std::string_view name = at.name();
        if (name.empty() || !at.take("=")) return std::nullopt;
        const std::size_t begin = (at.skip_blanks(), at.offset());
        const char c = at.peek();
        if (c == '"' ? !at.skip_string() : c == '{' && !at.skip_balanced(false)) return std::nullopt;
        while (std::string_view(" \t\r\n,}").find(at.peek_raw()) == std::string_view::npos &&
               at.peek_raw() != '\0')
            at.advance();
        if (name == key) return at.since(begin);
        at.take(",");
    }
    return std::nullopt;
}

std::int64_t number(std::string_view braces, std::string_view key) {
    const auto text = field(braces, key);
    std::int64_t value = 0;
    if (text) std::from_chars(text->data(), text->data() + text->size(), value);
    return value;
}

}  // namespace

bool SourceLines::read(TextCursor& at) {
    for (std::size_t rows = 0;;) {
        const std::size_t start = (at.skip_blanks(), at.offset());
        const std::string_view table = at.name();
        const char next = at.peek();
        const bool known = std::find(kTables.begin(), kTables.end(), table) != kTables.end();
        if (!known || next == '(' || next == '{') {  // a computation may be called so
            at.seek(start);
            return true;
        }
        while (at.peek() >= '0' && at.peek() <= '9') {
            if (++rows > kMaxInstructions) return at.fail(fmt::format("more than {} rows", kMaxInstructions));
            const auto id = at.integer();
            const std::size_t begin = (at.skip_blanks(), at.offset());
            const bool names = table == "FileNames" || table == "FunctionNames";
            if (!id || at.peek() != (names ? '"' : '{'))
                return at.fail(fmt::format("expected a row of {}: NUMBER {}, found {}", table,
                                           names ? "\"NAME\"" : "{…}", at.found()));
            if (names ? !at.skip_string() : !at.skip_balanced(false)) return false;
            const std::string_view row = at.since(begin);
            if (table == "FileNames") files_[*id] = unescaped(row.substr(1, row.size() - 2));
            if (table == "FileLocations")
                locations_[*id] = {number(row, "file_name_id"), number(row, "line")};
            if (table == "StackFrames") frames_[*id] = number(row, "file_location_id");
        }
    }
}

std::string SourceLines::line_of(std::string_view metadata) const {
    std::int64_t line = number(metadata, "source_line");
    if (const auto file = field(metadata, "source_file"); file && file->size() > 2 && line > 0)
        return fmt::format("{}:{}", unescaped(file->substr(1, file->size() - 2)), line);
    const auto frame = frames_.find(number(metadata, "stack_frame_id"));
    if (frame == frames_.end()) return {};
    const auto place = locations_.find(frame->second);
    if (place == locations_.end() || place->second.line <= 0) return {};
    const auto file = files_.find(place->second.file);
    return file == files_.end() ? std::string() : fmt::format("{}:{}", file->second, place->second.line);
}

}  // namespace syncopate::ingest
