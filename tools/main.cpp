// The `syncopate` command: parses the command line and maps how it ended to an exit code.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tree_sitter/api.h>
#include <unistd.h>

#include "syncopate/names.hpp"
#include "tools/commands.hpp"

namespace syncopate::tools {

void fail(const Error& error) {
    std::cout.flush();
    std::cerr << "error: " << error.to_string() << '\n';
    throw Exit{static_cast<int>(error.error_class)};
}

CLI::Validator between(double least, double most) {
    const std::string bounds = fmt::format("{:g} to {:g}", least, most);
    const auto check = [least, most, bounds](std::string& text) {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        const bool within = is_number && value >= least && value <= most;
        return within ? std::string() : "Value " + text + " not in range " + bounds;
    };
    return {check, fmt::format("FLOAT in [{:g} - {:g}]", least, most)};
}

CLI::Validator whole_number() {
    const auto check = [](std::string& text) {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool is_number = error == std::errc{} && end == text.data() + text.size();
        return is_number ? std::string() : "\"" + text + "\" is no whole number below 2^64";
    };
    return {check, "UINT"};
}

void refuse_two_answers(const std::string& option, const std::string& file, bool given,
                        const std::string& other) {
    if (file != "-" || !given) return;
    fail(
        usage_error(fmt::format("{} - and {} both write to standard output: leave one out, or give {} a file",
                                option, other, option)));
}

void keep_standard_input(std::vector<std::string>& words) {
    for (std::string& word : words) {
        if (word == "--") return;  // what follows is no option
        if (word.starts_with("-:")) word.insert(word.begin(), kInput);
    }
}

std::string as_given(std::string word) {
    if (word.starts_with(kInput)) word.erase(word.begin());
    return word;
}

CLI::Validator filled(const std::string& expected) {
    const auto check = [expected](std::string& text) {
        return text.empty() ? "it is empty; expected " + expected : std::string();
    };
    return {check, ""};
}

namespace {

/// The words of the command up to the first --then; those after each one go to `then`.
std::vector<std::string> split_stages(int argc, char** argv, std::vector<std::vector<std::string>>& then) {
    std::vector<std::string> words;
    const bool fuses = argc > 1 && std::string(argv[1]) == "fuse";
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (fuses && word == "--then") {
            then.emplace_back();
        } else {
            (then.empty() ? words : then.back()).push_back(word);
        }
    }
    return words;
}

/// Says which word is no subcommand; CLI11 says only that one is missing.
void require_known(const CLI::App& app, const std::string& command, std::span<const std::string> words) {
    if (app.get_require_subcommand_min() == 0 || words.empty() || words.front().starts_with('-')) return;
    std::vector<std::string_view> known;
    for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; })) {
        if (one->check_name(words.front())) {
            return require_known(*one, command + " " + words.front(), words.subspan(1));
        }
        known.push_back(one->get_name());
    }
    const std::string hint = did_you_mean(words.front(), known);
    fail(usage_error(
        fmt::format("there is no `{} {}`{}", command, escaped(words.front()),
                    hint.empty() ? fmt::format("; there are {}", fmt::join(known, ", ")) : hint)));
}

/// What the options that are left over may have meant: CLI11 only lists them.
std::string meant_options(const CLI::App& app) {
    const CLI::App* used = &app;
    while (!used->get_subcommands().empty()) used = used->get_subcommands().front();
    std::vector<std::string> known;
    for (const CLI::Option* option : used->get_options())
        for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    std::string hints;
    for (const std::string& word : app.remaining(true)) {
        if (word.starts_with("--")) hints += did_you_mean(word.substr(0, word.find('=')), known);
    }
    return hints;
}

int run(int argc, char** argv) {
    std::vector<std::vector<std::string>> then;
    std::vector<std::string> words = split_stages(argc, argv, then);
    CLI::App app{"Fuses local Triton kernels with communication plans into distributed kernels.",
                 "syncopate"};
    app.set_version_flag("--version", "syncopate " SYNCOPATE_VERSION);
    app.require_subcommand(1);
    app.option_defaults()->always_capture_default();
    register_plan_commands(app);
    register_kernel_commands(app);
    register_fuse_commands(app, std::move(then));
    register_run_commands(app);
    register_tune_commands(app);
    register_bench_commands(app);
    register_sync_commands(app);
    register_bundle_commands(app);
    try {
        require_known(app, "syncopate", words);
        keep_standard_input(words);
        std::reverse(words.begin(), words.end());  // as CLI11 takes them
        app.parse(std::move(words));
    } catch (const CLI::Success& asked) {  // --help, --version
        return app.exit(asked);
    } catch (const CLI::ParseError& error) {
        std::cerr << "error: " << error.what() << meant_options(app)
                  << "\nRun with --help for more information.\n";
        return static_cast<int>(ErrorClass::usage);
    } catch (const Exit& exit) {
        return exit.code;
    }
    return 0;
}

}  // namespace
}  // namespace syncopate::tools

namespace {

int out_of_memory() {
    constexpr std::string_view kText = "error: out of memory\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
    return static_cast<int>(syncopate::ErrorClass::machine);
}

void* or_end(void* memory) {
    if (memory == nullptr) ::_exit(out_of_memory());
    return memory;
}

/// The parser of kernels, which is C, aborts where there is no memory. It writes no file that would be left half done.
void parse_within_memory() {
    ts_set_allocator([](std::size_t size) { return or_end(std::malloc(size)); },
                     [](std::size_t count, std::size_t size) { return or_end(std::calloc(count, size)); },
                     [](void* old, std::size_t size) { return or_end(std::realloc(old, size)); }, std::free);
}

}  // namespace

int main(int argc, char** argv) {
    parse_within_memory();
    try {
        const int code = syncopate::tools::run(argc, argv);
        std::cout.flush();
        if (!std::cout) {
            std::cerr << "error: standard output could not be written\n";
            return code == 0 ? 1 : code;
        }
        return code;
    } catch (const std::bad_alloc&) {
        return out_of_memory();
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << '\n';
        return 1;
    }
}
