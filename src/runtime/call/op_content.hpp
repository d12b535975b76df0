// What all ranks of an op must have alike, and where it differs first.
#pragma once

#include <string>
#include <vector>

#include "runtime/call/op_memory.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

struct ContentPart {
    std::string name;  ///< "schedule"
    std::string text;
    bool of_node = false;  ///< only the ranks of a node have it alike
};

/// The version, where its memory is, what OpOptions::content names, and the schedule. Of a node's part: of what that was made,
/// and then for the node alone where its memory is, and the part.
[[nodiscard]] std::vector<ContentPart> content_of(const fuse::Schedule& schedule, const OpMemory& memory,
                                                  const OpOptions& options);

/// Fails on all ranks if one has other content, or `made` is an error there. A digest of each piece is
/// exchanged; where some differ, the first such piece, too, of which the message shows the first difference.
/// Collective.
[[nodiscard]] Status agree_on_content(Rendezvous& rendezvous, const std::string& name,
                                      const Result<std::vector<ContentPart>>& made, Milliseconds timeout);

}  // namespace syncopate::runtime
