#include "syncopate/emit/folder.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "syncopate/digest.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/io.hpp"
#include "syncopate/try.hpp"

namespace syncopate::emit {
namespace {

namespace fs = std::filesystem;

using ReadFile = std::function<Result<std::string>(const std::string& name)>;

constexpr const char* kExpected = "; expected a folder made by `syncopate fuse`";

Error not_written_by_fuse(const Error& why) {
    return Error{"not what `syncopate fuse` writes: " + why.message, why.location};
}

bool is_utf8(const std::string& text) {
    try {
        (void)nlohmann::json(text).dump();  // strict: it throws where the text is not UTF-8
        return true;
    } catch (const nlohmann::json::exception&) {
        return false;
    }
}

Result<std::string> text_of(const std::string& file) {
    Location where;
    where.file = file;
    std::error_code error;
    if (fs::is_directory(file, error)) return Error{std::string(std::strerror(EISDIR)) + kExpected, where};
    errno = 0;
    std::ifstream stream(file, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    if (!stream) return Error{std::string(std::strerror(errno != 0 ? errno : EIO)) + kExpected, where};
    if (!is_utf8(text)) return Error{std::string("not text") + kExpected, where};
    return text;
}

bool is_name(const std::string& text) {
    const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0 || c == '_' || c >= 0x80; };
    if (text.empty() || !is_letter(static_cast<unsigned char>(text.front()))) return false;
    return std::ranges::all_of(text, [&](unsigned char c) { return is_letter(c) || std::isdigit(c) != 0; });
}

/// What of a kernel's launch does not fit the plan; nothing where all does.
std::optional<std::string> misfit(const KernelLaunch& launch, const plan::Plan& plan) {
    constexpr std::int64_t kMostExtent = std::int64_t{1} << 40;
    if (!is_name(launch.kernel)) return "kernel must be a name";
    for (const auto& [name, tensor] : launch.arguments.tensors) {
        for (const std::int64_t extent : tensor.shape) {
            if (extent < 0 || extent >= kMostExtent) return "tensors." + name + ".shape must be extents";
        }
        if (!tensor.block.empty() && tensor.block.size() != tensor.shape.size())
            return "tensors." + name + ".block must have an extent for each axis";
    }
    for (const auto& [parameter, tensor] : launch.bindings) {
        const auto given = launch.arguments.tensors.find(parameter);
        if (given == launch.arguments.tensors.end()) return "bindings." + parameter + " is no tensor";
        const auto found = plan.find_tensor(tensor);
        if (!found) return "bindings." + parameter + " names no tensor of the plan";
        const plan::Tensor& whole = plan.tensors[*found];
        if (given->second.shape != whole.shape || given->second.dtype != whole.dtype)
            return "tensors." + parameter + " is not what the plan says of " + tensor;
    }
    return std::nullopt;
}

/// Why the files beside schedule.json are not those that it was written with.
std::optional<Error> mixed(const Artifact& artifact, const fs::path& folder, const ReadFile& read) {
    const std::string schedule = (folder / "schedule.json").string();
    for (std::size_t stage = 0; stage < artifact.sources.size(); ++stage) {
        for (const char* stem : {"kernel", "original"}) {
            const std::string name = kernel_file(artifact, stem, stage);
            if (!artifact.launch.files.contains(name))
                return not_written_by_fuse(Error{"files has no digest of " + name, {schedule}});
        }
    }
    for (const auto& [name, expected] : artifact.launch.files) {
        const fs::path path(name);
        if (path.is_absolute() || std::ranges::find(path, "..") != path.end())
            return not_written_by_fuse(
                Error{"files names " + name + ", which is not in the folder", {schedule}});
        SYNCOPATE_TAKE(std::string text, read(name));
        if (digest(text) == expected) continue;
        return Error{
            "is not the file that schedule.json was written with: it was changed since, or is of another "
            "artifact; run `syncopate fuse -o` again",
            {(folder / path).string()}};
    }
    return std::nullopt;
}

/// `read`: a file of the folder, by its name there; `read_text`: one that has to be text.
Result<Artifact> read_artifact(const std::string& folder, const ReadFile& read, const ReadFile& read_text) {
    const std::string file = (fs::path(folder) / "schedule.json").string();
    SYNCOPATE_TAKE(std::string schedule, read_text("schedule.json"));
    Artifact artifact;
    artifact.schedule_json = std::move(schedule);
    Result<ScheduleFile> launch = schedule_file_from_json(artifact.schedule_json, file);
    if (!launch) return not_written_by_fuse(launch.error());
    artifact.launch = *std::move(launch);
    for (const KernelLaunch& stage : artifact.launch.stages) {
        if (const auto why = misfit(stage, artifact.launch.plan))
            return not_written_by_fuse(Error{*why, {file}});
    }
    artifact.sources.resize(artifact.launch.stages.size());
    for (std::size_t stage = 0; stage < artifact.sources.size(); ++stage) {
        artifact.sources[stage].suffix = suffix_of(artifact.launch.stages[stage].file);
        for (const auto& [stem, text] : {std::pair{"kernel", &artifact.sources[stage].kernel},
                                         std::pair{"original", &artifact.sources[stage].original}}) {
            SYNCOPATE_TAKE(std::string content, read_text(kernel_file(artifact, stem, stage)));
            *text = std::move(content);
        }
    }
    if (const auto why = mixed(artifact, folder, read)) return *why;
    return artifact;
}

}  // namespace

Result<Artifact> artifact_from_folder(const std::string& folder) {
    const auto path_of = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
    const auto of_file = [&](const std::string& name, auto&& read) -> Result<std::string> {
        const std::string path = path_of(name);
        std::error_code error;
        // A pipe would be waited for.
        const fs::file_type type = fs::status(path, error).type();
        if (fs::exists(path, error) && type != fs::file_type::regular && type != fs::file_type::directory)
            return Error{"is no file", {.file = path}};
        return read(path);
    };
    return read_artifact(
        folder, [&](const std::string& name) { return of_file(name, read_file); },
        [&](const std::string& name) { return of_file(name, text_of); });
}

Result<Artifact> artifact_from_files(const FilesOfFolder& files, const std::string& folder) {
    const ReadFile read = [&](const std::string& name) -> Result<std::string> {
        const auto found = files.find(name);
        if (found == files.end()) return Error{"is not there", {.file = (fs::path(folder) / name).string()}};
        return found->second;
    };
    return read_artifact(folder, read, read);
}

}  // namespace syncopate::emit
