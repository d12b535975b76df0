// Which language reads a file and writes a kernel.
#include "syncopate/emit/language.hpp"

#include <gtest/gtest.h>

#include <set>

#include "fuse/sample.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/fuse/fuse.hpp"

namespace syncopate::emit {
namespace {

TEST(Language, EachHasANameAndASuffixOfItsOwn) {
    std::set<std::string_view> names, suffixes;
    for (const Language& language : languages()) {
        EXPECT_TRUE(names.insert(language.name).second) << language.name;
        EXPECT_TRUE(suffixes.insert(language.suffix).second) << language.suffix;
    }
}

TEST(Language, OfAFileFollowsFromItsSuffix) {
    EXPECT_EQ(language_of("folder/matmul.py").name, "triton");
    EXPECT_EQ(language_of("-").name, "triton") << "standard input";
}

/// A kernel that nobody reads the text of: what a statement of tiles and footprints makes.
fuse::Program stated() {
    return fuse::sample::all_gather_gemm(
        {.M = 64, .N = 32, .K = 16, .block_m = 16, .block_n = 16, .block_k = 8}, 2);
}

TEST(Language, AKernelWithoutTextHasASchedule) {
    const auto schedule = fuse::fuse(stated());
    ASSERT_TRUE(schedule.ok()) << schedule.error().to_string();
    EXPECT_EQ(schedule->num_slots(), 8);
}

TEST(Language, AKernelOfNoLanguageIsNotEmitted) {
    const auto artifact = make_artifact(stated());
    ASSERT_FALSE(artifact.ok());
    EXPECT_EQ(artifact.error().message,
              "kernel matmul has no source in a language that can be emitted: triton, stated");
}

}  // namespace
}  // namespace syncopate::emit
