// What is added to the user's file, and in whose place; every other byte stays.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "emit/triton/source_text.hpp"

namespace syncopate::emit::triton {

/// Replacements and insertions, applied all at once. Those at one place come out in the order in which they
/// were added. Refers to the text, which has to outlive it.
class Edits {
public:
    explicit Edits(const SourceText& text) : text_(text) {}

    void insert(std::uint32_t at, std::string text);
    void replace(const Span& span, std::string text);
    /// Adds a line before the one that `offset` is on; it comes without its end.
    void add_line_before(std::uint32_t offset, const std::string& line);
    /// Adds a line after the one that `offset` (the end of a statement) is on.
    void add_line_after(std::uint32_t offset, const std::string& line);

    /// Takes note that the file has to import `helper` from syncopate.language, and returns it.
    const std::string& use(const std::string& helper);
    /// The same of the form for so many axes: sy_acquire, sy_acquire_2d, ….
    const std::string& use(const std::string& helper, std::size_t axes);
    [[nodiscard]] const std::set<std::string>& used() const { return used_; }

    /// The text with all edits made.
    [[nodiscard]] std::string apply();

private:
    struct Edit {
        std::uint32_t begin;
        std::uint32_t end;
        std::string text;
    };
    const SourceText& text_;
    std::vector<Edit> edits_;
    std::set<std::string> used_;
};

}  // namespace syncopate::emit::triton
