// An op of all ranks in one process, and what its users and its kernel do in a call, by turns (simulated_ranks.hpp). The
// executors are the library's; the kernel is played from the table that the emitted one reads, and touches what its
// footprints say. Everything that is read is compared with what the plan's own executor gives.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "explore/simulated_ranks.hpp"
#include "plan/executor.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"
#include "syncopate/runtime/recover/recover.hpp"

namespace syncopate::explore {

struct Case {
    std::string name;
    fuse::StagedProgram program;
    fuse::Options options{};
    /// The kernel starts beside the begin of its call, as on a GPU it may.
    bool starts_early = false;
    /// Peers are told that a kernel has read all when its programs have said so, not when it has ended [P15].
    bool tells_early = false;
    /// The user's inputs and outputs are arrays of its own, not the heap.
    bool arrays = false;
    /// Changes the schedule before it is carried out, to see that this is noticed.
    std::function<void(fuse::Schedule&)> spoil{};
};

/// Where the ranks of this process meet, as threads or by turns.
class Store {
public:
    [[nodiscard]] static std::shared_ptr<runtime::Rendezvous> meeting(const std::shared_ptr<Store>& store,
                                                                      int rank, int size);

private:
    void put(const std::string& key, const runtime::Bytes& value);
    runtime::Bytes put_first(const std::string& key, const runtime::Bytes& value);
    runtime::Bytes get(const std::string& key, runtime::Milliseconds timeout);
    static void turn();
    void tell(const std::string& key);

    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, runtime::Bytes> values_;
    std::map<std::string, std::uint32_t> words_;  ///< by key: what records know it by
};

class PlayedOp {
public:
    struct Timing {
        std::int64_t max_delay_us = 0;
        std::uint64_t seed = 0;
        std::int64_t deadline_ms = 0;
    };

    /// Fuses, and makes the op on all ranks. Fails as these do.
    [[nodiscard]] static Result<std::unique_ptr<PlayedOp>> make(const Case& played, const Timing& timing);
    ~PlayedOp();

    [[nodiscard]] int size() const { return static_cast<int>(ops_.size()); }
    [[nodiscard]] const fuse::Schedule& schedule() const { return schedule_; }
    [[nodiscard]] runtime::FusedOp& op(int rank) { return *ops_[static_cast<std::size_t>(rank)]; }
    /// The same place as rank 0 maps it: each rank maps all heaps, in this one process.
    [[nodiscard]] std::uint64_t in_first_mapping(std::uint64_t address) const;

    /// A call of `rank`, and its user's reads and writes before and after it, on the rank's own fiber. `launches`: the
    /// kernel, which else cannot be launched.
    [[nodiscard]] Status call(SimulatedRanks& ranks, int rank, std::uint32_t number, bool launches = true);
    /// Goes on after a fault, on the rank's own fiber [P34, P35, P36]; or resets the op [P38]. The next call is the first.
    [[nodiscard]] Result<runtime::Recovered> recover(int rank, runtime::Milliseconds deadline);
    [[nodiscard]] Status reset(int rank);
    /// What was read and is not of its call; "" if nothing.
    [[nodiscard]] const std::string& wrong() const { return wrong_; }

private:
    class Program;
    PlayedOp(const Case& played, fuse::Schedule schedule);
    Status create(const Timing& timing);
    void forget_loaded(std::size_t rank);
    void run_kernel(SimulatedRanks& ranks, int rank, std::uint32_t call, std::size_t stage);
    [[nodiscard]] float given(const std::vector<plan::Holding>& holdings, int rank, std::int32_t tensor,
                              std::int64_t element, std::uint32_t call) const;
    struct Part {
        int rank = 0;
        std::int32_t tensor = 0;
        std::int64_t shift = 0;  ///< elements
    };
    /// Where a rank finds what is there in a call.
    [[nodiscard]] std::uint64_t address(const Part& at, int rank, std::uint32_t call);
    /// Neighbouring elements in memory.
    struct Run {
        std::uint64_t address = 0;
        std::int64_t first = 0;  ///< of the tensor's elements
        std::int64_t count = 0;
        std::uint64_t bytes = 0;
    };
    /// One box of the heap of `at.rank`, whose contents are those of `tensor`.
    [[nodiscard]] std::vector<Run> runs_in_heap(const Part& at, int rank, std::int32_t tensor,
                                                const plan::Region& box, std::uint32_t call);
    void read(SimulatedRanks& ranks, const Part& at, int rank, std::int32_t tensor, const plan::Region& box,
              std::uint32_t call, const std::string& who);
    void write(SimulatedRanks& ranks, const std::vector<Part>& at, int rank, std::int32_t tensor,
               const plan::Region& box, const std::vector<plan::Holding>& given_by, std::uint32_t call);
    void expect(const Run& run, int rank, std::int32_t tensor, std::uint32_t call, const std::string& who);
    void put(const Run& run, int rank, std::int32_t tensor, const std::vector<plan::Holding>& given_by,
             std::uint32_t call) const;
    [[nodiscard]] std::vector<Run> runs_of_user(int rank, const plan::Holding& held, bool is_output,
                                                std::uint32_t call);
    [[nodiscard]] std::uint64_t array_of(const plan::Holding& held, bool is_output);
    [[nodiscard]] Status give_arrays(int rank);
    [[nodiscard]] bool is_known(std::int32_t tensor) const;

    const Case& case_;
    fuse::Schedule schedule_;
    std::vector<std::vector<std::int64_t>> program_of_;  ///< by stage and slot of it
    std::vector<std::int64_t> programs_;                 ///< by stage
    std::vector<plan::test::Memory> values_;             ///< of four calls, which then repeat
    std::vector<std::shared_ptr<runtime::Rendezvous>> groups_;
    std::vector<std::shared_ptr<runtime::SymmetricHeap>> heaps_;
    std::vector<std::unique_ptr<runtime::FusedOp>> ops_;
    std::vector<std::uint32_t> loaded_;  ///< by rank: programs that have read all that they will
    std::map<std::pair<bool, const plan::Holding*>, std::vector<float>>
        arrays_;                        ///< of outputs, or of inputs
    std::vector<std::uint64_t> turns_;  ///< by tensor: bytes to its place in odd calls [P16]
    bool sums_ = false;                 ///< its programs do
    std::string wrong_;
};

}  // namespace syncopate::explore
