#include "ingest/program/text_cursor.hpp"

#include <charconv>
#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include "syncopate/ingest/program/tensor_program.hpp"
#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$'; }
bool in_name(char c) { return begins_name(c) || is_digit(c) || c == '.' || c == '-'; }

char closing(char open) {
    switch (open) {
        case '(': return ')';
        case '[': return ']';
        case '{': return '}';
        default: return '>';
    }
}

}  // namespace

void TextCursor::skip_blanks() {
    while (at_ < text_.size()) {
        const char c = text_[at_];
        if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            ++at_;
        } else if (c == '/' && at_ + 1 < text_.size() && text_[at_ + 1] == '/') {
            const std::size_t end = text_.find('\n', at_);
            at_ = end == text_.npos ? text_.size() : end;
        } else if (c == '/' && at_ + 1 < text_.size() && text_[at_ + 1] == '*') {
            const std::size_t end = text_.find("*/", at_ + 2);
            at_ = end == text_.npos ? text_.size() : end + 2;
        } else {
            return;
        }
    }
}

bool TextCursor::expect(std::string_view word, std::string_view where) {
    return take(word) || fail(fmt::format("expected \"{}\" {}, found {}", word, where, found()));
}

std::string_view TextCursor::name(bool digit_first) {
    skip_blanks();
    std::size_t end = at_;
    if (end < text_.size() && (begins_name(text_[end]) || (digit_first && is_digit(text_[end])))) {
        // A '-' before '>' is an arrow and no part of the name.
        while (end < text_.size() && in_name(text_[end]) &&
               !(text_[end] == '-' && end + 1 < text_.size() && text_[end + 1] == '>')) {
            ++end;
        }
    }
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    return word;
}

std::optional<std::int64_t> TextCursor::integer() {
    skip_blanks();
    std::int64_t value = 0;
    const char* const begin = text_.data() + at_;
    const char* const end = text_.data() + text_.size();
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (error != std::errc{}) return std::nullopt;
    at_ += static_cast<std::size_t>(stop - begin);
    return value;
}

bool TextCursor::skip_string() {
    const std::size_t start = at_;
    for (++at_; at_ < text_.size(); ++at_) {
        if (text_[at_] == '\\') {
            ++at_;
        } else if (text_[at_] == '"') {
            ++at_;
            return true;
        }
    }
    at_ = text_.size();
    return fail_at(start, "a string that never ends");
}

bool TextCursor::skip_balanced(bool angles) {
    std::vector<std::pair<char, std::size_t>> open;
    do {
        skip_blanks();
        if (at_ >= text_.size()) {
            return fail_at(open.empty() ? at_ : open.back().second, "a bracket that is never closed");
        }
        const char c = text_[at_];
        if (c == '"') {
            if (!skip_string()) return false;
            continue;
        }
        if (c == '(' || c == '[' || c == '{' || (angles && c == '<')) {
            if (open.size() >= static_cast<std::size_t>(kMaxProgramNesting)) {
                return fail(fmt::format("nested more than {} deep", kMaxProgramNesting));
            }
            open.emplace_back(closing(c), at_);
        } else if (angles && c == '-' && at_ + 1 < text_.size() && text_[at_ + 1] == '>') {
            ++at_;
        } else if (c == ')' || c == ']' || c == '}' || (angles && c == '>')) {
            if (open.empty() || open.back().first != c) {
                return fail(fmt::format(
                    "'{}' closes nothing{}", c,
                    open.empty() ? std::string() : fmt::format("; expected '{}'", open.back().first)));
            }
            open.pop_back();
        }
        ++at_;
    } while (!open.empty());
    return true;
}

Location TextCursor::locate(std::size_t offset) {
    if (offset < line_offset_) {
        line_ = 1;
        line_offset_ = 0;
    }
    for (std::size_t end = text_.find('\n', line_offset_); end < offset;
         end = text_.find('\n', line_offset_)) {
        line_offset_ = end + 1;
        ++line_;
    }
    return {file_name_, line_, static_cast<std::int32_t>(offset - line_offset_) + 1};
}

bool TextCursor::fail_at(std::size_t offset, std::string message) {
    if (!error_) error_ = Error{std::move(message), locate(std::min(offset, text_.size()))};
    return false;
}

std::string TextCursor::found() {
    skip_blanks();
    if (at_ >= text_.size()) return "the end of the file";
    const std::size_t start = at_;
    std::string_view word = name(true);
    at_ = start;
    if (word.empty()) word = text_.substr(at_, 1);
    return "\"" + escaped(word, 40) + "\"";
}

}  // namespace syncopate::ingest
