#include "ops/ragged_bind.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "ops/ragged_told.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

using kernel::ParamKind;

Error about(const emit::StageText& stage, std::string message) {
    return Error{std::move(message), {.file = stage.file}};
}

Error unbound(const emit::StageText& stage, const std::string& tensor, const char* why) {
    return about(stage, fmt::format("bind: no parameter is bound to {}: {}", tensor, why));
}

Error wrong(const kernel::Kernel& found, std::string message) {
    return Error{std::move(message), {.file = found.file, .line = found.line}};
}

Status check_read(const kernel::Kernel& found, const std::string& name, bool table) {
    const kernel::Param* param = found.find_param(name);
    if (param == nullptr ||
        (param->kind != ParamKind::pointer && (table || param->kind != ParamKind::descriptor)))
        return wrong(found, fmt::format("bind: {} is no pointer of {}: {} by pointers{}", name, found.name,
                                        table ? "where rows lie is loaded" : "rows in groups are read",
                                        table ? "" : ", or by descriptors"));
    if (!param->read)
        return kernel::error_at(*param,
                                fmt::format("{} is not read: it has {}", name,
                                            table ? "where experts' rows begin" : "the rows that come"));
    if (param->written)
        return kernel::error_at(*param, fmt::format("{} is stored into: it is the plan's", name));
    return Done{};
}

}  // namespace

Status bind_parameters(const emit::StageText& stage, const RaggedRows& of, bool follows, RaggedKernel& made) {
    for (const auto& [param, tensor] : stage.bindings) {
        SYNCOPATE_TAKE(std::optional<RaggedTold> told, told_by(param, tensor, of.counts, stage.arguments));
        if (told) {
            made.told.push_back(*std::move(told));
            continue;
        }
        const auto comes = [&](const RaggedTensor* one) { return one->name == tensor; };
        const bool is_read = std::ranges::any_of(of.brought(), comes);
        if (!is_read && !(of.back && tensor == of.back->name))
            return about(stage, fmt::format("bind: the plan has no tensor {} for {}", tensor, param));
        const auto known =
            std::ranges::find(made.reads, tensor, &std::pair<std::string, std::string>::second);
        const std::string before = !is_read                    ? made.makes
                                   : known == made.reads.end() ? std::string()
                                                               : known->first;
        if (!before.empty())
            return about(stage, fmt::format("bind: {} and {} are both bound to {}", before, param, tensor));
        if (is_read)
            made.reads.emplace_back(param, tensor);
        else
            made.makes = param;
    }
    if (!follows && made.reads.empty())
        return unbound(stage, of.rows.name, "its rows would be read by nobody");
    if (made.told.empty() && (!follows || !made.reads.empty()))
        return unbound(stage, of.counts, "by it the kernel is given where each expert's rows begin");
    if (of.back && made.makes.empty()) return unbound(stage, of.back->name, "nobody would make its rows");
    return Done{};
}

Status check_parameters(const kernel::Kernel& found, RaggedKernel& made) {
    for (const RaggedTold& told : made.told) SYNCOPATE_TRY(check_read(found, told.param, true));
    for (const auto& [param, tensor] : made.reads) SYNCOPATE_TRY(check_read(found, param, false));
    if (made.makes.empty()) {
        const auto written = std::ranges::find_if(found.params, &kernel::Param::written);
        if (written == found.params.end()) return wrong(found, fmt::format("{} stores nothing", found.name));
        made.makes = written->name;
    } else if (const kernel::Param* stored = found.find_param(made.makes);
               stored != nullptr && (!stored->written || stored->read)) {
        return kernel::error_at(
            *stored, fmt::format("{}: its rows go back: it is to be stored into, and not read", made.makes));
    }
    if (found.programs_per_tile != 1)
        return Error{fmt::format("{} runs several programs a tile: rows in groups take a kernel whose "
                                 "tiles are of one program each",
                                 found.name),
                     {.file = found.file, .line = found.line}};
    return Done{};
}

}  // namespace syncopate::ops
