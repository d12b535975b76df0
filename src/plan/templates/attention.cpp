#include "syncopate/plan/templates/attention.hpp"
#include "syncopate/try.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "plan/templates/attention_circulation.hpp"

namespace syncopate::plan {
namespace {

class Attention : AttentionCirculation {
public:
    Attention(const Mesh& mesh, const AttentionShape& shape, const AttentionOptions& options)
        : AttentionCirculation(mesh, shape, options) {
        const auto tensor = [&](const char* name, std::int64_t heads) {
            return plan_.tensor({name, {shape.batch, heads, shape.length, shape.head_dim}, shape.dtype});
        };
        const bool with_q = !options.only_kv && !options.q_o_stay;
        if (with_q) q_ = tensor("Q", shape.heads);
        k_ = tensor("K", shape.kv_heads);
        v_ = tensor("V", shape.kv_heads);
        if (options.only_kv) return;
        if (with_q) o_ = tensor("O", shape.heads);
        l_ = plan_.tensor({"L", {shape.batch, shape.heads, shape.length}, DType::fp32});
    }

    Result<Plan> run() {
        hold();
        // Tiles run as their heads come, so the first ones wait for a part of K and V only.
        for (part_ = 0; part_ < options_.parts; ++part_) {
            exchange();
            circulate();
        }
        for (part_ = 0; part_ < options_.parts; ++part_) bring_back();
        return plan_.take();
    }

private:
    void hold() {
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            const Interval all{0, shape_.heads}, all_kv{0, shape_.kv_heads};
            for (const Interval& run : rows_of(rank)) {
                plan_.initial({rank, chunk(k_, all_kv, run)});
                plan_.initial({rank, chunk(v_, all_kv, run)});
                if (options_.only_kv) continue;
                if (q_ >= 0) plan_.initial({rank, chunk(q_, all, run)});
                if (o_ >= 0) plan_.final({rank, chunk(o_, all, run)});
                plan_.final({rank, chunk(l_, all, run)});
            }
            if (options_.only_kv) continue;
            for (const Interval& run : rows_of_group(rank / group_)) {
                if (o_ >= 0) plan_.produced({rank, chunk(o_, heads_of(rank % group_), run)});
                plan_.produced({rank, chunk(l_, heads_of(rank % group_), run)});
            }
        }
    }

    /// Inside each group heads go to the rank that has them: Q first, then K, then V, the next rank first.
    void exchange() {
        for (const std::int32_t tensor : {q_, k_, v_}) {
            for (std::int32_t step = 1; step < group_; ++step) {
                for (std::int32_t rank = 0; rank < ranks_; ++rank) {
                    const std::int32_t member = (rank % group_ + step) % group_;
                    const Interval heads = part_of(tensor == q_ ? heads_of(member) : kv_heads_of(member));
                    for (const Interval& run : rows_of(rank))
                        move(rank, rank_of(rank / group_, member), tensor, heads, run);
                }
            }
        }
    }

    /// Inside each group O and L go to the rank whose rows they are.
    void bring_back() {
        for (std::int32_t step = 1; step < group_; ++step) {
            for (std::int32_t rank = 0; rank < ranks_; ++rank) {
                const std::int32_t to = rank_of(rank / group_, (rank % group_ + step) % group_);
                for (const Interval& run : rows_of(to)) {
                    move(rank, to, o_, part_of(heads_of(rank % group_)), run);
                    move(rank, to, l_, part_of(heads_of(rank % group_)), run);
                }
            }
        }
    }

    std::int32_t q_ = -1, o_ = -1, l_ = -1;  // -1: the plan has no such tensor
};

}  // namespace

std::optional<Circulation> circulation_from(std::string_view name) {
    if (name == "all_gather") return Circulation::all_gather;
    if (name == "ring") return Circulation::ring;
    if (name == "double_ring") return Circulation::double_ring;
    return std::nullopt;
}

Result<Plan> attention(const Mesh& mesh, const AttentionShape& shape, const AttentionOptions& options) {
    SYNCOPATE_TRY(check_attention(mesh, shape, options));
    return Attention(mesh, shape, options).run();
}

}  // namespace syncopate::plan
