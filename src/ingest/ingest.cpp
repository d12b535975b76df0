#include "syncopate/ingest/ingest.hpp"

#include <array>
#include <cctype>
#include <iterator>

#include <fmt/format.h>

#include "plan/did_you_mean.hpp"
#include "syncopate/ingest/msccl_xml.hpp"
#include "syncopate/ingest/mscclpp_json.hpp"

namespace syncopate::ingest {
namespace {

using Reader = Result<Import> (*)(std::string_view, const std::string&, const ImportOptions&);

bool has(std::string_view text, std::string_view word) { return text.find(word) != text.npos; }

bool looks_like_xml(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
    return first != text.npos && text[first] == '<';
}

bool looks_like_json(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
    return first != text.npos && (text[first] == '{' || text[first] == '[');
}

bool looks_like_mscclpp(std::string_view text) {
    return looks_like_json(text) && has(text, "\"gpus\"") &&
           (has(text, "\"threadblocks\"") || has(text, "\"channels\""));
}

/// A format that can be read. The first row whose texts look so is taken.
struct Row {
    Format format;
    bool (*looks_like)(std::string_view text);
    Reader read;
};

constexpr std::array kReaders{
    Row{Format::msccl_xml, looks_like_xml, read_msccl_xml},
    Row{Format::mscclpp_json, looks_like_mscclpp, read_mscclpp_json},
};

constexpr std::array<std::string_view, kNumFormats> kNames{
    "auto", "msccl_xml", "mscclpp_json", "sccl_json", "hlo", "stablehlo", "partition", "loop"};

std::string readable_formats() {
    std::string names;
    for (const Row& row : kReaders) names += (names.empty() ? "" : ", ") + std::string(name_of(row.format));
    return names;
}

}  // namespace

std::string_view name_of(Format format) { return kNames[static_cast<std::size_t>(format)]; }

std::optional<Format> format_from(std::string_view name) {
    for (std::size_t i = 0; i < kNames.size(); ++i) {
        if (kNames[i] == name) return static_cast<Format>(i);
    }
    return std::nullopt;
}

std::optional<Format> detect(std::string_view text) {
    for (const Row& row : kReaders) {
        if (row.looks_like(text)) return row.format;
    }
    return std::nullopt;
}

Result<Import> import_plan(std::string_view text, const std::string& file_name, Format format,
                           const ImportOptions& options) {
    if (format == Format::automatic) {
        const std::optional<Format> found = detect(text);
        if (!found) {
            return Error{"is in no format that can be imported, or it cannot be told which; name it with --format: " +
                             readable_formats(),
                         {file_name}};
        }
        format = *found;
    }
    for (const Row& row : kReaders) {
        if (row.format == format) return row.read(text, file_name, options);
    }
    return Error{fmt::format("the format {} cannot be read; there are: {}", name_of(format), readable_formats()),
                 {},
                 ErrorClass::usage};
}

std::vector<plan::Finding> check_import(const Import& import) {
    std::vector<plan::Finding> findings = plan::check(import.plan);
    // A plan that is malformed, cyclic or racing has no one result to follow chunks through.
    if (findings.empty()) findings = import.findings;
    return findings;
}

std::string describe(const Import& import, const std::string& file_name, const plan::Finding& finding) {
    Location where;
    where.file = file_name;
    const auto rank = static_cast<std::size_t>(finding.rank);
    const auto op = static_cast<std::size_t>(finding.op);
    const Origin* origin = nullptr;
    if (finding.rank >= 0 && finding.op >= 0 && rank < import.origins.size() && op < import.origins[rank].size()) {
        origin = &import.origins[rank][op];
        where.line = origin->line;
    }
    std::string text = where.to_string();
    if (finding.rank >= 0) text += fmt::format(": rank {}", finding.rank);
    if (origin != nullptr && !origin->place.empty()) text += " " + origin->place;
    if (finding.op >= 0) text += fmt::format(" (op {})", finding.op);
    return text + fmt::format(": {}: {}", plan::name_of(finding.kind), finding.message);
}

}  // namespace syncopate::ingest
