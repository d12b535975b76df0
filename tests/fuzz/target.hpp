// What a fuzz target is: one file tests/fuzz/LAYER/NAME.cpp that defines LLVMFuzzerTestOneInput and asks of
// the layer whatever must hold for any input. cmake/Fuzz.cmake finds it; tests/fuzz/LAYER/NAME/ holds its
// seeds, if any, tests/fuzz/LAYER/NAME.seeds names folders with more, and tests/fuzz/LAYER/NAME.dict its
// words.
//
// With SYNCOPATE_FUZZ (clang) it becomes a libFuzzer program, fuzz_NAME. In every build with tests it also
// becomes fuzz_NAME_replay, which runs seeds and a fixed number of mutations of them, and is a ctest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

/// Runs one input. Returns 0. Must not keep state; a crash, an abort or a hang is a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace syncopate::fuzz {

[[nodiscard]] inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

/// Aborts, saying what should hold, unless it does. (assert is off in release builds.)
inline void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
}

}  // namespace syncopate::fuzz
