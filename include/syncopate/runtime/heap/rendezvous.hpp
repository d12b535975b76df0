// How ranks find each other before any memory is shared: a small store of bytes under keys that all ranks of
// a run can read. It carries a few hundred bytes per rank at set-up and nothing during calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/result.hpp"

namespace syncopate::runtime {

class GroupMemory;  // group_memory.hpp

/// Raw bytes; they may hold zeros.
using Bytes = std::string;
using Milliseconds = std::chrono::milliseconds;

inline constexpr Milliseconds kRendezvousTimeout{60'000};
/// As a timeout of a meeting: the rendezvous' own.
inline constexpr Milliseconds kOfGroup{-1};

/// Asked while a rank waits for others in a meeting (all_gather): whether they can still come.
class MeetingWatch {
public:
    virtual ~MeetingWatch() = default;
    /// The label of the meeting that a rank has come to; nullopt while it has not come.
    using Came = std::function<std::optional<std::string>(int rank)>;
    /// At the begin of each meeting. An error: the ranks' calls differed before, which this rank has not been told.
    virtual Status enter() = 0;
    /// An error ends the meeting on this rank: the ranks' calls differ. `labels_differ`: those who came say so.
    /// `failed`: as of all_gather.
    virtual Status look(const Came& came, bool labels_differ, bool failed) = 0;
    /// Whether the rank's process has ended, so that it never comes; false where nothing is known of it.
    [[nodiscard]] virtual bool has_ended(int rank) const = 0;
    /// How often the ranks' calls have differed, as far as this rank's caller has been told. Who has been told of
    /// as much meets: what a rank had put before is none of it.
    [[nodiscard]] virtual std::uint32_t told() const = 0;
};

/// The store, seen from one rank. Each key is put by one rank, and once, but for a rank that
/// gives a meeting up. An object serves one thread at a time.
class Rendezvous {
public:
    Rendezvous(int rank, int size);
    virtual ~Rendezvous();
    Rendezvous(const Rendezvous&) = delete;
    Rendezvous& operator=(const Rendezvous&) = delete;

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int size() const { return size_; }

    /// Makes `value` readable by all ranks, whole or not at all.
    virtual Status put(const std::string& key, const Bytes& value) = 0;
    /// Waits until some rank has put `key`. Fails when `timeout` has passed.
    virtual Result<Bytes> get(const std::string& key, Milliseconds timeout) = 0;
    /// Puts `value` there unless some rank has put something before, and gives what is there then: who asks gets the
    /// same as all others [P34]. An error of class usage: this store cannot.
    virtual Result<Bytes> put_first(const std::string& key, const Bytes& value);
    /// Forgets a key that nobody will read again; a store may keep it.
    virtual void erase(const std::string& key) { (void)key; }

    /// Whether this process is a child that was forked after it was made: the parent is the rank.
    [[nodiscard]] bool is_a_parents() const;

    /// Ranks that share a heap: so many from one on that is a multiple of it. At first all; set on all ranks alike,
    /// before anything is made of it. It divides the size.
    [[nodiscard]] int ranks_of_node() const { return ranks_of_node_; }
    void set_ranks_of_node(int ranks) { ranks_of_node_ = ranks; }
    [[nodiscard]] int first_of_node() const { return rank_ / ranks_of_node_ * ranks_of_node_; }
    [[nodiscard]] bool is_near(int rank) const {
        return rank >= first_of_node() && rank < first_of_node() + ranks_of_node_;
    }
    /// The ranks of this node alone, numbered from 0: itself where there is one node.
    [[nodiscard]] Rendezvous& within();

    /// How long ranks wait for each other where they set up and meet; at first kRendezvousTimeout. Of a host that was
    /// frozen meanwhile, the time counts for nobody.
    [[nodiscard]] Milliseconds timeout(Milliseconds asked = kOfGroup) const {
        return asked < Milliseconds{0} ? timeout_ : asked;
    }
    void set_timeout(Milliseconds timeout) { timeout_ = timeout; }

    /// Whether this process came after the group had been made, in the place of a rank that it lost.
    [[nodiscard]] bool is_late_comer() const { return is_late_comer_; }
    void set_late_comer(bool is) { is_late_comer_ = is; }

    /// Whose set-up or end the next meetings are part of, in the words of this rank's user; "": of nothing's. All
    /// ranks say the same, as with labels, and messages show it in place of these.
    [[nodiscard]] const std::string& caller() const { return caller_; }
    void set_caller(std::string caller) { caller_ = std::move(caller); }

    /// The heaps of those who meet here.
    [[nodiscard]] GroupMemory& memory() { return *memory_; }

    [[nodiscard]] const std::shared_ptr<MeetingWatch>& watch() const { return watch_; }
    void set_watch(std::shared_ptr<MeetingWatch> watch) { watch_ = std::move(watch); }
    /// Whether the last meeting failed because ranks came to different ones, or called something else.
    [[nodiscard]] bool calls_differ() const { return calls_differ_; }

private:
    friend class Meeting;  // src/runtime/heap/rendezvous.cpp
    int rank_;
    int size_;
    int ranks_of_node_;
    std::unique_ptr<Rendezvous> within_;
    std::uint32_t forks_;        ///< of the process that made it: a forked child is no rank
    std::uint32_t told_ = 0;     ///< as of the watch, at the last meeting
    std::int64_t sequence_ = 0;  ///< meetings since
    std::string last_key_;       ///< of this rank, in the one before this
    Milliseconds timeout_ = kRendezvousTimeout;
    std::string caller_;
    std::shared_ptr<MeetingWatch> watch_;
    std::unique_ptr<GroupMemory> memory_;
    bool calls_differ_ = false;
    bool is_late_comer_ = false;
};

/// Every rank's `value`, by rank. All ranks call it in the same order; `label` says what for, in messages, and
/// is the same on all ranks: where it is not, all fail, with each rank's label. Fails after `timeout`, naming
/// every rank that did not come: then the ranks that come next meet there again. Fails earlier where the
/// rendezvous' watch finds that a rank calls something else, or has ended. `failed`: what this rank did before has failed, so that
/// the others may be in the middle of it, and come once they know.
Result<std::vector<Bytes>> all_gather(Rendezvous& rendezvous, std::string_view label, const Bytes& value,
                                      Milliseconds timeout = kOfGroup, bool failed = false);

/// Returns when all ranks have called it, or fails like all_gather.
Status barrier(Rendezvous& rendezvous, std::string_view label, Milliseconds timeout = kOfGroup);

/// As all_gather, but each rank gives its bytes or its error, and if any rank has an error, all ranks fail
/// with the first one, named with its rank. So a failure on one rank is no timeout on the others.
Result<std::vector<Bytes>> agree(Rendezvous& rendezvous, std::string_view label, const Result<Bytes>& mine,
                                 Milliseconds timeout = kOfGroup);

/// A directory that all ranks see. Files appear by rename, so that none is ever read half-written.
class FileRendezvous final : public Rendezvous {
public:
    /// Joins the run: returns when all ranks have come to `directory` with the same `run_id`, or fails naming
    /// those that have not. Files left by processes that are gone (an earlier run with the same id) are not
    /// taken for theirs. `run_id` is any text that is new for each run; the launcher gives it.
    static Result<std::unique_ptr<FileRendezvous>> create(const std::filesystem::path& directory, int rank,
                                                          int size, const std::string& run_id = "run",
                                                          Milliseconds timeout = kRendezvousTimeout);
    /// Of a rank that was started again: the run that the others have joined and are still in, for recover()
    /// (runtime/recover/recover.hpp) alone. Fails when there is none.
    static Result<std::unique_ptr<FileRendezvous>> rejoin(const std::filesystem::path& directory, int rank,
                                                          int size, const std::string& run_id = "run");
    ~FileRendezvous() override;  ///< the last rank to leave removes the run's files

    Status put(const std::string& key, const Bytes& value) override;
    Result<Bytes> get(const std::string& key, Milliseconds timeout) override;
    Result<Bytes> put_first(const std::string& key, const Bytes& value) override;
    void erase(const std::string& key) override;

private:
    FileRendezvous(std::filesystem::path session, int rank, int size);
    std::filesystem::path session_;  ///< this run's own folder
};

/// A store that someone else keeps (torch.distributed's, MPI, a test). The functions may throw; the message
/// of the exception becomes the error's.
class CallbackRendezvous final : public Rendezvous {
public:
    using Put = std::function<void(const std::string& key, const Bytes& value)>;
    using Get = std::function<Bytes(const std::string& key, Milliseconds timeout)>;
    /// As put_first(); maybe empty: then a group that goes on has to have all its ranks.
    using PutFirst = std::function<Bytes(const std::string& key, const Bytes& value)>;

    CallbackRendezvous(int rank, int size, Put put, Get get, PutFirst put_first = {})
        : Rendezvous(rank, size),
          put_(std::move(put)),
          get_(std::move(get)),
          put_first_(std::move(put_first)) {}
    Status put(const std::string& key, const Bytes& value) override;
    Result<Bytes> get(const std::string& key, Milliseconds timeout) override;
    Result<Bytes> put_first(const std::string& key, const Bytes& value) override;

private:
    Put put_;
    Get get_;
    PutFirst put_first_;
};

/// Who this process is, as its launcher says in the environment.
struct LaunchEnvironment {
    std::string launcher;  ///< "torchrun", "mpirun" or "pmi"
    int rank = 0;
    int size = 1;
    int local_rank = 0;
    std::string job;  ///< the same on all ranks of a run
};

/// From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun) or OMPI_COMM_WORLD_* (Open MPI) or PMI_*
/// (MPICH, Slurm). Fails when there is none of them or one makes no sense.
Result<LaunchEnvironment> launch_environment();

/// A FileRendezvous under the temporary directory for the run that launch_environment() describes. Ranks on
/// one machine only.
Result<std::unique_ptr<Rendezvous>> environment_rendezvous(Milliseconds timeout = kRendezvousTimeout);

}  // namespace syncopate::runtime
