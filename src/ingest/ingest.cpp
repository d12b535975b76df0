#include "syncopate/ingest/ingest.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/ingest/candidates/candidates.hpp"
#include "syncopate/ingest/loops/loop_ir.hpp"
#include "syncopate/ingest/msccl/msccl_xml.hpp"
#include "syncopate/ingest/mscclpp/mscclpp_json.hpp"
#include "syncopate/ingest/partition/partition_ir.hpp"
#include "syncopate/ingest/sccl/sccl_json.hpp"
#include "syncopate/names.hpp"

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

bool looks_like_sccl(std::string_view text) { return looks_like_json(text) && has(text, "\"sccl_type\""); }

bool looks_like_mscclpp(std::string_view text) { return looks_like_json(text) && has(text, "\"gpus\""); }

bool looks_like_partition(std::string_view text) {
    return looks_like_json(text) && has(text, "\"syncopate.partition/");
}

bool looks_like_loop(std::string_view text) {
    return looks_like_json(text) && has(text, "\"syncopate.loop/");
}

/// Whether a line that is no comment has one of the words: test files quote the other format in comments.
bool has_outside_comments(std::string_view text, std::initializer_list<std::string_view> words) {
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view line = text.substr(begin, end - begin);
        const std::size_t first = line.find_first_not_of(" \t");
        const bool comment = first != line.npos && line.substr(first).starts_with("//");
        for (const std::string_view word : words) {
            if (!comment && has(line, word)) return true;
        }
        begin = end + 1;
    }
    return false;
}

bool looks_like_stablehlo(std::string_view text) {
    return has_outside_comments(text, {"func.func ", "stablehlo.", "mhlo.", "builtin.module"}) &&
           !has_outside_comments(text, {"HloModule"});
}

bool looks_like_hlo(std::string_view text) {
    return has_outside_comments(text, {"HloModule", " parameter(0)"});
}

/// A format that can be read. The first row whose texts look so is taken.
struct Row {
    Format format;
    std::string_view name;
    bool (*looks_like)(std::string_view text);
    Reader read;
    /// A text holds several collectives, of which ImportOptions::pick names one.
    bool has_candidates = false;
    bool tensor_is_given = true;  ///< ImportOptions::tensor says what moves
};

constexpr std::array kReaders{
    Row{Format::sccl_json, "sccl_json", looks_like_sccl, read_sccl_json},
    Row{Format::msccl_xml, "msccl_xml", looks_like_xml, read_msccl_xml},
    Row{Format::mscclpp_json, "mscclpp_json", looks_like_mscclpp, read_mscclpp_json},
    Row{Format::partition, "partition", looks_like_partition, import_partition, false, false},
    Row{Format::loop, "loop", looks_like_loop, import_loop_nest, false, false},
    Row{Format::stablehlo, "stablehlo", looks_like_stablehlo, import_stablehlo, true},
    Row{Format::hlo, "hlo", looks_like_hlo, import_hlo, true},
};

/// Chakra execution traces: what a rank did, as protobuf (.et) or as JSON made of it.
std::optional<std::string> refuse_chakra(std::string_view text) {
    const bool nodes = has(text, "comm_type") || has(text, "is_cpu_op") || has(text, "COMM_COLL_NODE");
    const bool json = looks_like_json(text) && (nodes || has(text, "chakra")) && has(text, "\"nodes\"");
    const bool protobuf =
        !looks_like_json(text) && !looks_like_xml(text) && text.find('\0') != text.npos && nodes;
    if (!json && !protobuf) return std::nullopt;
    const std::string what =
        fmt::format("is a Chakra execution trace ({}), which is not imported: ", json ? "JSON" : "protobuf");
    if (has(text, "<algo ")) {
        return what +
               "it is one rank's part of a schedule that was made from MSCCL XML; import that XML, of which "
               "its "
               "metadata holds a copy (<algo …>)";
    }
    return what +
           "its nodes give the kind and the bytes of a rank's collectives, but not which tensor they move; "
           "write "
           "each with `syncopate plan make KIND --ranks N --tensor NAME:SHAPE:DTYPE`, with --lower direct as "
           "one "
           "op per rank";
}

/// Files that stand beside plans and are none: what such a file is, and what to import in its place.
std::optional<std::string> refuse_known(std::string_view text) {
    struct Known {
        std::string_view word;
        std::string_view what;
    };
    constexpr std::array kKnown{
        Known{"\"syncopate.plan/", "is a plan of Syncopate's own; `syncopate plan check` takes it as it is"},
        Known{"\"syncopate.topology/", "is a topology, which --topology takes; it holds no plan"},
        Known{"\"1-Epoch_Duration\"",
              "is what TE-CCL's solver found, by epochs of its own length; import the MSCCL XML that TE-CCL "
              "writes of it"},
        Known{"\"TopologyParams\"", "is an input of TE-CCL; import the MSCCL XML that TE-CCL writes"},
        Known{"\"node_invbws_list\"",
              "is a topology of TACCL; import the algorithm or the MSCCL XML that it makes"},
        Known{"\"intranode_sketch\"",
              "is a sketch of TACCL; import the algorithm or the MSCCL XML that it makes"},
    };
    if (!looks_like_json(text)) return std::nullopt;
    for (const Known& known : kKnown) {
        if (has(text, known.word)) return std::string(known.what);
    }
    return std::nullopt;
}

std::string format_names() {
    std::string names;
    for (const Row& row : kReaders) names += (names.empty() ? "" : ", ") + std::string(row.name);
    return names;
}

const Row& row_of(Format format) {
    return *std::find_if(kReaders.begin(), kReaders.end(),
                         [&](const Row& row) { return row.format == format; });
}

constexpr std::string_view kAutomatic = "auto";

}  // namespace

std::string_view name_of(Format format) {
    return format == Format::automatic ? kAutomatic : row_of(format).name;
}

Result<Format> format_from(std::string_view name) {
    if (name == kAutomatic) return Format::automatic;
    for (const Row& row : kReaders) {
        if (row.name == name) return row.format;
    }
    return usage_error(fmt::format("there is no format \"{}\"; there are: {}, {}", escaped(name), kAutomatic,
                                   format_names()));
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
            for (const auto refuse : {refuse_chakra, refuse_known}) {
                if (std::optional<std::string> why = refuse(text)) return Error{*std::move(why), {file_name}};
            }
            return Error{
                "is in no format that can be imported, or it cannot be told which; name it with --format: " +
                    format_names(),
                {file_name}};
        }
        format = *found;
    }
    const Row& row = row_of(format);
    const auto leave_out = [&](std::string_view why, std::string_view option) {
        return Error{
            fmt::format("is {}, {}: leave out {}", row.name, why, option), {file_name}, ErrorClass::usage};
    };
    if (!row.has_candidates) {
        if (options.pick >= 0) return leave_out("which holds one plan and no candidates", "--pick");
        if (options.ranks > 0) return leave_out("which says itself how many ranks there are", "--ranks");
        if (!options.module.empty()) return leave_out("which has no modules", "--module");
    }
    if (options.tensor && !row.tensor_is_given)
        return leave_out("which says itself what its tensors are", "--tensor");
    return row.read(text, file_name, options);
}

std::string Finding::to_string(const std::string& file_name) const {
    Location where;
    where.file = file_name;
    where.line = origin.line;
    std::string text = where.to_string();
    if (finding.rank >= 0) text += fmt::format("{}rank {}", text.empty() ? "" : ": ", finding.rank);
    if (!origin.place.empty()) text += " " + origin.place;
    if (finding.op >= 0) text += fmt::format(" (op {})", finding.op);
    return fmt::format("{}{}{}: {}", text, text.empty() ? "" : ": ", plan::name_of(finding.kind),
                       finding.message);
}

namespace {

const Origin* origin_of(const Import& import, std::int32_t rank, std::int32_t op) {
    if (rank < 0 || op < 0 || static_cast<std::size_t>(rank) >= import.origins.size()) return nullptr;
    const auto& origins = import.origins[at(rank)];
    return static_cast<std::size_t>(op) < origins.size() ? &origins[at(op)] : nullptr;
}

/// plan::check names ops as "op RANK:INDEX"; after each, where in the file it came from.
std::string with_places(const Import& import, std::string_view message) {
    constexpr std::string_view kOp = "op ";
    std::string text;
    while (!message.empty()) {
        const auto found = message.find(kOp);
        const auto begin = found == message.npos ? message.size() : found + kOp.size();
        text += message.substr(0, begin);
        message.remove_prefix(begin);
        std::int32_t rank = -1;
        std::int32_t op = -1;
        const char* const end = message.data() + message.size();
        const auto first = std::from_chars(message.data(), end, rank);
        if (first.ec != std::errc() || first.ptr == end || *first.ptr != ':') continue;
        const auto second = std::from_chars(first.ptr + 1, end, op);
        if (second.ec != std::errc()) continue;
        const auto size = static_cast<std::size_t>(second.ptr - message.data());
        text += message.substr(0, size);
        message.remove_prefix(size);
        if (const Origin* origin = origin_of(import, rank, op))
            text += fmt::format(" ({}, line {})", origin->place, origin->line);
    }
    return text;
}

}  // namespace

std::vector<Finding> check_import(const Import& import) {
    std::vector<Finding> findings;
    bool one_result = true;  // whatever the timing, so that chunks can be followed through the plan
    for (plan::Finding& found : plan::check(import.plan)) {
        using enum plan::Finding::Kind;
        if (found.kind != missing_contribution && found.kind != final_not_reached) one_result = false;
        const Origin* const origin = origin_of(import, found.rank, found.op);
        found.message = with_places(import, found.message);
        findings.push_back({std::move(found), origin == nullptr ? Origin{} : *origin});
    }
    for (const Finding& found : import.findings) {
        if (found.finding.kind == plan::Finding::Kind::cycle) {
            // The same circle, in the words of the file instead of op numbers.
            std::erase_if(findings, [](const Finding& other) {
                return other.finding.kind == plan::Finding::Kind::cycle;
            });
            findings.insert(findings.begin(), found);
        } else if (one_result) {
            findings.push_back(found);
        }
    }
    return findings;
}

}  // namespace syncopate::ingest
