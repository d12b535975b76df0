#include "tune/play/transfer_plan.hpp"

#include <algorithm>
#include <utility>
#include "syncopate/try.hpp"

namespace syncopate::tune {

using plan::Backend;

Result<plan::Plan> plan_of(const Problem& problem, std::string op, const ProductShape& shape,
                           const Strategy& strategy) {
    Problem one = problem;
    one.op = std::move(op);
    one.extents = {{"M", shape.m}, {"N", shape.n}, {"K", shape.k}};
    one.words.clear();
    one.scales = Scales::none;
    SYNCOPATE_TAKE(ops::Outline made, ops::outline(one, strategy));
    return std::move(made.plan);
}

void send_all_by(plan::Plan& plan, Backend backend) {
    for (std::vector<plan::Op>& list : plan.ranks) {
        for (plan::Op& op : list) {
            if (op.kind != plan::OpKind::local && op.backend == Backend::automatic) op.backend = backend;
        }
    }
}

std::vector<std::vector<plan::OpTiming>> timings_for(const plan::Plan& plan) {
    std::vector<std::vector<plan::OpTiming>> timings;
    for (const std::vector<plan::Op>& list : plan.ranks) timings.emplace_back(list.size());
    return timings;
}

double latest(const plan::Simulation& simulation) {
    double last = 0;
    for (const auto& list : simulation.ops) {
        for (const plan::OpTime& op : list) last = std::max(last, op.end_us);
    }
    return last;
}

}  // namespace syncopate::tune
