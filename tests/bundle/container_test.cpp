#include "syncopate/bundle/container.hpp"

#include <gtest/gtest.h>

#include <string>

namespace syncopate::bundle {
namespace {

Sections sample() {
    return {{"manifest.json", "{}"}, {"kernels/0.cubin", std::string(100, '\0') + "x"}, {"empty", ""}};
}

/// What reading these bytes says; "" where it succeeds.
std::string said_of(const std::string& bytes) {
    const Result<Sections> read = unpack(bytes, "op.sybundle");
    return read ? "" : read.error().to_string();
}

void expect_says(const std::string& bytes, const std::string& text) {
    const std::string said = said_of(bytes);
    EXPECT_NE(said.find(text), std::string::npos) << said;
    EXPECT_TRUE(said.starts_with("op.sybundle: ")) << said;
}

TEST(Container, IsReadAsItWasWritten) {
    for (const Sections& sections : {sample(), Sections{}, Sections{{"a", "b"}}}) {
        const Result<Sections> read = unpack(pack(sections), "op.sybundle");
        ASSERT_TRUE(read) << read.error().to_string();
        EXPECT_EQ(*read, sections);
        EXPECT_EQ(pack(*read), pack(sections));
    }
}

TEST(Container, CutOffAnywhereIsRefusedWithTheSectionThatIsNotWhole) {
    const std::string whole = pack(sample());
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
        EXPECT_NE(said_of(whole.substr(0, bytes)), "") << bytes;
    expect_says(whole.substr(0, 40), "the head is cut off after 40 of");
    expect_says(whole.substr(0, whole.size() - 20), "section manifest.json is cut off");
    expect_says("", "the head is cut off after 0 bytes");
}

TEST(Container, AChangedByteIsRefusedWhereverItIs) {
    const std::string whole = pack(sample());
    for (std::size_t at = 0; at < whole.size(); ++at) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ 0x20);
        EXPECT_NE(said_of(changed), "") << at;
    }
    std::string changed = whole;
    changed[whole.find('x')] = 'y';
    expect_says(changed, "section kernels/0.cubin has another digest than the head says");
}

TEST(Container, ANewerVersionAndOtherFilesAreNamed) {
    std::string newer = pack(sample());
    newer[8] = 2;
    expect_says(newer, "this bundle is of version 2, and version 1 is read here");
    expect_says(std::string("\x7f"
                            "ELF") +
                    std::string(200, 'a'),
                "this is no bundle");
    expect_says("{\"schema\": \"syncopate.plan/1\"}", "this is no bundle");
    expect_says(pack(sample()) + std::string(16, '\0'), "the end has bytes that belong to no section");
}

}  // namespace
}  // namespace syncopate::bundle
