#include "syncopate/ops/spec.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ops/product.hpp"
#include "ops/rows.hpp"
#include "syncopate/names.hpp"
#include "syncopate/ops/attention.hpp"
#include "syncopate/ops/varied.hpp"
#include "syncopate/try.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::ops {
namespace {

/// Of the operator attention; "auto": the quickest one.
constexpr auto kKindsOrAuto = [] {
    std::array<std::string_view, kAttentionKinds.size() + 1> all{"auto"};
    std::ranges::copy(kAttentionKinds, all.begin() + 1);
    return all;
}();

constexpr std::array<std::string_view, 3> kShardings{"contiguous", "zigzag", "documents"};

/// Of the operator moe: programs that are parts of it.
constexpr std::array<std::string_view, 4> kMoeParts{"whole", "kept", "dispatch", "combine"};
/// And what of the experts a rank has: whole ones, or columns of all.
constexpr std::array<std::string_view, 2> kMoeParallels{"expert", "tensor"};

constexpr std::array<std::string_view, 3> kActivations{"relu", "gelu", "silu"};

constexpr std::int64_t kLargestExtent = std::int64_t{1} << 40;
constexpr std::int64_t kMostSms = 100'000;

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
    std::optional<std::int32_t> nodes;
    std::optional<std::int32_t> num_sms;
    std::vector<Word> strategy;
    std::vector<Word> call;
};

/// Whether a text is a whole number that 64 bits hold, or with `several` some with : between.
bool are_numbers(std::string_view text, bool several) {
    for (std::size_t begin = 0; begin != std::string_view::npos;) {
        const std::size_t end = several ? text.find(':', begin) : std::string_view::npos;
        const std::optional<std::int64_t> number =
            whole_number<std::int64_t>(text.substr(begin, end == std::string_view::npos ? end : end - begin));
        if (!number || *number < 0) return false;
        begin = end == std::string_view::npos ? end : end + 1;
    }
    return true;
}

/// 0 or 1.
Result<std::int64_t> flag(std::string_view name, std::string_view value) {
    const std::optional<std::int64_t> number = whole_number<std::int64_t>(value);
    if (!number || *number < 0 || *number > 1)
        return usage(fmt::format("{}: expected 0 or 1, got \"{}\"", name, escaped(value)));
    return *number;
}

Result<std::int64_t> positive(std::string_view name, std::string_view value, std::int64_t most,
                              std::int64_t least = 1) {
    const std::optional<std::int64_t> number = whole_number<std::int64_t>(value);
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
    if (name == "kind") return kKindsOrAuto;
    if (name == "sharding") return kShardings;
    if (name == "activation") return kActivations;
    if (name == "part") return kMoeParts;
    if (name == "parallel") return kMoeParallels;
    return {};
}

Status take(const OperatorRow& row, std::string_view name, std::string_view value, Given& given) {
    const auto twice = [&] { return usage(fmt::format("{} is given twice", name)); };
    const bool multiplies = row.kind != OperatorRow::Kind::other || row.scaled;
    if (name == "dtype" || (multiplies && name == "out")) {
        auto& place = name == "dtype" ? given.dtype : given.out;
        if (place) return twice();
        place = plan::dtype_from(value);
        if (!place) return usage(fmt::format("{}: \"{}\" is none that is known", name, escaped(value)));
        return Done{};
    }
    if (multiplies && name == "scales") {
        if (given.scales) return twice();
        const auto at = std::ranges::find(kScalesNames, value);
        if (at == kScalesNames.end())
            return usage(fmt::format("scales: expected {}, got \"{}\"", fmt::join(kScalesNames, ", "),
                                     escaped(value)));
        given.scales = static_cast<Scales>(at - kScalesNames.begin());
        return Done{};
    }
    if (name == "ranks" || name == "nodes" || name == "sms") {
        auto& place = name == "ranks" ? given.ranks : name == "nodes" ? given.nodes : given.num_sms;
        if (place) return twice();
        SYNCOPATE_TAKE(const auto number, name == "sms"
                                              ? positive(name, value, kMostSms, 0)  // 0: the machine's
                                              : positive(name, value, plan::kMaxRanks));
        place = static_cast<std::int32_t>(number);
        return Done{};
    }
    if (std::ranges::find(row.extents, name) != row.extents.end()) {
        if (has(given.extents, name)) return twice();
        const bool open = name == "bound" && value == "0";  // as keys have it where there is none
        SYNCOPATE_TAKE(const auto number,
                       name == "causal" || open ? flag(name, value) : positive(name, value, kLargestExtent));
        given.extents.push_back({std::string(name), number});
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
    if (const auto key =
            std::ranges::find(row.keys, name, &std::pair<std::string_view, std::string_view>::first);
        key != row.keys.end()) {
        if (has(given.strategy, key->second)) return twice();
        if (name == "backend" && value == plan::name_of(plan::Backend::nccl))
            return usage("backend: \"nccl\" carries out whole collectives, and an operator's plan has none");
        given.strategy.push_back({std::string(key->second), std::string(value)});
        return Done{};
    }
    if (std::ranges::find(row.call, name) != row.call.end()) {
        if (has(given.call, name)) return twice();
        if (!are_numbers(value, name == "cu_seqlens"))
            return usage(
                fmt::format("{}: expected {}, got \"{}\"", name,
                            name == "cu_seqlens" ? "whole numbers with : between them" : "a whole number",
                            escaped(value)));
        given.call.push_back({std::string(name), std::string(value)});
        return Done{};
    }
    std::vector<std::string_view> known(row.extents);
    known.insert(known.end(), row.words.begin(), row.words.end());
    for (const auto& [key, path] : row.keys) known.push_back(key);
    known.insert(known.end(), row.call.begin(), row.call.end());
    known.insert(known.end(), {"dtype", "ranks", "nodes", "sms"});
    if (multiplies) known.insert(known.end(), {"out", "scales"});
    const std::string hint = did_you_mean(name, known);
    return usage(fmt::format("{} has no \"{}\"{}", row.name, escaped(name),
                             hint.empty() ? fmt::format("; there are {}", fmt::join(known, ", ")) : hint));
}

}  // namespace

Result<Problem> parse_problem(std::string_view text, std::int32_t ranks, std::int32_t num_sms) {
    SYNCOPATE_TAKE(Spec spec, parse_spec(text, ranks, num_sms));
    if (spec.strategy)
        return usage(fmt::format("{}: it asks for a strategy, and a problem has none", escaped(text)));
    if (!spec.call.empty())
        return usage(fmt::format("{} is of a call, and a problem has none", spec.call.front().name));
    return std::move(spec.problem);
}

Result<Spec> parse_spec(std::string_view text, std::int32_t ranks, std::int32_t num_sms) {
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
                    .nodes = given.nodes.value_or(1),
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
    Spec spec{.problem = std::move(problem), .strategy = std::nullopt, .call = std::move(given.call)};
    std::erase_if(given.strategy, [](const Word& value) { return value.value == "0"; });
    if (!given.strategy.empty()) {
        SYNCOPATE_TAKE(Strategy strategy, varied({.kernel = std::nullopt}, given.strategy));
        spec.strategy = std::move(strategy);
    }
    return spec;
}

}  // namespace syncopate::ops
