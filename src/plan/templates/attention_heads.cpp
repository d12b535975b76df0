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

/// A tensor of the caller's rows, all heads, and the one with all rows of a share of the heads.
struct Pair {
    std::int32_t rows = -1;
    std::int32_t heads = -1;
    std::int64_t share = 0;  ///< heads of a rank
};

class HeadsBackward {
public:
    HeadsBackward(const Mesh& mesh, const AttentionShape& shape, const AttentionBackwardOptions& options)
        : shape_(shape),
          options_(options),
          plan_(mesh),
          ranks_(mesh.num_ranks()),
          padded_(std::max(options.padded, shape.length)) {
        std::int64_t held = 0;
        for (const Rows& own : options.moved.rows) {
            first_.push_back(held);
            for (const Interval& run : own) held += run.size();
        }
    }

    Result<Plan> run() {
        const std::int64_t h = shape_.heads, kv = shape_.kv_heads, d = shape_.head_dim;
        // What comes first is needed first: a tile begins with its rows of K and V, then walks Q and dO.
        const std::array in{pair("K", kv, d, shape_.dtype), pair("V", kv, d, shape_.dtype),
                            pair("LSE", h, 0, DType::fp32), pair("DELTA", h, 0, DType::fp32),
                            pair("Q", h, d, shape_.dtype),  pair("DO", h, d, shape_.dtype)};
        const std::array out{pair("DK", kv, d, shape_.dtype), pair("DV", kv, d, shape_.dtype),
                             pair("DQ", h, d, shape_.dtype)};
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            for (const Pair& one : in) hold(rank, one, true);
            for (const Pair& one : out) hold(rank, one, false);
        }
        for (const Pair& one : in) exchange(one, true);
        for (const Pair& one : out) exchange(one, false);
        return plan_.take();
    }

private:
    Pair pair(const std::string& name, std::int64_t heads, std::int64_t width, DType dtype) {
        const auto tensor = [&](const std::string& called, std::int64_t of, std::int64_t rows) {
            std::vector<std::int64_t> extents{shape_.batch, of, rows};
            if (width > 0) extents.push_back(width);
            return plan_.tensor({called, std::move(extents), dtype});
        };
        const std::int64_t share = heads / ranks_;
        Pair made{.share = share};
        made.rows = tensor(name, heads, shape_.length);
        made.heads = tensor(name + ".heads", share, width > 0 ? shape_.length : padded_);
        return made;
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

    void hold(std::int32_t rank, const Pair& one, bool comes) {
        const Interval all{0, one.share * ranks_};
        for (const auto& [local, rows] : runs_of(rank)) {
            if (comes)
                plan_.initial({rank, chunk(one.rows, all, local)});
            else
                plan_.final({rank, chunk(one.rows, all, local)});
        }
        if (!comes) plan_.produced({rank, chunk(one.heads, {0, one.share}, {0, shape_.length})});
    }

    /// The next rank first; this rank's own by a local copy.
    void exchange(const Pair& one, bool comes) {
        for (std::int32_t step = 0; step < ranks_; ++step) {
            for (std::int32_t rank = 0; rank < ranks_; ++rank) {
                const std::int32_t other = (rank + step) % ranks_;
                const std::int32_t owner = comes ? rank : other;  // of the rows
                const std::int32_t maker = comes ? other : rank;  // of the heads
                const Interval heads{maker * one.share, (maker + 1) * one.share};
                for (const auto& [local, rows] : runs_of(owner)) {
                    const RankChunk place{owner, chunk(one.rows, heads, local)};
                    const RankChunk share{maker, chunk(one.heads, {0, one.share}, rows)};
                    (void)(comes ? plan_.transfer(place, share) : plan_.transfer(share, place));
                }
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
        return Error{"attention: in the backward all ranks exchange heads, or none, and " +
                         std::to_string(shape.kv_heads) + " heads of K and V are no multiple of " +
                         std::to_string(ranks) + " ranks: take no Ulysses",
                     {},
                     ErrorClass::usage};
    return HeadsBackward(mesh, shape, options).run();
}

}  // namespace syncopate::plan
