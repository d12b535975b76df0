// Small random programs: a template's plan, or two, around one to three kernels, cut, blocked and carried out
// at random.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/program.hpp"

namespace syncopate::fuse::test {

/// A program, how it is to be fused, and which program of its kernels runs which slot (of all stages).
struct RandomProgram {
    StagedProgram program;
    Options options;
    std::vector<std::int64_t> program_of;
    std::string story;  ///< "3 ranks: ring all_gather, then matmul"
};

/// The same seed gives the same programs on every machine.
class RandomPrograms {
public:
    /// `nodes`: their ranks are of several.
    explicit RandomPrograms(std::uint64_t seed, bool nodes = false) : random_(seed), nodes_(nodes) {}

    /// What is not fused: a kernel may read what its rank never gets, or an op's backend may not be legal.
    RandomProgram next();

private:
    std::int64_t below(std::int64_t bound) {
        return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(bound));
    }
    bool chance(int percent) { return below(100) < percent; }
    template <typename T>
    T one_of(const std::vector<T>& from) {
        return from[static_cast<std::size_t>(below(static_cast<std::int64_t>(from.size())))];
    }

    plan::Plan brought(const plan::Tensor& tensor, std::string& story);
    plan::Plan made(const plan::Tensor& tensor, std::string& story);
    kernel::Kernel matmul(std::int64_t m, std::int64_t n, std::int64_t k);
    void choose_backends(plan::Plan& plan, Device device);

    std::mt19937_64 random_;
    bool nodes_;
    std::int32_t ranks_ = 1;
};

}  // namespace syncopate::fuse::test
