#include "syncopate/emit/artifact.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <type_traits>
#include <variant>

#include "syncopate/emit/emit.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/fuse/json.hpp"
#include "syncopate/nesting.hpp"
#include "syncopate/plan/json/json.hpp"

namespace syncopate::emit {
namespace {

using Json = nlohmann::ordered_json;
using kernel::ParamKind;

constexpr std::string_view kSchema = "syncopate.schedule/1";
constexpr std::array<std::pair<ParamKind, std::string_view>, 4> kKinds{
    {{ParamKind::scalar, "scalar"},
     {ParamKind::constant, "constant"},
     {ParamKind::pointer, "pointer"},
     {ParamKind::descriptor, "descriptor"}}};

Json write(const kernel::Scalar& scalar) {
    return std::visit(
        [](const auto& value) -> Json {
            if constexpr (std::is_same_v<std::decay_t<decltype(value)>, kernel::NoneValue>) {
                return nullptr;
            } else {
                return value;
            }
        },
        scalar);
}

Json write(const kernel::TensorArgument& tensor) {
    Json json{{"shape", tensor.shape}, {"dtype", plan::name_of(tensor.dtype)}};
    if (!tensor.strides.empty()) json["strides"] = tensor.strides;
    if (!tensor.block.empty()) json["block"] = tensor.block;
    return json;
}

/// Thrown inside this file to leave the reader; never crosses its face.
struct Fault {
    std::string message;
};

const Json& member(const Json& json, const std::string& key, const std::string& path) {
    const auto found = json.find(key);
    if (found == json.end()) throw Fault{(path.empty() ? "" : path + ": ") + "missing key \"" + key + "\""};
    return *found;
}

std::string text_of(const Json& json, const std::string& path) {
    if (!json.is_string()) throw Fault{path + ": expected a string"};
    return json.get<std::string>();
}

std::int64_t integer_of(const Json& json, const std::string& path, std::int64_t low, std::int64_t high) {
    const bool too_large =
        json.is_number_unsigned() &&
        json.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!json.is_number_integer() || too_large || json.get<std::int64_t>() < low ||
        json.get<std::int64_t>() > high) {
        throw Fault{path + ": expected an integer from " + std::to_string(low) + " to " +
                    std::to_string(high)};
    }
    return json.get<std::int64_t>();
}

std::vector<std::int64_t> integers_of(const Json& json, const std::string& path) {
    if (!json.is_array()) throw Fault{path + ": expected an array of integers"};
    std::vector<std::int64_t> values;
    for (const Json& value : json) {
        values.push_back(integer_of(value, path, std::numeric_limits<std::int64_t>::min() + 1,
                                    std::numeric_limits<std::int64_t>::max()));
    }
    return values;
}

const Json& object_of(const Json& json, const std::string& path) {
    if (!json.is_object()) throw Fault{path + ": expected an object"};
    return json;
}

kernel::Scalar scalar_of(const Json& json, const std::string& path) {
    if (json.is_null()) return kernel::NoneValue{};
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_number_integer()) {
        return integer_of(json, path, std::numeric_limits<std::int64_t>::min(),
                          std::numeric_limits<std::int64_t>::max());
    }
    if (json.is_number_float()) return json.get<double>();
    if (json.is_string()) return json.get<std::string>();
    throw Fault{path + ": expected a number, a string, true, false or null"};
}

kernel::TensorArgument tensor_of(const Json& json, const std::string& path) {
    kernel::TensorArgument tensor;
    for (const auto& item : object_of(json, path).items()) {
        const std::string at = path + "." + item.key();
        if (item.key() == "shape") {
            tensor.shape = integers_of(item.value(), at);
        } else if (item.key() == "strides") {
            tensor.strides = integers_of(item.value(), at);
        } else if (item.key() == "block") {
            tensor.block = integers_of(item.value(), at);
        } else if (item.key() == "dtype") {
            const auto dtype = plan::dtype_from(text_of(item.value(), at));
            if (!dtype) throw Fault{at + ": unknown dtype \"" + item.value().get<std::string>() + "\""};
            tensor.dtype = *dtype;
        } else {
            throw Fault{path + ": unknown key \"" + item.key() + "\""};
        }
    }
    (void)member(json, "shape", path);
    (void)member(json, "dtype", path);
    return tensor;
}

constexpr std::array<std::string_view, 8> kKernelKeys{"kernel",  "file",     "parameters",  "arguments",
                                                      "tensors", "bindings", "accumulates", "grid"};
constexpr std::array<std::string_view, 5> kLaunchKeys{"schema", "num_sms", "device", "plan", "schedule"};

bool is_one_of(std::string_view key, std::span<const std::string_view> keys) {
    return std::ranges::find(keys, key) != keys.end();
}

/// The keys of one kernel, which are at `where`.
KernelLaunch read_kernel(const Json& json, const std::string& where) {
    const std::string at = where.empty() ? "" : where + ".";
    KernelLaunch launch;
    launch.kernel = text_of(member(json, "kernel", where), at + "kernel");
    launch.file = text_of(member(json, "file", where), at + "file");
    const Json& parameters = member(json, "parameters", where);
    if (!parameters.is_array()) throw Fault{at + "parameters: expected an array"};
    for (const Json& entry : parameters) {
        if (!entry.is_array() || entry.size() != 2)
            throw Fault{at + "parameters: expected pairs of name and kind"};
        const std::string kind = text_of(entry[1], at + "parameters");
        const auto found =
            std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& k) { return k.second == kind; });
        if (found == kKinds.end()) throw Fault{at + "parameters: unknown kind \"" + kind + "\""};
        launch.parameters.emplace_back(text_of(entry[0], at + "parameters"), found->first);
    }
    for (const auto& item : object_of(member(json, "arguments", where), at + "arguments").items())
        launch.arguments.scalars.emplace(item.key(), scalar_of(item.value(), at + "arguments." + item.key()));
    for (const auto& item : object_of(member(json, "tensors", where), at + "tensors").items())
        launch.arguments.tensors.emplace(item.key(), tensor_of(item.value(), at + "tensors." + item.key()));
    for (const auto& item : object_of(member(json, "bindings", where), at + "bindings").items())
        launch.bindings.emplace(item.key(), text_of(item.value(), at + "bindings." + item.key()));
    if (const auto found = json.find("accumulates"); found != json.end()) {
        if (!found->is_array()) throw Fault{at + "accumulates: expected an array of names"};
        for (const Json& name : *found) launch.accumulates.push_back(text_of(name, at + "accumulates"));
    }
    const Json& grid = member(json, "grid", where);
    if (!grid.is_array() || grid.size() != 3) throw Fault{at + "grid: expected three integers"};
    launch.arguments.grid.emplace();
    for (std::size_t axis = 0; axis < 3; ++axis) {
        (*launch.arguments.grid)[axis] =
            integer_of(grid[axis], at + "grid", 1, std::numeric_limits<std::int32_t>::max());
    }
    return launch;
}

std::vector<KernelLaunch> read_stages(const Json& json) {
    const auto found = json.find("stages");
    const bool several = found != json.end();
    for (const auto& item : json.items()) {
        const bool known = is_one_of(item.key(), kLaunchKeys) ||
                           (several ? item.key() == "stages" : is_one_of(item.key(), kKernelKeys));
        if (!known) throw Fault{"unknown key \"" + item.key() + "\""};
    }
    if (!several) return {read_kernel(json, "")};
    if (!found->is_array() || found->size() < 2) throw Fault{"stages: expected an array of two or more"};
    std::vector<KernelLaunch> stages;
    for (const Json& entry : *found) {
        const std::string at = "stages[" + std::to_string(stages.size()) + "]";
        for (const auto& item : object_of(entry, at).items()) {
            if (!is_one_of(item.key(), kKernelKeys)) throw Fault{at + ": unknown key \"" + item.key() + "\""};
        }
        stages.push_back(read_kernel(entry, at));
    }
    return stages;
}

Launch read_launch(const Json& json) {
    (void)object_of(json, "the file");
    Launch launch;
    launch.stages = read_stages(json);
    if (text_of(member(json, "schema", ""), "schema") != kSchema) {
        throw Fault{"schema: expected \"" + std::string(kSchema) + "\""};
    }
    const auto num_sms = static_cast<std::int32_t>(
        integer_of(member(json, "num_sms", ""), "num_sms", 1, std::numeric_limits<std::int32_t>::max()));
    for (KernelLaunch& stage : launch.stages) stage.arguments.num_sms = num_sms;
    const std::string device = text_of(member(json, "device", ""), "device");
    if (device != "host" && device != "cuda") throw Fault{"device: expected \"host\" or \"cuda\""};
    launch.device = device == "host" ? fuse::Device::host : fuse::Device::cuda;
    auto plan = plan::from_json(member(json, "plan", "").dump());
    if (!plan) throw Fault{"plan: " + plan.error().to_string()};
    launch.plan = *std::move(plan);
    auto schedule = fuse::schedule_from_json(member(json, "schedule", "").dump());
    if (!schedule) throw Fault{"schedule." + schedule.error().to_string()};
    launch.schedule = *std::move(schedule);
    if (launch.schedule.stages.size() != launch.stages.size()) {
        throw Fault{"schedule: it has " + std::to_string(launch.schedule.stages.size()) + " stages, not " +
                    std::to_string(launch.stages.size())};
    }
    return launch;
}

/// The keys of one kernel, without the braces around them.
std::string write_kernel(const KernelLaunch& launch) {
    Json parameters = Json::array();
    for (const auto& [name, kind] : launch.parameters) {
        parameters.push_back({name, std::find_if(kKinds.begin(), kKinds.end(), [kind = kind](const auto& k) {
                                        return k.first == kind;
                                    })->second});
    }
    Json arguments = Json::object();
    for (const auto& [name, scalar] : launch.arguments.scalars) arguments[name] = write(scalar);
    Json tensors = Json::object();
    for (const auto& [name, tensor] : launch.arguments.tensors) tensors[name] = write(tensor);
    Json bindings = Json::object();
    for (const auto& [name, tensor] : launch.bindings) bindings[name] = tensor;
    const std::array<std::int64_t, 3> grid =
        launch.arguments.grid.value_or(std::array<std::int64_t, 3>{1, 1, 1});
    const auto replace = Json::error_handler_t::replace;  // names that are not UTF-8 must not throw
    return "\"kernel\": " + Json(launch.kernel).dump(-1, ' ', false, replace) +
           ", \"file\": " + Json(launch.file).dump(-1, ' ', false, replace) +
           ",\n\"parameters\": " + parameters.dump(-1, ' ', false, replace) +
           ",\n\"arguments\": " + arguments.dump(-1, ' ', false, replace) +
           ",\n\"tensors\": " + tensors.dump(-1, ' ', false, replace) +
           ",\n\"bindings\": " + bindings.dump(-1, ' ', false, replace) +
           (launch.accumulates.empty()
                ? std::string()
                : ",\n\"accumulates\": " + Json(launch.accumulates).dump(-1, ' ', false, replace)) +
           ",\n\"grid\": " + Json(grid).dump();
}

}  // namespace

std::string to_json(const Launch& launch) {
    std::string kernels;
    if (launch.stages.size() == 1) {
        kernels = write_kernel(launch.stages.front());
    } else {
        for (const KernelLaunch& stage : launch.stages)
            kernels += (kernels.empty() ? "{" : ",\n{") + write_kernel(stage) + "}";
        kernels = "\"stages\": [" + kernels + "]";
    }
    std::string plan = plan::to_json(launch.plan);
    while (!plan.empty() && plan.back() == '\n') plan.pop_back();
    return "{\"schema\": \"" + std::string(kSchema) + "\",\n" + kernels +
           ", \"num_sms\": " + std::to_string(launch.stages.front().arguments.num_sms) + ", \"device\": \"" +
           std::string(fuse::name_of(launch.device)) + "\",\n\"plan\":\n" + plan + ",\n\"schedule\":\n" +
           fuse::to_json(launch.schedule) + "}\n";
}

Result<Launch> launch_from_json(std::string_view text, const std::string& file_name) {
    Location where;
    where.file = file_name;
    if (json_nesting(text) > kMaxJsonNesting)
        return Error{"nested more than " + std::to_string(kMaxJsonNesting) + " deep", where};
    const Json json = Json::parse(text.begin(), text.end(), nullptr, false);
    if (json.is_discarded()) return Error{"not JSON", where};
    try {
        return read_launch(json);
    } catch (const Fault& fault) {
        return Error{fault.message, where};
    }
}

namespace {

KernelLaunch launch_of(const fuse::Stage& stage, const plan::Plan& plan, const fuse::Options& options) {
    const kernel::Kernel& kernel = stage.kernel;
    KernelLaunch launch;
    launch.kernel = kernel.name;
    launch.file = kernel.file;
    for (const kernel::Param& param : kernel.params) launch.parameters.emplace_back(param.name, param.kind);
    launch.arguments = kernel.arguments;
    launch.arguments.grid =
        options.num_programs ? std::array<std::int64_t, 3>{*options.num_programs, 1, 1} : kernel.grid;
    launch.bindings = stage.bindings;
    for (const auto& [name, tensor] : stage.bindings) {
        const kernel::Param* param = kernel.find_param(name);
        const auto makes = [&, t = plan.find_tensor(tensor)](const plan::Holding& holding) {
            return holding.chunk.tensor == *t;
        };
        if (param->read && param->written && std::ranges::any_of(plan.produced, makes))
            launch.accumulates.push_back(name);
    }
    return launch;
}

}  // namespace

std::string kernel_file(const Artifact& artifact, const std::string& stem, std::size_t stage) {
    const std::string number = artifact.sources.size() > 1 ? "_" + std::to_string(stage) : "";
    return stem + number + artifact.sources[stage].suffix;
}

std::vector<std::pair<std::string, const std::string*>> files_of(const Artifact& artifact) {
    std::vector<std::pair<std::string, const std::string*>> files{{"schedule.json", &artifact.schedule_json}};
    for (std::size_t stage = 0; stage < artifact.sources.size(); ++stage) {
        files.emplace_back(kernel_file(artifact, "original", stage), &artifact.sources[stage].original);
        files.emplace_back(kernel_file(artifact, "kernel", stage), &artifact.sources[stage].kernel);
    }
    return files;
}

Result<Artifact> make_artifact(const fuse::StagedProgram& program, const fuse::Options& options) {
    auto schedule = fuse::fuse(program, options);
    if (!schedule) return schedule.error();
    Artifact artifact;
    Launch& launch = artifact.launch;
    for (const fuse::Stage& stage : program.stages) {
        const auto language = language_of(stage.kernel);
        if (!language) return language.error();
        auto source = (*language)->emit({stage.kernel, program.plan, stage.bindings}, *schedule,
                                        artifact.sources.size());
        if (!source) return source.error();
        artifact.sources.push_back(
            {*std::move(source), (*language)->original(stage.kernel), std::string((*language)->suffix)});
        launch.stages.push_back(launch_of(stage, program.plan, options));
    }
    launch.device = options.device;
    launch.plan = program.plan;
    launch.schedule = *std::move(schedule);
    artifact.schedule_json = to_json(launch);
    return artifact;
}

Result<Artifact> make_artifact(const fuse::Program& program, const fuse::Options& options) {
    return make_artifact(fuse::StagedProgram{{{program.kernel, program.bindings}}, program.plan}, options);
}

Result<fuse::StagedProgram> analyse_stages(std::vector<StageText> stages, plan::Plan plan) {
    fuse::StagedProgram program{{}, std::move(plan)};
    for (StageText& stage : stages) {
        for (const auto& [param, tensor_name] : stage.bindings) {
            const auto tensor = program.plan.find_tensor(tensor_name);
            if (!tensor) return Error{"the plan has no tensor " + tensor_name + " to bind " + param + " to"};
            stage.arguments.tensors.try_emplace(
                param, kernel::TensorArgument{
                           program.plan.tensors[*tensor].shape, {}, program.plan.tensors[*tensor].dtype, {}});
        }
        auto kernel = language_of(stage.file).analyse(stage.source, stage.file, stage.name, stage.arguments);
        if (!kernel) return kernel.error();
        program.stages.push_back({*std::move(kernel), std::move(stage.bindings)});
    }
    return program;
}

Result<Artifact> make_artifact(std::vector<StageText> stages, plan::Plan plan, const fuse::Options& options) {
    const auto program = analyse_stages(std::move(stages), std::move(plan));
    if (!program) return program.error();
    return make_artifact(*program, options);
}

Result<Artifact> make_artifact(std::string source, std::string file, const std::string& name,
                               kernel::Arguments arguments, plan::Plan plan,
                               std::map<std::string, std::string> bindings, const fuse::Options& options) {
    std::vector<StageText> stages;
    stages.push_back({std::move(source), std::move(file), name, std::move(arguments), std::move(bindings)});
    return make_artifact(std::move(stages), std::move(plan), options);
}

}  // namespace syncopate::emit
