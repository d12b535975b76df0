// The lines of the user's program that HLO text names. Before its computations a module may print tables
//
//     FileNames                FileLocations
//     1 "model.py"             1 {file_name_id=1 function_name_id=1 line=31 end_line=31 column=4 end_column=9}
//
//     FunctionNames            StackFrames
//     1 "mlp"                  1 {file_location_id=1 parent_frame_id=1}
//
// and an instruction's metadata then names a frame (stack_frame_id); or it names file and line itself
// (source_file, source_line), as older printers do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ingest/program/text_cursor.hpp"

namespace syncopate::ingest {

class SourceLines {
public:
    /// Reads the tables, in whichever order, while one begins at the cursor; there may be none. Returns false
    /// once an error is recorded in the cursor.
    bool read(TextCursor& at);

    /// "/home/me/model.py:31" for the text of an instruction's metadata, "{op_name="…" stack_frame_id=7}"; empty
    /// if that names no line, or a frame that the tables lack.
    [[nodiscard]] std::string line_of(std::string_view metadata) const;

private:
    struct FileLine {
        std::int64_t file = 0, line = 0;
    };
    std::unordered_map<std::int64_t, std::string> files_;    // by file_name_id
    std::unordered_map<std::int64_t, FileLine> locations_;   // by file_location_id
    std::unordered_map<std::int64_t, std::int64_t> frames_;  // by stack_frame_id: file_location_id
};

}  // namespace syncopate::ingest
