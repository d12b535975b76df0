// A place in a text that moves forward: what the readers of HLO and MLIR text share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// Skips blanks and comments before each token. Errors are recorded once, the first one wins.
class TextCursor {
public:
    /// The arguments must outlive the cursor. The text must be shorter than 2 GiB.
    TextCursor(std::string_view text, const std::string& file_name) : text_(text), file_name_(file_name) {}

    [[nodiscard]] bool at_end() {
        skip_blanks();
        return at_ >= text_.size();
    }
    [[nodiscard]] std::size_t offset() const { return at_; }
    void seek(std::size_t offset) { at_ = offset; }
    [[nodiscard]] std::string_view text() const { return text_; }
    [[nodiscard]] std::string_view since(std::size_t begin) const { return text_.substr(begin, at_ - begin); }

    /// The next character after blanks and comments; '\0' at the end.
    [[nodiscard]] char peek() {
        skip_blanks();
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    /// The very next character, blank or not.
    [[nodiscard]] char peek_raw() const { return at_ < text_.size() ? text_[at_] : '\0'; }
    void advance() { ++at_; }

    [[nodiscard]] bool looking_at(std::string_view word) {
        skip_blanks();
        return text_.substr(at_, word.size()) == word;
    }
    /// Takes `word` if it is next; nothing says that it ends there.
    bool take(std::string_view word) {
        if (!looking_at(word)) return false;
        at_ += word.size();
        return true;
    }
    bool expect(std::string_view word, std::string_view where);

    /// A name: letters, digits, '_', '.', '-' (and '$'), not beginning with a digit unless `digit_first`.
    /// Empty if there is none.
    std::string_view name(bool digit_first = false);
    /// A whole number with an optional sign; nothing if there is none or it does not fit.
    std::optional<std::int64_t> integer();

    /// From an opening bracket to behind the one that closes it, with strings and nested brackets; "<" counts
    /// as a bracket only with `angles`.
    bool skip_balanced(bool angles);
    /// From a '"' to behind the one that closes it.
    bool skip_string();

    void skip_blanks();

    [[nodiscard]] Location locate(std::size_t offset);
    [[nodiscard]] Location here() {
        skip_blanks();
        return locate(at_);
    }
    /// Records what is wrong at the cursor, or at `offset`; returns false.
    bool fail(std::string message) {
        skip_blanks();
        return fail_at(at_, std::move(message));
    }
    bool fail_at(std::size_t offset, std::string message);
    [[nodiscard]] bool failed() const { return error_.has_value(); }
    [[nodiscard]] const Error& error() const { return *error_; }

    /// What stands at the cursor, for messages: "\"foo\"", "the end of the file".
    [[nodiscard]] std::string found();

private:
    std::string_view text_;
    const std::string& file_name_;
    std::size_t at_ = 0;
    std::size_t line_offset_ = 0;  // of the start of line_: locate() mostly goes forward
    std::int32_t line_ = 1;
    std::optional<Error> error_;
};

}  // namespace syncopate::ingest
