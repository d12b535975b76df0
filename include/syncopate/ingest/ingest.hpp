// Plans that other systems made, brought in (docs/ingest.md). One reader per format, each a
// function from text to an Import; this header has what they share, and finds the reader for a text.
//
// To add a format: a folder with its reader, a value of Format, and a row in the table of
// src/ingest/ingest.cpp: its name, what its texts look like, its reader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// What `--format` names. `automatic` looks at the text.
enum class Format : std::uint8_t {
    automatic,
    msccl_xml,
    mscclpp_json,
    sccl_json,
    hlo,
    stablehlo,
    partition,
    loop,
};

[[nodiscard]] std::string_view name_of(Format format);  ///< "auto", "msccl_xml", …
/// The format called so. Fails (ErrorClass::usage) listing all names.
[[nodiscard]] Result<Format> format_from(std::string_view name);

/// Where in the imported file something came from.
struct Origin {
    std::int32_t line = 0;  ///< 1-based; 0 when unknown
    std::string place;  ///< "tb 3 step 2", "gpus[0].threadblocks[1].ops[4]", "%all-gather.7"; may be empty
    bool operator==(const Origin&) const = default;
};

/// One thing wrong with an imported plan, at its place in the file.
struct Finding {
    plan::Finding finding;
    Origin origin;

    /// "FILE:LINE: rank R PLACE (op I): KIND: message", with the parts that are known.
    [[nodiscard]] std::string to_string(const std::string& file_name) const;
};

/// A plan from elsewhere and what its file says about it.
struct Import {
    Format format = Format::automatic;
    plan::Plan plan;
    std::string name;  ///< the file's own label for the plan; may be empty
    /// What the file claims about itself, in the format's words, for people: {"collective", "allreduce"},
    /// {"protocol", "LL"}, {"in place", "yes"}, {"chunks", "16"}, …
    std::vector<std::pair<std::string, std::string>> claims;
    std::vector<std::string> warnings;         ///< what was left out or taken for granted; one sentence each
    std::vector<std::vector<Origin>> origins;  ///< of each op, as plan.ranks; empty if the reader keeps none
    /// What the reader itself found wrong: a deadlock, told in the words of the file; and what plan::check
    /// cannot see, since it does not follow which chunk is where: a collective that ends with chunks in the
    /// wrong places.
    std::vector<Finding> findings;
};

/// What the command line may add to a file that gives chunk counts only, or several candidates.
struct ImportOptions {
    /// Name, shape and dtype of the tensor that the plan moves. Each format's header says which of its
    /// tensors it stands for, and what is taken without it.
    std::optional<plan::Tensor> tensor;
    /// MSCCL XML: messages a connection holds before its sender waits (two of NCCL's eight steps of four).
    std::int32_t fifo_slots = 2;
    /// HLO, StableHLO: which of the candidates of list_candidates to import, by its number; -1: the only one.
    std::int32_t pick = -1;
    /// HLO, StableHLO: which module of the text to read, by its name or its number from 0; empty: the only
    /// one of HLO, all of StableHLO.
    std::string module;
    /// HLO, StableHLO: how many devices there are, where the text does not say; 0: not said.
    std::int32_t ranks = 0;
};

/// The format that `text` is written in, by its content; nullopt if it is none of them.
[[nodiscard]] std::optional<Format> detect(std::string_view text);

/// The plan in `text`, which is in `format` (automatic: detect). `file_name` is only for messages. Fails with
/// one error naming file and line for what the format does not allow or the reader does not take. Whether the
/// plan is right is another question: ask check_import.
[[nodiscard]] Result<Import> import_plan(std::string_view text, const std::string& file_name,
                                         Format format = Format::automatic,
                                         const ImportOptions& options = {});

/// Everything wrong with the imported plan: plan::check, and what the reader found. Empty if nothing is.
[[nodiscard]] std::vector<Finding> check_import(const Import& import);

}  // namespace syncopate::ingest
