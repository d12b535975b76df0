// Many programs by few lines. A line is every n-th of a stretch; which n has
// the longest lines in common is found by trying:
//
//      row-major tiles, 100 a row      lines of the 100 of a row
//      grouped by 8 rows               lines of every 8th: one row of a group each
//
// What no line holds is done alone.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "kernel/triton/evaluate/evaluate.hpp"
#include "syncopate/result.hpp"

namespace syncopate::kernel::triton {

/// Runs the `count` programs first, first + stride, … at once; false: they have no form in common, but `hint`
/// may say which have.
using RunLine =
    std::function<bool(std::int64_t first, std::int64_t stride, std::int64_t count, LineHint& hint)>;
using RunAlone = std::function<Status(std::int64_t program)>;

/// A stretch of programs as `stride` lines beside each other, each of `count`.
struct Weave {
    std::int64_t stride = 1;
    std::int64_t count = 0;  ///< 0: there is none worth while
};

/// The longest line that starts at `first` of the programs up to `end`, which has then been run.
[[nodiscard]] Weave find_weave(std::int64_t first, std::int64_t end, const RunLine& run);

/// Covers stretch after stretch: what was a good weave for one is tried first for the next.
class Cover {
public:
    Cover(RunLine run, RunAlone alone) : run_(std::move(run)), alone_(std::move(alone)) {}

    /// Runs the programs 0 … count - 1, each once.
    [[nodiscard]] Status all(std::int64_t count);

private:
    [[nodiscard]] bool gives_up() const;
    [[nodiscard]] Weave again(std::int64_t first, std::int64_t end);
    Status one(std::int64_t program);
    Status line(std::int64_t first, std::int64_t stride, std::int64_t end);

    RunLine run_;
    RunAlone alone_;
    Weave last_;
    std::int64_t lonely_ = 0;  // programs done alone, of late
};

}  // namespace syncopate::kernel::triton
