#include "syncopate/tune/machine/call_fit.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {
namespace {

constexpr double kFar = 4;        // times a figure of another machine, or one over that
constexpr int kHalvings = 40;     // of the logarithm of what is between
constexpr double kMissed = 0.01;  // of a call's time: less is not worth a word

}  // namespace

std::map<std::string, CallFit, std::less<>> fit_calls(const std::vector<TimedCall>& timed, Machine start) {
    std::map<std::string, CallFit, std::less<>> found;
    for (const TimedCall& call : timed) {
        const auto row = std::ranges::find(machine_figures(), call.figure, &FigureRow::name);
        double& figure = start.rates.*row->figure;
        const auto us_with = [&](double value) {
            figure = value;
            return estimate(call.problem, start, call.strategy).us;
        };
        double low = figure / kFar, high = figure * kFar;
        const bool rises = us_with(high) >= us_with(low);  // a rate makes calls shorter
        for (int i = 0; i < kHalvings; ++i) {
            const double between = std::sqrt(low * high);
            ((us_with(between) < call.us) == rises ? low : high) = between;
        }
        const double value = std::sqrt(low * high);
        const double off = us_with(value) / call.us - 1;
        const std::string missed =
            std::abs(off) < kMissed ? "" : fmt::format(", {:+.0f} % off with the nearest one", 100 * off);
        found[call.figure] = {value, fmt::format("{} by {} takes {:.1f} us{}", call.problem.key(),
                                                 name_of(call.strategy), call.us, missed)};
    }
    return found;
}

}  // namespace syncopate::tune
