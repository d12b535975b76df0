#include "syncopate/tune/gluon_fit.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "syncopate/tune/gluon_tiles.hpp"

namespace syncopate::tune {
namespace {

constexpr double kWorth = 1.6;       // times the quickest tiles' time: what takes longer is never chosen
constexpr double kFirstStep = 0.25;  // of a figure's logarithm
constexpr double kLastStep = 0.004;
constexpr double kRegret = 4;  // so much more counts a time lost by the choice than one that is told wrongly

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
    double off = 0;     ///< mean of |log(estimated / measured)|
    double regret = 0;  ///< mean of the chosen tiles' time over the quickest ones', less 1
};

Judged judge(const std::vector<Group>& groups, const Machine& machine) {
    double off = 0, regret = 0;
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
            off += std::abs(std::log(rank(product).first / product->us));
            ++count;
        }
    }
    return {off / static_cast<double>(count), regret / static_cast<double>(groups.size())};
}

std::vector<const FigureRow*> fitted_figures() {
    std::vector<const FigureRow*> rows;
    for (const FigureRow& row : machine_figures()) {
        const bool of_a_product = row.name.starts_with("gluon_") && row.name != "gluon_fused_us";
        if (row.figure != nullptr && of_a_product) rows.push_back(&row);
    }
    return rows;
}

}  // namespace

GluonFit fit_gluon(const std::vector<TimedProduct>& timed, const Machine& start) {
    const std::vector<Group> groups = by_shape(timed);
    const std::vector<const FigureRow*> rows = fitted_figures();
    const auto cost = [&](const Machine& machine) {
        const Judged judged = judge(groups, machine);
        return judged.off + kRegret * judged.regret;
    };
    Machine best = start;
    double least = cost(best);
    for (double step = kFirstStep; step > kLastStep;) {
        bool nearer = false;
        for (const FigureRow* row : rows) {
            for (const double factor : {std::exp(step), std::exp(-step)}) {
                Machine other = best;
                other.rates.*row->figure *= factor;
                const double made = cost(other);
                if (made >= least) continue;
                best = std::move(other);
                least = made;
                nearer = true;
            }
        }
        if (!nearer) step /= 2;
    }
    GluonFit fit{.off = judge(groups, best).off};
    for (const FigureRow* row : rows) fit.figures[std::string(row->name)] = best.rates.*row->figure;
    return fit;
}

}  // namespace syncopate::tune
