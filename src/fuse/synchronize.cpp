#include "syncopate/fuse/synchronize.hpp"

#include <algorithm>
#include <iterator>
#include <unordered_map>

namespace syncopate::fuse {
namespace {

/// The waits of one class of tiles, before its program's knowledge is taken into account: by iteration,
/// ascending.
struct Step {
    std::int64_t iteration = 0;
    std::vector<std::int32_t> ops;
};

std::vector<Step> steps_of(const Precedence& precedence, const std::vector<Need>& needs, bool phases) {
    std::vector<Step> steps;
    std::vector<std::int32_t> so_far;
    for (std::size_t at = 0; at < needs.size();) {
        const std::int64_t iteration = phases ? needs[at].iteration : 0;
        std::vector<std::int32_t> added;
        for (; at < needs.size() && (!phases || needs[at].iteration == iteration); ++at)
            added.push_back(needs[at].op);
        so_far.insert(so_far.end(), added.begin(), added.end());
        const std::vector<std::int32_t> last = last_of(precedence, so_far);
        std::sort(added.begin(), added.end());
        Step step{iteration, {}};
        std::set_intersection(added.begin(), added.end(), last.begin(), last.end(),
                              std::back_inserter(step.ops));
        if (!step.ops.empty()) steps.push_back(std::move(step));
    }
    return steps;
}

}  // namespace

Synchronization synchronize(const Precedence& precedence, const Dependence& dependence,
                            const std::vector<std::vector<std::int64_t>>& tiles,
                            const std::vector<std::int64_t>& program_of, std::int64_t trips) {
    Synchronization result;
    result.slots.resize(tiles.size());
    result.seen_by_kernel.resize(tiles.size());
    const bool phases = trips > 0;
    const std::int64_t num_programs =
        program_of.empty() ? 0 : 1 + *std::max_element(program_of.begin(), program_of.end());

    for (std::size_t rank = 0; rank < tiles.size(); ++rank) {
        std::vector<std::vector<Step>> steps;
        std::vector<std::int32_t> needed;
        for (const std::vector<Need>& needs : dependence.needs[rank]) {
            steps.push_back(steps_of(precedence, needs, phases));
            for (const Step& step : steps.back())
                needed.insert(needed.end(), step.ops.begin(), step.ops.end());
        }
        std::sort(needed.begin(), needed.end());
        needed.erase(std::unique(needed.begin(), needed.end()), needed.end());

        // What waiting for an op shows: itself and those of `needed` that precede it, as indices into
        // `needed`.
        std::unordered_map<std::int32_t, std::vector<std::size_t>> shows;
        for (const std::int32_t id : needed) {
            const std::vector<bool> completed = completed_with(precedence, {id});
            for (std::size_t at = 0; at < needed.size(); ++at) {
                if (completed[needed[at]]) shows[id].push_back(at);
            }
        }
        std::vector<std::vector<bool>> seen(num_programs, std::vector<bool>(needed.size(), false));
        const auto index_of = [&](std::int32_t id) {
            return static_cast<std::size_t>(std::lower_bound(needed.begin(), needed.end(), id) -
                                            needed.begin());
        };

        std::vector<std::int32_t> waited;
        result.slots[rank].resize(tiles[rank].size());
        for (std::size_t slot = 0; slot < tiles[rank].size(); ++slot) {
            std::vector<bool>& known = seen[program_of[slot]];
            SlotWaits& waits = result.slots[rank][slot];
            if (phases) waits.phases.push_back({trips, {}});
            for (const Step& step : steps[dependence.class_of[tiles[rank][slot]]]) {
                std::vector<std::int32_t> unseen;
                for (const std::int32_t id : step.ops) {
                    if (!known[index_of(id)]) unseen.push_back(id);
                }
                if (unseen.empty()) continue;
                for (const std::int32_t id : unseen) {
                    for (const std::size_t at : shows[id]) known[at] = true;
                }
                waited.insert(waited.end(), unseen.begin(), unseen.end());
                if (step.iteration == 0) {
                    waits.ops = std::move(unseen);
                } else {
                    waits.phases.back().iteration_end = step.iteration;
                    waits.phases.push_back({trips, std::move(unseen)});
                }
            }
        }
        std::sort(waited.begin(), waited.end());
        waited.erase(std::unique(waited.begin(), waited.end()), waited.end());
        result.seen_by_kernel[rank] = std::move(waited);
    }

    result.transfers.resize(precedence.ops.size());
    for (std::int32_t id = 0; id < precedence.num_ops(); ++id) {
        std::vector<std::int32_t> last = last_of(precedence, precedence.before[id]);
        std::erase(last, precedence.stream_previous[id]);  // the stream's own order needs no wait
        result.transfers[id] = std::move(last);
    }
    return result;
}

}  // namespace syncopate::fuse
