#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "syncopate/emit/artifact.hpp"
#include "syncopate/emit/launches.hpp"
#include "syncopate/fuse/model/json.hpp"
#include "syncopate/json_table.hpp"
#include "syncopate/json_text.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/try.hpp"

namespace syncopate::emit {
namespace {

constexpr std::string_view kSchema = "syncopate.schedule/1";
constexpr std::string_view kLaunches = "syncopate.launches/1";
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostStride = std::numeric_limits<std::int64_t>::max();
constexpr std::array<std::string_view, 4> kKinds{"scalar", "constant", "pointer", "descriptor"};
constexpr std::array<std::string_view, 2> kDevices{"host", "cuda"};
constexpr std::array<std::string_view, 3> kNamesOfNoNumbers{"inf", "-inf", "nan"};
constexpr std::array<double, 3> kNoNumbers{std::numeric_limits<double>::infinity(),
                                           -std::numeric_limits<double>::infinity(),
                                           std::numeric_limits<double>::quiet_NaN()};

/// The members of a schedule file. `Json`: JsonReader or JsonWriter.
template <typename Json>
class ScheduleFileTable : public Json {
public:
    using Json::Json;

    bool file(JsonAt at, JsonOf<ScheduleFile> auto& file) {
        std::int32_t num_sms = file.stages.empty() ? 1 : file.stages.front().arguments.num_sms;
        const auto stage = [this](JsonAt inner, auto& element) { return kernel(inner, element); };
        const auto word = [this](JsonAt inner, auto& text) { return this->text(text)(inner); };
        if (!this->object(
                at, required("schema", this->schema(kSchema)),
                required("stages", this->lines(file.stages, stage)),
                required("num_sms", this->integer(num_sms, 1, kMost)),
                required("device", this->name(file.device, "device", kDevices)),
                optional("files", !file.files.empty(), this->map(file.files, word)),
                required("plan", [&](JsonAt inner) { return plan(inner, file.plan); }),
                required("schedule", [&](JsonAt inner) { return schedule(inner, file.schedule); }))) {
            return false;
        }
        if constexpr (Json::kReads) {
            const std::size_t stages = file.schedule.stages.size();
            if (file.stages.size() != stages)
                return this->fail(at, fmt::format("has {} kernels, and its schedule {} stages",
                                                  file.stages.size(), stages));
            for (KernelLaunch& kernel : file.stages) kernel.arguments.num_sms = num_sms;
        }
        return true;
    }

    bool launches(JsonAt at, JsonOf<Launches> auto& made) {
        std::int32_t num_sms = made.stages.empty() ? 1 : made.stages.front().arguments.num_sms;
        const auto stage = [this](JsonAt inner, auto& element) { return kernel(inner, element); };
        if (!this->object(at, required("schema", this->schema(kLaunches)),
                          required("stages", this->lines(made.stages, stage)),
                          required("num_sms", this->integer(num_sms, 1, kMost)),
                          required("device", this->name(made.device, "device", kDevices)),
                          required("plan", [&](JsonAt inner) { return plan(inner, made.plan); })))
            return false;
        if constexpr (Json::kReads) {
            if (made.stages.empty()) return this->fail(at, "has no kernels");
            for (KernelLaunch& kernel : made.stages) kernel.arguments.num_sms = num_sms;
        }
        return true;
    }

private:
    bool kernel(JsonAt at, JsonOf<KernelLaunch> auto& launch) {
        const auto parameter = [this](JsonAt inner, auto& entry) {
            return this->row(inner, "[name, kind]", this->text(entry.first),
                             this->name(entry.second, "kind of parameter", kKinds));
        };
        const auto word = [this](JsonAt inner, auto& text) { return this->text(text)(inner); };
        return this->object(
            at, required("kernel", this->text(launch.kernel)), required("file", this->text(launch.file)),
            optional("line", launch.line != 0, this->integer(launch.line, 1, kMost)),
            required("parameters", this->list(launch.parameters, parameter)),
            required("arguments",
                     this->map(launch.arguments.scalars,
                               [this](JsonAt inner, auto& value) { return scalar(inner, value); })),
            required("tensors",
                     this->map(launch.arguments.tensors,
                               [this](JsonAt inner, auto& value) { return tensor(inner, value); })),
            required("bindings", this->map(launch.bindings, word)),
            optional("accumulates", !launch.accumulates.empty(), this->list(launch.accumulates, word)),
            optional("programs_per_tile", launch.programs_per_tile != 1,
                     this->integer(launch.programs_per_tile, 1, kMost)),
            required("grid", [&](JsonAt inner) { return grid(inner, launch.arguments); }));
    }

    bool grid(JsonAt at, JsonOf<kernel::Arguments> auto& arguments) {
        auto programs = arguments.grid.value_or(std::array<std::int64_t, 3>{1, 1, 1});
        if (!this->row(at, "[x, y, z]", this->integer(programs[0], 1, kMost),
                       this->integer(programs[1], 1, kMost), this->integer(programs[2], 1, kMost))) {
            return false;
        }
        if constexpr (Json::kReads) arguments.grid = programs;
        return true;
    }

    bool tensor(JsonAt at, JsonOf<kernel::TensorArgument> auto& tensor) {
        const auto numbers = [this](auto& list) {
            return this->list(list, [this](JsonAt inner, auto& number) {
                return this->integer(number, -kMostStride, kMostStride)(inner);
            });
        };
        return this->object(
            at, required("shape", numbers(tensor.shape)),
            required("dtype", this->name(tensor.dtype, "dtype", names_of<plan::DType, plan::kNumDTypes>())),
            optional("strides", !tensor.strides.empty(), numbers(tensor.strides)),
            optional("block", !tensor.block.empty(), numbers(tensor.block)),
            optional("values", !tensor.values.empty(), numbers(tensor.values)));
    }

    bool scalar(JsonAt at, kernel::Scalar& scalar) {
        const auto type = this->document_.type(at.node);
        if (type == JsonDocument::Type::null) return true;
        if (type == JsonDocument::Type::boolean) return this->flag(scalar.emplace<bool>())(at);
        if (type == JsonDocument::Type::integer) return this->integer(scalar.emplace<std::int64_t>())(at);
        if (type == JsonDocument::Type::string) return this->text(scalar.emplace<std::string>())(at);
        if (type == JsonDocument::Type::object) {
            std::size_t which = 0;
            if (!no_number(at, which)) return false;
            scalar = kNoNumbers[which];
            return true;
        }
        const bool fraction = type == JsonDocument::Type::other_number &&
                              this->document_.text(at.node).find_first_of(".eE") != std::string_view::npos;
        if (!fraction) {
            return this->fail(at, "is " + this->document_.describe(at.node) +
                                      "; expected a number, a string, true, false or null");
        }
        constexpr double kLargest = std::numeric_limits<double>::max();
        return this->number(at.node, *at.path, -kLargest, kLargest, scalar.emplace<double>());
    }
    /// {"float": "inf"}: what JSON has no number for.
    bool no_number(JsonAt at, JsonOf<std::size_t> auto& which) {
        return this->object(at, required("float", this->name(which, "number", kNamesOfNoNumbers)));
    }
    bool scalar(JsonAt at, const kernel::Scalar& scalar) {
        if (const auto* flag = std::get_if<bool>(&scalar)) return this->flag(*flag)(at);
        if (const auto* integer = std::get_if<std::int64_t>(&scalar)) return this->integer(*integer)(at);
        if (const auto* text = std::get_if<std::string>(&scalar)) return this->text(*text)(at);
        const auto* number = std::get_if<double>(&scalar);
        if (number == nullptr) return this->put("null");
        if (std::isfinite(*number)) return this->put(json_number(*number));
        const std::size_t which = std::isnan(*number) ? 2 : *number < 0 ? 1 : 0;
        return no_number(at, which);
    }

    bool plan(JsonAt at, plan::Plan& plan) {
        return adopt(plan::from_json(this->document_, this->text_, this->file_name_, at), plan);
    }
    bool plan(JsonAt, const plan::Plan& plan) { return this->put("\n" + plan::to_json(plan)); }
    bool schedule(JsonAt at, fuse::Schedule& schedule) {
        return adopt(fuse::schedule_from_json(this->document_, this->text_, this->file_name_, at), schedule);
    }
    bool schedule(JsonAt, const fuse::Schedule& schedule) {
        return this->put("\n" + fuse::to_json(schedule));
    }
    template <typename Part>
    bool adopt(Result<Part> read, Part& part) {
        if (!read) return this->fail(read.error());
        part = *std::move(read);
        return true;
    }
};

}  // namespace

std::string to_json(const ScheduleFile& file) {
    ScheduleFileTable<JsonWriter> table;
    (void)table.file({}, file);
    return table.take() + "\n";
}

Result<ScheduleFile> schedule_file_from_json(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    const JsonPath root;
    ScheduleFileTable<JsonReader> table(document, text, file_name, "the file");
    ScheduleFile file;
    if (!table.file({0, &root}, file)) return table.error();
    return file;
}

std::string to_json(const Launches& launches) {
    ScheduleFileTable<JsonWriter> table;
    (void)table.launches({}, launches);
    return table.take() + "\n";
}

Result<Launches> launches_from_json(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    const JsonPath root;
    ScheduleFileTable<JsonReader> table(document, text, file_name, "the file");
    Launches made;
    if (!table.launches({0, &root}, made)) return table.error();
    return made;
}

}  // namespace syncopate::emit
