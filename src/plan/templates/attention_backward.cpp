#include "syncopate/plan/templates/attention_backward.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "plan/templates/attention_circulation.hpp"
#include "plan/templates/attention_groups.hpp"
#include "plan/templates/attention_heads.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

class AttentionBackward : AttentionCirculation {
public:
    AttentionBackward(const Mesh& mesh, const AttentionShape& shape, const AttentionBackwardOptions& options)
        : AttentionCirculation(mesh, shape, options.moved), kept_(options.kept), stays_(options.stays) {
        const auto tensor = [&](const char* name, DType dtype) {
            return plan_.tensor({name, {shape.batch, shape.kv_heads, shape.length, shape.head_dim}, dtype});
        };
        k_ = tensor("K", shape.dtype);
        v_ = tensor("V", shape.dtype);
        sums_ = {tensor("DK", DType::fp32), tensor("DV", DType::fp32)};
        for (std::int32_t rank = 0; rank < ranks_; ++rank) segments_.push_back(segments_of(rank));
    }

    Result<Plan> run() {
        hold();
        for (part_ = 0; part_ < options_.parts && !kept_; ++part_) circulate();
        for (part_ = 0; part_ < options_.parts; ++part_) {
            if (options_.circulation == Circulation::all_gather)
                send_back();
            else
                pass_back();
        }
        return plan_.take();
    }

private:
    [[nodiscard]] const std::vector<Segment>& segments(std::int32_t rank) const {
        return segments_[at(rank)];
    }
    [[nodiscard]] Chunk whole_heads(std::int32_t tensor, const Interval& rows) const {
        return chunk(tensor, {0, shape_.kv_heads}, rows);
    }

    [[nodiscard]] Chunk part_heads(std::int32_t tensor, const Interval& rows) const {
        return chunk(tensor, part_of({0, shape_.kv_heads}), rows);
    }

    void hold() {
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            const Rows seen = attended(rank);
            for (const std::int32_t tensor : {k_, v_}) {
                for (const Interval& run : kept_ ? seen : rows_of(rank))
                    plan_.initial({rank, whole_heads(tensor, run)});
                for (const Interval& run : stays_ ? seen : Rows{})
                    plan_.final({rank, whole_heads(tensor, run)});
            }
            for (const std::int32_t tensor : sums_) {
                for (const Interval& run : seen) plan_.produced({rank, whole_heads(tensor, run)}, true);
                for (const Segment& segment : segments(rank)) {  // summed as they are sent
                    for (part_ = 0; part_ < options_.parts; ++part_)
                        plan_.final_of({rank, part_heads(tensor, segment.rows)}, segment.groups);
                }
            }
        }
    }

    /// To the owners, the next rank first.
    void send_back() {
        for (std::int32_t step = 1; step < ranks_; ++step) {
            for (std::int32_t rank = 0; rank < ranks_; ++rank) {
                const std::int32_t to = (rank + step) % ranks_;
                for (const Segment& segment : segments(to)) {
                    if (!std::ranges::binary_search(segment.groups, rank)) continue;
                    for (const std::int32_t tensor : sums_) {
                        const Chunk moved = part_heads(tensor, segment.rows);
                        (void)plan_.join({rank, moved}, {to, moved}, Reduce::sum);
                    }
                }
            }
        }
    }

    /// The ranks in the order in which a rank's K and V come to them; itself last.
    [[nodiscard]] std::vector<std::int32_t> visited(std::int32_t owner) const {
        std::vector<std::int32_t> ranks;
        const bool nested = options_.circulation == Circulation::double_ring;
        const std::int32_t around = nested ? inner() : ranks_;
        for (std::int32_t round = 0; round < ranks_ / around; ++round) {
            const std::int32_t node = (owner / around + round) % (ranks_ / around);
            for (std::int32_t step = 0; step < around; ++step)
                ranks.push_back(node * around + (owner + step) % around);
        }
        std::ranges::rotate(ranks, ranks.begin() + 1);
        return ranks;
    }

    /// From rank to rank behind K and V: each adds its own.
    void pass_back() {
        for (std::int32_t hop = 0; hop + 1 < ranks_; ++hop) {
            for (std::int32_t owner = 0; owner < ranks_; ++owner) {
                const std::vector<std::int32_t> order = visited(owner);
                for (const Segment& segment : segments(owner)) {
                    std::vector<std::int32_t> path;
                    for (const std::int32_t rank : order) {
                        if (rank == owner || std::ranges::binary_search(segment.groups, rank))
                            path.push_back(rank);
                    }
                    const auto at = static_cast<std::size_t>(hop);
                    if (at + 1 >= path.size()) continue;
                    for (const std::int32_t tensor : sums_) {
                        const Chunk moved = part_heads(tensor, segment.rows);
                        (void)plan_.transfer({path[at], moved}, {path[at + 1], moved}, Reduce::sum);
                    }
                }
            }
        }
    }

    bool kept_, stays_;
    std::array<std::int32_t, 2> sums_{};
    std::vector<std::vector<Segment>> segments_;  ///< by owner
};

}  // namespace

Result<Plan> attention_backward(const Mesh& mesh, const AttentionShape& shape,
                                const AttentionBackwardOptions& options) {
    SYNCOPATE_TRY(check_attention(mesh, shape, options.moved));
    if (options.moved.ulysses == mesh.num_ranks() && mesh.num_ranks() > 1)
        return attention_heads_backward(mesh, shape, options);
    if (options.moved.ulysses > 1) return attention_groups_backward(mesh, shape, options);
    return AttentionBackward(mesh, shape, options).run();
}

}  // namespace syncopate::plan
