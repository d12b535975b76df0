// SCCL algorithm JSON, as SCCL, msccl-tools and TACCL write it (docs/ingest.md).
#pragma once

#include <string>
#include <string_view>

#include "syncopate/ingest/ingest.hpp"

namespace syncopate::ingest {

/// The plan in an object with `"sccl_type": "algorithm"`. Fails at the line and JSON path of the first thing
/// that the format does not allow, and for collectives that combine chunks.
[[nodiscard]] Result<Import> read_sccl_json(std::string_view text, const std::string& file_name,
                                            const ImportOptions& options = {});

}  // namespace syncopate::ingest
