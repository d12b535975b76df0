#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include "runtime/heap/fields.hpp"
#include "runtime/heap/process.hpp"
#include "runtime/waiting_clock.hpp"
#include "syncopate/at.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"
#include "syncopate/try.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::runtime {
namespace {

namespace fs = std::filesystem;

/// A name that is safe as one path component, and another one for another text.
std::string file_name(const std::string& text) {
    std::string name;
    for (const char c : text) {
        const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                           (c == '.' && !name.empty());
        name += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
    }
    constexpr std::size_t kMost = 200;  // a file system takes 255, and a suffix comes after it
    if (name.size() <= kMost) return name;
    return fmt::format("{}-{:016x}", name.substr(0, kMost), std::hash<std::string>{}(text));
}

Status write_file(const fs::path& path, const Bytes& value) {
    const fs::path part = path.string() + ".part." + random_hex(4);
    {
        std::ofstream file(part, std::ios::binary);
        file.write(value.data(), static_cast<std::streamsize>(value.size()));
        if (!file.flush()) {
            return machine_error(fmt::format(
                "cannot write {}: is the directory there, writable and not full?", part.string()));
        }
    }
    std::error_code failure;
    fs::rename(part, path, failure);
    if (failure) {
        return machine_error(fmt::format("cannot rename {}: {}", part.string(), failure.message()));
    }
    return Done{};
}

bool read_file(const fs::path& path, Bytes& value) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return false;
    value.assign(std::istreambuf_iterator<char>(file), {});
    return true;
}

/// Calls `attempt` until it is true, ever less often; false after the timeout.
template <typename Attempt>
bool poll_until(WaitingClock& clock, Milliseconds timeout, const Attempt& attempt) {
    std::chrono::microseconds pause{50};
    while (!attempt()) {
        if (clock.waited() >= timeout) return false;
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 3 / 2, std::chrono::microseconds{5'000});
    }
    return true;
}

/// What a rank leaves at the door: who it is, so that a reader can tell whether it is still alive.
struct Hello {
    std::string nonce;
    std::string space;  ///< pid namespace
    long pid = 0;
    std::uint64_t start = 0;

    [[nodiscard]] Bytes pack() const { return fmt::format("{} {} {} {}", nonce, space, pid, start); }
    static bool unpack(const Bytes& bytes, Hello& hello) {
        const std::vector<std::string_view> fields = fields_of(bytes);
        if (fields.size() != 4) return false;
        const std::optional<long> pid = whole_number<long>(fields[2]);
        const std::optional<std::uint64_t> start = whole_number<std::uint64_t>(fields[3]);
        if (!pid || !start) return false;
        hello = {std::string(fields[0]), std::string(fields[1]), *pid, *start};
        return true;
    }
    /// A process of another pid namespace cannot be looked up: it is believed.
    [[nodiscard]] bool alive() const {
        if (space != pid_namespace()) return true;
        return start_time_of(pid) == start;
    }
};

/// How often this process has joined a run: a second rendezvous on the same run does not meet the first one's
/// files.
std::mutex& generations_mutex() {
    static std::mutex mutex;
    return mutex;
}
std::map<std::string, int>& generations() {
    static std::map<std::string, int> made;
    return made;
}
int next_generation(const std::string& run) {
    const std::lock_guard lock(generations_mutex());
    return generations()[run]++;
}

/// A rank's try to join. Where nobody joined, the next one is for the same generation, or ranks that tried unequally often would
/// never meet.
class Try {
public:
    Try(const fs::path& run, int rank)
        : run_(run.string()),
          generation_(next_generation(run_)),
          hello_(run / fmt::format("hello.{}.{}", generation_, rank)) {}
    ~Try() {
        std::error_code failure;
        fs::remove(hello_, failure);
        if (joined) return;
        const std::lock_guard lock(generations_mutex());
        int& next = generations()[run_];
        if (next == generation_ + 1) next = generation_;
    }
    Try(const Try&) = delete;
    Try& operator=(const Try&) = delete;
    [[nodiscard]] int generation() const { return generation_; }

    bool joined = false;

private:
    std::string run_;
    int generation_;
    fs::path hello_;
};

}  // namespace

FileRendezvous::FileRendezvous(fs::path session, int rank, int size)
    : Rendezvous(rank, size), session_(std::move(session)) {}

Result<std::unique_ptr<FileRendezvous>> FileRendezvous::create(const fs::path& directory, int rank, int size,
                                                               const std::string& run_id,
                                                               Milliseconds timeout) {
    if (size < 1 || rank < 0 || rank >= size) {
        return usage_error(fmt::format("rank {} of {} ranks makes no sense", rank, size));
    }
    WaitingClock clock;
    const fs::path run = directory / file_name(run_id.empty() ? "run" : run_id);
    std::error_code failure;
    Try own(run, rank);
    const auto hello_path = [&](int r) { return run / fmt::format("hello.{}.{}", own.generation(), r); };
    Hello mine{random_hex(8), pid_namespace(), static_cast<long>(getpid()), 0};
    if (mine.space.empty()) mine.space = "none";
    mine.start = start_time_of(mine.pid).value_or(0);
    // The last rank to leave an earlier rendezvous removes the folder when it is empty: make it again if it
    // was.
    for (int attempt = 0;; ++attempt) {
        fs::create_directories(run, failure);
        if (failure) {
            return machine_error(
                fmt::format("cannot make the rendezvous directory {}: {}", run.string(), failure.message()));
        }
        const Status written = write_file(hello_path(rank), mine.pack());
        if (written) break;
        if (attempt == 8) return written.error();
    }

    // All are looked for at once: a rank that gives up takes its hello away, and has been seen by then.
    std::vector<std::string> seen(static_cast<std::size_t>(size));
    const auto missing = [&] {
        std::string ranks;
        for (int r = 0; r < size; ++r) {
            std::string& nonce = seen[at(r)];
            Bytes bytes;
            Hello theirs;
            if (read_file(hello_path(r), bytes) && Hello::unpack(bytes, theirs) && theirs.alive())
                nonce = theirs.nonce;  // the newest: it may have given up, and come again
            if (nonce.empty()) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
        }
        return ranks;
    };
    std::string absent;
    poll_until(clock, timeout, [&] { return (absent = missing()).empty(); });
    // The session's name joins all nonces: ranks that saw different hellos cannot mistake each other's files.
    std::string nonces;
    for (const std::string& nonce : seen) nonces += nonce;
    if (!absent.empty()) {
        return Error{fmt::format("rank {} of {} did not come to {} within {} ms", absent, size, run.string(),
                                 timeout.count()),
                     {.rank = rank},
                     ErrorClass::machine};
    }
    const std::string name = fmt::format("s{}-{:016x}", own.generation(), std::hash<std::string>{}(nonces));
    fs::create_directories(run / name, failure);
    if (failure) {
        return machine_error(fmt::format("cannot make {}: {}", (run / name).string(), failure.message()));
    }
    std::unique_ptr<FileRendezvous> joined(new FileRendezvous(run / name, rank, size));
    // After this nobody reads a hello any more.
    const auto left = std::chrono::duration_cast<Milliseconds>(timeout - clock.waited());
    SYNCOPATE_TRY(barrier(*joined, "join", std::max(left, Milliseconds{100})));
    own.joined = true;
    return joined;
}

FileRendezvous::~FileRendezvous() {
    if (is_a_parents()) return;
    (void)write_file(session_ / fmt::format("gone.{}", rank()), "");
    std::error_code failure;
    for (int r = 0; r < size(); ++r) {
        if (!fs::exists(session_ / fmt::format("gone.{}", r), failure)) return;
    }
    fs::remove_all(session_, failure);
    fs::remove(session_.parent_path(), failure);  // fails, as it should, while anything is in it
}

Status FileRendezvous::put(const std::string& key, const Bytes& value) {
    return write_file(session_ / file_name(key), value);
}

Result<Bytes> FileRendezvous::get(const std::string& key, Milliseconds timeout) {
    const fs::path path = session_ / file_name(key);
    Bytes value;
    WaitingClock clock;
    if (poll_until(clock, timeout, [&] { return read_file(path, value); })) return value;
    return machine_error(fmt::format("nothing at {}", path.string()));
}

/// A link is made whole or not at all, and never in the place of another file [P34].
Result<Bytes> FileRendezvous::put_first(const std::string& key, const Bytes& value) {
    const fs::path path = session_ / file_name(key);
    const fs::path mine = path.string() + ".first." + random_hex(4);
    SYNCOPATE_TRY(write_file(mine, value));
    const bool linked = link(mine.c_str(), path.c_str()) == 0;
    const int failure = errno;
    std::error_code ignored;
    fs::remove(mine, ignored);
    if (linked) return value;
    if (failure != EEXIST) {
        return machine_error(fmt::format("cannot make {}: {}", path.string(),
                                         std::error_code(failure, std::generic_category()).message()));
    }
    return get(key, kRendezvousTimeout);
}

Result<std::unique_ptr<FileRendezvous>> FileRendezvous::rejoin(const fs::path& directory, int rank, int size,
                                                               const std::string& run_id) {
    if (size < 1 || rank < 0 || rank >= size)
        return usage_error(fmt::format("rank {} of {} ranks makes no sense", rank, size));
    const fs::path run = directory / file_name(run_id.empty() ? "run" : run_id);
    const std::string prefix = fmt::format("s{}-", next_generation(run.string()));
    std::error_code failure;
    fs::path newest;
    fs::file_time_type made{};
    for (const fs::directory_entry& entry : fs::directory_iterator(run, failure)) {
        if (!entry.path().filename().string().starts_with(prefix)) continue;
        const fs::file_time_type time = entry.last_write_time(failure);
        if (newest.empty() || time > made) {
            newest = entry.path();
            made = time;
        }
    }
    if (newest.empty()) {
        return Error{
            fmt::format("no run to go on with in {}: have its ranks met there, and is it theirs still?",
                        run.string()),
            {.rank = rank},
            ErrorClass::machine};
    }
    std::unique_ptr<FileRendezvous> joined(new FileRendezvous(newest, rank, size));
    joined->set_late_comer(true);
    return joined;
}

void FileRendezvous::erase(const std::string& key) {
    std::error_code failure;
    fs::remove(session_ / file_name(key), failure);
}

namespace {

Result<int> integer_variable(const char* name) {
    const char* text = std::getenv(name);
    if (text == nullptr) return usage_error(fmt::format("{} is not set in the environment", name));
    const int value = whole_number<int>(text).value_or(-1);
    if (value < 0) return usage_error(fmt::format("{}={} in the environment is no count", name, text));
    return value;
}

std::string text_variable(const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? "" : text;
}

}  // namespace

Result<LaunchEnvironment> launch_environment() {
    struct Names {
        const char* launcher;
        const char* rank;
        const char* size;
        const char* local_rank;
        std::vector<const char*> job;
    };
    const std::vector<Names> known = {
        {"torchrun",
         "RANK",
         "WORLD_SIZE",
         "LOCAL_RANK",
         {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
        {"mpirun",
         "OMPI_COMM_WORLD_RANK",
         "OMPI_COMM_WORLD_SIZE",
         "OMPI_COMM_WORLD_LOCAL_RANK",
         {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"}},
        {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", {"SLURM_JOB_ID", "SLURM_STEP_ID", "PMI_PORT"}},
    };
    for (const Names& names : known) {
        if (std::getenv(names.rank) == nullptr || std::getenv(names.size) == nullptr) continue;
        LaunchEnvironment environment{.launcher = names.launcher};
        for (const auto& [variable, target] :
             {std::pair{names.rank, &environment.rank}, std::pair{names.size, &environment.size}}) {
            SYNCOPATE_TAKE(int value, integer_variable(variable));
            *target = value;
        }
        if (environment.rank >= environment.size) {
            return usage_error(fmt::format("{}={} is not below {}={}", names.rank, environment.rank,
                                           names.size, environment.size));
        }
        environment.local_rank = environment.rank;
        if (Result<int> local = integer_variable(names.local_rank); local) environment.local_rank = *local;
        environment.job = names.launcher;
        for (const char* variable : names.job) {
            if (const std::string text = text_variable(variable); !text.empty())
                environment.job += "-" + text;
        }
        return environment;
    }
    return usage_error(
        "this process was not started by torchrun, mpirun or srun: RANK and WORLD_SIZE are not set");
}

Result<std::unique_ptr<Rendezvous>> environment_rendezvous(Milliseconds timeout) {
    SYNCOPATE_TAKE(LaunchEnvironment environment, launch_environment());
    std::error_code failure;
    fs::path root = fs::temp_directory_path(failure);
    if (failure) root = "/tmp";
    root /= fmt::format("syncopate-{}", geteuid());
    // Only this user may write here, or another could put files in a rank's name.
    if (mkdir(root.c_str(), 0700) != 0 && errno != EEXIST) {
        return machine_error(fmt::format("cannot make {}: {}", root.string(),
                                         std::error_code(errno, std::generic_category()).message()));
    }
    struct stat about{};
    if (lstat(root.c_str(), &about) != 0 || !S_ISDIR(about.st_mode) || about.st_uid != geteuid()) {
        return machine_error(
            fmt::format("{} is not a directory of this user; remove it, or set TMPDIR", root.string()));
    }
    SYNCOPATE_TAKE(
        std::unique_ptr<FileRendezvous> joined,
        FileRendezvous::create(root, environment.rank, environment.size, environment.job, timeout));
    return std::unique_ptr<Rendezvous>(std::move(joined));
}

}  // namespace syncopate::runtime
