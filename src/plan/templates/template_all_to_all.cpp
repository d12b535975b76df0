#include "syncopate/plan/templates/all_to_all.hpp"

#include <optional>

#include <fmt/format.h>

#include "plan/templates/template_setup.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {

Result<Plan> all_to_all(const Mesh& mesh, const Tensor& tensor, const TemplateOptions& options) {
    SYNCOPATE_TAKE(Setup prepared, prepare("all_to_all", mesh, tensor, options));
    Setup& setup = prepared;
    SYNCOPATE_TAKE(const std::int32_t to_axis, all_to_all_axis(tensor, options));
    const std::int32_t n = setup.size();
    const std::vector<Interval> columns = split_evenly(0, tensor.shape[at(to_axis)], n);
    const auto column = [&](const Chunk& rows, std::int32_t position) {
        return Chunk{0, with_axis(rows.region, to_axis, columns[at(position)])};
    };
    std::vector<Region> pieces;
    for (std::int32_t from = 0; from < n; ++from) pieces.push_back(column(setup.shard(from), 0).region);
    SYNCOPATE_TRY(setup.bounded(pieces, n - 1));

    const auto piece = [&](std::int32_t from, std::int32_t to) -> std::optional<Chunk> {
        Chunk chunk = column(setup.shard(from), to);
        return is_empty(chunk.region) ? std::nullopt : std::optional(std::move(chunk));
    };
    const Exchange data{piece, piece, [&](std::int32_t from, std::int32_t to) { return *piece(from, to); }};
    for (const Team& team : setup.teams) {
        for (std::int32_t member = 0; member < n; ++member) {
            setup.start(team.rank(member), setup.shard(member));
            setup.end(team.rank(member), column(setup.whole(), member));
        }
        if (setup.options.algorithm == Algorithm::hierarchical) {
            exchange_hierarchical(setup.script(team), data);
        } else {
            exchange_direct(setup.script(team), data);
        }
    }
    return setup.finish();
}

Result<std::int32_t> all_to_all_axis(const Tensor& tensor, const TemplateOptions& options) {
    const auto axes = static_cast<std::int32_t>(tensor.shape.size());
    if (axes < 2) {
        return usage_error(fmt::format(
            "all_to_all: tensor {} has one axis; shards go from one axis to another", tensor.name));
    }
    const std::int32_t to_axis = options.to_axis == -1 ? (options.axis + 1) % axes : options.to_axis;
    if (to_axis < 0 || to_axis >= axes) {
        return usage_error(fmt::format("all_to_all: to_axis {} is not an axis of tensor {}; expected 0 to {}",
                                       to_axis, tensor.name, axes - 1));
    }
    if (to_axis == options.axis)
        return usage_error(
            fmt::format("all_to_all: axis and to_axis are both {}; nothing would move", to_axis));
    if (to_axis == options.minor_axis)
        return usage_error(
            fmt::format("all_to_all: minor_axis and to_axis are both {}; choose another", to_axis));
    return to_axis;
}

}  // namespace syncopate::plan
