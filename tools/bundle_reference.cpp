#include "tools/bundle_reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "syncopate/bundle/host_kernel.hpp"
#include "syncopate/digest.hpp"
#include "syncopate/ops/operators.hpp"

namespace syncopate::tools {
namespace {

constexpr std::int64_t kMostCompared = 4096;
constexpr double kMostWork = 2e9;  // multiplications
constexpr std::int64_t kSpread = 7;
constexpr double kRoom = 0.02;  // of a value that an activation rounds

/// From -3 to 3, without an order that a wrong place would not break.
double value_of(std::string_view name, int rank, int call, std::int64_t index) {
    std::uint64_t mixed = hash(name) + 0x9e3779b97f4a7c15U * static_cast<std::uint64_t>(index + 1) +
                          0xbf58476d1ce4e5b9U * static_cast<std::uint64_t>(rank + 1) +
                          0x94d049bb133111ebU * static_cast<std::uint64_t>(call + 1);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
    return static_cast<double>((mixed >> 33) % kSpread) - 3;
}

/// Where `rank`'s rows begin, of `rows` shared out: the first ranks have one more.
std::int64_t first_row(std::int64_t rows, std::int64_t ranks, std::int64_t rank) {
    return rank * (rows / ranks) + std::min(rank, rows % ranks);
}

std::int64_t owner_of(std::int64_t rows, std::int64_t ranks, std::int64_t row) {
    std::int64_t rank = 0;
    while (rank + 1 < ranks && first_row(rows, ranks, rank + 1) <= row) ++rank;
    return rank;
}

float as_float(plan::DType dtype, const std::string& content, std::int64_t index) {
    return bundle::element(dtype, reinterpret_cast<std::uint64_t>(content.data()), index);
}

bool is_float(plan::DType dtype) {
    return dtype == plan::DType::bf16 || dtype == plan::DType::fp16 || dtype == plan::DType::fp32 ||
           dtype == plan::DType::fp8e4m3;
}

}  // namespace

OperatorReference::OperatorReference(const bundle::Bundle& made, std::int64_t rows) : bundle_(made) {
    if (!made.op) return;
    problem_ = made.op->problem.with_rows(rows);
    products_ = problem_.products();
    if (made.op->takes_exact_rows()) mixture_.emplace(made, rows, value_of);
}

std::string OperatorReference::content(std::string_view name, plan::DType dtype,
                                       const std::vector<std::int64_t>& shape, int rank, int call) const {
    std::string bytes(plan::Tensor{"", shape, dtype}.bytes(), '\0');
    const auto write_ids = [&]<typename Id>(Id /*of*/) {
        auto* const numbers = reinterpret_cast<Id*>(bytes.data());
        for (std::size_t i = 0; i < bytes.size() / sizeof(Id); ++i)
            numbers[i] = static_cast<Id>(*mixture_->routed(name, rank, call, static_cast<std::int64_t>(i)));
    };
    if (mixture_ && dtype == plan::DType::int64) write_ids(std::int64_t{});
    if (mixture_ && dtype == plan::DType::int32) write_ids(std::int32_t{});
    if (!is_float(dtype)) return bytes;
    const auto count = static_cast<std::int64_t>(bytes.size() / plan::size_of(dtype));
    const bool output = name == "y";
    for (std::int64_t index = 0; index < count; ++index) {
        const std::optional<double> routed =
            mixture_ ? mixture_->routed(name, rank, call, index) : std::nullopt;
        const double value = output   ? std::numeric_limits<double>::quiet_NaN()
                             : routed ? *routed
                                      : value_of(name, rank, name == "x" ? call : 0, index);
        bundle::set_element(dtype, reinterpret_cast<std::uint64_t>(bytes.data()), index,
                            static_cast<float>(value));
    }
    return bytes;
}

double OperatorReference::rounded(double value) const {
    float kept = 0;
    char place[4] = {};
    const auto address = reinterpret_cast<std::uint64_t>(&place[0]);
    bundle::set_element(problem_.out, address, 0, static_cast<float>(value));
    kept = bundle::element(problem_.out, address, 0);
    return kept;
}

/// x as the product of `rank` sees it, gathered or exchanged.
double OperatorReference::x_of_row(int call, std::int64_t row, std::int64_t k, int rank) const {
    using Kind = ops::OperatorRow::Kind;
    const Kind kind = ops::operator_row(problem_.op)->kind;
    const std::int64_t m = problem_.extent("M");
    const std::int64_t depth = products_.front().k;
    std::int64_t from = rank;
    std::int64_t there = row;
    if (kind == Kind::gathers || kind == Kind::block) {
        from = owner_of(m, problem_.ranks, row);
        there = row - first_row(m, problem_.ranks, from);
    } else if (kind == Kind::exchanges) {
        const std::int64_t block = m / problem_.ranks;
        from = row / block;
        there = rank * block + row % block;
    }
    return value_of("x", static_cast<int>(from), call, there * depth + k);
}

/// An element of the first product of `rank`, or of both, as it rounds them.
double OperatorReference::product(int rank, int call, std::int64_t row, std::int64_t column) const {
    const bool transposed = bundle_.op->call.w_transposed;
    const bool both = products_.size() == 2;
    const auto w = [&](const char* name, const ops::ProductShape& of, std::int64_t k, std::int64_t n) {
        return value_of(name, rank, 0, transposed ? n * of.k + k : k * of.n + n);
    };
    const auto first = [&](std::int64_t n) {
        double sum = 0;
        for (std::int64_t k = 0; k < products_.front().k; ++k)
            sum += x_of_row(call, row, k, rank) * w(both ? "w1" : "w", products_.front(), k, n);
        if (bundle_.op->call.bias == 1) sum += value_of("bias", rank, 0, n);
        return rounded(bundle::activated(bundle_.op->activation, static_cast<float>(sum)));
    };
    if (!both) return first(column);
    double sum = 0;
    for (std::int64_t k = 0; k < products_.back().k; ++k)
        sum += first(k) * w("w2", products_.back(), k, column);
    return rounded(sum);
}

OperatorReference::Element OperatorReference::expected(int rank, int call, std::int64_t row,
                                                       std::int64_t column) const {
    if (!mixture_) {
        const double value = of_products(rank, call, row, column);
        return {value, bundle_.op->activation.empty() ? 0 : kRoom * (1 + std::abs(value))};
    }
    const auto made =
        mixture_->expected(rank, call, row, column, [this](double value) { return rounded(value); });
    const bool is_exact = bundle_.op->activation.empty() && !mixture_->is_scaled();
    return {made.value, is_exact ? 0 : kRoom * (1 + std::abs(made.value)) + made.room};
}

double OperatorReference::of_products(int rank, int call, std::int64_t row, std::int64_t column) const {
    using Kind = ops::OperatorRow::Kind;
    const Kind kind = ops::operator_row(problem_.op)->kind;
    const std::int64_t m = problem_.extent("M");
    if (kind == Kind::gathers || kind == Kind::exchanges) return product(rank, call, row, column);
    if (kind == Kind::sends) {
        const std::int64_t block = m / problem_.ranks;
        return product(static_cast<int>(row / block), call, rank * block + row % block, column);
    }
    const std::int64_t there = kind == Kind::reduces ? row : row + first_row(m, problem_.ranks, rank);
    double sum = 0;
    for (int other = 0; other < problem_.ranks; ++other) sum += product(other, call, there, column);
    return rounded(sum);
}

Status OperatorReference::compare(const std::string& y, plan::DType dtype,
                                  const std::vector<std::int64_t>& shape, int rank, int call) const {
    const bool scaled = problem_.scales != ops::Scales::none || problem_.dtype == plan::DType::fp8e4m3;
    if ((products_.empty() && !mixture_) || !is_float(dtype) || (scaled && !mixture_) ||
        !is_float(problem_.dtype))
        return usage_error(bundle_.name + ": there is nothing to compare with");
    const std::int64_t columns = shape.back();
    const std::int64_t count = shape.front() * columns;
    const double work = mixture_ ? mixture_->work()
                                 : static_cast<double>(products_.front().k) * problem_.ranks *
                                       (products_.size() == 2 ? static_cast<double>(products_.back().k) : 1);
    const std::int64_t most =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(kMostWork / 10 / work), 16, kMostCompared);
    const std::int64_t step = std::max<std::int64_t>(1, count / most) | 1;  // odd: all columns come in turn
    for (std::int64_t index = 0; index < count; index += step) {
        const auto [wanted, within] = expected(rank, call, index / columns, index % columns);
        const double found = as_float(dtype, y, index);
        if (found == wanted || std::abs(found - wanted) <= within) continue;  // infinities are alike
        return Error{fmt::format("{} of {} rows, call {}: y[{}, {}] is {}, not {}", bundle_.name,
                                 problem_.extent(problem_.calls_name()), call, index / columns,
                                 index % columns, found, wanted),
                     {.rank = rank}};
    }
    return Done{};
}

}  // namespace syncopate::tools
