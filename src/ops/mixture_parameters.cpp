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
          kernels_(expert_mixture(problem, strategy)->kernels()),
          ids_(call.ids) {}

    [[nodiscard]] Result<std::vector<Parameters>> make() {
        SYNCOPATE_TAKE(const std::size_t up, stage("moe_up"));
        SYNCOPATE_TAKE(const std::size_t down, stage("moe_down"));
        SYNCOPATE_TAKE(const std::size_t count, stage("moe_count"));
        SYNCOPATE_TAKE(const std::size_t dispatch, stage("moe_dispatch"));
        SYNCOPATE_TAKE(const std::size_t combine, stage("moe_combine"));
        Parameters all = of_all();
        for (const auto& [name, of] :
             {std::pair{"dispatch_ptr", dispatch}, {"up_ptr", up}, {"down_ptr", down}})
            all[name] = {.of = Of::table, .stage = static_cast<std::int32_t>(of)};
        std::vector<Parameters> made(kernels_.size(), all);
        made[up]["w_ptr"] = weights("w1", of_.hidden, 2 * of_.inner);
        made[down]["w_ptr"] = weights("w2", of_.inner, of_.hidden);
        const auto stride = [&](std::size_t of, const char* parameter, const char* tensor) {
            made[of][parameter] = {.of = Of::stride, .name = tensor};
        };
        stride(count, "stride", "counts");
        stride(dispatch, "stride", "X");
        stride(dispatch, "stride_numbers", "origin");
        stride(down, "stride", "Y");
        // Tiles of the products go column by column.
        made[up]["COLUMNS"] = constant(MixtureSizes::blocks(of_.inner, of_.tile.block_n));
        made[down]["COLUMNS"] = constant(MixtureSizes::blocks(of_.hidden, of_.tile.block_n));
        made[dispatch]["WEIGHTED"] = constant(0);
        made[combine]["WEIGHTED"] = constant(1);
        return made;
    }

private:
    [[nodiscard]] Parameters of_all() const {
        const std::int64_t routes = of_.tokens * of_.topk;
        return {
            {"given_ptr", {.name = "x", .dtype = problem_.dtype, .shape = {of_.tokens, of_.hidden}}},
            {"ids_ptr", {.name = "topk_ids", .dtype = ids_, .shape = {of_.tokens, of_.topk}}},
            {"weights_ptr",
             {.name = "topk_weights", .dtype = plan::DType::fp32, .shape = {of_.tokens, of_.topk}}},
            {"out_ptr",
             {.name = "y", .dtype = problem_.out, .shape = {of_.tokens, of_.hidden}, .written = true}},
            {"position_ptr", numbers("position", {of_.tokens, of_.topk})},
            {"sent_ptr", numbers("sent", {2, of_.experts})},
            {"order_ptr", numbers("order", {routes})},
            {"group_ptr", numbers("group", {of_.experts})},
            {"own_ptr", numbers("own", {2, of_.own})},
            {"status_ptr", numbers("status", {2})},
            {"seen_ptr", numbers(kSeen, {std::int64_t{kSeenWords}})},
            // What is kept for a backward pass: nothing is.
            {"h_ptr", numbers("status", {2})},
            {"rank", {.of = Of::rank}},
            // What kernels are compiled for.
            {"T", constant(of_.tokens)},
            {"TOPK", constant(of_.topk)},
            {"ROUTES", constant(routes)},
            {"E", constant(of_.experts)},
            {"R", constant(of_.ranks)},
            {"EXPERTS", constant(of_.own)},
            {"H", constant(of_.hidden)},
            {"F", constant(of_.inner)},
            {"BOUND", constant(of_.bound)},
            {"BLOCKS", constant(of_.combined())},
            {"TOKENS", power(MixtureSizes::blocks(of_.tokens, of_.combined()))},
            {"BE", power(of_.own)},
            {"BR", power(of_.ranks)},
            {"BALL", power(of_.experts)},
            {"TILE", constant(of_.tile.block_m)},
            {"BLOCK_M", constant(of_.tile.block_m)},
            {"BLOCK_N", constant(of_.tile.block_n)},
            {"BLOCK_K", constant(of_.tile.block_k)},
            {"UP", constant(MixtureSizes::blocks(of_.inner, of_.tile.block_n))},
            {"DOWN", constant(MixtureSizes::blocks(of_.hidden, of_.tile.block_n))},
            {"DISPATCHES", constant(1)},
            {"KEPT", constant(0)},
        };
    }

    [[nodiscard]] Result<std::size_t> stage(std::string_view kernel) const {
        const auto found = std::ranges::find(kernels_, kernel);
        if (found != kernels_.end()) return static_cast<std::size_t>(found - kernels_.begin());
        return Error{fmt::format("moe: its program has no stage {}", kernel), {}, ErrorClass::usage};
    }
    static Parameter constant(std::int64_t value) { return {.of = Of::constant, .value = value}; }
    /// The power of two that is not less.
    static Parameter power(std::int64_t value) {
        return constant(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(value))));
    }

    [[nodiscard]] Parameter weights(const char* name, std::int64_t rows, std::int64_t columns) const {
        return {.name = name, .dtype = problem_.dtype, .shape = {of_.own, rows, columns}};
    }
    static Parameter numbers(const char* name, std::vector<std::int64_t> shape) {
        return {.of = Of::scratch, .name = name, .shape = std::move(shape)};
    }

    const Problem& problem_;
    MixtureSizes of_;
    std::vector<std::string> kernels_;  ///< by stage
    plan::DType ids_;
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
    const auto refused = [](const std::string& what) {
        return Error{what + " are made from Python alone: sy.ops.moe", {}, ErrorClass::usage};
    };
    const std::string_view part = problem.word("part");
    if (!part.empty() && part != "whole") return refused(fmt::format("moe: calls of part={}", part));
    if (problem.word("parallel") == "tensor") return refused("moe: calls of tensor parallel experts");
    if (problem.scales != Scales::none) return refused("moe: calls of experts of fp8");
    return ParametersOf(problem, strategy, call).make();
}

}  // namespace syncopate::ops
