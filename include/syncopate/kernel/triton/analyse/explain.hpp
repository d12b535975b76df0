// Why the front end takes a kernel for what it does: what makes a tile, where its coordinates come from,
// which loop is a reduction, in words and with lines. For people; nothing else is derived from it.
#pragma once

#include <string>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::kernel {

struct Note {
    std::int32_t line = 0;  ///< 1-based, of the kernel's file
    std::string text;
};

struct Explained {
    Kernel kernel;
    std::vector<Note> notes;  ///< in the order in which one would tell it
};

/// As analyse(), with the reasons.
[[nodiscard]] Result<Explained> analyse_and_explain(std::string source, std::string file,
                                                    const std::string& name, const Arguments& arguments);

}  // namespace syncopate::kernel
