#include "syncopate/plan/templates/attention_passes.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

/// A run of rows, and whose it is.
struct Run {
    Interval rows;
    std::size_t rank = 0;
};

std::vector<Run> runs_of(const std::vector<Rows>& rows) {
    std::vector<Run> runs;
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
        for (const Interval& run : rows[rank]) runs.push_back({run, rank});
    }
    std::ranges::sort(runs, {}, [](const Run& run) { return run.rows.begin; });
    return runs;
}

/// Rows of a run that each pass takes.
std::int64_t slice_of(const Interval& rows, std::int64_t passes) {
    return (rows.size() + passes - 1) / passes;
}

std::int64_t width_of(const std::vector<Run>& runs, std::int64_t passes) {
    std::int64_t width = 0;
    for (const Run& run : runs) width += slice_of(run.rows, passes);
    return width;
}

Error refused(std::string why) { return usage_error("attention: " + std::move(why)); }

}  // namespace

Result<AttentionPasses> attention_passes(const std::vector<Rows>& rows, std::int32_t passes) {
    if (passes < 1) return refused("K and V come in at least one pass, not " + std::to_string(passes));
    AttentionPasses made;
    made.places.resize(rows.size());
    made.slices.assign(static_cast<std::size_t>(passes), std::vector<std::vector<PassSlice>>(rows.size()));
    for (const Run& run : runs_of(rows)) {
        const std::int64_t size = slice_of(run.rows, passes);
        made.places[run.rank].push_back({made.width, made.width + size});
        made.width += size;
        for (std::int64_t pass = 0; pass < passes; ++pass) {
            const std::int64_t fresh = std::min(run.rows.begin + pass * size, run.rows.end);
            const std::int64_t begin = std::min(fresh, run.rows.end - size);
            made.slices[at(pass)][run.rank].push_back({{begin, begin + size}, fresh});
        }
    }
    return made;
}

Result<std::int32_t> passes_within(const std::vector<Rows>& rows, std::int64_t most) {
    const std::vector<Run> runs = runs_of(rows);
    std::int64_t longest = 1;
    for (const Run& run : runs) longest = std::max(longest, run.rows.size());
    if (most < static_cast<std::int64_t>(runs.size()))
        return refused("K and V of " + std::to_string(most) + " rows at once are too few: each of " +
                       std::to_string(runs.size()) + " runs of rows brings one at least");
    std::int64_t few = 1, many = longest;  // the width falls with the number of passes
    while (few < many) {
        const std::int64_t middle = few + (many - few) / 2;
        if (width_of(runs, middle) <= most)
            many = middle;
        else
            few = middle + 1;
    }
    return static_cast<std::int32_t>(few);
}

}  // namespace syncopate::plan
