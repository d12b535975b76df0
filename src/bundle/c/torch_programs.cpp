// sy_torch_serve: torch's ops (python/torch_ops) in a process without Syncopate's Python, by programs that were compiled
// ahead. A call of a new shape asks here; it gets its program of a bundle, and a recipe by which the next ones go on alone.
#include <dlfcn.h>
#include <fmt/ranges.h>

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bundle/c/handles.hpp"
#include "interface.hpp"
#include "syncopate/ops/problem.hpp"
#include "syncopate/runtime/executable/executable.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle::c {
namespace {

using torch_ops::AskedCall;
using torch_ops::AskedTensor;
using torch_ops::Recipe;
using torch_ops::Step;

/// A bundle for the calls over one group.
struct Served {
    std::shared_ptr<Loaded> loaded;
    std::map<std::int64_t, std::shared_ptr<Prepared>> programs;  ///< by rows
};

/// What a group is served; its mutex is held while its ranks meet.
struct OfGroup {
    std::mutex mutex;
    std::vector<Served> served;
    bool ended = false;
};

struct Groups {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<OfGroup>> known;  ///< by name

    std::shared_ptr<OfGroup> find(const std::string& name) {
        const std::lock_guard lock(mutex);
        const auto found = known.find(name);
        return found == known.end() ? nullptr : found->second;
    }
};

Groups& groups() {
    static auto* made = new Groups;  // as long as the process: calls may come at its end
    return *made;
}

const torch_ops::Interface* find_ops() {
    using Table = const torch_ops::Interface* (*)();
    const auto table = reinterpret_cast<Table>(dlsym(RTLD_DEFAULT, "syncopate_torch_ops"));
    const torch_ops::Interface* const ops = table == nullptr ? nullptr : table();
    return ops != nullptr && ops->version == torch_ops::kInterfaceVersion ? ops : nullptr;
}

/// torch's number of it; -1: the ops take none such.
std::int32_t torch_number(plan::DType dtype) {
    switch (dtype) {
        case plan::DType::fp16: return 5;
        case plan::DType::fp32: return 6;
        case plan::DType::bf16: return 15;
        default: return -1;
    }
}

bool run_executable(void* handle, const torch_ops::TensorArgument* tensors, std::size_t count,
                    std::uint64_t stream, const std::string& module) {
    auto* executable = static_cast<runtime::Executable*>(handle);
    constexpr std::size_t kMost = 16;
    std::array<runtime::CallTensor, kMost> given;
    if (count > kMost) return false;
    for (std::size_t i = 0; i < count; ++i)
        given[i] = {
            tensors[i].address, {tensors[i].sizes, tensors[i].axes}, {tensors[i].strides, tensors[i].axes}};
    const std::span<const runtime::CallTensor> all(given.data(), count);
    const std::optional<std::size_t> form = executable->takes(all);
    if (!form) return false;
    if (const Status ran = executable->run_taken(all, *form, stream); !ran)
        throw std::runtime_error(ran.error().to_string() + (module.empty() ? "" : " (in " + module + ")"));
    return true;
}

std::string shown(const AskedCall& call) {
    std::vector<std::string> shapes;
    for (const AskedTensor& tensor : call.tensors)
        shapes.push_back(tensor.given ? fmt::format("[{}]", fmt::join(tensor.sizes, ", ")) : "none");
    return fmt::format("{} of {}{}", call.op, fmt::join(shapes, ", "),
                       call.activation.empty() ? "" : " with " + call.activation);
}

/// torch's numbers of a kind of device.
constexpr std::int32_t kTorchCpu = 0, kTorchCuda = 1;

/// Why a program on `device` of `dtype` does not take the tensor; "" where it does.
std::string objection(const AskedTensor& tensor, runtime::Device device, plan::DType dtype) {
    const bool on_host = device.kind == runtime::Device::Kind::host;
    if (tensor.device_type != (on_host ? kTorchCpu : kTorchCuda) ||
        (!on_host && tensor.device_index != device.ordinal))
        return on_host ? "it is on host" : fmt::format("it is on cuda:{}", device.ordinal);
    return tensor.dtype == torch_number(dtype) ? "" : fmt::format("it is of {}", plan::name_of(dtype));
}

/// Why the bundle's operator is not the one that is asked for; "" where it is.
std::string objection(const Loaded& loaded, const AskedCall& call) {
    const Bundle& bundle = loaded.bundle();
    if (!bundle.op) return "it is a user's program";
    const OperatorPart& op = *bundle.op;
    if (op.problem.op != call.op) return "it is of " + op.problem.op;
    if (!call.plain || op.call.axis != 0 || op.call.kept || op.problem.scales != ops::Scales::none)
        return "options other than the defaults are Python's";
    if (op.activation != call.activation) return "its activation is '" + op.activation + "'";
    const std::vector<ops::ProductShape> products = op.problem.products();
    for (std::size_t i = 0; i < products.size(); ++i) {
        const std::vector<std::int64_t> wanted{products[i].k, products[i].n};
        if (i + 1 >= call.tensors.size() || call.tensors[i + 1].sizes != wanted)
            return fmt::format("its weights are [{}]", fmt::join(wanted, ", "));
    }
    if (products.empty()) return "it multiplies nothing";
    const std::vector<std::int64_t>& x = call.tensors.front().sizes;
    if (x.size() != 2 || x[1] != products.front().k)
        return fmt::format("its x has {} columns", products.front().k);
    for (const AskedTensor& tensor : call.tensors) {
        if (!tensor.given) continue;
        if (std::string one = objection(tensor, loaded.device(), op.problem.dtype); !one.empty()) return one;
    }
    const AskedTensor* const bias = products.size() == 1 ? &call.tensors.back() : nullptr;
    const std::size_t axes = bias != nullptr && bias->given ? bias->sizes.size() : 0;
    if (axes != static_cast<std::size_t>(op.call.bias))
        return op.call.bias == 0 ? "it adds no bias" : fmt::format("its bias has {} axes", op.call.bias);
    const std::vector<std::int64_t>& strides = call.tensors[1].strides;
    if (op.call.w_transposed && strides.front() != 1)
        return "its weights are the transpose of contiguous ones";
    return {};
}

/// M of the call, of which tensors are as `objection` has found them.
std::int64_t rows_of(const Bundle& bundle, const AskedCall& call) {
    const std::int64_t rows = call.tensors.front().sizes.front();
    const bool gathers = call.op == "all_gather_matmul" || call.op == "feed_forward";
    return gathers ? rows * bundle.ranks() : rows;
}

/// The call's tensors are variables 0, 1, …
Recipe recipe_of(const AskedCall& call, const Bundle& bundle, const std::shared_ptr<Prepared>& program) {
    Recipe made{.op = call.op,
                .outcome = bundle.file,
                .group = call.group,
                .executable = &program->executable(),
                .keep = [program] {},
                .inputs = static_cast<int>(call.tensors.size()),
                .variables = static_cast<int>(call.tensors.size())};
    Step run{.kind = Step::Kind::run};
    const std::size_t products = bundle.op->problem.products().size();
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
        if (!call.tensors[i].given) continue;
        const int variable = static_cast<int>(i);
        const bool weight = i > 0 && i <= products;
        const bool turned = weight && bundle.op->call.w_transposed;
        const bool in_rows = turned || (i <= products && call.tensors[i].strides.back() == 1);
        made.steps.push_back({.kind = in_rows ? Step::Kind::rows : Step::Kind::contiguous, .of = variable});
        run.operands.push_back(turned ? -1 - variable : variable);
    }
    const runtime::Operand& y = program->operands().back();
    const int result = made.variables++;
    made.steps.push_back({.kind = Step::Kind::empty, .of = 0, .result = result, .sizes = y.shape});
    run.operands.push_back(result);
    made.steps.push_back(std::move(run));
    made.results = {result};
    return made;
}

void resolve(const AskedCall& call) {
    const std::shared_ptr<OfGroup> group = groups().find(call.group);
    std::unique_lock<std::mutex> lock;
    if (group != nullptr) lock = std::unique_lock(group->mutex);
    if (group == nullptr || group->ended)
        throw std::runtime_error(fmt::format(
            "syncopate.{}: no bundle is served for group '{}' (sy_torch_serve)", call.op, call.group));
    std::string why;
    for (Served& served : group->served) {
        const Bundle& bundle = served.loaded->bundle();
        if (const std::string one = objection(*served.loaded, call); !one.empty()) {
            why += fmt::format("; {}: {}", bundle.file, one);
            continue;
        }
        const std::int64_t rows = rows_of(bundle, call);
        std::shared_ptr<Prepared>& program = served.programs[rows];
        if (program == nullptr) {
            Result<std::unique_ptr<Prepared>> made = served.loaded->prepare(rows);
            if (!made)
                throw std::runtime_error(fmt::format("syncopate.{}: {}", call.op, made.error().to_string()));
            program = *std::move(made);
        }
        return find_ops()->add(recipe_of(call, bundle, program));
    }
    throw std::runtime_error(fmt::format("syncopate.{}: no bundle that group '{}' is served has {}{}",
                                         call.op, call.group, shown(call), why));
}

Status serve(const std::string& name, std::shared_ptr<Loaded> loaded) {
    const torch_ops::Interface* const ops = find_ops();
    if (ops == nullptr)
        return usage(
            "sy_torch_serve: load libsyncopate_torch.so of this version before, so that all see its symbols "
            "(RTLD_GLOBAL)");
    if (const Bundle& bundle = loaded->bundle(); !bundle.op)
        return usage(fmt::format("{}: a user's program is no op of torch's", bundle.file));
    if (!ops->serve(&run_executable, &resolve))
        return usage("sy_torch_serve: in this process Syncopate's Python sets calls up");
    std::shared_ptr<OfGroup> group;
    {
        const std::lock_guard lock(groups().mutex);
        std::shared_ptr<OfGroup>& known = groups().known[name];
        if (known == nullptr) known = std::make_shared<OfGroup>();
        group = known;
    }
    const std::lock_guard lock(group->mutex);
    if (!group->served.empty() && group->served.front().loaded->group() != loaded->group())
        return usage(fmt::format(
            "sy_torch_serve: group '{}' is served by another communicator in this process: end that before "
            "(bundle NULL)",
            name));
    group->served.push_back({.loaded = std::move(loaded)});
    return Done{};
}

/// Collective: all that the group is served.
Status end(const std::string& name) {
    std::shared_ptr<OfGroup> group;
    {
        const std::lock_guard lock(groups().mutex);
        if (auto found = groups().known.extract(name); !found.empty()) group = std::move(found.mapped());
    }
    if (group == nullptr) return Done{};
    const std::lock_guard lock(group->mutex);
    group->ended = true;  // a call that has found it before adds no recipe any more
    if (const torch_ops::Interface* const ops = find_ops(); ops != nullptr) ops->drop_group(name.c_str());
    Status done = Done{};
    for (Served& served : group->served) {
        for (auto& [rows, program] : served.programs) {
            if (program == nullptr) continue;
            if (Status destroyed = program->destroy(); !destroyed && done) done = destroyed;
        }
    }
    return done;
}

}  // namespace
}  // namespace syncopate::bundle::c

extern "C" sy_code sy_torch_serve(sy_comm* comm, const char* group_name, const sy_bundle* bundle) {
    using namespace syncopate;
    using namespace syncopate::bundle::c;
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require_free(comm, "comm", "sy_torch_serve"));
        if (group_name == nullptr) return usage("group_name: it is NULL");
        if (bundle == nullptr) return end(group_name);
        SYNCOPATE_TRY(require(bundle, "bundle"));
        SYNCOPATE_TAKE(auto loaded, loaded_of(*comm, *bundle));
        return serve(group_name, std::move(loaded));
    });
}
