#include "emit/triton/edits.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace syncopate::emit::triton {

void Edits::insert(std::uint32_t at, std::string text) { edits_.push_back({at, at, std::move(text)}); }

void Edits::replace(const Span& span, std::string text) {
    edits_.push_back({span.begin, span.end, std::move(text)});
}

void Edits::add_line_before(std::uint32_t offset, const std::string& line) {
    insert(text_.line_begin(offset), line + text_.eol());
}

void Edits::add_line_after(std::uint32_t offset, const std::string& line) {
    const std::uint32_t next = text_.next_line(offset);
    const bool ends = next > offset && text_.all()[next - 1] == '\n';
    insert(next, ends ? line + text_.eol() : text_.eol() + line);
}

const std::string& Edits::use(const std::string& helper) { return *used_.insert(helper).first; }

const std::string& Edits::use(const std::string& helper, std::size_t axes) {
    return use(helper + (axes == 1 ? "" : "_" + std::to_string(axes) + "d"));
}

std::string Edits::apply() {
    std::ranges::stable_sort(edits_, {}, &Edit::begin);
    const std::string_view source = text_.all();
    std::string result;
    std::uint32_t at = 0;
    for (const Edit& edit : edits_) {
        result += source.substr(at, edit.begin - at);
        result += edit.text;
        at = edit.end;
    }
    return result += source.substr(at);
}

}  // namespace syncopate::emit::triton
