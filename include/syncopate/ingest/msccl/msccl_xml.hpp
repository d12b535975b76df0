// MSCCL XML: the schedules of msccl-tools, TACCL, TE-CCL and others, as microsoft/msccl and RCCL run them
// (docs/ingest.md).
#pragma once

#include <string>
#include <string_view>

#include "syncopate/ingest/ingest.hpp"

namespace syncopate::ingest {

/// The plan in an `<algo>` document. Fails at the line of the first thing that the format does not allow.
[[nodiscard]] Result<Import> read_msccl_xml(std::string_view text, const std::string& file_name,
                                            const ImportOptions& options = {});

}  // namespace syncopate::ingest
