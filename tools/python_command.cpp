#include "tools/python_command.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tools/commands.hpp"

namespace syncopate::tools {
namespace {

namespace fs = std::filesystem;

/// What Python runs for MODULE ARGUMENTS…: as -m does, but Ctrl-C ends it quietly from the first moment on.
/// What it imports takes seconds. SIGINT comes blocked, so that none arrives before there is a handler.
/// Nothing is imported from the current folder, which -c puts first; Python 3.10 has no option against that. Of
/// PYTHONPATH it is taken out before.
constexpr const char* kRunModule = R"(import sys
if sys.path[:1] == [""]:
    del sys.path[0]
import importlib.util, os, runpy, signal
if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
if importlib.util.find_spec("syncopate") is None:
    print(f"error: {sys.executable} has no package syncopate: install it there with pip, or set SYNCOPATE_PYTHON "
          "to a Python that has it", file=sys.stderr)
    sys.exit(3)
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

/// The interpreter to run, and where it finds the package, unless it does by itself.
struct Python {
    fs::path interpreter;
    fs::path packages;
};

/// Where pip put the package, seen from `bin`, the folder that it put this binary in: beside the interpreter
/// of an environment; or, of an installation of a user's or in a folder of its own, beside the package.
std::optional<Python> find_installed(const fs::path& bin) {
    std::error_code error;
    if (fs::exists(bin / "python3", error)) return Python{bin / "python3", {}};
    if (fs::exists(bin.parent_path() / "syncopate" / "__init__.py", error))  // pip install --target
        return Python{"python3", bin.parent_path()};
    for (const fs::directory_entry& version : fs::directory_iterator(bin.parent_path() / "lib", error)) {
        const std::string name = version.path().filename().string();  // such as python3.12
        if (!name.starts_with("python3")) continue;
        for (const char* packages : {"site-packages", "dist-packages"}) {
            if (fs::exists(version.path() / packages / "syncopate" / "__init__.py", error))
                return Python{name, version.path() / packages};
        }
    }
    return std::nullopt;
}

Python find_python() {
    std::error_code error;
    std::optional<Python> found = find_installed(fs::read_symlink("/proc/self/exe", error).parent_path());
    if (!found) {
        const fs::path checkout = find_checkout();
        found.emplace(Python{"python3", checkout.empty() ? fs::path() : checkout / "python"});
        if (fs::exists(checkout / ".venv" / "bin" / "python", error))
            found->interpreter = checkout / ".venv" / "bin" / "python";
    }
    if (const char* named = std::getenv("SYNCOPATE_PYTHON"); named != nullptr && *named != '\0')
        found->interpreter = named;
    return *found;
}

/// Of a PYTHONPATH what is not the current folder: an empty entry, or one such as ".", from which Python would import
/// even what it starts with.
std::string without_current_folder(const std::string& path) {
    std::string kept;
    std::istringstream entries(path);
    for (std::string entry; std::getline(entries, entry, ':');) {
        std::error_code error;
        if (entry.empty() || (fs::path(entry).is_relative() && fs::equivalent(entry, ".", error))) continue;
        kept += (kept.empty() ? "" : ":") + entry;
    }
    return kept;
}

}  // namespace

void run_python(const std::string& module, const std::vector<std::string>& arguments) {
    if (::fcntl(STDOUT_FILENO, F_GETFD) < 0) {
        // Else Python runs for nothing, and the first file that is opened is taken for standard output.
        fail(Error{"standard output is closed"});
    }
    const Python found = find_python();
    const std::string python = found.interpreter.string();
    const char* const old = std::getenv("PYTHONPATH");
    std::string path = without_current_folder(old == nullptr ? "" : old);
    if (!found.packages.empty()) path = found.packages.string() + (path.empty() ? "" : ":" + path);
    path.empty() ? ::unsetenv("PYTHONPATH") : ::setenv("PYTHONPATH", path.c_str(), 1);
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
    fail(machine_error("cannot start " + python + ": " + std::strerror(errno) +
                       "; set SYNCOPATE_PYTHON to the Python that has syncopate"));
}

}  // namespace syncopate::tools
