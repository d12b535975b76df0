// Types in MLIR text, as shapes with HLO's names of elements.
#pragma once

#include "ingest/program/text_cursor.hpp"
#include "syncopate/ingest/program/tensor_program.hpp"

namespace syncopate::ingest {

/// A type at the cursor: tensor<4x8xf32>, tuple<…>; anything else becomes a shape with its name as dtype.
/// Returns false once an error is recorded in the cursor.
bool parse_mlir_type(TextCursor& at, Shape& out, int depth = 0);

}  // namespace syncopate::ingest
