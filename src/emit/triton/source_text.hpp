// The text of the file whose kernel is rewritten: its lines, its indentation, and what is written out in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "emit/triton/syntax.hpp"
#include "syncopate/kernel/triton/sites/text.hpp"
#include "syncopate/result.hpp"

namespace syncopate::emit::triton {

[[nodiscard]] inline Span span_of(const kernel::triton::SourceRange& range) {
    return {range.begin, range.end};
}

/// Refers to the kernel, whose language is Triton and which has to outlive it.
class SourceText {
public:
    explicit SourceText(const kernel::Kernel& kernel);

    [[nodiscard]] std::string_view all() const { return source_; }
    [[nodiscard]] const kernel::triton::Sites& sites() const { return sites_; }
    [[nodiscard]] const std::string& eol() const { return eol_; }
    /// Of the kernel function, decorators included.
    [[nodiscard]] const Facts& facts() const { return facts_; }

    [[nodiscard]] std::string of(const Span& span) const {
        return std::string(source_.substr(span.begin, span.end - span.begin));
    }
    [[nodiscard]] std::uint32_t line_begin(std::uint32_t offset) const;
    /// Of the next line; the end of the text behind the last one.
    [[nodiscard]] std::uint32_t next_line(std::uint32_t offset) const;
    /// The white space that the line of `offset` begins with.
    [[nodiscard]] std::string indent_at(std::uint32_t offset) const;
    [[nodiscard]] bool begins_its_line(std::uint32_t offset) const;
    [[nodiscard]] bool is_blank_line(std::uint32_t begin) const;

    /// The call that is all of `whole`; nullptr if none is.
    [[nodiscard]] const Call* find_call(const Span& whole) const;
    /// The argument that a call is given by keyword or at a position; empty where it is not.
    [[nodiscard]] Span argument_of(const Span& call, std::string_view keyword, std::size_t position) const;
    /// The list that is all of `whole`; nullptr if none is written out there.
    [[nodiscard]] const List* find_list(const Span& whole) const;

    /// Fails where anything but a comment stands between a statement's end and the end of its line.
    [[nodiscard]] Status check_ends_its_line(std::uint32_t end, const std::string& what) const;
    [[nodiscard]] Error error_at(const kernel::triton::SourceRange& range, std::string message) const;
    [[nodiscard]] Error error_at(const Span& span, std::string message) const;

private:
    const kernel::triton::Sites& sites_;
    std::string_view source_;
    std::string_view file_;
    Facts facts_;
    std::string eol_ = "\n";
};

/// One level of indentation, of the character that `indent` is made of.
[[nodiscard]] std::string level_like(const std::string& indent);

}  // namespace syncopate::emit::triton
