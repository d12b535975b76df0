// Plans as JSON, schema `syncopate.plan/1`.
//
// Reading is strict: an unknown, missing or repeated key, a wrong type or a number that does not fit is an
// error at its line and column, with a path such as `ranks[2].ops[5].src.region[0]`. What the schema can
// express but no run could carry out (a region outside its tensor, an unknown peer) is left to check(), which
// reports all of it at once.
#pragma once

#include <string>
#include <string_view>

#include "syncopate/json_decoder.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// The plan in `text`. `file_name` is only for messages. Entries of "ranks" may come in any order, each rank
/// of the mesh exactly once. Fails with one error, the first found; its location has the line, the column
/// and, inside an op, the rank and the op. Linear in the text: about 3 s and 1.2 GB for a million ops.
[[nodiscard]] Result<Plan> from_json(std::string_view text, const std::string& file_name = {});

/// The same of a part of a document, which was parsed from `text`.
[[nodiscard]] Result<Plan> from_json(const JsonDocument& document, std::string_view text,
                                     const std::string& file_name, JsonAt at);

/// `plan` as JSON, one op per line, with a trailing newline. Keys that hold their default are left out.
/// from_json(to_json(plan)) equals `plan` for every plan that from_json or a template made; every tensor
/// index must exist.
[[nodiscard]] std::string to_json(const Plan& plan);

}  // namespace syncopate::plan
