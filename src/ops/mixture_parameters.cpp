#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "ops/mixture.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

using Of = Parameter::Of;

class ParametersOf {
public:
    ParametersOf(const Problem& problem, const Strategy& strategy, const Call& call)
        : problem_(problem),
          of_(problem, strategy),
          is_scaled_(problem.scales != Scales::none),
          kernels_(
              (of_.is_tensor_parallel ? tensor_mixture(problem, strategy) : expert_mixture(problem, strategy))
                  ->kernels()),
          ids_(call.ids),
          made_(kernels_.size()) {}

    [[nodiscard]] Result<std::vector<Parameters>> make() {
        Parameters all = of_all();
        all.merge(of_.is_tensor_parallel ? of_tensor() : of_expert());
        for (const auto& [name, kernel] :
             {std::pair{"dispatch_ptr", "moe_dispatch"}, {"up_ptr", "moe_up"}, {"down_ptr", "moe_down"}}) {
            const auto found = std::ranges::find(kernels_, std::string_view(kernel));
            if (found != kernels_.end())
                all[name] = {.of = Of::table, .stage = static_cast<std::int32_t>(found - kernels_.begin())};
        }
        std::ranges::fill(made_, all);
        SYNCOPATE_TRY(add_count());
        SYNCOPATE_TRY(add_products());
        SYNCOPATE_TRY(of_.is_tensor_parallel ? add_tensor() : add_expert());
        return std::move(made_);
    }

private:
    /// What both have. What kernels are compiled for stands here as well.
    [[nodiscard]] Parameters of_all() const {
        return {
            {"given_ptr", {.name = "x", .dtype = problem_.dtype, .shape = {of_.tokens, of_.hidden}}},
            {"ids_ptr", {.name = "topk_ids", .dtype = ids_, .shape = {of_.tokens, of_.topk}}},
            {"weights_ptr",
             {.name = "topk_weights", .dtype = plan::DType::fp32, .shape = {of_.tokens, of_.topk}}},
            {"out_ptr",
             {.name = "y", .dtype = problem_.out, .shape = {of_.tokens, of_.hidden}, .written = true}},
            {"position_ptr", numbers("position", {of_.tokens, of_.topk})},
            {"own_ptr", numbers("own", {2, of_.own})},
            {"status_ptr", nothing()},
            {"seen_ptr", numbers(kSeen, {std::int64_t{kSeenWords}})},
            {"h_ptr", nothing()},  // kept for a backward pass
            {"rank", {.of = Of::rank}},
            {"T", constant(of_.tokens)},
            {"TOPK", constant(of_.topk)},
            {"ROUTES", constant(of_.tokens * of_.topk)},
            {"E", constant(of_.experts)},
            {"R", constant(of_.ranks)},
            {"EXPERTS", constant(of_.own)},
            {"H", constant(of_.hidden)},
            {"F", constant(of_.inner)},
            {"BOUND", constant(of_.bound)},
            {"BE", power(of_.own)},
            {"BR", power(of_.ranks)},
            {"BALL", power(of_.experts)},
            {"TILE", constant(of_.tile.block_m)},
            {"BLOCK_M", constant(of_.tile.block_m)},
            {"BLOCK_N", constant(of_.tile.block_n)},
            {"BLOCK_K", constant(of_.tile.block_k)},
            {"UP", constant(tiles_across(of_.inner))},
            {"DOWN", constant(tiles_across(of_.hidden))},
            {"SCALES", constant(is_scaled_ ? of_.x_scales() : 0)},
            {"WIDE", power(is_scaled_ ? of_.x_scales() : 1)},
            {"KEPT", constant(0)},
        };
    }

    [[nodiscard]] Parameters of_expert() const {
        return {
            {"sent_ptr", numbers("sent", {2, of_.experts})},
            {"order_ptr", numbers("order", {of_.tokens * of_.topk})},
            {"group_ptr", numbers("group", {of_.experts})},
            {"BLOCKS", constant(of_.combined())},
            {"TOKENS", power(MixtureSizes::blocks(of_.tokens, of_.combined()))},
            {"DISPATCHES", constant(1)},
            {"turn_ptr", numbers("turn", {1})},
            {"SENT", constant(of_.sending().rows)},
            {"TURNS", constant(of_.sending().apart ? 1 : 0)},
        };
    }

    [[nodiscard]] Parameters of_tensor() const {
        const std::int64_t block = mixture_block(of_.tokens, of_.programs);
        Parameters made{
            {"begins_ptr", numbers("begins", {of_.ranks, of_.experts})},
            {"TILES", constant(MixtureSizes::blocks(of_.tokens, block))},
            {"LANES", power(block)},
            {"GATHERS", constant(1)},
            {"turn_ptr", nothing()},
            {"TURNS", constant(0)},
            {"DOTS", constant(0)},  // so nobody reads the next ones
            {"dots_ptr", nothing()},
            {"partial_ptr", nothing()},
            {"dot_ptr", nothing()},
        };
        if (is_scaled_) return made;
        for (const char* name : {"given_scale_ptr", "token_scale_ptr", "x_scale_ptr"}) made[name] = nothing();
        return made;
    }

    Status add_count() {
        SYNCOPATE_TAKE(Parameters* const count, stage("moe_count"));
        constexpr std::int64_t kMost = 8192;  // routes at once
        const std::int64_t routes = of_.tokens * of_.topk;
        (*count)["BLOCK"] = power(std::min(routes, kMost));
        return stride("moe_count", "stride", "counts");
    }

    /// Tiles of the products go column by column.
    Status add_products() {
        SYNCOPATE_TAKE(Parameters* const up, stage("moe_up"));
        SYNCOPATE_TAKE(Parameters* const down, stage("moe_down"));
        (*up)["w_ptr"] = weights("w1", 2 * of_.inner, of_.hidden);
        (*down)["w_ptr"] = weights("w2", of_.hidden, of_.inner);
        (*up)["COLUMNS"] = constant(tiles_across(of_.inner));
        (*down)["COLUMNS"] = constant(tiles_across(of_.hidden));
        if (!is_scaled_) return Done{};
        (*up)["w_scale_ptr"] = scales_of("scale_w1", 2 * of_.inner, of_.hidden);
        (*down)["w_scale_ptr"] = scales_of("scale_w2", of_.hidden, of_.inner);
        for (Parameters* const of : {up, down}) (*of)["BLOCKS"] = constant(of_.by_block ? 1 : 0);
        return Done{};
    }

    Status add_expert() {
        SYNCOPATE_TAKE(Parameters* const dispatch, stage("moe_dispatch"));
        SYNCOPATE_TAKE(Parameters* const combine, stage("moe_combine"));
        (*dispatch)["WEIGHTED"] = constant(0);
        (*dispatch)["STARTS_NEXT"] = constant(1);
        (*combine)["WEIGHTED"] = constant(1);
        SYNCOPATE_TRY(stride("moe_dispatch", "stride", "X"));
        SYNCOPATE_TRY(stride("moe_dispatch", "stride_numbers", "origin"));
        SYNCOPATE_TRY(stride("moe_down", "stride", "Y"));
        if (!is_scaled_) return Done{};
        (*dispatch)["given_scale_ptr"] = scales_of_x();
        return stride("moe_dispatch", "stride_scales", "x_scale");
    }

    Status add_tensor() {
        SYNCOPATE_TAKE(Parameters* const gather, stage("moe_gather"));
        SYNCOPATE_TAKE(Parameters* const spread, stage("moe_spread"));
        SYNCOPATE_TAKE(Parameters* const down, stage("moe_down"));
        SYNCOPATE_TAKE(Parameters* const sum, stage("moe_sum"));
        SYNCOPATE_TAKE(Parameters* const reduce, stage("moe_reduce"));
        for (Parameters* const of : {gather, spread, sum, reduce})
            (*of)["BLOCK"] = constant(mixture_block(of_.tokens, of_.programs));
        (*gather)["WEIGHTED"] = constant(1);
        (*spread)["WEIGHTED"] = constant(0);
        (*sum)["WEIGHTED"] = constant(1);
        SYNCOPATE_TRY(stride("moe_gather", "stride", "tokens"));
        SYNCOPATE_TRY(stride("moe_gather", "stride_numbers", "routes"));
        (*gather)["stride_scales"] = constant(0);
        SYNCOPATE_TRY(stride("moe_sum", "stride", "P"));
        (*sum)["stride_numbers"] = constant(0);
        // They have come with the tokens, which this stage's rows are made of.
        (*sum)["routes_ptr"] = {.of = Of::tensor, .name = "routes"};
        // The rows of a token lie where its rank's and its own numbers say, on this rank.
        (*down)["rank"] = constant(0);
        (*down)["stride"] = constant(0);
        (*down)["ROUTES"] = constant(of_.ranks * of_.tokens * of_.topk);
        if (!is_scaled_) return Done{};
        (*gather)["given_scale_ptr"] = scales_of_x();
        return stride("moe_gather", "stride_scales", "token_scale");
    }

    [[nodiscard]] Result<Parameters*> stage(std::string_view kernel) {
        const auto found = std::ranges::find(kernels_, kernel);
        if (found != kernels_.end()) return &made_[static_cast<std::size_t>(found - kernels_.begin())];
        return Error{fmt::format("moe: its program has no stage {}", kernel), {}, ErrorClass::usage};
    }
    Status stride(std::string_view kernel, const char* parameter, const char* tensor) {
        SYNCOPATE_TAKE(Parameters* const of, stage(kernel));
        (*of)[parameter] = {.of = Of::stride, .name = tensor};
        return Done{};
    }
    static Parameter constant(std::int64_t value) { return {.of = Of::constant, .value = value}; }
    /// The power of two that is not less.
    static Parameter power(std::int64_t value) {
        return constant(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(value))));
    }
    [[nodiscard]] std::int64_t tiles_across(std::int64_t columns) const {
        return MixtureSizes::blocks(columns, of_.tile.block_n);
    }

    /// Of `columns` and a reduction of `depth`, which lies last where they are of fp8.
    [[nodiscard]] Parameter weights(const char* name, std::int64_t columns, std::int64_t depth) const {
        Parameter made{.name = name, .dtype = problem_.dtype, .shape = {of_.own, depth, columns}};
        if (is_scaled_) std::swap(made.shape[1], made.shape[2]);
        return made;
    }
    [[nodiscard]] Parameter scales_of(const char* name, std::int64_t columns, std::int64_t depth) const {
        Parameter made{.name = name, .dtype = plan::DType::fp32, .shape = {of_.own, columns}};
        if (of_.by_block)
            made.shape = {of_.own, MixtureSizes::blocks(columns, kScaled),
                          MixtureSizes::blocks(depth, kScaled)};
        return made;
    }
    [[nodiscard]] Parameter scales_of_x() const {
        Parameter made{.name = "scale_x", .dtype = plan::DType::fp32, .shape = {of_.tokens}};
        if (of_.by_block) made.shape.push_back(of_.x_scales());
        return made;
    }
    static Parameter numbers(const char* name, std::vector<std::int64_t> shape) {
        return {.of = Of::scratch, .name = name, .shape = std::move(shape)};
    }
    /// For what a kernel takes and does not look at.
    static Parameter nothing() { return numbers("status", {2}); }

    const Problem& problem_;
    MixtureSizes of_;
    bool is_scaled_;
    std::vector<std::string> kernels_;  ///< by stage
    plan::DType ids_;
    std::vector<Parameters> made_;  ///< likewise
};

}  // namespace

std::string mixture_verdict(const Problem& problem, std::span<const std::uint32_t> before,
                            std::span<const std::uint32_t> now, bool drops) {
    std::string said;
    if (now[kCallsBad] != before[kCallsBad])
        said = fmt::format("topk_ids: {} of all ranks' ids name no expert; there are experts 0 to {}",
                           now[kBad] - before[kBad], problem.extent("E") - 1);
    if (drops || now[kCallsOver] == before[kCallsOver]) return said;
    const std::int64_t over = now[kOver], bound = problem.extent("bound");
    return fmt::format(
        "{}{}bound: as many as {} rows more than {} come to a rank: compile it with bound={}, or --drop",
        said, said.empty() ? "" : "; ", over, bound, bound + over);
}

Result<std::vector<Parameters>> mixture_parameters(const Problem& problem, const Strategy& strategy,
                                                   const Call& call) {
    const std::string_view part = problem.word("part");
    if (!part.empty() && part != "whole")
        return Error{fmt::format("moe: calls of part={} are made from Python alone: sy.ops.moe", part),
                     {},
                     ErrorClass::usage};
    return ParametersOf(problem, strategy, call).make();
}

}  // namespace syncopate::ops
