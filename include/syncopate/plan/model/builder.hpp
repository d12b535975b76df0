// Builder: a plan written as a program. Say what is moved, one transfer after another, as one would write it
// for a single machine with all ranks' memories; which op has to wait for which follows from the data.
//
// The whole of a ring all-gather of `tensor` over n ranks, `shard(i)` being the i-th shard's region:
//
//     Builder plan(mesh);
//     const std::int32_t a = plan.tensor(tensor);
//     for (int step = 0; step + 1 < n; ++step)
//         for (int rank = 0; rank < n; ++rank) {
//             const Chunk chunk{a, shard((rank - step + n) % n)};
//             plan.transfer({rank, chunk}, {(rank + 1) % n, chunk});
//         }
//
// Step 1 reads what step 0 wrote, so take() puts `after` edges from one to the other and nowhere else. The
// result has no race and gives what the program gives when run line by line, whatever the timing. All
// templates are written so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// A chunk in the memory of one rank.
struct RankChunk {
    std::int32_t rank = 0;
    Chunk chunk;
    bool operator==(const RankChunk&) const = default;
};

class Builder {
public:
    /// A plan over `mesh` without tensors and ops. `pull`: transfers between ranks are written at their
    /// destination, as pulls, instead of at their source, as pushes. A mesh that has no ranks, or more than
    /// kMaxRanks, fails in take().
    explicit Builder(Mesh mesh, bool pull = false);

    [[nodiscard]] std::int32_t num_ranks() const { return plan_.num_ranks(); }
    [[nodiscard]] bool pull() const { return pull_; }

    /// Adds a tensor and returns its index.
    std::int32_t tensor(Tensor tensor);
    /// The same, for staging space: where the name is taken, "-2", "-3", … is put behind it.
    std::int32_t scratch(Tensor tensor);

    /// What a rank holds before the first op: the value, or with `partial` its contribution to a reduction.
    void initial(RankChunk place, bool partial = false);
    /// What the kernel will write there.
    void produced(RankChunk place, bool partial = false);
    /// What a rank must hold at the end: the value, or the reduction over all ranks, or over those of
    /// `ranks`.
    void final(RankChunk place);
    void final_of_all(RankChunk place);
    void final_of(RankChunk place, std::vector<std::int32_t> ranks);

    /// Moves `from` to `to`, which must have equal extents and dtypes (check() judges that): a local op where
    /// both are on one rank, else a push or a pull. With `reduce` it is joined to what `to` holds. Appended
    /// to the list of the rank that owns it: a rank starts its ops in that order, as far as their dependences
    /// allow. `after`: ops that it is to wait for besides those that its data demands. Returns its name, with
    /// index -1 if the builder has met something wrong, which take() then reports.
    OpRef transfer(const RankChunk& from, const RankChunk& to, Reduce reduce = Reduce::none,
                   std::vector<OpRef> after = {});

    /// The same for one of several contributions to a reduction, which may come in any order: it waits for
    /// what has written `to`, and for those that read `to` before, but not for other joins of the same kind.
    /// So sums may differ in their last bits from run to run, unless who executes them sorts them, as `fuse`
    /// does.
    OpRef join(const RankChunk& from, const RankChunk& to, Reduce reduce, std::vector<OpRef> after = {});

    /// Appends one collective: a rank and its op for each that takes part.
    std::vector<OpRef> collective(std::vector<std::pair<std::int32_t, Op>> members);

    /// Appends an op that is already written, a push, pull or local one, to a rank's list. `after` as above.
    /// `joins`: if it reduces, it does so as join() has it.
    OpRef append(std::int32_t owner, Op op, bool joins = false);

    /// All ops so far, in the order of the calls.
    [[nodiscard]] const std::vector<OpRef>& program() const { return program_; }
    /// Which of them were appended by join().
    [[nodiscard]] const std::vector<OpRef>& joins() const { return joins_; }
    [[nodiscard]] const Op& op(OpRef ref) const { return plan_.op(ref); }
    [[nodiscard]] const Tensor& tensor(std::int32_t index) const { return plan_.tensors[at(index)]; }

    /// Fixes how a transfer is carried out.
    void set_backend(OpRef ref, Backend backend);

    /// The plan, with `after` edges for all that its data demands: an op waits for those that wrote what it
    /// reads, and for those that read or wrote what it overwrites, as far as they came before it in the
    /// program. Edges that another edge implies directly are left out. The builder is empty afterwards. Fails
    /// (ErrorClass::usage) with the first thing that was wrong: a rank or tensor that does not exist, a chunk
    /// that is no box inside its tensor, more than kMaxOps ops. Near-linear in ops for plans whose regions
    /// are few per rank and place.
    [[nodiscard]] Result<Plan> take();

    /// The same for a program in which no op needs another one: nothing is looked up. What it says wrongly,
    /// check() finds.
    [[nodiscard]] Result<Plan> take_unordered();

private:
    OpRef push_back(std::int32_t owner, Op op);
    void judge(std::int32_t rank, const Chunk& chunk);
    void hold(std::vector<Holding>& list, Holding holding);
    [[nodiscard]] bool is_rank(std::int32_t rank) const { return rank >= 0 && rank < num_ranks(); }

    Plan plan_;
    bool pull_ = false;
    std::vector<OpRef> program_;  ///< all ops, in the order of the calls
    std::vector<OpRef> joins_;    ///< those of them that commute
    std::string problem_;         ///< the first one; empty if there is none
};

}  // namespace syncopate::plan
