// `syncopate bundle run`: a bundle on all of its ranks, each a thread of this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace syncopate::tools {

struct BundleRunOptions {
    std::string file;
    std::vector<std::int64_t> rows;
    bool check = false;
    int calls = 2;
    bool json = false;
};

/// Prints a line for each number of rows, or with `json` one object: {"ok", "ranks", "checked", "runs": [{"what",
/// "rows", "calls", "prepared_ms", "bytes"}]}, and "error" where not ok. Ends the program where something fails or is wrong. A user's program on
/// host is run by Triton's interpreter, from the files in the bundle.
void run_bundle(const BundleRunOptions& options);

}  // namespace syncopate::tools
