#include "plan/templates/attention_groups.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "plan/templates/attention_circulation.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/templates/template_options.hpp"

namespace syncopate::plan {
namespace {

class GroupsBackward : AttentionCirculation {
public:
    GroupsBackward(const Mesh& mesh, const AttentionShape& shape, const AttentionBackwardOptions& options)
        : AttentionCirculation(mesh, shape, options.moved), first_(first_rows(options.moved.rows)) {
        std::int64_t most = 0;  // rows of a group
        for (std::int32_t group = 0; group < groups_; ++group)
            most = std::max(most, num_rows(rows_of_group(group)));
        const std::int64_t h = shape.heads, kv = shape.kv_heads, d = shape.head_dim, s = shape.length;
        keys_ = {pair("K", kv, d, shape.dtype, s), pair("V", kv, d, shape.dtype, s)};
        const std::int64_t padded = std::max(options.padded, most);
        queries_ = {pair("LSE", h, 0, DType::fp32, padded), pair("DELTA", h, 0, DType::fp32, padded),
                    pair("Q", h, d, shape.dtype, most), pair("DO", h, d, shape.dtype, most)};
        sums_ = {pair("DK", kv, d, DType::fp32, s), pair("DV", kv, d, DType::fp32, s)};
        dq_ = pair("DQ", h, d, shape.dtype, most);
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            for (Segment& segment : segments_of(rank)) segments_.push_back(std::move(segment));
        }
    }

    Result<Plan> run() {
        hold();
        for (const HeadPair& one : keys_) exchange(one, true, false);
        for (const HeadPair& one : queries_) exchange(one, true, true);
        pass_keys();
        pass_sums();
        for (const HeadPair& one : sums_) give_back(one);
        exchange(dq_, false, true);
        return plan_.take();
    }

private:
    HeadPair pair(const std::string& name, std::int64_t heads, std::int64_t width, DType dtype,
                  std::int64_t rows) {
        return head_pair(plan_, name, {shape_.batch, heads, shape_.length}, group_, rows, width, dtype);
    }

    /// Where rows that a rank holds lie in the callers' tensors, one rank's behind another's.
    [[nodiscard]] Interval in_callers(std::int32_t rank, const Interval& rows) const {
        return place_among(rows_of(rank), rows, first_[at(rank)]);
    }
    /// Where they lie among the rows of their group, in the sequence's order.
    [[nodiscard]] Interval in_group(std::int32_t rank, const Interval& rows) const {
        return place_among(rows_of_group(rank / group_), rows);
    }
    [[nodiscard]] static Interval heads_of_share(const HeadPair& one, std::int32_t member) {
        return {member * one.share, (member + 1) * one.share};
    }
    [[nodiscard]] Chunk of_share(const HeadPair& one, const Interval& rows) const {
        return chunk(one.heads, {0, one.share}, rows);
    }

    void hold() {
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            for (const Interval& run : rows_of(rank)) {
                const Interval local = in_callers(rank, run);
                const auto whole = [&](const HeadPair& one) {
                    return RankChunk{rank, chunk(one.rows, {0, one.share * group_}, local)};
                };
                for (const HeadPair& one : keys_) plan_.initial(whole(one));
                for (const HeadPair& one : queries_) plan_.initial(whole(one));
                plan_.final(whole(dq_));
            }
            plan_.produced({rank, of_share(dq_, {0, num_rows(rows_of_group(rank / group_))})});
            for (const HeadPair& one : sums_)
                for (const Interval& run : attended(rank / group_))
                    plan_.produced({rank, of_share(one, run)}, true);
        }
        for (const Segment& segment : segments_) {
            for (std::int32_t member = 0; member < group_; ++member) {
                std::vector<std::int32_t> contribute;
                for (const std::int32_t group : segment.groups) contribute.push_back(rank_of(group, member));
                for (const HeadPair& one : sums_)
                    plan_.final_of({segment.owner, chunk(one.rows, heads_of_share(one, member),
                                                         in_callers(segment.owner, segment.rows))},
                                   contribute);
            }
        }
    }

    /// Inside each group: a rank's rows to the rank that has the heads, or back; the next rank first, its own last.
    /// `of_group`: shares have the rows of the group, else of the sequence.
    void exchange(const HeadPair& one, bool comes, bool of_group) {
        for (std::int32_t step = 1; step <= group_; ++step) {
            for (std::int32_t rank = 0; rank < ranks_; ++rank) {
                const std::int32_t member = (rank % group_ + step) % group_;
                const std::int32_t other = rank_of(rank / group_, member);
                const std::int32_t owner = comes ? rank : other;
                const std::int32_t maker = comes ? other : rank;
                for (const Interval& run : rows_of(owner)) {
                    const RankChunk place{
                        owner, chunk(one.rows, heads_of_share(one, maker % group_), in_callers(owner, run))};
                    const RankChunk share{maker, of_share(one, of_group ? in_group(owner, run) : run)};
                    (void)(comes ? plan_.transfer(place, share) : plan_.transfer(share, place));
                }
            }
        }
    }

    /// K and V round a ring of groups, as far as a later one attends to them.
    void pass_keys() {
        for (std::int32_t step = 0; step + 1 < groups_; ++step) {
            for (const Segment& segment : segments_) {
                const std::int32_t origin = segment.owner / group_;
                const bool wanted = std::ranges::any_of(segment.groups, [&](std::int32_t group) {
                    return (group - origin + groups_) % groups_ > step;
                });
                if (!wanted) continue;
                for (std::int32_t member = 0; member < group_; ++member) {
                    const std::int32_t from = rank_of((origin + step) % groups_, member);
                    const std::int32_t to = rank_of((origin + step + 1) % groups_, member);
                    for (const HeadPair& one : keys_) {
                        const Chunk moved = of_share(one, segment.rows);
                        (void)plan_.transfer({from, moved}, {to, moved});
                    }
                }
            }
        }
    }

    /// Behind them: each group adds its own, the one that holds the rows last.
    void pass_sums() {
        for (std::int32_t hop = 0; hop + 1 < groups_; ++hop) {
            for (const Segment& segment : segments_) {
                const std::int32_t origin = segment.owner / group_;
                std::vector<std::int32_t> path;
                for (std::int32_t step = 1; step <= groups_; ++step) {
                    const std::int32_t group = (origin + step) % groups_;
                    if (group == origin || std::ranges::binary_search(segment.groups, group))
                        path.push_back(group);
                }
                const auto from = static_cast<std::size_t>(hop);
                if (from + 1 >= path.size()) continue;
                for (std::int32_t member = 0; member < group_; ++member) {
                    for (const HeadPair& one : sums_) {
                        const Chunk moved = of_share(one, segment.rows);
                        (void)plan_.transfer({rank_of(path[from], member), moved},
                                             {rank_of(path[from + 1], member), moved}, Reduce::sum);
                    }
                }
            }
        }
    }

    /// What is summed, to the ranks that hold the rows.
    void give_back(const HeadPair& one) {
        for (std::int32_t step = 1; step <= group_; ++step) {
            for (const Segment& segment : segments_) {
                const std::int32_t member = (segment.owner % group_ + step) % group_;
                const std::int32_t maker = rank_of(segment.owner / group_, member);
                (void)plan_.transfer({maker, of_share(one, segment.rows)},
                                     {segment.owner, chunk(one.rows, heads_of_share(one, member),
                                                           in_callers(segment.owner, segment.rows))});
            }
        }
    }

    std::array<HeadPair, 2> keys_;
    std::array<HeadPair, 4> queries_;
    std::array<HeadPair, 2> sums_;
    HeadPair dq_;
    std::vector<std::int64_t> first_;  ///< by rank, where its rows begin in the callers' tensors
    std::vector<Segment> segments_;
};

}  // namespace

Result<Plan> attention_groups_backward(const Mesh& mesh, const AttentionShape& shape,
                                       const AttentionBackwardOptions& options) {
    if (shape.kv_heads % options.moved.ulysses != 0)
        return usage_error("attention: in the backward " + std::to_string(shape.kv_heads) +
                           " heads of K and V are no multiple of the " +
                           std::to_string(options.moved.ulysses) + " ranks that exchange heads");
    if (options.moved.circulation != Circulation::ring)
        return usage_error("attention: in the backward groups that exchange heads make a ring");
    return GroupsBackward(mesh, shape, options).run();
}

}  // namespace syncopate::plan
