#include "syncopate/emit/folder.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::emit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCopy = R"(import triton
import triton.language as tl


@triton.jit
def copy(a_ptr, b_ptr, M, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(b_ptr + at, tl.load(a_ptr + at, mask=at < M), mask=at < M)
)";

/// A folder of its own, removed at the end.
class Folder : public ::testing::Test {
protected:
    void SetUp() override {
        const char* name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
        path_ = fs::temp_directory_path() / ("syncopate-folder-" + std::to_string(::getpid()) + "-" + name);
        fs::create_directories(path_);
        plan::Mesh mesh{{{"gpu", 2}}};
        auto plan = plan::make_plan("all_gather", mesh, {"A", {64}, plan::DType::fp32}, {});
        ASSERT_TRUE(plan.ok()) << plan.error().to_string();
        kernel::Arguments arguments;
        arguments.scalars = {{"M", std::int64_t{64}}, {"BLOCK", std::int64_t{16}}};
        arguments.tensors = {{"b_ptr", {{64}, {}, plan::DType::fp32, {}}}};
        auto made =
            make_artifact(kCopy, "copy.py", "copy", arguments, *std::move(plan), {{"a_ptr", "A"}}, {});
        ASSERT_TRUE(made.ok()) << made.error().to_string();
        artifact_ = *std::move(made);
        for (const auto& [file, text] : files_of(artifact_)) std::ofstream(path_ / file) << *text;
    }
    void TearDown() override { fs::remove_all(path_); }

    [[nodiscard]] std::string refusal() const {
        const auto read = artifact_from_folder(path_.string());
        return read.ok() ? "" : read.error().to_string();
    }
    /// In schedule.json, everywhere.
    void replace(const std::string& from, const std::string& to) {
        std::string text = artifact_.schedule_json;
        for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
            text.replace(at, from.size(), to);
        std::ofstream(path_ / "schedule.json") << text;
    }

    fs::path path_;
    Artifact artifact_;
};

TEST_F(Folder, IsReadAsItWasWritten) {
    const auto read = artifact_from_folder(path_.string());
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_EQ(read->schedule_json, artifact_.schedule_json);
    EXPECT_EQ(to_json(read->launch), artifact_.schedule_json);
    ASSERT_EQ(read->sources.size(), 1U);
    EXPECT_EQ(read->sources[0].original, kCopy);
    EXPECT_EQ(read->sources[0].kernel, artifact_.sources[0].kernel);
}

TEST_F(Folder, RefusesAFileThatScheduleJsonWasNotWrittenWith) {
    const std::string kernel = artifact_.sources[0].kernel;
    for (const std::string& text : {kernel + "\n", kernel.substr(1), std::string("\n"), std::string(kCopy)}) {
        std::ofstream(path_ / "kernel.py") << text;
        EXPECT_EQ(refusal().find((path_ / "kernel.py").string() +
                                 ": is not the file that schedule.json was written"),
                  0U)
            << refusal();
    }
    std::ofstream(path_ / "kernel.py") << kernel;
    EXPECT_EQ(refusal(), "");
    std::ofstream(path_ / "original.py") << kernel;
    EXPECT_NE(refusal().find("original.py: is not the file"), std::string::npos) << refusal();
}

TEST_F(Folder, RefusesAPipeInThePlaceOfAFileInsteadOfWaitingForIt) {
    for (const char* name : {"schedule.json", "kernel.py", "original.py"}) {
        fs::rename(path_ / name, path_ / "aside");
        ASSERT_EQ(mkfifo((path_ / name).c_str(), 0600), 0);
        EXPECT_EQ(refusal().find((path_ / name).string() + ": is no file"), 0U) << refusal();
        fs::remove(path_ / name);
        fs::create_symlink("aside", path_ / name);
        EXPECT_EQ(refusal(), "") << "a link to the same";
        fs::remove(path_ / name);
        fs::rename(path_ / "aside", path_ / name);
    }
}

TEST_F(Folder, RefusesAScheduleThatDoesNotKnowItsFiles) {
    replace("\"kernel.py\"", "\"other.py\"");
    EXPECT_NE(refusal().find("files has no digest of kernel.py"), std::string::npos) << refusal();
    replace("\"files\":{", "\"files\":{\"../x\": \"0\", ");
    EXPECT_NE(refusal().find("files names ../x, which is not in the folder"), std::string::npos) << refusal();
    replace("\"files\":{", "\"files\":{\"/etc/passwd\": \"0\", ");
    EXPECT_NE(refusal().find("files names /etc/passwd"), std::string::npos) << refusal();
    replace("\"files\":{", "\"files\":{\"gone.py\": \"0\", ");
    EXPECT_NE(refusal().find("gone.py: cannot be opened"), std::string::npos) << refusal();
}

TEST_F(Folder, SaysWhichOfSeveralFunctionsOfOneNameTheKernelIs) {
    const std::string other = "\n\n@triton.jit\ndef copy(a_ptr):\n    tl.store(a_ptr, 0)\n";
    auto made = make_artifact(kCopy + other, "copy.py", "copy@6", artifact_.launch.stages[0].arguments,
                              artifact_.launch.plan, {{"a_ptr", "A"}}, {});
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    for (const auto& [file, text] : files_of(*made)) std::ofstream(path_ / file) << *text;
    auto read = artifact_from_folder(path_.string());
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_EQ(read->launch.stages[0].line, 6);
    read->launch.schedule.ranks[1].slots.pop_back();  // it runs fewer tiles than the other one
    const auto writes = own_writes(*read, 1);
    ASSERT_TRUE(writes.ok()) << writes.error().to_string();
    EXPECT_TRUE(writes->front()->contains("b_ptr"));
}

TEST_F(Folder, KeepsEveryNumberThatAKernelIsCalledWith) {
    using kernel::Scalar;
    const double inf = std::numeric_limits<double>::infinity();
    const std::vector<Scalar> numbers{1e-06,
                                      1.5e-06,
                                      1e-5,
                                      1.0,
                                      100.0,
                                      -0.0,
                                      0.0,
                                      0.1,
                                      1e300,
                                      -1e300,
                                      1e22,
                                      123456789012345680.0,
                                      5e-324,
                                      1.7976931348623157e308,
                                      9007199254740993.0,
                                      inf,
                                      -inf,
                                      std::int64_t{0},
                                      std::int64_t{-1},
                                      (std::int64_t{1} << 53) + 1,
                                      std::int64_t{INT64_MAX},
                                      std::int64_t{INT64_MIN},
                                      true,
                                      false,
                                      kernel::NoneValue{},
                                      std::string("inf"),
                                      std::string("1e-06")};
    ScheduleFile launch = artifact_.launch;
    launch.stages[0].parameters.emplace_back("extra", launch.stages[0].parameters[2].second);
    const auto read_again = [&](const Scalar& number) {
        launch.stages[0].arguments.scalars["extra"] = number;
        const std::string text = to_json(launch);
        EXPECT_TRUE(nlohmann::json::accept(text)) << text;
        const auto read = schedule_file_from_json(text);
        EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.error().to_string());
        return read.ok() ? read->stages[0].arguments.scalars.at("extra") : Scalar("nothing");
    };
    for (const Scalar& number : numbers) {
        const Scalar read = read_again(number);
        EXPECT_EQ(read, number) << number.index();
        if (const auto* real = std::get_if<double>(&number)) {
            EXPECT_EQ(std::signbit(std::get<double>(read)), std::signbit(*real)) << *real;
        }
    }
    EXPECT_TRUE(std::isnan(std::get<double>(read_again(std::numeric_limits<double>::quiet_NaN()))));
}

TEST_F(Folder, NamesTheFileThatIsMissingOrNoText) {
    fs::remove(path_ / "original.py");
    EXPECT_NE(refusal().find("original.py: No such file or directory; expected a folder made by"),
              std::string::npos)
        << refusal();
    fs::create_directory(path_ / "original.py");
    EXPECT_NE(refusal().find("original.py: Is a directory"), std::string::npos) << refusal();
    std::ofstream(path_ / "kernel.py") << "\xff\xfe";
    EXPECT_NE(refusal().find("kernel.py: not text"), std::string::npos) << refusal();
}

TEST_F(Folder, RefusesPartsThatDoNotFitTogether) {
    const auto expect = [&](const std::string& from, const std::string& to, const std::string& why) {
        replace(from, to);
        EXPECT_NE(refusal().find("not what `syncopate fuse` writes: " + why), std::string::npos) << refusal();
        EXPECT_NE(refusal().find("schedule.json:"), std::string::npos) << refusal();
    };
    expect("{\"a_ptr\":\"A\"}", "{\"a_ptr\":\"B\"}", "bindings.a_ptr names no tensor of the plan");
    expect("{\"a_ptr\":\"A\"}", "{\"q_ptr\":\"A\"}", "bindings.q_ptr is no tensor");
    expect("\"kernel\":\"copy\"", "\"kernel\":\"../copy\"", "kernel must be a name");
    expect("\"a_ptr\":{\"shape\":[64]", "\"a_ptr\":{\"shape\":[65]",
           "tensors.a_ptr is not what the plan says of A");
    expect("syncopate.schedule/1", "syncopate.schedule/9", "schema");
}

}  // namespace
}  // namespace syncopate::emit
