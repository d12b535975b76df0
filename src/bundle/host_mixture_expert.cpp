// Of expert parallel mixtures on host: the layout, the rows that go to their experts' ranks, and their sums.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "bundle/host_mixture.hpp"
#include "syncopate/at.hpp"
#include "syncopate/bundle/host_kernel.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/plan/model/ragged.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

using runtime::TableSlot;

constexpr std::array<std::string_view, 6> kKernels{"moe_count", "moe_layout", "moe_dispatch",
                                                   "moe_up",    "moe_down",   "moe_combine"};

class ExpertMixture final : public HostMixture {
public:
    using HostMixture::HostMixture;
    [[nodiscard]] std::span<const std::string_view> kernels() const override { return kKernels; }

private:
    [[nodiscard]] std::string_view layout() const override { return "moe_layout"; }

    Status make(std::string_view kernel, const TableSlot& slot, Tensors tensors) const override {
        return kernel == "moe_dispatch" ? dispatch(slot, tensors) : combine(slot, tensors);
    }

    /// Rows are stored at the ranks of their tokens.
    [[nodiscard]] Result<std::vector<std::uint64_t>> back() const override {
        std::vector<std::uint64_t> made;
        for (std::int64_t peer = 0; peer < ranks_; ++peer) {
            SYNCOPATE_TAKE(const std::uint64_t there, op_.tensor_address("Y", static_cast<int>(peer)));
            made.push_back(there);
        }
        return made;
    }

    /// Of the groups of rank `peer`, expert by expert and of each rank by rank.
    struct Laid {
        std::vector<plan::Interval> places;
        HostGroups runs;  ///< of an expert
        std::int64_t over = 0;
    };
    [[nodiscard]] Laid laid_at(const std::int32_t* counts, std::int64_t peer) const {
        std::vector<std::int64_t> of_groups;
        std::int64_t all = 0;
        for (std::int64_t expert = peer * own_; expert < (peer + 1) * own_; ++expert) {
            for (std::int64_t source = 0; source < ranks_; ++source) {
                of_groups.push_back(counts[source * (experts_ + 1) + expert]);
                all += of_groups.back();
            }
        }
        Laid made{.places =
                      plan::lay_groups(of_groups, {.run = ranks_, .align = tile_.block_m, .bound = bound_})};
        for (std::int64_t expert = 0; expert < own_; ++expert) {
            const std::int64_t begin = made.places[at(expert * ranks_)].begin;
            made.runs.begin.push_back(begin);
            made.runs.rows.push_back(made.places[at((expert + 1) * ranks_ - 1)].end - begin);
            all -= made.runs.rows.back();
        }
        made.over = all;
        return made;
    }

    Status lay_out(Tensors tensors) const override {
        SYNCOPATE_TAKE(const std::int32_t* const counts, heap<const std::int32_t>("counts", rank()));
        const std::int32_t* const mine = counts + rank() * (experts_ + 1);
        auto* const group = scratch<std::int32_t>("group");
        auto* const sent = scratch<std::int32_t>("sent");
        std::int32_t before = 0;
        for (std::int64_t expert = 0; expert < experts_; ++expert) {
            group[expert] = before;
            before += mine[expert];
        }
        std::int64_t over = 0;
        std::uint32_t bad = 0;
        HostGroups going;
        for (std::int64_t peer = 0; peer < ranks_; ++peer) {
            const Laid laid = laid_at(counts, peer);
            over = std::max(over, laid.over);
            bad += static_cast<std::uint32_t>(counts[peer * (experts_ + 1) + experts_]);
            for (std::int64_t expert = 0; expert < own_; ++expert) {
                const plan::Interval& there = laid.places[at(expert * ranks_ + rank())];
                const std::int64_t of_all = peer * own_ + expert;
                sent[of_all] = static_cast<std::int32_t>(there.begin);
                sent[experts_ + of_all] = static_cast<std::int32_t>(there.size());
                going.begin.push_back(group[of_all]);
                going.rows.push_back(there.size());
            }
        }
        tell(over, bad);
        for (std::int64_t route = 0; route < routes_; ++route) {
            const std::int64_t expert = expert_of(tensors, route);
            if (expert == experts_) continue;
            scratch<std::int32_t>("order")[group[expert] + scratch<std::int32_t>("position")[route]] =
                static_cast<std::int32_t>(route);
        }
        const std::int64_t rows = ops::mixture_sending(planned_->problem, planned_->strategy).rows;
        SYNCOPATE_TRY(
            make_slots("moe_dispatch", going, {.rows = rows}, next_rank_first(rank(), ranks_, own_)));
        return make_product_slots(laid_at(counts, rank()).runs);
    }

    [[nodiscard]] Status dispatch(const TableSlot& slot, Tensors tensors) const {
        const std::int64_t bytes = hidden_ * static_cast<std::int64_t>(plan::size_of(dtype_));
        const std::int64_t peer = slot.group / own_;
        SYNCOPATE_TAKE(char* const x, heap<char>("X", peer));
        SYNCOPATE_TAKE(std::int32_t* const origin, heap<std::int32_t>("origin", peer));
        float* scales = nullptr;
        if (is_scaled_) {
            SYNCOPATE_TAKE(scales, heap<float>("x_scale", peer));
        }
        for (std::int64_t i = 0; i < slot.rows; ++i) {
            const std::int64_t route = scratch<std::int32_t>("order")[slot.tile + i];
            const std::int64_t token = route / topk_;
            const std::int64_t row = scratch<std::int32_t>("sent")[slot.group] + slot.tile + i -
                                     scratch<std::int32_t>("group")[slot.group];
            origin[row] = static_cast<std::int32_t>(rank() * routes_ + route);
            std::copy_n(reinterpret_cast<const char*>(given(tensors, "x")) + token * bytes, bytes,
                        x + row * bytes);
            if (is_scaled_)
                std::copy_n(reinterpret_cast<const float*>(given(tensors, "scale_x")) + token * x_scales_,
                            x_scales_, scales + row * x_scales_);
        }
        return Done{};
    }

    [[nodiscard]] Status combine(const TableSlot& slot, Tensors tensors) const {
        SYNCOPATE_TAKE(const std::uint64_t y, op_.tensor_address("Y"));
        SYNCOPATE_TAKE(std::int32_t* const done, heap<std::int32_t>("done", rank()));
        const std::vector<plan::Tensor>& all = op_.schedule().tensors;
        const std::int64_t each =
            std::ranges::find(all, std::string_view("done"), &plan::Tensor::name)->shape[1];
        const std::int64_t block = slot.tile % each;
        const auto* const weights = reinterpret_cast<const float*>(given(tensors, "topk_weights"));
        for (std::int64_t token = block; token < tokens_; token += each) {
            for (std::int64_t column = 0; column < hidden_; ++column) {
                float total = 0;
                for (std::int64_t route = token * topk_; route < (token + 1) * topk_; ++route) {
                    const std::int64_t expert = expert_of(tensors, route);
                    const bool came =
                        expert < experts_ && scratch<std::int32_t>("position")[route] <
                                                 scratch<std::int32_t>("sent")[experts_ + expert];
                    if (came) total += weights[route] * element(out_, y, route * hidden_ + column);
                }
                set_element(out_, given(tensors, "y"), token * hidden_ + column, total);
            }
        }
        done[rank() * each + block] = 1;
        return Done{};
    }
};

}  // namespace

std::unique_ptr<const HostMixture> expert_host_mixture(std::shared_ptr<const Planned> planned,
                                                       std::vector<runtime::Operand> operands,
                                                       runtime::FusedOp& op, std::uint64_t scratch) {
    return std::make_unique<const ExpertMixture>(std::move(planned), std::move(operands), op, scratch);
}

}  // namespace syncopate::bundle
