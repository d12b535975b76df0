// Why a collective that stands beside a product neither feeds nor drains one.
#pragma once

#include <string>
#include <vector>

#include "ingest/candidates/dataflow.hpp"

namespace syncopate::ingest {

/// What reads a collective's result, or made its operand, and is no dot that is taken.
struct Neighbour {
    Site site;
    bool forward = true;  ///< it reads the result
    bool enters = false;  ///< it is a loop whose steps make something else of the result
};

/// Adds to `why`, of each neighbour that is a product of another kind, or stands between the collective and a
/// dot, a sentence that says so: "feeds no dot: add.3 (add) computes between it and dot.4". At most four.
void note_neighbours(const Dataflow& flow, const std::vector<Neighbour>& neighbours,
                     std::vector<std::string>& why);

/// "add.3 (add)", for people.
[[nodiscard]] std::string named(const Instruction& instruction);

}  // namespace syncopate::ingest
