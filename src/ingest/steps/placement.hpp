// Whether a plan ends with the right chunks in the right places. plan::check follows which ranks'
// contributions are where; this follows which part of the input they are.
#pragma once

#include <vector>

#include "ingest/steps/buffers.hpp"

namespace syncopate::ingest {

/// Executes import.plan, whose `after` must have no cycle, on the places that data came from, and adds what
/// is wrong to import.findings: data of two different places added up, and wanted rows that hold data of
/// another place. What is never written, or races, plan::check reports. Near-linear in ops where regions are
/// few per rank.
void check_placement(const Buffers& buffers, Import& import);

}  // namespace syncopate::ingest
