#include "syncopate/ops/program.hpp"

#include <fmt/format.h>

#include "ops/product.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

Result<const OperatorRow*> row_of(const Problem& problem, const Strategy& strategy) {
    const OperatorRow* row = operator_row(problem.op);
    if (row == nullptr) return usage(fmt::format("there is no operator \"{}\"", escaped(problem.op)));
    const bool has_kind = !strategy.kind.empty() || strategy.inner != 0 || strategy.head_parts != 0;
    if (has_kind && problem.op != "attention")
        return usage(fmt::format("{}: kind, inner and head_parts are attention's", problem.op));
    return row;
}

}  // namespace

Result<Outline> outline(const Problem& problem, const Strategy& strategy, const Call& call) {
    SYNCOPATE_TAKE(const OperatorRow* row, row_of(problem, strategy));
    return row->outline(problem, strategy, call);
}

Result<fuse::StagedProgram> program(const Problem& problem, const Strategy& strategy, const Call& call) {
    SYNCOPATE_TAKE(const OperatorRow* row, row_of(problem, strategy));
    if (strategy.placement == Placement::unfused || strategy.placement == Placement::apart)
        return usage(
            fmt::format("{}: {} is no program of its own: {}", problem.op, name_of(strategy.placement),
                        strategy.placement == Placement::apart ? "its operators have one each"
                                                               : "the vendors' libraries carry it out"));
    return row->program(problem, strategy, call);
}

fuse::Options fuse_options(const Strategy& strategy, fuse::Device device) {
    fuse::Options options;
    options.device = device;
    options.preferred = strategy.backend;
    options.engine_blocks = strategy.engine_blocks.value_or(options.engine_blocks);
    options.kernel_sums = strategy.kernel_sums;
    options.together = strategy.together;
    return options;
}

}  // namespace syncopate::ops
