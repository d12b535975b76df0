// What attention and its backward have in common: who holds which rows, which rows of K and V each group
// attends to, and how those go from group to group.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/plan/model/builder.hpp"
#include "syncopate/plan/templates/attention.hpp"

namespace syncopate::plan {

[[nodiscard]] Rows intersect(const Rows& a, const Rows& b);

/// Rows of some heads of [batch, heads, rows] or [batch, heads, rows, width].
[[nodiscard]] Chunk heads_chunk(const Builder& plan, std::int32_t tensor, const Interval& heads,
                                const Interval& rows);

/// A tensor of the caller's rows, all heads, and the one with a share of the heads.
struct HeadPair {
    std::int32_t rows = -1;
    std::int32_t heads = -1;
    std::int64_t share = 0;  ///< heads of a rank
};

/// Both, for the gradients: `rows` and, of a share of `heads`, `of_share` rows, each of `width` elements; 0: of one number.
[[nodiscard]] HeadPair head_pair(Builder& plan, const std::string& name,
                                 const std::array<std::int64_t, 3>& extents, std::int32_t ranks,
                                 std::int64_t of_share, std::int64_t width, DType dtype);

/// Where `part`, which lies in one of `runs`, is when these lie one behind another from `first` on.
[[nodiscard]] Interval place_among(const Rows& runs, const Interval& part, std::int64_t first = 0);

/// By rank, where its rows begin in the callers' tensors.
[[nodiscard]] std::vector<std::int64_t> first_rows(const std::vector<Rows>& rows);

/// Fails (ErrorClass::usage) as attention() does.
[[nodiscard]] Status check_attention(const Mesh& mesh, const AttentionShape& shape,
                                     const AttentionOptions& options);

/// Rows of one rank to whose gradients the same groups contribute: they are sent and summed together.
struct Segment {
    std::int32_t owner = 0;
    Interval rows;
    std::vector<std::int32_t> groups;
};

class AttentionCirculation {
protected:
    AttentionCirculation(const Mesh& mesh, const AttentionShape& shape, const AttentionOptions& options)
        : shape_(shape),
          options_(options),
          plan_(mesh),
          ranks_(mesh.num_ranks()),
          group_(options.ulysses),
          groups_(ranks_ / group_) {}

    [[nodiscard]] const Rows& rows_of(std::int32_t rank) const { return options_.rows[at(rank)]; }
    /// The ranks of a group are neighbours.
    [[nodiscard]] std::int32_t rank_of(std::int32_t group, std::int32_t member) const {
        return group * group_ + member;
    }
    [[nodiscard]] Rows rows_of_group(std::int32_t group) const;
    /// What rows of K and V a group's rows attend to.
    [[nodiscard]] Rows attended(std::int32_t group) const;
    [[nodiscard]] Interval heads_of(std::int32_t member) const {
        const std::int64_t each = shape_.heads / group_;
        return {member * each, (member + 1) * each};
    }
    /// Those of K and V that go with a member's heads of Q.
    [[nodiscard]] Interval kv_heads_of(std::int32_t member) const {
        const std::int64_t shared = shape_.heads / shape_.kv_heads;
        const Interval heads = heads_of(member);
        return {heads.begin / shared, (heads.end - 1) / shared + 1};
    }
    /// Those of its heads that go now.
    [[nodiscard]] Interval part_of(const Interval& heads) const {
        const std::int64_t each = heads.size() / options_.parts;
        return {heads.begin + part_ * each, heads.begin + (part_ + 1) * each};
    }
    /// A rank's rows, cut so that the groups that attend to a row of a part attend to all of it: what is summed
    /// is cut alike by all.
    [[nodiscard]] std::vector<Segment> segments_of(std::int32_t owner) const;
    [[nodiscard]] Chunk chunk(std::int32_t tensor, const Interval& heads, const Interval& rows) const;
    void move(std::int32_t from, std::int32_t to, std::int32_t tensor, const Interval& heads,
              const Interval& rows);
    /// K and V of a part of the heads, from group to group.
    void circulate();
    /// Ranks of an inner ring.
    [[nodiscard]] std::int32_t inner() const;

    const AttentionShape& shape_;
    const AttentionOptions& options_;
    Builder plan_;
    std::int32_t ranks_, group_, groups_;
    std::int32_t k_ = -1, v_ = -1;
    std::int32_t part_ = 0;

private:
    void pass(std::int32_t from, std::int32_t to, const Rows& rows);
    void gather();
    [[nodiscard]] Rows wanted(std::int32_t origin, const std::vector<std::int32_t>& takers) const;
    void ring(std::int32_t first, std::int32_t count, std::int32_t apart);
    void double_ring();
};

}  // namespace syncopate::plan
