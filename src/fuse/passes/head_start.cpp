#include "syncopate/fuse/passes/head_start.hpp"

#include <algorithm>

namespace syncopate::fuse {
namespace {

/// Rounds of `programs` in which `tiles` are run.
std::int64_t rounds_of(std::int64_t tiles, std::int64_t programs) {
    return tiles <= 0 ? 0 : (tiles + programs - 1) / programs;
}

}  // namespace

double end_us(const Rounds& before, const Rounds& stage, const HeadStart& head) {
    const auto rounds_us = [](std::int64_t rounds, const Rounds& of) {
        return static_cast<double>(rounds) * of.tile_us;
    };
    const double ends = rounds_us(rounds_of(before.tiles, before.programs), before);
    const std::int64_t rest = stage.tiles - head.slots();
    const std::int64_t rounds = rounds_of(rest, stage.programs);
    if (before.in_last() == 0) return ends + rounds_us(rounds, stage);
    const std::int64_t early = before.programs - before.in_last();
    return std::max(ends - before.tile_us + rounds_us(head.rounds + rounds, stage),
                    ends + rounds_us(rounds_of(rest - early, stage.programs), stage));
}

HeadStart head_start(const Rounds& before, const Rounds& stage, std::int64_t ready) {
    if (before.in_last() == 0 || stage.programs != before.programs || stage.tiles <= stage.programs)
        return {};
    HeadStart best;
    const std::int64_t early = before.programs - before.in_last();
    for (std::int64_t rounds = 1; early * rounds <= std::min(ready, stage.tiles); ++rounds) {
        const HeadStart head{early, rounds};
        if (end_us(before, stage, head) < end_us(before, stage, best)) best = head;
    }
    return best;
}

}  // namespace syncopate::fuse
