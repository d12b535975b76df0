// Handing a command to Python, which alone can call Triton's JIT.
#pragma once

#include <string>
#include <vector>

namespace syncopate::tools {

/// Replaces this process by Python that runs MODULE ARGUMENTS… as `python -m` does. SYNCOPATE_PYTHON names
/// the interpreter; otherwise it is the one that pip installed this binary for, otherwise the checkout's .venv
/// has it, otherwise it is python3. It finds the package where pip put it, or in the checkout. Ctrl-C ends it
/// without a word, with 130.
[[noreturn]] void run_python(const std::string& module, const std::vector<std::string>& arguments);

}  // namespace syncopate::tools
