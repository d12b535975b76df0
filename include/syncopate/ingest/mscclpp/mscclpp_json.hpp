// MSCCL++ execution plans, both published versions of the JSON (docs/ingest.md).
#pragma once

#include <string>
#include <string_view>

#include "syncopate/ingest/ingest.hpp"

namespace syncopate::ingest {

/// The plan in an execution plan, version 1 (`inputChunks`) or 2 (`input_chunks`). Fails at the line and JSON
/// path of the first thing that the format does not allow; dialects between the versions are refused by name.
[[nodiscard]] Result<Import> read_mscclpp_json(std::string_view text, const std::string& file_name,
                                               const ImportOptions& options = {});

}  // namespace syncopate::ingest
