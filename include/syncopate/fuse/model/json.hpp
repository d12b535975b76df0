// Schedules as JSON, the value of "schedule" in schema `syncopate.schedule/1` (emit/artifact.hpp has the
// rest).
//
//   {"mesh": [["gpu", 8]],
//    "tensors": {"A": {"shape": [512, 256], "dtype": "bf16"}},
//    "stages": [{"slots": 8, "phased": false}],
//    "heap": {"tensors": [0], "control": 262144, "control_words": 64, "bytes": 262400, "alignment": 1024},
//    "ranks": [{"signals": [["arrived", 1, 0], ["consumed", 2, -1]],          kind, rank, op
//               "slots": [[3, 1, 0, 0], ...],                                 see below
//               "chunks": [{"chunk": {"tensor": "C", "region": [...]}, "posts": [[0, 3]], "slots": [0, 2]}],
//               "transfers": [{"op": [0, 0], "backend": "host", "src_rank": 0, "dst_rank": 1,
//                              "src": {"tensor": "A", "region": [[0, 64], [0, 256]]}, "dst": {...},
//                              "waits": [[0, 0]],                             signal, lag
//                              "posts": [[1, 0]]}],                           rank, signal
//               "begin_posts": [], "begin_waits": [], "kernel_posts": [], "end_waits": [], "end_posts": []}]}
//
// A slot is a row of integers: tile, number of waits, signal and lag of each, then for each phase: loop,
// iteration_begin, iteration_end, number of waits, signal and lag of each. "chunks" is there where the rank's
// tiles make some; their slots are those whose tiles write into the chunk. A transfer is a copy ("copy":
// {"stream": 1} where it is not stream 0), a sum ("sum": {"reduce": "sum", "own": 2}, and where it reads
// other ranks' memory "sources": [{"rank": 1, "chunk": {…}}, …]), or a part in a collective ("collective":
// {…}). A stage has "stores" and "loads" where its tiles reach elsewhere ({"tensor": "C", "by": "row"}), and
// "plain" where its kernel is left as it is. A transfer that a stream carries out has "step": {"launch":
// "late", "stream": 2, …}, with the other members of StreamStep that are not empty.
#pragma once

#include <string>
#include <string_view>

#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/json_decoder.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// The signal's kind as the JSON names it.
[[nodiscard]] std::string_view name_of(SignalMeaning::Kind kind);

/// One rank, chunk or transfer a line; no trailing newline.
[[nodiscard]] std::string to_json(const Schedule& schedule);

/// Strict: an unknown or missing key, a wrong type, a name or index that does not exist is an error that
/// gives line, column and path, such as `ranks[2].slots[5]`. `file_name` is for messages.
[[nodiscard]] Result<Schedule> schedule_from_json(std::string_view text, const std::string& file_name = {});
/// The same of a part of a document, which was parsed from `text`.
[[nodiscard]] Result<Schedule> schedule_from_json(const JsonDocument& document, std::string_view text,
                                                  const std::string& file_name, JsonAt at);

}  // namespace syncopate::fuse
