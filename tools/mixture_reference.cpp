#include "tools/mixture_reference.hpp"

#include <algorithm>

#include "syncopate/at.hpp"
#include "syncopate/bundle/host_kernel.hpp"

namespace syncopate::tools {
namespace {

constexpr std::int64_t kFew = 3;  // experts to which half of the routes go, where there is no bound

}  // namespace

MixtureReference::MixtureReference(const bundle::Bundle& made, std::int64_t tokens, Value value)
    : bundle_(made), value_(std::move(value)) {
    const ops::Problem& of = made.op->problem;
    ranks_ = of.ranks;
    experts_ = of.extent("E");
    topk_ = of.extent("topk");
    hidden_ = of.extent("H");
    inner_ = of.extent("F");
    routes_ = tokens * topk_;
    bound_ = of.extent("bound");
}

std::int64_t MixtureReference::expert_of(int rank, int call, std::int64_t route) const {
    if (bound_ > 0 && !bundle_.op->drops) return (route + rank + call) % experts_;
    const auto drawn = static_cast<std::int64_t>(value_("topk_ids", rank, call, route)) + 3 +
                       7 * (static_cast<std::int64_t>(value_("topk_ids", rank, call, route + routes_)) + 3);
    return drawn % 2 == 0 ? drawn % std::min(kFew, experts_) : drawn % experts_;
}

std::optional<double> MixtureReference::routed(std::string_view name, int rank, int call,
                                               std::int64_t index) const {
    if (name == "topk_ids") return static_cast<double>(expert_of(rank, call, index));
    if (name == "topk_weights") return (value_(name, rank, call, index) + 4) / 2;
    return std::nullopt;
}

const std::vector<bool>& MixtureReference::taken(int call) const {
    if (taken_.first == call) return taken_.second;
    std::vector<bool> made(at(ranks_ * routes_), false);
    const std::int64_t own = experts_ / ranks_;
    for (std::int64_t first = 0; first < experts_; first += own) {
        std::int64_t left = bound_ == 0 ? ranks_ * routes_ : bound_;
        for (std::int64_t expert = first; expert < first + own; ++expert) {
            for (std::int64_t place = 0; place < ranks_ * routes_; ++place) {
                if (expert_of(static_cast<int>(place / routes_), call, place % routes_) == expert &&
                    left-- > 0)
                    made[at(place)] = true;
            }
        }
    }
    taken_ = {call, std::move(made)};
    return taken_.second;
}

double MixtureReference::expected(int rank, int call, std::int64_t token, std::int64_t column,
                                  const std::function<double(double)>& round) const {
    const std::int64_t own = experts_ / ranks_;
    double total = 0;
    for (std::int64_t route = token * topk_; route < (token + 1) * topk_; ++route) {
        if (!taken(call)[at(rank * routes_ + route)]) continue;
        const std::int64_t expert = expert_of(rank, call, route);
        const int there = static_cast<int>(expert / own);
        const std::int64_t here = expert % own;
        const auto up = [&](std::int64_t f) {
            double sum = 0;
            for (std::int64_t h = 0; h < hidden_; ++h)
                sum += value_("x", rank, call, token * hidden_ + h) *
                       value_("w1", there, 0, (here * hidden_ + h) * 2 * inner_ + f);
            return sum;
        };
        double sum = 0;
        for (std::int64_t f = 0; f < inner_; ++f) {
            const double gate = bundle::activated(bundle_.op->activation, static_cast<float>(up(f)));
            sum +=
                round(gate * up(inner_ + f)) * value_("w2", there, 0, (here * inner_ + f) * hidden_ + column);
        }
        total += *routed("topk_weights", rank, call, route) * round(sum);
    }
    return round(total);
}

double MixtureReference::work() const { return static_cast<double>(topk_ * inner_ * (2 * hidden_ + 1)); }

}  // namespace syncopate::tools
