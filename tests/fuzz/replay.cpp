// The main function of a fuzz target without libFuzzer: runs the given files, all files in the given folders,
// and mutations of them.
//
//   fuzz_NAME_replay [--mutations N] [--seed S] [--max-size BYTES] [--max-seconds S] PATH…
//
// The same arguments and files give the same inputs on every machine. The input at hand is kept in
// fuzz_NAME_replay.input while --keep is given, to be found after a crash. A path that does not exist is
// passed over, so that shared corpora may be absent.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz/target.hpp"

namespace {

struct Options {
    std::uint64_t mutations = 0;
    std::uint64_t seed = 1;
    std::size_t max_size = 1 << 16;  ///< of a mutated input
    double max_seconds = 0;          ///< 0: no limit
    bool keep = false;
    std::string program;
    std::vector<std::string> paths;
};

Options parse(int argc, char** argv) {
    Options options;
    options.program = argv[0];
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const auto number = [&] {
            if (i + 1 == argc) {
                std::cerr << word << " needs a number\n";
                std::exit(2);
            }
            return std::strtoull(argv[++i], nullptr, 10);
        };
        if (word == "--mutations") {
            options.mutations = number();
        } else if (word == "--seed") {
            options.seed = number();
        } else if (word == "--max-size") {
            options.max_size = number();
        } else if (word == "--max-seconds") {
            options.max_seconds = static_cast<double>(number());
        } else if (word == "--keep") {
            options.keep = true;
        } else {
            options.paths.push_back(word);
        }
    }
    return options;
}

/// Contents of the files, and of those in the folders, in the order of their names.
std::vector<std::string> read_all(const std::vector<std::string>& paths) {
    std::vector<std::filesystem::path> files;
    for (const std::string& path : paths) {
        if (std::filesystem::is_directory(path)) {
            for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
                if (entry.is_regular_file()) files.push_back(entry.path());
            }
        } else if (std::filesystem::exists(path)) {
            files.emplace_back(path);
        }
    }
    std::sort(files.begin(), files.end());
    std::vector<std::string> inputs;
    for (const auto& file : files) {
        std::ifstream stream(file, std::ios::binary);
        inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    }
    return inputs;
}

class Mutator {
public:
    Mutator(const std::vector<std::string>& seeds, const Options& options)
        : seeds_(seeds), options_(options), random_(options.seed) {}

    std::string next() {
        std::string input = pick(seeds_);
        const std::uint64_t changes = 1 + below(4);
        for (std::uint64_t i = 0; i < changes; ++i) change(input);
        if (input.size() > options_.max_size) input.resize(options_.max_size);
        return input;
    }

private:
    std::uint64_t below(std::uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
    const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

    void change(std::string& input) {
        static const std::vector<std::string> kWords{"0",
                                                     "-1",
                                                     "1",
                                                     "2",
                                                     "4096",
                                                     "1024",
                                                     "2147483647",
                                                     "2147483648",
                                                     "4611686018427387904",
                                                     "9223372036854775807",
                                                     "-9223372036854775808",
                                                     "1e400",
                                                     "\"",
                                                     "{",
                                                     "}",
                                                     "[",
                                                     "]",
                                                     "<",
                                                     ">",
                                                     ",",
                                                     ":",
                                                     "null",
                                                     "true",
                                                     "\xff",
                                                     "\\u0000",
                                                     std::string(40, '['),
                                                     "\n"};
        const std::size_t at = below(input.size() + 1);
        const std::size_t length = std::min<std::size_t>(below(below(4) == 0 ? 400 : 16), input.size() - at);
        switch (below(7)) {
            case 0:
                if (at < input.size()) input[at] = static_cast<char>(below(256));
                break;
            case 1: input.insert(at, pick(kWords)); break;
            case 2: input.erase(at, length); break;
            case 3: input.insert(at, input.substr(at, length)); break;
            case 4: {  // a number becomes another
                std::size_t begin = at;
                while (begin < input.size() && (input[begin] < '0' || input[begin] > '9')) ++begin;
                std::size_t end = begin;
                while (end < input.size() && input[end] >= '0' && input[end] <= '9') ++end;
                if (begin < end)
                    input.replace(begin, end - begin,
                                  below(2) == 0 ? pick(kWords) : std::to_string(below(12)));
                break;
            }
            case 5: {  // a piece of another seed
                const std::string& other = pick(seeds_);
                const std::size_t from = below(other.size() + 1);
                input.insert(at, other.substr(from, below(400)));
                break;
            }
            default: input.resize(at); break;
        }
    }

    const std::vector<std::string>& seeds_;
    const Options& options_;
    std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    const std::vector<std::string> seeds = read_all(options.paths);
    const auto begin = std::chrono::steady_clock::now();
    const auto run = [&](const std::string& input) {
        if (options.keep) std::ofstream(options.program + ".input", std::ios::binary) << input;
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
    };
    for (const std::string& seed : seeds) run(seed);
    std::uint64_t mutations = 0;
    if (!seeds.empty()) {
        Mutator mutator(seeds, options);
        for (; mutations < options.mutations; ++mutations) {
            const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
            if (options.max_seconds > 0 && passed.count() > options.max_seconds) break;
            run(mutator.next());
        }
    }
    std::cout << seeds.size() << " files and " << mutations << " mutations (seed " << options.seed
              << "), no crash\n";
    return 0;
}
