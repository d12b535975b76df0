#include "emit/triton/source_text.hpp"

#include <algorithm>
#include <utility>

namespace syncopate::emit::triton {

SourceText::SourceText(const kernel::Kernel& kernel)
    : sites_(kernel::triton::text_of(kernel).sites),
      source_(kernel::triton::text_of(kernel).source),
      file_(kernel.file),
      facts_(facts_of(source_, span_of(sites_.function))) {
    const std::size_t newline = source_.find('\n');
    if (newline != std::string_view::npos && newline > 0 && source_[newline - 1] == '\r') eol_ = "\r\n";
}

std::uint32_t SourceText::line_begin(std::uint32_t offset) const {
    if (offset == 0) return 0;
    const std::size_t newline = source_.rfind('\n', offset - 1);
    return newline == std::string_view::npos ? 0 : static_cast<std::uint32_t>(newline + 1);
}

std::uint32_t SourceText::next_line(std::uint32_t offset) const {
    const std::size_t newline = source_.find('\n', offset);
    return static_cast<std::uint32_t>(newline == std::string_view::npos ? source_.size() : newline + 1);
}

std::string SourceText::indent_at(std::uint32_t offset) const {
    const std::uint32_t begin = line_begin(offset);
    std::size_t end = begin;
    while (end < source_.size() && (source_[end] == ' ' || source_[end] == '\t')) ++end;
    return std::string(source_.substr(begin, end - begin));
}

bool SourceText::begins_its_line(std::uint32_t offset) const {
    return line_begin(offset) + indent_at(offset).size() == offset;
}

bool SourceText::is_blank_line(std::uint32_t begin) const {
    const std::size_t text = begin + indent_at(begin).size();
    return text >= source_.size() || source_[text] == '\n' || source_[text] == '\r';
}

const Call* SourceText::find_call(const Span& whole) const {
    const auto found = std::ranges::find_if(facts_.calls, [&](const Call& call) {
        return call.callee.begin == whole.begin && call.callee.end < whole.end;
    });
    return found == facts_.calls.end() ? nullptr : &*found;
}

Span SourceText::argument_of(const Span& call, std::string_view keyword, std::size_t position) const {
    const Call* found = find_call(call);
    for (std::size_t at = 0; found != nullptr && at < found->arguments.size(); ++at) {
        const CallArgument& argument = found->arguments[at];
        if (argument.keyword.empty() ? at == position : argument.keyword == keyword) return argument.value;
    }
    return {};
}

const List* SourceText::find_list(const Span& whole) const {
    const auto found = std::ranges::find_if(facts_.lists, [&](const List& list) {
        return whole.end > whole.begin && list.whole.begin == whole.begin;
    });
    return found == facts_.lists.end() ? nullptr : &*found;
}

Status SourceText::check_ends_its_line(std::uint32_t end, const std::string& what) const {
    std::size_t at = end;
    while (at < source_.size() && (source_[at] == ' ' || source_[at] == '\t' || source_[at] == '\r')) ++at;
    if (at >= source_.size() || source_[at] == '\n' || source_[at] == '#') return Done{};
    return error_at(Span{end, end},
                    what + " shares its line with what follows it: put that on a line of its own");
}

Error SourceText::error_at(const kernel::triton::SourceRange& range, std::string message) const {
    return kernel::triton::error_at(source_, std::string(file_), range, std::move(message));
}

Error SourceText::error_at(const Span& span, std::string message) const {
    const std::string_view before = source_.substr(0, span.begin);
    kernel::triton::SourceRange range{span.begin, span.end};
    range.line = 1 + static_cast<std::int32_t>(std::ranges::count(before, '\n'));
    return error_at(range, std::move(message));
}

std::string level_like(const std::string& indent) {
    return indent.find('\t') != std::string::npos ? "\t" : "    ";
}

}  // namespace syncopate::emit::triton
