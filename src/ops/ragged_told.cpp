#include "ops/ragged_told.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "syncopate/at.hpp"

namespace syncopate::ops {
namespace {

constexpr std::array<std::pair<const char*, RaggedForm>, 7> kForms{{{"offsets", RaggedForm::offsets},
                                                                    {"begins", RaggedForm::begins},
                                                                    {"ends", RaggedForm::ends},
                                                                    {"sizes", RaggedForm::sizes},
                                                                    {"experts", RaggedForm::experts},
                                                                    {"rows", RaggedForm::rows},
                                                                    {"padded", RaggedForm::padded}}};

/// A number, or what a parameter is; 0: neither.
std::int64_t number_of(const std::string& text, const kernel::Arguments& arguments) {
    if (const auto named = arguments.scalars.find(text); named != arguments.scalars.end()) {
        const auto* number = std::get_if<std::int64_t>(&named->second);
        return number == nullptr ? 0 : *number;
    }
    std::int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number);
    return read.ec == std::errc() && read.ptr == end ? number : 0;
}

}  // namespace

const char* name_of(RaggedForm form) { return kForms[static_cast<std::size_t>(form)].first; }

bool is_by_block(RaggedForm form) {
    return form == RaggedForm::experts || form == RaggedForm::rows || form == RaggedForm::padded;
}

Result<std::optional<RaggedTold>> told_by(const std::string& param, const std::string& tensor,
                                          const std::string& counts, const kernel::Arguments& arguments) {
    if (tensor == counts) return std::optional(RaggedTold{param, RaggedForm::offsets, 0});
    if (!tensor.starts_with(counts + ".")) return std::optional<RaggedTold>();
    std::string name = tensor.substr(counts.size() + 1), block;
    if (const std::size_t open = name.find('['); open != std::string::npos && name.ends_with(']')) {
        block = name.substr(open + 1, name.size() - open - 2);
        name.resize(open);
    }
    const auto* const found =
        std::ranges::find_if(kForms, [&](const auto& form) { return form.first == name; });
    if (found == kForms.end())
        return Error{fmt::format(
            "bind: {}: there is no {} of {}; there are offsets, begins, ends and sizes, and by block of "
            "BM rows experts[BM], rows[BM] and padded[BM]",
            param, name, counts)};
    RaggedTold told{param, found->second, 0};
    if (is_by_block(told.form) && block.empty())
        return Error{fmt::format("bind: {}: {} is by block: say of how many rows, as in {}[BLOCK_M]", param,
                                 name, tensor)};
    if (!is_by_block(told.form) && !block.empty())
        return Error{fmt::format("bind: {}: {} is by expert, not by block, as {} says", param, name, tensor)};
    if (block.empty()) return std::optional(std::move(told));
    told.block = number_of(block, arguments);
    if (told.block < 1)
        return Error{fmt::format("bind: {}: {}: {} is neither a number of rows nor a parameter that is one",
                                 param, tensor, block)};
    return std::optional(std::move(told));
}

kernel::TensorArgument table_of(const RaggedTold& told, const Offsets& offsets, std::int64_t bound) {
    const auto experts = static_cast<std::int64_t>(offsets.size()) - 1;
    std::vector<std::int64_t> values;
    switch (told.form) {
        case RaggedForm::offsets: values = offsets; break;
        case RaggedForm::begins: values.assign(offsets.begin(), offsets.end() - 1); break;
        case RaggedForm::ends: values.assign(offsets.begin() + 1, offsets.end()); break;
        case RaggedForm::sizes:
            for (std::int64_t e = 0; e < experts; ++e) values.push_back(offsets[at(e + 1)] - offsets[at(e)]);
            break;
        case RaggedForm::experts:
        case RaggedForm::rows:
        case RaggedForm::padded: {
            const std::int64_t most = most_blocks(experts, bound, told.block);
            std::int64_t blocks = 0;
            for (std::int64_t e = 0; e < experts; ++e) {
                for (std::int64_t row = offsets[at(e)]; row < offsets[at(e + 1)];
                     row += told.block, ++blocks) {
                    if (told.form == RaggedForm::experts) values.push_back(e);
                    for (std::int64_t i = row; told.form == RaggedForm::rows && i < row + told.block; ++i)
                        values.push_back(i < offsets[at(e + 1)] ? i : bound);
                }
            }
            if (told.form == RaggedForm::experts) values.resize(at(most), 0);
            if (told.form == RaggedForm::rows) values.resize(at(most * told.block), bound);
            if (told.form == RaggedForm::padded) values.push_back(blocks * told.block);
            break;
        }
    }
    const auto size = static_cast<std::int64_t>(values.size());
    return {.shape = {size},
            .strides = {},
            .dtype = plan::DType::int32,
            .block = {},
            .values = std::move(values)};
}

plan::Interval entries_of(RaggedForm form, std::int64_t expert) {
    switch (form) {
        case RaggedForm::offsets: return {expert, expert + 2};
        case RaggedForm::ends: return {std::max<std::int64_t>(0, expert - 1), expert + 1};
        default: return {expert, expert + 1};
    }
}

std::int64_t most_blocks(std::int64_t experts, std::int64_t bound, std::int64_t block) {
    const std::int64_t some = std::min(experts, bound);
    return (bound - some) / block + some;
}

}  // namespace syncopate::ops
