#include "tools/mixture_reference.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "syncopate/at.hpp"
#include "syncopate/bundle/host_kernel.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/round_up.hpp"

namespace syncopate::tools {
namespace {

constexpr std::size_t kKept = 64;    // rows of which all columns are compared one after another
constexpr double kRoomOfFp8 = 0.05;  // of the root of the terms' squares
constexpr double kRoomOfParts = 0.02;
constexpr std::int64_t kFew = 3;  // experts to which half of the routes go, where there is no bound

}  // namespace

MixtureReference::MixtureReference(const bundle::Bundle& made, std::int64_t tokens, Value value)
    : bundle_(made),
      problem_(made.op->problem),
      value_(std::move(value)),
      is_tensor_parallel_(problem_.word("parallel") == "tensor"),
      by_block_(problem_.scales == ops::Scales::block),
      ranks_(problem_.ranks),
      experts_(problem_.extent("E")),
      topk_(problem_.extent("topk")),
      hidden_(problem_.extent("H")),
      inner_(problem_.extent("F") / (is_tensor_parallel_ ? ranks_ : 1)),
      own_(is_tensor_parallel_ ? experts_ : experts_ / ranks_),
      routes_(tokens * topk_),
      bound_(problem_.extent("bound")) {}

std::int64_t MixtureReference::expert_of(int rank, int call, std::int64_t route) const {
    const std::int64_t filled = routes_ / topk_ / 4 * topk_;
    if (call % 3 == 2 && route >= routes_ - filled) return ops::kNoRoute;
    if (bound_ > 0 && !bundle_.op->drops) return (route + rank + call) % experts_;
    const auto drawn = static_cast<std::int64_t>(value_("topk_ids", rank, call, route)) + 3 +
                       7 * (static_cast<std::int64_t>(value_("topk_ids", rank, call, route + routes_)) + 3);
    return drawn % 2 == 0 ? drawn % std::min(kFew, experts_) : drawn % experts_;
}

std::optional<double> MixtureReference::routed(std::string_view name, int rank, int call,
                                               std::int64_t index) const {
    if (name == "topk_ids") return static_cast<double>(expert_of(rank, call, index));
    if (name == "topk_weights") return (value_(name, rank, call, index) + 4) / 2;
    if (!name.starts_with("scale_")) return std::nullopt;
    const double drawn = value_(name, rank, name == "scale_x" ? call : 0, index) + 3;
    return std::exp2(std::fmod(drawn, 3) - 1);
}

const std::vector<bool>& MixtureReference::taken(int call) const {
    if (taken_.first == call) return taken_.second;
    std::vector<bool> made(at(ranks_ * routes_), false);
    for (std::int64_t first = 0; first < experts_; first += own_) {
        std::int64_t left = bound_ == 0 ? ranks_ * routes_ : bound_;
        for (std::int64_t expert = first; expert < first + own_; ++expert) {
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

double MixtureReference::weight(const char* name, int there, std::int64_t here, std::int64_t k,
                                std::int64_t column) const {
    const bool first = std::string_view(name) == "w1";
    const std::int64_t columns = first ? 2 * inner_ : hidden_, depth = first ? hidden_ : inner_;
    if (!is_scaled()) return value_(name, there, 0, (here * depth + k) * columns + column);
    const std::string_view scale = first ? "scale_w1" : "scale_w2";
    const std::int64_t place = by_block_ ? (here * ceil_div(columns, ops::kScaled) + column / ops::kScaled) *
                                                   ceil_div(depth, ops::kScaled) +
                                               k / ops::kScaled
                                         : here * columns + column;
    return value_(name, there, 0, (here * columns + column) * depth + k) * *routed(scale, there, 0, place);
}

const std::vector<double>& MixtureReference::inner(int rank, int call, std::int64_t token, int there,
                                                   std::int64_t here, const Rounds& round) const {
    if (known_.size() >= kKept) known_.clear();
    const auto [kept, is_new] = known_.try_emplace({call, rank, token, there, here});
    if (is_new) kept->second = make_inner(rank, call, token, there, here, round);
    return kept->second;
}

std::vector<double> MixtureReference::make_inner(int rank, int call, std::int64_t token, int there,
                                                 std::int64_t here, const Rounds& round) const {
    const std::int64_t per_row = by_block_ ? ceil_div(hidden_, ops::kScaled) : 1;
    std::vector<double> x;
    for (std::int64_t h = 0; h < hidden_; ++h) {
        const double scale =
            is_scaled() ? *routed("scale_x", rank, call, token * per_row + (by_block_ ? h / ops::kScaled : 0))
                        : 1;
        x.push_back(scale * value_("x", rank, call, token * hidden_ + h));
    }
    const auto up = [&](std::int64_t f) {
        double sum = 0;
        for (std::int64_t h = 0; h < hidden_; ++h) sum += x[at(h)] * weight("w1", there, here, h, f);
        return sum;
    };
    std::vector<double> made;
    for (std::int64_t f = 0; f < inner_; ++f) {
        const double gate = bundle::activated(bundle_.op->activation, static_cast<float>(up(f)));
        made.push_back(gate * up(inner_ + f));
    }
    if (!is_scaled()) {
        std::ranges::transform(made, made.begin(), round);
        return made;
    }
    for (std::int64_t first = 0; first < inner_; first += ops::kScaled) {
        const auto last = std::min(first + ops::kScaled, inner_);
        float most = 0;
        for (std::int64_t f = first; f < last; ++f)
            most = std::max(most, std::abs(static_cast<float>(made[at(f)])));
        const float scale = most == 0 ? 1 : most / bundle::kLargestE4m3;
        for (std::int64_t f = first; f < last; ++f) {
            char kept = 0;
            const auto place = reinterpret_cast<std::uint64_t>(&kept);
            bundle::set_element(problem_.dtype, place, 0, static_cast<float>(made[at(f)]) / scale);
            made[at(f)] = static_cast<double>(bundle::element(problem_.dtype, place, 0)) * scale;
        }
    }
    return made;
}

double MixtureReference::row(int rank, int call, std::int64_t token, int there, std::int64_t here,
                             std::int64_t column, const Rounds& round, double& squares) const {
    const std::vector<double>& a = inner(rank, call, token, there, here, round);
    double sum = 0;
    for (std::int64_t f = 0; f < inner_; ++f) {
        const double term = a[at(f)] * weight("w2", there, here, f, column);
        sum += term;
        squares += term * term;
    }
    return round(sum);
}

MixtureReference::Element MixtureReference::expected(int rank, int call, std::int64_t token,
                                                     std::int64_t column, const Rounds& round) const {
    Element made;
    double terms = 0;
    // Each rank that has a part of it rounds its own.
    for (std::int64_t of = 0; of < (is_tensor_parallel_ ? ranks_ : 1); ++of) {
        double total = 0;
        for (std::int64_t route = token * topk_; route < (token + 1) * topk_; ++route) {
            const std::int64_t expert = expert_of(rank, call, route);
            if (expert < 0 || (!is_tensor_parallel_ && !taken(call)[at(rank * routes_ + route)])) continue;
            const auto there = static_cast<int>(is_tensor_parallel_ ? of : expert / own_);
            double squares = 0;
            const double by = *routed("topk_weights", rank, call, route);
            total += by * row(rank, call, token, there, expert % own_, column, round, squares);
            terms += by * by * squares;
        }
        made.value += is_tensor_parallel_ ? round(total) : total;
    }
    const double of_terms = is_scaled() ? kRoomOfFp8 : is_tensor_parallel_ ? kRoomOfParts : 0;
    return {round(made.value), of_terms * std::sqrt(terms)};
}

double MixtureReference::work() const {
    return static_cast<double>((is_tensor_parallel_ ? ranks_ : 1) * topk_ * inner_ * (2 * hidden_ + 1));
}

}  // namespace syncopate::tools
