#include "ops/reduction.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "syncopate/plan/templates/push_reduce.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

std::string objection(const Problem& problem, const Strategy& strategy) {
    const std::int32_t stored = strategy.stored;
    if (stored < 0 || stored >= std::max(problem.ranks, 1))
        return fmt::format("stored: expected 0 to {} of the contributions, got {}", problem.ranks - 1,
                           stored);
    if (stored > 0 && strategy.pull) return "stored: with pull every contribution is read where it is";
    if (std::string why = nodes_objection(problem, strategy); !why.empty()) return why;
    if (strategy.one_step && (strategy.pull || stored > 0))
        return "one_step: every contribution is sent, by the kernel or beside it";
    return {};
}

/// How often a backend carries the contributions to the next rank, to the one after it, ….
std::vector<plan::Backend> backends_of(const Problem& problem, const Strategy& strategy) {
    std::vector<plan::Backend> made;
    const std::int32_t sent = problem.ranks - 1 - strategy.stored;
    const auto add = [&](std::int32_t count, plan::Backend backend) {
        made.insert(made.end(), static_cast<std::size_t>(std::max(count, 0)), backend);
    };
    add(sent, plan::Backend::automatic);
    add(strategy.stored, plan::Backend::tma_inline);
    return made;
}

Result<plan::Plan> plan_of(const Problem& problem, const Strategy& strategy, bool everywhere) {
    const plan::Mesh mesh = mesh_of(problem);
    const std::int64_t m = problem.extent("M");
    const std::int64_t n = problem.extent("N");
    const std::int32_t split = strategy.split.value_or(1);
    if (strategy.one_step) {
        // Tiles are stored whole at all ranks: there is room for the last one's rows, too.
        const std::int64_t block =
            strategy.kernel_sums && !strategy.tiles.empty() ? strategy.tiles.front().block_m : 1;
        const std::int64_t rows = (m + block - 1) / block * block;
        return plan::push_reduce_to_all(
            mesh, {"C", {rows, n}, problem.out}, "D",
            {.all = everywhere, .rows = m, .split = split, .split_axis = strategy.split_axis.value_or(0)});
    }
    plan::PushReduceOptions options;
    options.split = split;
    options.all = everywhere;
    options.backends = backends_of(problem, strategy);
    options.pull = strategy.pull;
    if (everywhere) {
        options.split_axis = strategy.split_axis.value_or(strategy.pull ? 1 : 0);
        options.by_part = split > 1;
    } else {
        options.split_axis = strategy.split_axis.value_or(0);
        options.by_part = strategy.pull || *options.split_axis != 0;
    }
    return plan::push_reduce(mesh, {"C", {m, n}, problem.out}, options);
}

}  // namespace

Result<Outline> reduction(const Problem& problem, const Strategy& strategy, bool everywhere) {
    if (const std::string why = objection(problem, strategy); !why.empty()) return usage(why);
    SYNCOPATE_TAKE(plan::Plan plan, plan_of(problem, strategy, everywhere));
    return Outline{
        .plan = std::move(plan), .bindings = {{{"c_desc", "C"}}}, .output = strategy.one_step ? "D" : "C"};
}

}  // namespace syncopate::ops
