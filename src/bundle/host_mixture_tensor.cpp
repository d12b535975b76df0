// Of tensor parallel mixtures on host: tokens at all ranks, a row of each of their routes, and the sums over routes and ranks.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "bundle/host_mixture.hpp"
#include "syncopate/at.hpp"
#include "syncopate/bundle/host_kernel.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/plan/model/ragged.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

using runtime::TableSlot;

constexpr std::array<std::string_view, 8> kKernels{"moe_count",  "moe_gather", "moe_tensor_layout",
                                                   "moe_spread", "moe_up",     "moe_down",
                                                   "moe_sum",    "moe_reduce"};
constexpr std::int64_t kWords = 3;  // of a route: its expert, its place among the routes of it, its weight

class TensorMixture final : public HostMixture {
public:
    TensorMixture(std::shared_ptr<const Planned> planned, std::vector<runtime::Operand> operands,
                  runtime::FusedOp& op, std::uint64_t scratch)
        : HostMixture(std::move(planned), std::move(operands), op, scratch),
          block_(planned_->parameters.back().at("BLOCK").value),
          blocks_(planned_->parameters.back().at("TILES").value) {}
    [[nodiscard]] std::span<const std::string_view> kernels() const override { return kKernels; }

private:
    [[nodiscard]] std::string_view layout() const override { return "moe_tensor_layout"; }

    Status make(std::string_view kernel, const TableSlot& slot, Tensors tensors) const override {
        if (kernel == "moe_gather") return gather(slot, tensors);
        if (kernel == "moe_spread") return spread(slot);
        return kernel == "moe_sum" ? sum(slot) : reduce(slot, tensors);
    }

    /// All on this rank.
    [[nodiscard]] Result<std::vector<std::uint64_t>> back() const override {
        SYNCOPATE_TAKE(const std::uint64_t mine, op_.tensor_address("Y"));
        const std::uint64_t each = plan::Tensor{"", {routes_, hidden_}, out_}.bytes();
        std::vector<std::uint64_t> made;
        for (std::int64_t source = 0; source < ranks_; ++source)
            made.push_back(mine + static_cast<std::uint64_t>(source) * each);
        return made;
    }

    /// The tokens of a tile, of any rank's.
    template <typename Each>
    Status each_token(const TableSlot& slot, const Each& one) const {
        const std::int64_t first = slot.tile % blocks_ * block_;
        for (std::int64_t token = first; token < std::min(first + block_, tokens_); ++token) {
            SYNCOPATE_TRY(one(token));
        }
        return Done{};
    }

    [[nodiscard]] Status gather(const TableSlot& slot, Tensors tensors) const {
        const std::int64_t bytes = hidden_ * static_cast<std::int64_t>(plan::size_of(dtype_));
        const auto* const x = reinterpret_cast<const char*>(given(tensors, "x"));
        const auto* const weights = reinterpret_cast<const float*>(given(tensors, "topk_weights"));
        return each_token(slot, [&](std::int64_t token) -> Status {
            const std::int64_t there = rank() * tokens_ + token;
            for (std::int64_t peer = 0; peer < ranks_; ++peer) {
                SYNCOPATE_TAKE(char* const tokens, heap<char>("tokens", peer));
                SYNCOPATE_TAKE(std::int32_t* const routes, heap<std::int32_t>("routes", peer));
                std::copy_n(x + token * bytes, bytes, tokens + there * bytes);
                for (std::int64_t k = 0; k < topk_; ++k) {
                    const std::int64_t route = token * topk_ + k;
                    std::int32_t* const words = routes + (there * topk_ + k) * kWords;
                    words[0] = static_cast<std::int32_t>(expert_of(tensors, route));
                    words[1] = scratch<std::int32_t>("position")[route];
                    words[2] = std::bit_cast<std::int32_t>(weights[route]);
                }
                if (!is_scaled_) continue;
                SYNCOPATE_TAKE(float* const scales, heap<float>("token_scale", peer));
                std::copy_n(reinterpret_cast<const float*>(given(tensors, "scale_x")) + token * x_scales_,
                            x_scales_, scales + there * x_scales_);
            }
            return Done{};
        });
    }

    Status lay_out(Tensors /*tensors*/) const override {
        SYNCOPATE_TAKE(const std::int32_t* const counts, heap<const std::int32_t>("counts", rank()));
        std::vector<std::int64_t> of_groups;
        std::uint32_t bad = 0;
        for (std::int64_t expert = 0; expert < experts_; ++expert) {
            for (std::int64_t source = 0; source < ranks_; ++source)
                of_groups.push_back(counts[source * (experts_ + 1) + expert]);
        }
        for (std::int64_t source = 0; source < ranks_; ++source)
            bad += static_cast<std::uint32_t>(counts[source * (experts_ + 1) + experts_]);
        const std::vector<plan::Interval> places =
            plan::lay_groups(of_groups, {.run = ranks_, .align = tile_.block_m, .bound = bound_});
        HostGroups runs;
        for (std::int64_t expert = 0; expert < experts_; ++expert) {
            for (std::int64_t source = 0; source < ranks_; ++source)
                scratch<std::int32_t>("begins")[source * experts_ + expert] =
                    static_cast<std::int32_t>(places[at(expert * ranks_ + source)].begin);
            const std::int64_t begin = places[at(expert * ranks_)].begin;
            runs.begin.push_back(begin);
            runs.rows.push_back(places[at((expert + 1) * ranks_ - 1)].end - begin);
        }
        tell(0, bad);
        return make_product_slots(runs);
    }

    [[nodiscard]] Status spread(const TableSlot& slot) const {
        const std::int64_t bytes = hidden_ * static_cast<std::int64_t>(plan::size_of(dtype_));
        const std::int64_t source = slot.tile / blocks_;
        SYNCOPATE_TAKE(const char* const tokens, heap<const char>("tokens", rank()));
        SYNCOPATE_TAKE(const std::int32_t* const routes, heap<const std::int32_t>("routes", rank()));
        SYNCOPATE_TAKE(char* const x, heap<char>("X", rank()));
        SYNCOPATE_TAKE(std::int32_t* const origin, heap<std::int32_t>("origin", rank()));
        const float* token_scales = nullptr;
        float* scales = nullptr;
        if (is_scaled_) {
            SYNCOPATE_TAKE(token_scales, heap<const float>("token_scale", rank()));
            SYNCOPATE_TAKE(scales, heap<float>("x_scale", rank()));
        }
        return each_token(slot, [&](std::int64_t token) -> Status {
            const std::int64_t from = source * tokens_ + token;
            for (std::int64_t route = from * topk_; route < (from + 1) * topk_; ++route) {
                const std::int32_t* const words = routes + route * kWords;
                if (words[0] >= experts_) continue;
                const std::int64_t row =
                    scratch<std::int32_t>("begins")[source * experts_ + words[0]] + words[1];
                origin[row] = static_cast<std::int32_t>(route);
                std::copy_n(tokens + from * bytes, bytes, x + row * bytes);
                if (is_scaled_)
                    std::copy_n(token_scales + from * x_scales_, x_scales_, scales + row * x_scales_);
            }
            return Done{};
        });
    }

    [[nodiscard]] Status sum(const TableSlot& slot) const {
        const std::int64_t peer = slot.tile / blocks_ % ranks_;
        SYNCOPATE_TAKE(const std::uint64_t y, op_.tensor_address("Y"));
        SYNCOPATE_TAKE(const std::int32_t* const routes, heap<const std::int32_t>("routes", rank()));
        SYNCOPATE_TAKE(const std::uint64_t there, op_.tensor_address("P", static_cast<int>(peer)));
        return each_token(slot, [&](std::int64_t token) -> Status {
            const std::int64_t of = peer * tokens_ + token;
            for (std::int64_t column = 0; column < hidden_; ++column) {
                float total = 0;
                for (std::int64_t route = of * topk_; route < (of + 1) * topk_; ++route) {
                    const std::int32_t* const words = routes + route * kWords;
                    if (words[0] < experts_)
                        total += std::bit_cast<float>(words[2]) * element(out_, y, route * hidden_ + column);
                }
                set_element(out_, there, (rank() * tokens_ + token) * hidden_ + column, total);
            }
            return Done{};
        });
    }

    [[nodiscard]] Status reduce(const TableSlot& slot, Tensors tensors) const {
        SYNCOPATE_TAKE(const std::uint64_t parts, op_.tensor_address("P"));
        SYNCOPATE_TAKE(std::int32_t* const done, heap<std::int32_t>("done", rank()));
        done[rank() * blocks_ + slot.tile % blocks_] = 1;
        return each_token(slot, [&](std::int64_t token) -> Status {
            for (std::int64_t column = 0; column < hidden_; ++column) {
                float total = 0;
                for (std::int64_t source = 0; source < ranks_; ++source)
                    total += element(out_, parts, (source * tokens_ + token) * hidden_ + column);
                set_element(out_, given(tensors, "y"), token * hidden_ + column, total);
            }
            return Done{};
        });
    }

    std::int64_t block_;   ///< tokens of a tile
    std::int64_t blocks_;  ///< tiles of a rank's tokens
};

}  // namespace

std::unique_ptr<const HostMixture> tensor_host_mixture(std::shared_ptr<const Planned> planned,
                                                       std::vector<runtime::Operand> operands,
                                                       runtime::FusedOp& op, std::uint64_t scratch) {
    return std::make_unique<const TensorMixture>(std::move(planned), std::move(operands), op, scratch);
}

}  // namespace syncopate::bundle
