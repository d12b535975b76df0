#include "syncopate/ops/problem.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ops/rows.hpp"
#include "syncopate/names.hpp"

namespace syncopate::ops {
namespace {

/// Of the operator attention; "auto": the quickest one.
constexpr std::array<std::string_view, 6> kAttentionKinds{"auto",        "all_gather", "ring",
                                                          "double_ring", "ulysses",    "ulysses_ring"};

/// Of the operator moe: programs that are parts of it.
constexpr std::array<std::string_view, 4> kMoeParts{"whole", "kept", "dispatch", "combine"};

constexpr std::array<std::string_view, 2> kAttentionShardings{"contiguous", "zigzag"};

constexpr std::int64_t kLargestExtent = std::int64_t{1} << 40;
/// Of what two extents span: more than any machine's memory holds, and integers of 64 bits hold their
/// multiples.
constexpr std::int64_t kLargestMatrix = std::int64_t{1} << 42;
constexpr std::int64_t kMostSms = 100'000;
constexpr std::array<std::string_view, 3> kScales{"none", "row", "block"};

Error usage(std::string message) { return Error{std::move(message), {}, ErrorClass::usage}; }

std::optional<std::int64_t> integer(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

std::vector<std::string_view> operator_names() {
    std::vector<std::string_view> names;
    for (const OperatorRow& row : operators()) names.push_back(row.name);
    return names;
}

/// What the text of a problem said, before it is put in the order of the operator's row.
struct Given {
    std::vector<Extent> extents;
    std::vector<Word> words;
    std::optional<plan::DType> dtype;
    std::optional<plan::DType> out;
    std::optional<Scales> scales;
    std::optional<std::int32_t> ranks;
    std::optional<std::int32_t> num_sms;
};

/// 0 or 1.
Result<std::int64_t> flag(std::string_view name, std::string_view value) {
    const std::optional<std::int64_t> number = integer(value);
    if (!number || *number < 0 || *number > 1)
        return usage(fmt::format("{}: expected 0 or 1, got \"{}\"", name, escaped(value)));
    return *number;
}

Result<std::int64_t> positive(std::string_view name, std::string_view value, std::int64_t most,
                              std::int64_t least = 1) {
    const std::optional<std::int64_t> number = integer(value);
    if (!number || *number < least || *number > most)
        return usage(fmt::format("{}: expected an integer from {} to {}, got \"{}\"", name, least, most,
                                 escaped(value)));
    return *number;
}

template <typename Values>
bool has(const Values& values, std::string_view name) {
    return std::any_of(values.begin(), values.end(), [&](const auto& entry) { return entry.name == name; });
}

/// What a word may say; empty: anything.
std::span<const std::string_view> words_of(std::string_view name) {
    if (name == "kind") return kAttentionKinds;
    if (name == "sharding") return kAttentionShardings;
    if (name == "part") return kMoeParts;
    return {};
}

Status take(const OperatorRow& row, std::string_view name, std::string_view value, Given& given) {
    const auto twice = [&] { return usage(fmt::format("{} is given twice", name)); };
    const bool multiplies = row.kind != OperatorRow::Kind::other;
    if (name == "dtype" || (multiplies && name == "out")) {
        auto& place = name == "dtype" ? given.dtype : given.out;
        if (place) return twice();
        place = plan::dtype_from(value);
        if (!place) return usage(fmt::format("{}: \"{}\" is none that is known", name, escaped(value)));
        return Done{};
    }
    if (multiplies && name == "scales") {
        if (given.scales) return twice();
        const auto at = std::ranges::find(kScales, value);
        if (at == kScales.end())
            return usage(
                fmt::format("scales: expected {}, got \"{}\"", fmt::join(kScales, ", "), escaped(value)));
        given.scales = static_cast<Scales>(at - kScales.begin());
        return Done{};
    }
    if (name == "ranks" || name == "sms") {
        auto& place = name == "ranks" ? given.ranks : given.num_sms;
        if (place) return twice();
        const auto number = name == "ranks" ? positive(name, value, plan::kMaxRanks)
                                            : positive(name, value, kMostSms, 0);  // 0: the machine's
        if (!number) return number.error();
        place = static_cast<std::int32_t>(*number);
        return Done{};
    }
    if (std::ranges::find(row.extents, name) != row.extents.end()) {
        if (has(given.extents, name)) return twice();
        const bool open = name == "bound" && value == "0";  // as keys have it where there is none
        const auto number =
            name == "causal" || open ? flag(name, value) : positive(name, value, kLargestExtent);
        if (!number) return number.error();
        given.extents.push_back({std::string(name), *number});
        return Done{};
    }
    if (std::ranges::find(row.words, name) != row.words.end()) {
        if (has(given.words, name)) return twice();
        if (value.empty()) return usage(fmt::format("{}: expected a word after =", name));
        const std::span<const std::string_view> words = words_of(name);
        if (!words.empty() && std::ranges::find(words, value) == words.end())
            return usage(fmt::format("{}: expected one of {}, not \"{}\"", name, fmt::join(words, ", "),
                                     escaped(value)));
        given.words.push_back({std::string(name), std::string(value)});
        return Done{};
    }
    std::vector<std::string_view> known(row.extents);
    known.insert(known.end(), row.words.begin(), row.words.end());
    known.insert(known.end(), {"dtype", "ranks", "sms"});
    if (multiplies) known.insert(known.end(), {"out", "scales"});
    const std::string hint = did_you_mean(name, known);
    return usage(fmt::format("{} has no \"{}\"{}", row.name, escaped(name),
                             hint.empty() ? fmt::format("; there are {}", fmt::join(known, ", ")) : hint));
}

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

Problem Problem::with_rows(std::int64_t rows) const {
    Problem made = *this;
    for (Extent& known : made.extents) {
        if (known.name == rows_name()) known.value = rows;
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
    return text + fmt::format("{},ranks={},sms={}", dtypes(), ranks, num_sms);
}

std::string Problem::dtypes() const {
    std::string text = fmt::format("dtype={}", plan::name_of(dtype));
    if (dtype == plan::DType::fp8e4m3) text += fmt::format(",out={}", plan::name_of(out));
    if (scales != Scales::none) text += fmt::format(",scales={}", kScales[static_cast<std::size_t>(scales)]);
    return text;
}

Result<Problem> parse_problem(std::string_view text, std::int32_t ranks, std::int32_t num_sms) {
    const std::size_t colon = text.find(':');
    const std::string_view name = text.substr(0, colon);
    const OperatorRow* row = operator_row(name);
    if (row == nullptr) {
        const std::vector<std::string_view> known = operator_names();
        const std::string hint = did_you_mean(name, known);
        return usage(
            fmt::format("there is no operator \"{}\"{}", escaped(name),
                        hint.empty() ? fmt::format("; there are {}", fmt::join(known, ", ")) : hint));
    }
    Given given;
    std::string_view rest = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
    while (!rest.empty()) {
        const std::size_t comma = rest.find(',');
        const std::string_view part = rest.substr(0, comma);
        rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
        const std::size_t equals = part.find('=');
        if (equals == std::string_view::npos)
            return usage(fmt::format("\"{}\": expected NAME=VALUE", escaped(part)));
        const Status taken = take(*row, part.substr(0, equals), part.substr(equals + 1), given);
        if (!taken) return taken.error();
    }
    const plan::DType dtype = given.dtype.value_or(plan::DType::bf16);
    const bool is_fp8 = dtype == plan::DType::fp8e4m3;
    Problem problem{.op = std::string(name),
                    .dtype = dtype,
                    .out = given.out.value_or(is_fp8 ? plan::DType::bf16 : dtype),
                    .scales = given.scales.value_or(Scales::none),
                    .ranks = given.ranks.value_or(ranks),
                    .num_sms = given.num_sms.value_or(num_sms)};
    for (std::size_t i = 0; i < row->extents.size(); ++i) {
        const auto at = std::ranges::find(given.extents, row->extents[i], &Extent::name);
        if (at != given.extents.end()) {
            problem.extents.push_back(*at);
        } else if (i >= row->required) {
            problem.extents.push_back({std::string(row->extents[i]), row->defaults[i - row->required]});
        } else {
            return usage(fmt::format(
                "{} needs {}: {}", row->name, row->extents[i],
                fmt::join(row->extents.begin(),
                          row->extents.begin() + static_cast<std::ptrdiff_t>(row->required), ", ")));
        }
    }
    for (const std::string_view word : row->words) {
        const auto at = std::ranges::find(given.words, word, &Word::name);
        if (at != given.words.end()) problem.words.push_back(*at);
    }
    if (const std::string objection = problem_objection(problem); !objection.empty()) return usage(objection);
    return problem;
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
