#include "tools/python_command.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/commands.hpp"

namespace syncopate::tools {
namespace {

namespace fs = std::filesystem;

/// What Python runs for MODULE ARGUMENTS…: as -m does, but Ctrl-C ends it quietly from the first moment on.
/// What it imports takes seconds. SIGINT comes blocked, so that none arrives before there is a handler.
constexpr const char* kRunModule = R"(import os, runpy, signal, sys
if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
)";

/// The checkout that this binary was built in: the nearest folder above it that has python/syncopate.
fs::path find_checkout() {
    std::error_code error;
    fs::path at = fs::read_symlink("/proc/self/exe", error);
    for (at = at.parent_path(); !error && at.has_relative_path(); at = at.parent_path()) {
        if (fs::exists(at / "python" / "syncopate" / "__init__.py")) return at;
    }
    return {};
}

/// The interpreter that pip installed this binary beside, or nothing.
fs::path find_python_beside() {
    std::error_code error;
    const fs::path python = fs::read_symlink("/proc/self/exe", error).parent_path() / "python3";
    return !error && fs::exists(python) ? python : fs::path();
}

}  // namespace

void run_python(const std::string& module, const std::vector<std::string>& arguments) {
    if (::fcntl(STDOUT_FILENO, F_GETFD) < 0) {
        // Else Python runs for nothing, and the first file that is opened is taken for standard output.
        fail(Error{"standard output is closed", {}, ErrorClass::input});
    }
    const fs::path beside = find_python_beside();
    const fs::path checkout = beside.empty() ? find_checkout() : fs::path();
    std::string python = "python3";
    if (const char* named = std::getenv("SYNCOPATE_PYTHON"); named != nullptr && *named != '\0') {
        python = named;
    } else if (!beside.empty()) {
        python = beside.string();
    } else if (!checkout.empty() && fs::exists(checkout / ".venv" / "bin" / "python")) {
        python = (checkout / ".venv" / "bin" / "python").string();
    }
    if (!checkout.empty()) {
        std::string path = (checkout / "python").string();
        if (const char* old = std::getenv("PYTHONPATH"); old != nullptr && *old != '\0')
            path += std::string(":") + old;
        ::setenv("PYTHONPATH", path.c_str(), 1);
    }
    std::vector<std::string> words{python, "-c", kRunModule, module};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    sigset_t interrupts;
    ::sigemptyset(&interrupts);
    ::sigaddset(&interrupts, SIGINT);
    ::sigprocmask(SIG_BLOCK, &interrupts, nullptr);
    ::execvp(python.c_str(), argv.data());
    fail(Error{
        "cannot start " + python + ": " + std::strerror(errno) + "; set SYNCOPATE_PYTHON or run `make build`",
        {},
        ErrorClass::machine});
}

}  // namespace syncopate::tools
