#include "bundle/compiled_for.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <variant>

#include "syncopate/at.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

using kernel::Scalar;

std::string text_of(const Scalar& value) {
    if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *whole);
    if (const auto* flag = std::get_if<bool>(&value)) return fmt::format("{}", *flag);
    if (const auto* fraction = std::get_if<double>(&value)) return fmt::format("{}", *fraction);
    if (const auto* text = std::get_if<std::string>(&value)) return fmt::format("\"{}\"", escaped(*text));
    return "None";
}

std::optional<double> number_of(const Scalar& value) {
    if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
    if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1.0 : 0.0;
    if (const auto* fraction = std::get_if<double>(&value)) return *fraction;
    return std::nullopt;
}

/// Whether they are the same for a kernel: 1 is True, and no word is none.
bool same(const Scalar& one, const Scalar& other) {
    if (one == other) return true;
    const auto is_none = [](const Scalar& value) {
        return std::holds_alternative<kernel::NoneValue>(value) || value == Scalar(std::string());
    };
    if (is_none(one) && is_none(other)) return true;
    const std::optional<double> number = number_of(one);
    return number && number == number_of(other);
}

/// What the program of a stage has of a name; nullopt: nothing.
std::optional<Scalar> planned_value(const Planned& planned, std::size_t stage, const std::string& name) {
    if (!planned.parameters.empty()) {
        const auto known = planned.parameters[stage].find(name);
        if (known != planned.parameters[stage].end() && known->second.of == ops::Parameter::Of::constant)
            return known->second.value;
    }
    const auto& scalars = planned.launch.stages[stage].arguments.scalars;
    const auto found = scalars.find(name);
    return found == scalars.end() ? std::nullopt : std::optional(found->second);
}

/// A pointer's kind in Triton's signature.
std::string kind_of(plan::DType dtype) {
    if (dtype == plan::DType::int64) return "*i64";
    if (dtype == plan::DType::int32) return "*i32";
    if (dtype == plan::DType::fp8e4m3) return "*fp8e4nv";
    return fmt::format("*{}", plan::name_of(dtype));
}

/// Of a pointer that the call brings, or the op has, whether the kernel takes its elements.
Status require_elements(const Bundle& bundle, const Planned& planned, std::size_t stage,
                        const CompiledKernel& kernel) {
    using Of = ops::Parameter::Of;
    if (planned.parameters.empty()) return Done{};
    for (const CompiledParameter& parameter : kernel.parameters) {
        const auto known = planned.parameters[stage].find(parameter.name);
        if (known == planned.parameters[stage].end() || !parameter.kind.starts_with("*")) continue;
        const ops::Parameter& of = known->second;
        if ((of.of != Of::operand && of.of != Of::scratch) || parameter.kind == kind_of(of.dtype)) continue;
        return Error{
            fmt::format("section manifest.json: kernel {} takes {} as {}, and {} has {}: compile it again",
                        escaped(kernel.entry), escaped(parameter.name), escaped(parameter.kind), planned.what,
                        kind_of(of.dtype)),
            {.file = bundle.file}};
    }
    return Done{};
}

}  // namespace

Status require_compiled_for(const Bundle& bundle, const Planned& planned) {
    bool activates = false;
    for (std::size_t stage = 0; stage < planned.kernels.size(); ++stage) {
        const CompiledKernel& kernel = bundle.kernels[at(planned.kernels[stage])];
        SYNCOPATE_TRY(require_elements(bundle, planned, stage, kernel));
        for (const auto& [name, value] : kernel.constants) {
            std::optional<Scalar> wanted = planned_value(planned, stage, name);
            if (bundle.op && name == "ACTIVATION") {  // of the first product; those after it have none
                wanted = activates ? std::string() : planned.activation;
                activates = true;
            }
            if (!wanted || same(value, *wanted)) continue;
            return Error{
                fmt::format("section manifest.json: kernel {} was compiled for {}={}, and {} has {}: "
                            "compile it again",
                            escaped(kernel.entry), escaped(name), text_of(value), planned.what,
                            text_of(*wanted)),
                {.file = bundle.file}};
        }
    }
    return Done{};
}

}  // namespace syncopate::bundle
