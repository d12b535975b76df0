// Kernels with their sites found by searching the text, so that emit can be tested on any odd source.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/fuse/model/program.hpp"
#include "syncopate/kernel/triton/sites/text.hpp"

namespace syncopate::emit::sample {

inline kernel::triton::SourceRange range_of(const std::string& source, const std::string& text,
                                            std::size_t from = 0) {
    const std::size_t begin = source.find(text, from);
    kernel::triton::SourceRange range;
    if (begin == std::string::npos) return range;
    range.begin = static_cast<std::uint32_t>(begin);
    range.end = static_cast<std::uint32_t>(begin + text.size());
    range.line = 1 + static_cast<std::int32_t>(
                         std::count(source.begin(), source.begin() + static_cast<long>(begin), '\n'));
    const std::size_t newline = source.rfind('\n', begin);
    range.column = static_cast<std::int32_t>(begin - (newline == std::string::npos ? 0 : newline + 1)) + 1;
    return range;
}

/// A kernel and its text, which a test may change before the two are put together.
struct Sample {
    kernel::Kernel kernel;
    kernel::triton::Text text;

    [[nodiscard]] kernel::Kernel whole() const {
        kernel::Kernel made = kernel;
        made.origin = std::make_shared<kernel::triton::Text>(text);
        return made;
    }
};

/// The kernel `def matmul(…):` of `source`, up to `last` (the end of the text of its last statement), without
/// sites for tile ids. Parameters are cut at commas.
inline Sample kernel_of(const std::string& source, const std::string& last) {
    Sample sample;
    sample.text.source = source;
    sample.kernel.file = "sample.py";
    sample.kernel.name = "matmul";
    kernel::triton::Sites& sites = sample.text.sites;
    sites.function = range_of(source, "@triton.jit");
    sites.name = range_of(source, "matmul", sites.function.begin);
    sites.parameters.begin = static_cast<std::uint32_t>(source.find('(', sites.name.end) + 1);
    sites.parameters.end = static_cast<std::uint32_t>(source.find("):", sites.parameters.begin));
    std::size_t begin = sites.parameters.begin;
    while (begin < sites.parameters.end) {
        std::size_t end = std::min<std::size_t>(source.find(',', begin), sites.parameters.end);
        const std::size_t text = source.find_first_not_of(" \r\n", begin);
        if (text < end) {
            sites.parameter.push_back({static_cast<std::uint32_t>(text), static_cast<std::uint32_t>(end)});
            sample.kernel.params.push_back(
                {.name = source.substr(text, source.find_first_of(": =", text) - text)});
        }
        begin = end + 1;
    }
    const std::size_t body = source.find_first_not_of(" \t\r\n", source.find('\n', sites.parameters.end));
    sites.body.begin = static_cast<std::uint32_t>(body);
    sites.body.end = range_of(source, last, body).end;
    sites.function.end = sites.body.end;
    const std::string import = "import triton.language as tl";
    sites.imports_end = static_cast<std::uint32_t>(source.find('\n', source.find(import)) + 1);
    return sample;
}

inline kernel::triton::TileIdSite rebind(const std::string& source, const std::string& anchor,
                                         const std::string& variable, std::int32_t indent = 4) {
    return {
        kernel::triton::TileIdSite::Kind::rebind, {variable}, range_of(source, anchor), indent, true, false};
}

inline kernel::triton::LoopSite loop(const std::string& source, const std::string& iterable,
                                     const std::string& last) {
    kernel::triton::LoopSite result;
    result.iterable = range_of(source, iterable);
    const std::size_t begin = source.rfind("for ", result.iterable.begin);
    result.statement =
        range_of(source, source.substr(begin, range_of(source, last, begin).end - begin), begin);
    result.header = result.statement;
    result.header.end = static_cast<std::uint32_t>(source.find(':', result.iterable.end) + 1);
    result.bound = "n";
    return result;
}

}  // namespace syncopate::emit::sample
