// What a front end tells people of a kernel beyond the kernel itself, and the files that it takes along.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::kernel {

/// Why the front end takes something for what it does: what makes a tile, where its coordinates come from,
/// which loop is a reduction.
struct Note {
    std::int32_t line = 0;  ///< 1-based, of the kernel's file
    std::string text;
};

struct Explained {
    Kernel kernel;
    std::vector<std::string> places;  ///< where in the file its tiles, loops and stores are, a line each
    std::vector<Note> notes;          ///< in the order in which one would tell it
};

/// A file that a kernel's file imports, so that what `fuse` writes needs it beside it.
struct ImportedFile {
    std::string path;  ///< from the folder of the kernel's file, as in "helpers.py" or "sub/__init__.py"
    std::string text;
};

}  // namespace syncopate::kernel
