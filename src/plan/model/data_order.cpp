#include "plan/model/data_order.hpp"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/model/box_index.hpp"

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

/// Who last wrote, and who has read since, each place of one tensor in one rank's memory.
struct History {
    explicit History(std::size_t axis) : writes(axis), reads(axis), joins(axis) {}
    BoxIndex<OpRef> writes;  ///< disjoint boxes
    BoxIndex<OpRef> reads;   ///< one entry per read of what has not been overwritten since
    BoxIndex<OpRef> joins;  ///< one entry per join since the last other write; of one kind where they overlap
};

/// Takes `region` out of the entries that overlap it and returns their values.
std::vector<OpRef> cut_out(BoxIndex<OpRef>& index, const Region& region) {
    std::vector<OpRef> values;
    for (auto& entry : index.extract_overlapping(region)) {
        for (Region& rest : subtract(entry.box, region)) index.insert(std::move(rest), entry.value);
        values.push_back(entry.value);
    }
    return values;
}

void sort_unique(std::vector<OpRef>& refs) {
    std::sort(refs.begin(), refs.end());
    refs.erase(std::unique(refs.begin(), refs.end()), refs.end());
}

/// The axis along which the boxes begin at the most places: the one to look them up by.
std::size_t key_axis(const std::vector<const Region*>& boxes) {
    std::size_t best = 0;
    std::size_t most = 0;
    std::vector<std::int64_t> begins;
    for (std::size_t axis = 0; axis < boxes.front()->size(); ++axis) {
        begins.clear();
        for (const Region* box : boxes) begins.push_back((*box)[axis].begin);
        std::sort(begins.begin(), begins.end());
        const auto different =
            static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
        if (different > most) {
            best = axis;
            most = different;
        }
    }
    return best;
}

class Sequencer {
public:
    Sequencer(Plan& plan, std::span<const OpRef> program, std::vector<OpRef> joins)
        : plan_(plan),
          num_tensors_(static_cast<std::int64_t>(plan.tensors.size())),
          joins_(std::move(joins)) {
        std::sort(joins_.begin(), joins_.end());
        std::unordered_map<std::int64_t, std::vector<const Region*>> boxes;
        for (const OpRef ref : program) {
            const Op& op = plan.op(ref);
            boxes[key(op.source_rank(ref.rank), op.src)].push_back(&op.src.region);
            boxes[key(op.destination_rank(ref.rank), op.dst)].push_back(&op.dst.region);
        }
        for (const auto& [place, list] : boxes) histories_.emplace(place, key_axis(list));
    }

    void run(OpRef ref) {
        Op& op = plan_.ranks[at(ref.rank)][at(ref.index)];
        std::vector<OpRef> after(op.after.begin(), op.after.end());
        const std::int32_t source = op.source_rank(ref.rank);
        const std::int32_t destination = op.destination_rank(ref.rank);
        add_writers(source, op.src, after);
        History& written = history(destination, op.dst);
        if (std::binary_search(joins_.begin(), joins_.end(), ref)) {
            join(ref, op, written, after);
        } else {
            if (op.reduce != Reduce::none) add_writers(destination, op.dst, after);
            history(source, op.src).reads.insert(op.src.region, ref);
            for (const OpRef earlier : cut_out(written.reads, op.dst.region)) {
                if (earlier != ref) after.push_back(earlier);
            }
            for (auto* index : {&written.writes, &written.joins}) {
                for (const OpRef earlier : cut_out(*index, op.dst.region)) after.push_back(earlier);
            }
            written.writes.insert(op.dst.region, ref);
        }
        op.after = without_implied(std::move(after));
    }

private:
    [[nodiscard]] std::int64_t key(std::int32_t rank, const Chunk& chunk) const {
        return rank * num_tensors_ + chunk.tensor;
    }
    History& history(std::int32_t rank, const Chunk& chunk) { return histories_.at(key(rank, chunk)); }

    void add_writers(std::int32_t rank, const Chunk& chunk, std::vector<OpRef>& after) {
        History& written = history(rank, chunk);
        for (auto* index : {&written.writes, &written.joins}) {
            index->visit_overlapping(chunk.region, [&](const auto& entry) {
                after.push_back(entry.value);
                return true;
            });
        }
    }

    /// Waits for writes and reads of its destination, but not for joins like itself. Reads stay in the
    /// history, for the joins that follow wait for them too.
    void join(OpRef ref, const Op& op, History& written, std::vector<OpRef>& after) {
        const auto wait = [&](const auto& entry) {
            if (plan_.op(entry.value).reduce != op.reduce) after.push_back(entry.value);
            return true;
        };
        const auto wait_all = [&](const auto& entry) {
            after.push_back(entry.value);
            return true;
        };
        written.reads.visit_overlapping(op.dst.region, wait_all);
        written.writes.visit_overlapping(op.dst.region, wait_all);
        written.joins.visit_overlapping(op.dst.region, wait);
        history(op.source_rank(ref.rank), op.src).reads.insert(op.src.region, ref);
        written.joins.insert(op.dst.region, ref);
    }

    /// Leaves out what another of the ops waits for itself: a read has waited for the write that it read.
    std::vector<OpRef> without_implied(std::vector<OpRef> after) const {
        sort_unique(after);
        if (after.size() < 2) return after;
        std::vector<OpRef> implied;
        for (const OpRef ref : after) {
            const OpRefs& own = plan_.op(ref).after;
            implied.insert(implied.end(), own.begin(), own.end());
        }
        sort_unique(implied);
        std::vector<OpRef> kept;
        std::set_difference(after.begin(), after.end(), implied.begin(), implied.end(),
                            std::back_inserter(kept));
        return kept;
    }

    Plan& plan_;
    std::int64_t num_tensors_;
    std::vector<OpRef> joins_;
    std::unordered_map<std::int64_t, History> histories_;  ///< by rank and tensor
};

}  // namespace

Plan with_data_order(Plan plan, std::span<const OpRef> program, std::vector<OpRef> joins) {
    Sequencer sequencer(plan, program, std::move(joins));
    for (const OpRef ref : program) sequencer.run(ref);
    return plan;
}

}  // namespace syncopate::plan
