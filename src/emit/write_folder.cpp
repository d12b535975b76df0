#include "syncopate/emit/write_folder.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "syncopate/digest.hpp"
#include "syncopate/io.hpp"
#include "syncopate/try.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::emit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSchedule = "schedule.json";

/// What a writer has in hand. Removed at its end, and by the next writer where there was none.
class Staging {
public:
    Staging(fs::path parent, std::string stem)
        : parent_(std::move(parent)),
          stem_(std::move(stem)),
          path_(parent_ / fmt::format("{}{}", stem_, ::getpid())) {}
    ~Staging() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
        for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) fs::remove(*folder, ignored);
    }
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    [[nodiscard]] const fs::path& path() const { return path_; }

    /// Those of writers that were killed.
    [[nodiscard]] std::vector<fs::path> left() const {
        std::vector<fs::path> found;
        std::error_code failure;
        for (const fs::directory_entry& entry : fs::directory_iterator(parent_, failure)) {
            const std::string name = entry.path().filename().string();
            if (!name.starts_with(stem_)) continue;
            const long pid = whole_number<long>(std::string_view(name).substr(stem_.size())).value_or(0);
            const bool is_gone =
                pid == ::getpid() || (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH);
            if (pid > 0 && is_gone) found.push_back(entry.path());
        }
        return found;
    }

    /// Makes a folder, which is removed again if it is empty at the end, unless it is to stay.
    Status make(const fs::path& folder) {
        std::error_code failure;
        if (!folder.empty() && !fs::is_directory(folder, failure)) {
            SYNCOPATE_TRY(make(folder.parent_path()));
            if (fs::create_directory(folder, failure)) made_.push_back(folder);
        }
        if (folder.empty() || fs::is_directory(folder)) return Done{};
        return Error{"cannot make the directory " + folder.string() + ": " +
                     (failure ? failure.message() : "a file is in its place")};
    }
    void keep_folders() { made_.clear(); }

private:
    fs::path parent_;
    std::string stem_;
    fs::path path_;
    std::vector<fs::path> made_;
};

using Files = std::vector<std::pair<std::string, const std::string*>>;

/// Digests of what was written into the folder before, by a writer that ended or by one that was killed; nullopt:
/// all that has the name of one of its files.
std::optional<std::map<std::string, std::string>> written_before(const fs::path& folder,
                                                                 const Staging& staging) {
    std::error_code ignored;
    if (fs::exists(folder / kSchedule, ignored)) return std::nullopt;
    std::map<std::string, std::string> digests;
    for (const fs::path& left : staging.left()) {
        const Result<std::string> text = read_file((left / kSchedule).string());
        const Result<ScheduleFile> launch =
            text ? schedule_file_from_json(*text) : Result<ScheduleFile>(text.error());
        if (launch) digests.insert(launch->files.begin(), launch->files.end());
    }
    return digests;
}

/// Only what this has written is overwritten, and nothing that the caller has read.
Status refuse_overwriting(const fs::path& folder, const Files& files, const std::vector<std::string>& inputs,
                          const Staging& staging) {
    std::error_code ignored;
    const auto before = written_before(folder, staging);
    for (const auto& [name, text] : files) {
        const fs::path place = folder / name;
        if (fs::is_directory(place, ignored))
            return Error{place.string() + " is a directory, where a file is to be written"};
        for (const std::string& input : inputs) {
            if (fs::equivalent(place, input, ignored))
                return usage_error("-o " + folder.string() + ": " + name + " would overwrite " + input +
                                   ", which is read: name another folder");
        }
        if (!before || !fs::is_regular_file(place, ignored)) continue;
        const auto found = before->find(name);
        const Result<std::string> there = read_file(place.string());
        if (found == before->end() || !there || digest(*there) != found->second)
            return usage_error(
                "-o " + folder.string() + ": there is a " + name +
                " that fuse has not written (it has no schedule.json beside it): name another folder");
    }
    return Done{};
}

Status write_all(const Files& files, Staging& staging) {
    for (const auto& [name, text] : files) {
        const fs::path place = staging.path() / name;
        SYNCOPATE_TRY(staging.make(place.parent_path()));
        SYNCOPATE_TRY(write_file_atomically(place.string(), *text));
        SYNCOPATE_TRY(sync_to_disk(place.string()));
    }
    return sync_to_disk(staging.path().string());
}

Status cannot_write(const fs::path& path, const std::error_code& failure) {
    return Error{"cannot write " + path.string() + ": " + failure.message()};
}

/// Into a folder that is there: schedule.json comes last in `files`.
Status move_into(const fs::path& folder, const Files& files, Staging& staging) {
    std::error_code failure;
    for (const auto& [name, text] : files) {
        SYNCOPATE_TRY(staging.make((folder / name).parent_path()));
    }
    for (const auto& [name, text] : files) {
        fs::rename(staging.path() / name, folder / name, failure);
        if (failure) return cannot_write(folder / name, failure);
    }
    staging.keep_folders();
    return sync_to_disk(folder.string());
}

}  // namespace

Status write_folder(const Artifact& artifact, const std::string& folder,
                    const std::vector<std::string>& inputs) {
    if (artifact.launch.schedule.part)
        return Error{folder + ": the schedule is of one node's ranks, and a folder holds that of all"};
    const Files files = files_of(artifact);
    fs::path place = fs::path(folder).lexically_normal();
    if (place.filename().empty()) place = place.parent_path();
    std::error_code failure;
    if (fs::exists(place, failure) && !fs::is_directory(place, failure))
        return Error{"cannot make the directory " + folder + ": a file is in its place"};
    const bool is_new = !fs::exists(place, failure);
    const fs::path parent = is_new ? place.parent_path() : place;
    Staging staging(parent.empty() ? "." : parent,
                    is_new ? "." + place.filename().string() + ".new." : ".new.");
    SYNCOPATE_TRY(refuse_overwriting(place, files, inputs, staging));
    if (Status made = staging.make(parent); !made) return Error{"-o " + folder + ": " + made.error().message};
    for (const fs::path& left : staging.left()) fs::remove_all(left, failure);
    SYNCOPATE_TRY(write_all(files, staging));
    if (!is_new) return move_into(place, files, staging);
    fs::rename(staging.path(), place, failure);
    if (failure && fs::is_directory(place))
        return write_folder(artifact, folder, inputs);  // another writer made it
    if (failure) return cannot_write(place, failure);
    staging.keep_folders();
    return sync_to_disk(parent.empty() ? "." : parent.string());
}

}  // namespace syncopate::emit
