// Head start: the last round of a stage's tiles seldom fills all multiprocessors. The programs of the stage
// behind it that find one free begin a tile's time before the others, and so run more tiles.
#pragma once

#include <cstdint>

namespace syncopate::fuse {

/// A stage's first `programs` programs run `rounds` tiles before all of them take turns. So slot s is run by
/// program s % programs below slots(), from there on by (s - slots()) % (all programs).
struct HeadStart {
    std::int64_t programs = 0;
    std::int64_t rounds = 0;
    bool operator==(const HeadStart&) const = default;
    [[nodiscard]] std::int64_t slots() const { return programs * rounds; }
};

/// Tiles of one stage: how many, how many programs run them at once, and the time of one.
struct Rounds {
    std::int64_t tiles = 0;
    std::int64_t programs = 1;
    double tile_us = 0;

    /// Tiles of the last round, if it is not whole; else 0.
    [[nodiscard]] std::int64_t in_last() const { return tiles % programs; }
};

/// When `stage` ends that begins beside `before`, which begins at 0: µs.
[[nodiscard]] double end_us(const Rounds& before, const Rounds& stage, const HeadStart& head);

/// The one with which it ends first; `ready`: how many of its tiles need nothing of the last round there.
/// None where that round is whole, or where the stages' programs are not equally many.
[[nodiscard]] HeadStart head_start(const Rounds& before, const Rounds& stage, std::int64_t ready);

}  // namespace syncopate::fuse
