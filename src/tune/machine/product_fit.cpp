#include "syncopate/tune/machine/product_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/candidates/tiles.hpp"

namespace syncopate::tune {
namespace {

constexpr double kWorth = 1.6;  // times the quickest tiles' time: what takes longer is never chosen
constexpr double kFirstStep =
    0.7;  // of a figure's logarithm: a factor of two, across what no product tells apart
constexpr double kLastStep = 0.004;
constexpr double kFar =
    8;  // times a figure of another GPU, or one over that: what few products leave open stays near
constexpr double kRegret = 4;  // so much more counts a time lost by the choice than one that is told wrongly

/// Stands for what a call takes besides its tiles, which the estimate counts elsewhere: fitted, and left.
constexpr std::string_view kCall = "call_us";

using Rows = std::vector<const FigureRow*>;

/// |log(estimated / measured)|
double off(double estimated, double measured) { return std::abs(std::log(estimated / measured)); }

/// One figure that is made more or less, or two together: a call's time that tiles have been given comes back
/// only if both change.
struct Move {
    const FigureRow* row;
    double sign;
    const FigureRow* with;
    double with_sign;
};

std::vector<Move> moves_of(const Rows& rows) {
    std::vector<Move> moves;
    for (const FigureRow* row : rows) {
        for (const double sign : {1.0, -1.0}) moves.push_back({row, sign, row, 0});
    }
    for (auto row = rows.begin(); row != rows.end(); ++row) {
        for (auto with = row + 1; with != rows.end(); ++with) {
            for (const double sign : {1.0, -1.0}) {
                for (const double with_sign : {1.0, -1.0}) moves.push_back({*row, sign, *with, with_sign});
            }
        }
    }
    return moves;
}

bool is_far(const Machine& machine, const Machine& start, const FigureRow* row) {
    return off(machine.rates.*row->figure, start.rates.*row->figure) > std::log(kFar);
}

/// `start` with the figures in `rows` by which `cost` is least, nearby.
template <typename Cost>
Machine nearest(const Machine& start, const Rows& rows, const Cost& cost) {
    const std::vector<Move> moves = moves_of(rows);
    Machine best = start;
    double least = cost(best);
    for (double step = kFirstStep; step > kLastStep;) {
        bool nearer = false;
        for (const Move& move : moves) {
            Machine other = best;
            other.rates.*move.row->figure *= std::exp(move.sign * step);
            other.rates.*move.with->figure *= std::exp(move.with_sign * step);
            if (is_far(other, start, move.row) || is_far(other, start, move.with)) continue;
            const double made = cost(other);
            if (made >= least) continue;
            best = std::move(other);
            least = made;
            nearer = true;
        }
        if (!nearer) step /= 2;
    }
    return best;
}

ProductFit fit_of(const Machine& machine, const Rows& rows, double off) {
    ProductFit fit{.off = off};
    for (const FigureRow* row : rows) {
        if (row->name != kCall) fit.figures[std::string(row->name)] = machine.rates.*row->figure;
    }
    return fit;
}

Rows rows_of(std::span<const std::string_view> names) {
    Rows rows;
    for (const FigureRow& row : machine_figures()) {
        if (std::ranges::find(names, row.name) != names.end()) rows.push_back(&row);
    }
    return rows;
}

/// Products of one shape.
using Group = std::vector<const TimedProduct*>;

std::vector<Group> by_shape(const std::vector<TimedProduct>& timed) {
    std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, Group> groups;
    for (const TimedProduct& product : timed)
        groups[{product.shape.m, product.shape.n, product.shape.k}].push_back(&product);
    std::vector<Group> all;
    for (auto& [shape, group] : groups) all.push_back(std::move(group));
    return all;
}

struct Judged {
    double off = 0;     ///< on average
    double regret = 0;  ///< mean of the chosen tiles' time over the quickest ones', less 1
};

Judged judge(const std::vector<Group>& groups, const Machine& machine) {
    double sum = 0, regret = 0;
    std::size_t count = 0;
    const auto us = [](const TimedProduct* product) { return product->us; };
    for (const Group& group : groups) {
        const double least = std::ranges::min(group, {}, us)->us;
        const auto rank = [&](const TimedProduct* product) {
            return gluon_rank(machine, {}, product->shape, product->tile, machine.num_sms);
        };
        regret += std::ranges::min(group, {}, rank)->us / least - 1;
        for (const TimedProduct* product : group) {
            if (product->us > kWorth * least) continue;
            sum += off(rank(product).first + machine.rates.call_us, product->us);
            ++count;
        }
    }
    return {sum / static_cast<double>(count), regret / static_cast<double>(groups.size())};
}

}  // namespace

ProductFit fit_gluon(const std::vector<TimedProduct>& timed, const Machine& start) {
    static constexpr std::array<std::string_view, 4> kNames{"gluon_tflops", "gluon_load_gbps",
                                                            "gluon_tile_us", kCall};
    const Rows rows = rows_of(kNames);
    const std::vector<Group> groups = by_shape(timed);
    const Machine found = nearest(start, rows, [&](const Machine& machine) {
        const Judged judged = judge(groups, machine);
        return judged.off + kRegret * judged.regret;
    });
    return fit_of(found, rows, judge(groups, found).off);
}

}  // namespace syncopate::tune
