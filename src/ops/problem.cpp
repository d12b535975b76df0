#include "syncopate/ops/problem.hpp"

#include <algorithm>
#include <array>
#include <span>

#include <fmt/format.h>

#include "ops/rows.hpp"
#include "syncopate/at.hpp"
#include "syncopate/names.hpp"

namespace syncopate::ops {
namespace {

/// Of what two extents span: more than any machine's memory holds, and integers of 64 bits hold their
/// multiples.
constexpr std::int64_t kLargestMatrix = std::int64_t{1} << 42;

}  // namespace

std::span<const OperatorRow> operators() { return all_rows(); }

const OperatorRow* operator_row(std::string_view name) {
    for (const OperatorRow& row : operators()) {
        if (row.name == name) return &row;
    }
    return nullptr;
}

std::int64_t Problem::extent(std::string_view name) const {
    for (const Extent& known : extents) {
        if (known.name == name) return known.value;
    }
    return 0;
}

std::string_view Problem::word(std::string_view name) const {
    for (const Word& known : words) {
        if (known.name == name) return known.value;
    }
    return {};
}

std::string_view Problem::rows_name() const {
    for (const std::string_view name : std::array<std::string_view, 2>{"M", "S"}) {
        if (extent(name) > 0) return name;
    }
    return {};
}

std::string_view Problem::calls_name() const {
    const std::string_view rows = rows_name();
    return rows.empty() && extent("T") > 0 ? std::string_view("T") : rows;
}

bool Problem::is_mixture() const {
    const OperatorRow* row = operator_row(op);
    return row != nullptr && row->routes;
}

Problem Problem::with_rows(std::int64_t rows) const {
    Problem made = *this;
    for (Extent& known : made.extents) {
        if (known.name == calls_name()) known.value = rows;
    }
    return made;
}

std::vector<ProductShape> Problem::products() const {
    const OperatorRow* row = operator_row(op);
    if (row == nullptr || row->products == nullptr) return {};
    return row->products(*this);
}

std::vector<Problem> Problem::parts() const {
    const OperatorRow* row = operator_row(op);
    if (row == nullptr || row->kind != OperatorRow::Kind::block) return {};
    Problem gathered = *this;
    Problem scattered = *this;
    gathered.op = "all_gather_matmul";
    gathered.extents = {{"M", extent("M")}, {"N", extent("F")}, {"K", extent("K")}};
    scattered.op = "matmul_reduce_scatter";
    scattered.extents = {{"M", extent("M")}, {"N", extent("N")}, {"K", extent("F")}};
    for (Problem* part : {&gathered, &scattered}) part->words.clear();
    return {gathered, scattered};
}

std::string Problem::key() const {
    std::string text = op + ":";
    for (const Extent& known : extents) text += fmt::format("{}={},", known.name, known.value);
    for (const Word& known : words) text += fmt::format("{}={},", known.name, known.value);
    const std::string of_nodes = nodes > 1 ? fmt::format("nodes={},", nodes) : "";
    return text + fmt::format("{},ranks={},{}sms={}", dtypes(), ranks, of_nodes, num_sms);
}

std::string Problem::dtypes() const {
    std::string text = fmt::format("dtype={}", plan::name_of(dtype));
    if (dtype == plan::DType::fp8e4m3) text += fmt::format(",out={}", plan::name_of(out));
    if (scales != Scales::none) text += fmt::format(",scales={}", kScalesNames[at(scales)]);
    return text;
}

namespace {

std::string dtype_objection(const Problem& problem, const OperatorRow& row) {
    using plan::DType;
    const auto is_one_of = [](DType type, std::initializer_list<DType> types) {
        return std::ranges::find(types, type) != types.end();
    };
    if (problem.dtype == DType::fp8e4m3) {
        if (row.kind == OperatorRow::Kind::block)
            return fmt::format("{} takes no fp8: what its first product makes would have to be scaled anew",
                               row.name);
        if (!is_one_of(problem.out, {DType::bf16, DType::fp16}))
            return fmt::format("expected out bf16 or fp16 for a product of fp8e4m3, got {}",
                               plan::name_of(problem.out));
        return {};
    }
    if (!is_one_of(problem.dtype, {DType::bf16, DType::fp16, DType::fp32}))
        return fmt::format("expected dtype bf16, fp16, fp32 or fp8e4m3, got {}",
                           plan::name_of(problem.dtype));
    if (problem.out != problem.dtype)
        return fmt::format("out={}: a product of {} makes the same", plan::name_of(problem.out),
                           plan::name_of(problem.dtype));
    if (problem.scales != Scales::none)
        return fmt::format("scales: a product of {} takes none", plan::name_of(problem.dtype));
    return {};
}

/// What is in the way, and what goes over nodes.
constexpr std::string_view kMixturesStay =
    ": its ranks map each other's memory. Of several nodes' ranks, in a torch process group, sy.ops.moe, "
    "dispatch and combine do it by such a program on each node, around which they send tokens to all nodes, "
    "and sums back";

std::string size_objection(const Problem& problem) {
    for (std::size_t i = 0; i < problem.extents.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            const Extent& one = problem.extents[j];
            const Extent& other = problem.extents[i];
            if (other.value > 0 && one.value > kLargestMatrix / other.value)
                return fmt::format("{} x {} has more than {} elements: {} x {}", one.name, other.name,
                                   kLargestMatrix, one.value, other.value);
        }
    }
    return {};
}

}  // namespace

std::string problem_objection(const Problem& problem) {
    const OperatorRow* row = operator_row(problem.op);
    if (row == nullptr) return fmt::format("there is no operator \"{}\"", escaped(problem.op));
    if (std::string objection = size_objection(problem); !objection.empty()) return objection;
    if (problem.nodes < 1 || problem.ranks % problem.nodes != 0)
        return fmt::format("nodes: {} ranks are not alike on {} nodes", problem.ranks, problem.nodes);
    if (problem.nodes > 1 && row->kind == OperatorRow::Kind::other && !problem.op.starts_with("attention"))
        return fmt::format("nodes: one program of {} is of one node's ranks, got {} nodes{}", problem.op,
                           problem.nodes, row->routes ? kMixturesStay : "");
    if (row->objection != nullptr) {
        if (std::string objection = row->objection(problem); !objection.empty()) return objection;
    }
    if (row->kind == OperatorRow::Kind::other) return {};
    if (std::string objection = dtype_objection(problem, *row); !objection.empty()) return objection;
    const auto multiple = static_cast<std::int64_t>(16 / plan::size_of(problem.dtype));
    for (const Extent& known : problem.extents) {
        if (known.name != "M" && known.value % multiple != 0) {
            return fmt::format("{} must be a multiple of {} for {} (TMA takes rows of 16 bytes), got {}",
                               known.name, multiple, plan::name_of(problem.dtype), known.value);
        }
    }
    const std::int64_t m = problem.extent("M");
    if (row->equal_blocks && m % problem.ranks != 0) {
        return fmt::format("an all-to-all sends blocks of equal size: {} rows are no multiple of {} ranks", m,
                           problem.ranks);
    }
    return {};
}

}  // namespace syncopate::ops
