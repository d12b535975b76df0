// Launches of kernels, one a line as bench/kernel_analyse_corpus.py writes them: name, file, kernel, grid,
// scalars and tensors, tabs between them; for tests and benchmarks.
#pragma once

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"

namespace syncopate::kernel::triton::test {

struct Launch {
    std::string name;
    std::string file;  ///< from the root of the repository
    std::string kernel;
    Arguments arguments;
};

/// Nullopt: it is no launch.
inline std::optional<Launch> launch_of(const std::string& line) {
    std::vector<std::string> parts;
    std::istringstream stream(line);
    for (std::string part; std::getline(stream, part, '\t');) parts.push_back(part);
    if (parts.size() < 5) return std::nullopt;
    const auto scalars = parse_scalars(parts[4]);
    const auto grid = parse_grid(parts[3]);
    if (!scalars || !grid) return std::nullopt;
    Launch made{parts[0], parts[1], parts[2], {}};
    made.arguments.scalars = *scalars;
    made.arguments.grid = *grid;
    for (std::size_t i = 5; i < parts.size(); ++i) {
        const auto tensor = parse_tensor(parts[i]);
        if (!tensor) return std::nullopt;
        made.arguments.tensors.insert(*tensor);
    }
    return made;
}

}  // namespace syncopate::kernel::triton::test
