#include "kernel/triton/footprints/cover.hpp"
#include "syncopate/try.hpp"

#include <algorithm>

namespace syncopate::kernel::triton {
namespace {

constexpr std::int64_t kLongestLine = 4096, kShortestLine = 3;
constexpr int kMostCuts = 6;               // of a line that is too long, until it is given up
constexpr std::int64_t kMostAlone = 1024;  // programs without a line, until none is looked for

}  // namespace

Weave find_weave(std::int64_t first, std::int64_t end, const RunLine& run) {
    Weave weave{1, std::min(end - first, kLongestLine)};
    for (int attempt = 0; attempt < kMostCuts && weave.count >= kShortestLine; ++attempt) {
        LineHint hint;
        if (run(first, weave.stride, weave.count, hint)) return weave;
        const std::int64_t most = (end - first) / weave.stride;
        const std::int64_t apart = hint.every > 1 ? std::min(most / hint.every, kLongestLine) : 0;
        if (apart > hint.fewer)
            weave = {weave.stride * hint.every, apart};
        else
            weave.count = hint.fewer;
    }
    return {};
}

Status Cover::all(std::int64_t count) {
    for (std::int64_t first = 0; first < count;) {
        Weave weave = gives_up() ? Weave{} : again(first, count);
        if (weave.count == 0 && !gives_up()) weave = find_weave(first, count, run_);
        if (weave.count == 0) {
            SYNCOPATE_TRY(one(first));
            ++first;
            continue;
        }
        lonely_ = 0;
        const std::int64_t end = std::min(count, first + weave.stride * weave.count);
        for (std::int64_t beside = 1; beside < weave.stride; ++beside) {
            SYNCOPATE_TRY(line(first + beside, weave.stride, end));
        }
        last_ = weave;
        first = end;
    }
    return Done{};
}

bool Cover::gives_up() const { return lonely_ >= kMostAlone; }

Status Cover::one(std::int64_t program) {
    ++lonely_;
    return alone_(program);
}

/// A weave as the last one, or of as many programs as there are up to `end`.
Weave Cover::again(std::int64_t first, std::int64_t end) {
    Weave weave = last_;
    weave.count = std::min(weave.count, (end - first) / weave.stride);
    LineHint hint;
    if (weave.count < kShortestLine || !run_(first, weave.stride, weave.count, hint)) return {};
    return weave;
}

/// Every stride-th program from `first` to `end`: as lines of it where it is none as a whole.
Status Cover::line(std::int64_t first, std::int64_t stride, std::int64_t end) {
    while (first < end) {
        std::int64_t count = (end - first + stride - 1) / stride;
        bool done = false;
        for (int cut = 0; cut < kMostCuts && !done && count >= kShortestLine && !gives_up(); ++cut) {
            LineHint hint;
            done = run_(first, stride, count, hint);
            if (!done) count = hint.fewer;
        }
        if (!done) {
            SYNCOPATE_TRY(one(first));
            count = 1;
        } else {
            lonely_ = 0;
        }
        first += count * stride;
    }
    return Done{};
}

}  // namespace syncopate::kernel::triton
