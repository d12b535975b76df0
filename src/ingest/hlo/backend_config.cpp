#include "ingest/hlo/backend_config.hpp"

#include <algorithm>
#include <charconv>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

/// The whole numbers without a sign in a list of any form.
std::vector<std::int64_t> numbers_of(std::string_view list) {
    std::vector<std::int64_t> values;
    for (std::size_t at = 0; (at = list.find_first_of("0123456789", at)) != list.npos;) {
        std::int64_t value = 0;
        const auto stop = std::from_chars(list.data() + at, list.data() + list.size(), value).ptr;
        at = static_cast<std::size_t>(stop - list.data());
        if (values.size() < kMaxShapeAxes) values.push_back(value);
    }
    return values;
}

/// KEY":["1","2"] or KEY":[1,2] in JSON; empty if it is not there.
std::vector<std::int64_t> listed(std::string_view json, std::string_view key) {
    const std::size_t begin = json.find('[', json.find(key));
    if (json.find(key) == json.npos || begin == json.npos) return {};
    return numbers_of(json.substr(begin, json.find(']', begin) - begin));
}

/// What follows `key` in JSON, up to where its value ends; empty if it is not there.
std::string word_of(std::string_view json, std::string_view key) {
    const std::size_t begin = json.find(key);
    if (begin == json.npos) return {};
    const std::string_view rest = json.substr(begin + key.size());
    return std::string(rest.substr(0, rest.find_first_of("\",}")));
}

/// {"known_trip_count":{"n":"25"}} in a while's backend_config.
std::int64_t known_trip_count(std::string_view config) {
    const std::size_t key = config.find("\"known_trip_count\"");
    if (key == config.npos) return -1;
    const std::size_t n = config.find("\"n\"", key);
    if (n == config.npos) return -1;
    const std::size_t digit = config.find_first_of("0123456789", n);
    std::int64_t value = -1;
    if (digit != config.npos) {
        std::from_chars(config.data() + digit, config.data() + config.size(), value);
    }
    return value;
}

}  // namespace

void take_backend_config(std::string_view text, Instruction& made) {
    std::string raw(text);
    if (raw.starts_with('"')) std::erase(raw, '\\');  // JSON that was printed as a string
    made.trip_count = known_trip_count(raw);
    const std::size_t numbers = raw.find("dot_dimension_numbers");
    if (made.opcode != "custom-call" || numbers == raw.npos) return;
    DotAxes& dot = made.dot.emplace();
    const std::string_view config = std::string_view(raw).substr(numbers);
    dot.lhs_batch = listed(config, "lhs_batch_dimensions");
    dot.rhs_batch = listed(config, "rhs_batch_dimensions");
    dot.lhs_contracting = listed(config, "lhs_contracting_dimensions");
    dot.rhs_contracting = listed(config, "rhs_contracting_dimensions");
    const std::string epilogue = word_of(raw, "\"epilogue\":\"");
    const std::string alpha = word_of(raw, "\"alpha_real\":");
    const std::string beta = word_of(raw, "\"beta\":");
    std::vector<std::string> after;
    if (!epilogue.empty() && epilogue != "DEFAULT") after.push_back("epilogue " + escaped(epilogue, 40));
    if (!alpha.empty() && alpha != "1" && alpha != "1.0") after.push_back("alpha " + escaped(alpha, 20));
    if (beta.find_first_not_of("0.") != beta.npos) after.push_back("beta " + escaped(beta, 20));
    made.after_dot = fmt::format("{}", fmt::join(after, ", "));
}

std::vector<std::int64_t> order_in_memory(std::string_view braces, std::size_t axes) {
    if (braces.find("T(") != braces.npos) return {-1};
    std::vector<std::int64_t> order = numbers_of(braces.substr(0, braces.find(':')));
    std::reverse(order.begin(), order.end());
    bool rows = order.size() == axes;
    for (std::size_t i = 0; i < order.size(); ++i) rows = rows && order[i] == static_cast<std::int64_t>(i);
    return rows || order.empty() ? std::vector<std::int64_t>{} : order;
}

}  // namespace syncopate::ingest
