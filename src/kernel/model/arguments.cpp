// The notations of the command line for arguments, tensors and grids.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "syncopate/io.hpp"
#include "syncopate/kernel/model/arguments.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::kernel {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::size_t begin = 0;
    while (true) {
        const std::size_t end = text.find(separator, begin);
        parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
        if (end == std::string::npos) return parts;
        begin = end + 1;
    }
}

/// Whole numbers, a part of what was `given`.
Result<std::vector<std::int64_t>> integers(const std::string& text, char separator, std::int64_t least,
                                           const std::string& given) {
    std::vector<std::int64_t> result;
    for (const std::string& part : split(text, separator)) {
        const std::optional<std::int64_t> value = whole_number<std::int64_t>(part);
        if (part.empty()) return usage_error("`" + given + "` lacks a whole number");
        if (!value) return usage_error("`" + part + "` in `" + text + "` is not a whole number");
        if (value < least)
            return usage_error("`" + part + "` in `" + text + "` is below " + std::to_string(least));
        result.push_back(*value);
    }
    return result;
}

/// The whole numbers of a file, with commas or white space between them.
Result<std::vector<std::int64_t>> integers_of_file(const std::string& path) {
    SYNCOPATE_TAKE(const std::string text, read_file(path));
    constexpr std::string_view kBetween = ", \t\r\n";
    std::vector<std::int64_t> result;
    for (std::size_t begin = text.find_first_not_of(kBetween); begin != std::string::npos;) {
        const std::size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
        const std::string part = text.substr(begin, end - begin);
        const std::optional<std::int64_t> value = whole_number<std::int64_t>(part);
        if (!value) {
            const auto line =
                std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
            return Error{"`" + escaped(part) + "` is not a whole number",
                         {.file = path, .line = static_cast<int>(line) + 1}};
        }
        result.push_back(*value);
        begin = text.find_first_not_of(kBetween, end);
    }
    if (result.empty()) return Error{"holds no whole number", {.file = path}};
    return result;
}

/// The name of an element type without that of its module: tl.float16, torch.float16. Other words stay.
std::string without_module(const std::string& name) {
    const std::size_t dot = name.find_last_of('.');
    if (dot == std::string::npos) return name;
    const std::string module = name.substr(0, dot);
    return module == "tl" || module == "torch" || module == "triton.language" ? name.substr(dot + 1) : name;
}

/// What Python calls inf and nan: "inf", "float('-inf')". Nullopt: it is none of these.
std::optional<double> without_digits(std::string_view text) {
    constexpr std::string_view kCall = "float(";
    if (text.starts_with(kCall) && text.ends_with(')')) {
        text = text.substr(kCall.size(), text.size() - kCall.size() - 1);
        if (text.size() < 2 || text.front() != text.back() || (text[0] != '"' && text[0] != '\''))
            return std::nullopt;
        text = text.substr(1, text.size() - 2);
    }
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    return std::nullopt;
}

}  // namespace

Result<std::map<std::string, Scalar>> parse_scalars(const std::string& text) {
    std::map<std::string, Scalar> result;
    if (text.empty()) return result;
    for (const std::string& part : split(text, ',')) {
        const std::size_t equals = part.find('=');
        if (part.empty())
            return usage_error("`" + text + "` has a comma too many: write NAME=VALUE,NAME=VALUE");
        if (equals == std::string::npos || equals == 0)
            return usage_error("`" + part + "` is not NAME=VALUE");
        const std::string name = part.substr(0, equals);
        std::string value = part.substr(equals + 1);
        const std::optional<std::int64_t> number = whole_number<std::int64_t>(value);
        Scalar scalar;
        if (value == "True") {
            scalar = true;
        } else if (value == "False") {
            scalar = false;
        } else if (value == "None") {
            scalar = NoneValue{};
        } else if (number) {
            scalar = *number;
        } else {
            char* end = nullptr;
            const double real = std::strtod(value.c_str(), &end);
            if (value.empty()) return usage_error("`" + name + "` has no value");
            const bool quoted = value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
                                value.back() == value.front();
            const std::optional<double> no_number = without_digits(value);
            const bool starts_numeric =
                value[0] == '-' || value[0] == '.' || (value[0] >= '0' && value[0] <= '9');
            if (value.find_first_not_of("-0123456789") == std::string::npos && starts_numeric)
                return usage_error("`" + part + "` does not fit 64 bits");
            if (no_number)
                scalar = *no_number;
            else if (starts_numeric && std::isinf(real))
                return usage_error("`" + part + "` does not fit a float; write inf where it is meant");
            else if (starts_numeric && end == value.c_str() + value.size())
                scalar = real;
            else if (starts_numeric)
                return usage_error("`" + value + "`, given for `" + name + "`, is not a number");
            else
                scalar = quoted ? value.substr(1, value.size() - 2) : without_module(value);
        }
        if (!result.emplace(name, std::move(scalar)).second)
            return usage_error("`" + name + "` is given twice");
    }
    return result;
}

Result<std::pair<std::string, TensorArgument>> parse_tensor(const std::string& text) {
    const std::string form = "; a tensor is NAME=512x256:bf16[:STRIDES][@BLOCK]";
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
        return usage_error("`" + text + "` is not a tensor" + form);
    TensorArgument tensor;
    std::string rest = text.substr(equals + 1);
    if (const std::size_t at = rest.find('@'); at != std::string::npos) {
        SYNCOPATE_TAKE(const auto block, integers(rest.substr(at + 1), 'x', 1, text));
        tensor.block = block;
        rest.resize(at);
    }
    const std::vector<std::string> parts = split(rest, ':');
    if (parts.size() < 2 || parts.size() > 3) return usage_error("`" + text + "` is not a tensor" + form);
    SYNCOPATE_TAKE(const auto shape, integers(parts[0], 'x', 0, text));
    tensor.shape = shape;
    const auto dtype = plan::dtype_from(parts[1]);
    if (!dtype)
        return usage_error("`" + parts[1] + "` in `" + text +
                           "` is not an element type such as bf16, fp16 or fp32");
    tensor.dtype = *dtype;
    if (parts.size() == 3) {
        SYNCOPATE_TAKE(const auto strides, integers(parts[2], ',', 0, text));
        tensor.strides = strides;
        if (tensor.strides.size() != tensor.shape.size())
            return usage_error("`" + text + "` needs one stride per axis");
    }
    if (!tensor.block.empty() && tensor.block.size() != tensor.shape.size())
        return usage_error("`" + text + "` needs one block size per axis");
    return std::pair{text.substr(0, equals), std::move(tensor)};
}

Result<std::pair<std::string, std::vector<std::int64_t>>> parse_values(const std::string& text) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
        return usage_error("`" + text + "` gives no values; write NAME=0,137,2178 or NAME=@FILE");
    const std::string given = text.substr(equals + 1);
    SYNCOPATE_TAKE(const auto values,
                   given.starts_with('@')
                       ? integers_of_file(given.substr(1))
                       : integers(given, ',', std::numeric_limits<std::int64_t>::min(), text));
    return std::pair(text.substr(0, equals), values);
}

Status set_values(Arguments& arguments, const std::string& name, std::vector<std::int64_t> values) {
    const auto [place, is_new] = arguments.tensors.try_emplace(name);
    TensorArgument& tensor = place->second;
    if (!tensor.values.empty()) return usage_error("the values of `" + name + "` are given twice");
    if (is_new) {
        const bool wide = std::ranges::any_of(values, [](std::int64_t x) {
            return x < std::numeric_limits<std::int32_t>::min() ||
                   x > std::numeric_limits<std::int32_t>::max();
        });
        tensor.shape = {static_cast<std::int64_t>(values.size())};
        tensor.dtype = wide ? plan::DType::int64 : plan::DType::int32;
    }
    tensor.values = std::move(values);
    return Done{};
}

Result<std::array<std::int64_t, 3>> parse_grid(const std::string& text) {
    SYNCOPATE_TAKE(const auto given, integers(text, ',', 1, text));
    if (given.size() > 3) return usage_error("`" + text + "`: a grid has one to three axes");
    std::array<std::int64_t, 3> grid{1, 1, 1};
    for (std::size_t i = 0; i < given.size(); ++i) grid[i] = given[i];
    return grid;
}

}  // namespace syncopate::kernel
