#include "plan/templates/attention_heads.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "plan/templates/attention_circulation.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/model/builder.hpp"
#include "syncopate/plan/templates/template_options.hpp"

namespace syncopate::plan {
namespace {

class HeadsBackward {
public:
    HeadsBackward(const Mesh& mesh, const AttentionShape& shape, const AttentionBackwardOptions& options)
        : shape_(shape),
          options_(options),
          plan_(mesh),
          ranks_(mesh.num_ranks()),
          padded_(std::max(options.padded, shape.length)),
          first_(first_rows(options.moved.rows)) {}

    Result<Plan> run() {
        const std::int64_t h = shape_.heads, kv = shape_.kv_heads, d = shape_.head_dim;
        // Of all heads at once: a transfer costs as much as these bytes.
        const std::array rows{pair("LSE", h, 0, DType::fp32), pair("DELTA", h, 0, DType::fp32)};
        // What comes first is needed first: a tile begins with its rows of K and V, then walks Q and dO.
        const std::array in{pair("K", kv, d, shape_.dtype), pair("V", kv, d, shape_.dtype),
                            pair("Q", h, d, shape_.dtype), pair("DO", h, d, shape_.dtype)};
        const std::array sums{pair("DK", kv, d, shape_.dtype), pair("DV", kv, d, shape_.dtype)};
        const HeadPair dq = pair("DQ", h, d, shape_.dtype);
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            for (const HeadPair& one : rows) hold(rank, one, true);
            for (const HeadPair& one : in) hold(rank, one, true);
            for (const HeadPair& one : sums) hold(rank, one, false);
            hold(rank, dq, false);
        }
        const std::int32_t parts = options_.moved.parts;
        // A rank's own heads of its rows are copied before the kernel starts, so by as few copies as there are runs.
        for (const HeadPair& one : in) move(one, true, {0, one.share}, 0);
        for (const HeadPair& one : rows) move(one, true, {0, one.share}, 0);
        for (const HeadPair& one : rows) exchange(one, true, {0, one.share});
        for (std::int32_t part = 0; part < parts; ++part)
            for (const HeadPair& one : in) exchange(one, true, part_of(one, part));
        for (std::int32_t part = 0; part < parts; ++part)
            for (const HeadPair& one : sums) give_back(one, part_of(one, part));
        give_back(dq, {0, dq.share});  // which is complete when all parts are
        return plan_.take();
    }

private:
    HeadPair pair(const std::string& name, std::int64_t heads, std::int64_t width, DType dtype) {
        return head_pair(plan_, name, {shape_.batch, heads, shape_.length}, ranks_,
                         width > 0 ? shape_.length : padded_, width, dtype);
    }

    [[nodiscard]] Chunk chunk(std::int32_t tensor, const Interval& heads, const Interval& rows) const {
        return heads_chunk(plan_, tensor, heads, rows);
    }

    /// Runs of a rank: where they lie in the callers' tensors, one rank's behind another's, and in the sequence.
    [[nodiscard]] std::vector<std::pair<Interval, Interval>> runs_of(std::int32_t rank) const {
        std::vector<std::pair<Interval, Interval>> runs;
        std::int64_t before = first_[at(rank)];
        for (const Interval& run : options_.moved.rows[at(rank)]) {
            for (const Interval& part : split_evenly(run.begin, run.end, options_.moved.split)) {
                if (part.empty()) continue;
                runs.push_back({{before, before + part.size()}, part});
                before += part.size();
            }
        }
        return runs;
    }

    void hold(std::int32_t rank, const HeadPair& one, bool comes) {
        const Interval all{0, one.share * ranks_};
        for (const auto& [local, rows] : runs_of(rank)) {
            if (comes)
                plan_.initial({rank, chunk(one.rows, all, local)});
            else
                plan_.final({rank, chunk(one.rows, all, local)});
        }
        if (!comes) plan_.produced({rank, chunk(one.heads, {0, one.share}, {0, shape_.length})});
    }

    /// Heads of a rank's share.
    [[nodiscard]] Interval part_of(const HeadPair& one, std::int32_t part) const {
        const std::int64_t each = one.share / options_.moved.parts;
        return {part * each, (part + 1) * each};
    }

    /// Some heads of each rank's share, to the next rank first.
    void exchange(const HeadPair& one, bool comes, const Interval& of_share) {
        for (std::int32_t step = 1; step < ranks_; ++step) move(one, comes, of_share, step);
    }
    /// The same of what a rank makes; its own last.
    void give_back(const HeadPair& one, const Interval& of_share) {
        exchange(one, false, of_share);
        move(one, false, of_share, 0);
    }

    /// To the rank so many steps on; 0: to itself, by a local copy.
    void move(const HeadPair& one, bool comes, const Interval& of_share, std::int32_t step) {
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            const std::int32_t other = (rank + step) % ranks_;
            const std::int32_t owner = comes ? rank : other;  // of the rows
            const std::int32_t maker = comes ? other : rank;  // of the heads
            const std::int64_t first = maker * one.share;
            const Interval heads{first + of_share.begin, first + of_share.end};
            for (const auto& [local, rows] : runs_of(owner)) {
                const RankChunk place{owner, chunk(one.rows, heads, local)};
                const RankChunk share{maker, chunk(one.heads, of_share, rows)};
                (void)(comes ? plan_.transfer(place, share) : plan_.transfer(share, place));
            }
        }
    }

    const AttentionShape& shape_;
    const AttentionBackwardOptions& options_;
    Builder plan_;
    std::int32_t ranks_;
    std::int64_t padded_;
    std::vector<std::int64_t> first_;  ///< by rank, where its rows begin
};

}  // namespace

Result<Plan> attention_heads_backward(const Mesh& mesh, const AttentionShape& shape,
                                      const AttentionBackwardOptions& options) {
    const std::int32_t ranks = mesh.num_ranks();
    if (options.moved.ulysses != ranks || shape.kv_heads % ranks != 0)
        return usage_error("attention: in the backward all ranks exchange heads, or none, and " +
                           std::to_string(shape.kv_heads) + " heads of K and V are no multiple of " +
                           std::to_string(ranks) + " ranks: take no Ulysses");
    return HeadsBackward(mesh, shape, options).run();
}

}  // namespace syncopate::plan
