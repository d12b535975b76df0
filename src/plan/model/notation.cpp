#include "syncopate/plan/model/notation.hpp"

#include <array>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/names.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::plan {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    for (;;) {
        const std::size_t at = text.find(separator);
        parts.push_back(text.substr(0, at));
        if (at == text.npos) return parts;
        text.remove_prefix(at + 1);
    }
}

std::optional<std::int64_t> positive_integer(std::string_view text) {
    const std::optional<std::int64_t> value = whole_number<std::int64_t>(text);
    return value > 0 ? value : std::nullopt;
}

}  // namespace

Result<Tensor> parse_tensor(std::string_view text) {
    const std::vector<std::string_view> parts = split(text, ':');
    if (parts.size() != 3 || parts[0].empty()) {
        return usage_error(
            fmt::format("tensor \"{}\" is not NAME:SIZExSIZE:DTYPE, such as A:8192x4096:bf16", text));
    }
    Tensor tensor;
    tensor.name = parts[0];
    const std::optional<DType> dtype = dtype_from(parts[2]);
    if (!dtype) {
        std::vector<std::string_view> known;
        for (std::size_t i = 0; i < kNumDTypes; ++i) known.push_back(name_of(static_cast<DType>(i)));
        const std::string hint = did_you_mean(parts[2], known);
        return usage_error(
            fmt::format("tensor \"{}\" has the unknown dtype \"{}\"{}", text, parts[2],
                        hint.empty() ? fmt::format("; expected one of {}", fmt::join(known, ", ")) : hint));
    }
    tensor.dtype = *dtype;
    auto bytes = static_cast<std::int64_t>(size_of(*dtype));
    for (const std::string_view part : split(parts[1], 'x')) {
        const std::optional<std::int64_t> size = positive_integer(part);
        if (!size || *size > kMaxCoordinate) {
            return usage_error(fmt::format(
                "tensor \"{}\" has the size \"{}\"; expected an integer from 1 to 2^62", text, part));
        }
        if (__builtin_mul_overflow(bytes, *size, &bytes)) {
            return usage_error(fmt::format("tensor \"{}\" is too large: its bytes do not fit 64 bits", text));
        }
        tensor.shape.push_back(*size);
    }
    if (tensor.shape.size() > static_cast<std::size_t>(kMaxAxes)) {
        return usage_error(fmt::format("tensor \"{}\" has more than {} axes", text, kMaxAxes));
    }
    return tensor;
}

Result<Mesh> parse_mesh(std::string_view text) {
    Mesh mesh;
    for (const std::string_view part : split(text, ',')) {
        const std::size_t equals = part.find('=');
        const std::optional<std::int64_t> size =
            equals == part.npos || equals == 0 ? std::nullopt : positive_integer(part.substr(equals + 1));
        if (!size)
            return usage_error(fmt::format("mesh \"{}\" is not AXIS=SIZE,…, such as node=2,gpu=4", text));
        const std::string name(part.substr(0, equals));
        for (const Mesh::Axis& axis : mesh.axes) {
            if (axis.name == name)
                return usage_error(fmt::format("mesh \"{}\" names the axis {} twice", text, name));
        }
        if (*size > kMaxRanks || mesh.num_ranks() * *size > kMaxRanks) {
            return usage_error(fmt::format("mesh \"{}\" has more than {} ranks", text, kMaxRanks));
        }
        mesh.axes.push_back({name, static_cast<std::int32_t>(*size)});
    }
    if (mesh.axes.size() > static_cast<std::size_t>(kMaxAxes)) {
        return usage_error(fmt::format("mesh \"{}\" has more than {} axes", text, kMaxAxes));
    }
    return mesh;
}

std::string human_bytes(std::int64_t bytes) {
    static constexpr std::array<std::string_view, 6> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) return fmt::format("{} B", bytes);
    double value = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < kUnits.size()) {
        value /= 1024;
        ++unit;
    }
    return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, kUnits[unit]);
}

}  // namespace syncopate::plan
