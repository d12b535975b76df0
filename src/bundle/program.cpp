#include "syncopate/bundle/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bundle/compiled_for.hpp"
#include "bundle/plan_grouped.hpp"
#include "syncopate/at.hpp"
#include "syncopate/bundle/traits.hpp"
#include "syncopate/digest.hpp"
#include "syncopate/emit/folder.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/names.hpp"
#include "syncopate/ops/operators.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

constexpr std::string_view kFolder = "folder/";
constexpr std::int64_t kAligned = 16;  // bytes: what an operator's kernels are compiled for

/// Whether the strategy's kernels are compiled for the number of their programs.
bool has_own_programs(const ops::Strategy& strategy) { return strategy.kernel != ops::ProductKernel::gluon; }

std::vector<std::map<std::string, std::string>> names_of(const OperatorPart& op, std::size_t stages) {
    std::vector<std::map<std::string, std::string>> all(stages);
    for (std::size_t stage = 0; stage < stages; ++stage) {
        const std::string w = stages == 1 ? "w" : "w" + std::to_string(stage + 1);
        all[stage] = {{"a_desc", "x"},           {"b_desc", w},        {"b_narrow_desc", w},
                      {"c_desc", "y"},           {"bias_ptr", "bias"}, {"scale_a_ptr", "scale_x"},
                      {"scale_b_ptr", "scale_w"}};
    }
    return op.problem.products().empty() ? std::vector<std::map<std::string, std::string>>(stages) : all;
}

/// The variant whose kernels run this; nullptr: there is none.
const Variant* variant_for(const Bundle& bundle, const Bucket& bucket, const Lowered& lowered) {
    const auto fits = [&](const Variant& variant) {
        if (variant.traits != lowered.traits) return false;
        if (bundle.op->takes_exact_rows()) return true;  // its descriptors are of these rows
        for (std::size_t stage = 0; stage < variant.kernels.size(); ++stage) {
            const CompiledKernel& kernel = bundle.kernels[at(variant.kernels[stage])];
            const auto& tensors = lowered.launch.stages[stage].arguments.tensors;
            for (const CompiledParameter& parameter : kernel.parameters) {
                const auto given = tensors.find(parameter.name);
                if (given != tensors.end() && !parameter.descriptor.empty() &&
                    given->second.block != parameter.descriptor)
                    return false;
            }
        }
        return true;
    };
    const auto found = std::ranges::find_if(bucket.variants, fits);
    return found == bucket.variants.end() ? nullptr : &*found;
}

/// By one bucket's strategy and kernels.
Result<Planned> plan_by(const Bundle& bundle, const Bucket& bucket, std::int64_t rows,
                        std::optional<std::int32_t> rank) {
    const fuse::Device device = bundle.on_host() ? fuse::Device::host : fuse::Device::cuda;
    SYNCOPATE_TAKE(Lowered lowered, lower(*bundle.op, bucket, rows, device, rank));
    Planned made;
    if (!bundle.on_host()) {
        const Variant* const variant = variant_for(bundle, bucket, lowered);
        if (variant == nullptr)
            return Error{
                fmt::format(
                    "the schedule of {} rows asks for a kernel that is not in this bundle: compile it with "
                    "--rows {}",
                    rows, rows),
                {.file = bundle.file}};
        made.kernels = variant->kernels;
    }
    made.launch = std::move(lowered.launch);
    made.program = std::move(lowered.program);
    made.names = names_of(*bundle.op, made.launch.stages.size());
    made.moved = std::move(lowered.moved);
    made.problem = bundle.op->problem.with_rows(rows);
    made.strategy = bucket.strategy;
    const ops::OperatorRow& row = *ops::operator_row(made.problem.op);
    made.order.assign(row.operands.begin(), row.operands.end());
    if (row.parameters != nullptr) {
        SYNCOPATE_TAKE(auto of_stages, row.parameters(made.problem, made.strategy, bundle.op->called()));
        made.parameters = std::move(of_stages);
        if (made.parameters.size() != made.launch.stages.size())
            return Error{fmt::format("{}: parameters of {} stages, and its program has {}", made.problem.op,
                                     made.parameters.size(), made.launch.stages.size()),
                         {.file = bundle.file}};
    }
    if (!row.seen.empty()) {
        made.seen = row.seen;
        made.judge = [judge = row.judge, problem = made.problem, drops = bundle.op->drops](
                         auto before, auto now) { return judge(problem, before, now, drops); };
    }
    made.activation = bundle.op->activation;
    made.w_transposed = bundle.op->call.w_transposed;
    made.what = fmt::format("{} of {} {}", bundle.name, rows,
                            bundle.op->takes_exact_rows() ? "tokens a rank" : "rows");
    SYNCOPATE_TRY(require_compiled_for(bundle, made));
    return made;
}

/// By the first bucket of so many rows or more that can: some strategies take only rows of whole tiles.
Result<Planned> plan_operator(const Bundle& bundle, std::int64_t rows, std::optional<std::int32_t> rank) {
    SYNCOPATE_TAKE(const Bucket* first, bucket_of(bundle, rows));
    Result<Planned> planned = plan_by(bundle, *first, rows, rank);
    const Bucket* const end = bundle.op->buckets.data() + bundle.op->buckets.size();
    for (const Bucket* next = first + 1; !planned && next != end && !bundle.op->takes_exact_rows(); ++next) {
        if (Result<Planned> other = plan_by(bundle, *next, rows, rank); other) return other;
    }
    return planned;
}

Result<Planned> plan_folder(const Bundle& bundle) {
    emit::FilesOfFolder files;
    for (const auto& [name, content] : bundle.sections) {
        if (name.starts_with(kFolder)) files.emplace(name.substr(kFolder.size()), content);
    }
    SYNCOPATE_TAKE(emit::Artifact artifact,
                   emit::artifact_from_files(files, bundle.file + ": section folder"));
    const auto wanted = bundle.on_host() ? fuse::Device::host : fuse::Device::cuda;
    if (artifact.launch.device != wanted || artifact.launch.plan.num_ranks() != bundle.folder->ranks ||
        (!bundle.on_host() && artifact.launch.stages.size() != bundle.folder->kernels.size()))
        return Error{
            "section folder/schedule.json is of another device, or of other ranks or stages, than the "
            "manifest says",
            {.file = bundle.file}};
    Planned made;
    made.kernels = bundle.folder->kernels;
    std::vector<emit::StageText> texts;
    for (std::size_t stage = 0; stage < artifact.sources.size(); ++stage) {
        const emit::KernelLaunch& launch = artifact.launch.stages[stage];
        texts.push_back({artifact.sources[stage].original, launch.file, launch.kernel, launch.arguments,
                         launch.bindings});
    }
    SYNCOPATE_TAKE(fuse::StagedProgram program, emit::analyse_stages(std::move(texts), artifact.launch.plan));
    made.program = std::move(program);
    made.launch = std::move(artifact.launch);
    made.names.resize(made.launch.stages.size());
    made.what = bundle.name;
    SYNCOPATE_TRY(require_compiled_for(bundle, made));
    return made;
}

/// A tensor of a call and how stages, or the plan, know it.
class OperandList {
public:
    OperandList(const Planned& planned, std::int32_t rank) : planned_(planned), rank_(rank) {}

    std::vector<runtime::Operand> make() {
        for (const ops::Parameters& of_stage : planned_.parameters) {
            for (const auto& [parameter, of] : of_stage) {
                if (of.of != ops::Parameter::Of::operand) continue;
                add({.name = of.name,
                     .dtype = of.dtype,
                     .shape = of.shape,
                     .layout = runtime::Operand::Layout::contiguous,
                     .alignment = kAligned});
            }
        }
        for (std::size_t stage = 0; planned_.parameters.empty() && stage < planned_.launch.stages.size();
             ++stage) {
            const emit::KernelLaunch& launch = planned_.launch.stages[stage];
            for (const auto& [parameter, tensor] : launch.arguments.tensors) {
                const auto bound = launch.bindings.find(parameter);
                if (bound == launch.bindings.end()) {
                    add({.name = name_of(stage, parameter),
                         .dtype = tensor.dtype,
                         .shape = tensor.shape,
                         .alignment = planned_.problem.op.empty() ? 1 : kAligned});
                } else if (planned_.moved.empty()) {
                    const bool adds =
                        std::ranges::find(launch.accumulates, parameter) != launch.accumulates.end();
                    add_moved(parameter, bound->second, adds);
                }
            }
        }
        for (const auto& [tensor, name] : planned_.moved) add_moved(name, tensor, false);
        std::ranges::stable_sort(all_, {}, [&](const runtime::Operand& operand) {
            const auto found = std::ranges::find(planned_.order, operand.name);
            return found - planned_.order.begin();
        });
        return std::move(all_);
    }

private:
    [[nodiscard]] std::string name_of(std::size_t stage, const std::string& parameter) const {
        const auto found = planned_.names[stage].find(parameter);
        return found == planned_.names[stage].end() ? parameter : found->second;
    }

    void add(runtime::Operand operand) {
        if (std::ranges::find(all_, operand.name, &runtime::Operand::name) == all_.end())
            all_.push_back(std::move(operand));
    }

    [[nodiscard]] std::vector<plan::Region> held(const std::vector<plan::Holding>& holdings,
                                                 std::int32_t tensor, std::int32_t rank) const {
        std::vector<plan::Region> regions;
        for (const plan::Holding& holding : holdings) {
            if (holding.rank == rank && holding.chunk.tensor == tensor)
                regions.push_back(holding.chunk.region);
        }
        return regions;
    }

    [[nodiscard]] static std::vector<std::int64_t> extents_of(const plan::Region& region) {
        std::vector<std::int64_t> extents;
        for (const auto& [begin, end] : region) extents.push_back(end - begin);
        return extents;
    }

    /// Of the box around all; of none, nothing of the tensor.
    [[nodiscard]] static plan::Region around(const std::vector<plan::Region>& regions, std::size_t axes) {
        plan::Region box(axes);
        for (const plan::Region& region : regions) box = plan::bounding_box(box, region);
        return box;
    }

    void add_moved(const std::string& name, const std::string& tensor, bool adds) {
        const plan::Plan& plan = planned_.launch.plan;
        const auto number = static_cast<std::int32_t>(*plan.find_tensor(tensor));
        const plan::Tensor& whole_one = plan.tensors[at(number)];
        runtime::Operand made{.name = name, .dtype = whole_one.dtype};
        const auto of_tensor = [&](const plan::Holding& holding) { return holding.chunk.tensor == number; };
        const bool given = std::ranges::any_of(plan.initial, of_tensor);
        if (given && std::ranges::none_of(plan.produced, of_tensor)) {
            made.shape = extents_of(around(held(plan.initial, number, rank_), whole_one.shape.size()));
            made.inputs.push_back({.tensor = tensor});
            return add(std::move(made));
        }
        if (std::ranges::none_of(plan.produced, of_tensor) &&
            (planned_.moved.empty() || std::ranges::none_of(plan.final, of_tensor)))
            return;  // handed on from stage to stage
        const std::vector<plan::Region> ends = held(plan.final, number, rank_);
        const plan::Region box = around(ends, whole_one.shape.size());
        made.shape = adds ? whole_one.shape : extents_of(box);
        if (adds) made.inputs.push_back({.tensor = tensor, .region = whole(whole_one.shape)});
        for (const plan::Region& end : ends) {
            if (plan::is_empty(end)) continue;
            std::vector<std::int64_t> at;
            for (std::size_t axis = 0; axis < end.size(); ++axis)
                at.push_back(end[axis].begin - (adds ? 0 : box[axis].begin));
            made.outputs.push_back({.tensor = tensor, .region = end, .at = std::move(at)});
        }
        add(std::move(made));
    }

    [[nodiscard]] static plan::Region whole(const std::vector<std::int64_t>& shape) {
        plan::Region region;
        for (const std::int64_t extent : shape) region.push_back({0, extent});
        return region;
    }

    const Planned& planned_;
    std::int32_t rank_;
    std::vector<runtime::Operand> all_;
};

}  // namespace

std::vector<std::int64_t> row_major(const std::vector<std::int64_t>& shape) {
    std::vector<std::int64_t> strides(shape.size(), 1);
    for (std::size_t axis = shape.size(); axis-- > 1;)
        strides[axis - 1] = strides[axis] * std::max<std::int64_t>(shape[axis], 1);
    return strides;
}

Result<Lowered> lower(const OperatorPart& op, const Bucket& bucket, std::int64_t rows, fuse::Device device,
                      std::optional<std::int32_t> rank) {
    const ops::Problem problem = op.problem.with_rows(rows);
    fuse::Options options = ops::fuse_options(bucket.strategy, device);
    if (has_own_programs(bucket.strategy) && device == fuse::Device::cuda && rows != bucket.rows) {
        SYNCOPATE_TAKE(const fuse::StagedProgram most,
                       ops::program(op.problem.with_rows(bucket.rows), bucket.strategy, op.call));
        if (most.stages.size() == 1) options.num_programs = most.stages.front().kernel.num_programs();
    }
    SYNCOPATE_TAKE(fuse::StagedProgram program, ops::program(problem, bucket.strategy, op.call));
    SYNCOPATE_TAKE(fuse::Schedule schedule,
                   rank ? fuse::fuse_part(program, options, *rank) : fuse::fuse(program, options));
    Lowered made;
    for (std::size_t stage = 0; stage < program.stages.size(); ++stage)
        made.traits.push_back(traits_of(program, schedule, stage));
    made.launch = emit::schedule_file_of(program, std::move(schedule), options);
    SYNCOPATE_TAKE(const ops::Outline outline, ops::outline(problem, bucket.strategy, op.call));
    const std::pair<std::string, std::string> named[] = {
        {outline.input, "x"}, {outline.scales, "scale_x"}, {outline.output, "y"}};
    for (const auto& [tensor, name] : named) {
        if (!tensor.empty()) made.moved.emplace(tensor, name);
    }
    made.program = std::move(program);
    return made;
}

Result<Planned> plan_rows(const Bundle& bundle, std::int64_t rows, std::optional<std::int32_t> rank) {
    if (bundle.op) return plan_operator(bundle, rows, rank);
    if (rows != 0)
        return Error{"this bundle is of a user's program, whose rows are as it was fused: ask for 0",
                     {.file = bundle.file},
                     ErrorClass::usage};
    return bundle.grouped ? plan_grouped(bundle) : plan_folder(bundle);
}

bool Planned::writes(const std::string& operand) const {
    bool is_known = false;
    for (const ops::Parameters& of_stage : parameters) {
        for (const auto& [name, of] : of_stage) {
            if (of.of != ops::Parameter::Of::operand || of.name != operand) continue;
            if (of.written) return true;  // one stage may read what another one makes
            is_known = true;
        }
    }
    if (is_known) return false;
    for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
        for (const kernel::Param& param : program.stages[stage].kernel.params) {
            const auto named = names[stage].find(param.name);
            const std::string& name = named == names[stage].end() ? param.name : named->second;
            if (name == operand && param.written) return true;
        }
    }
    return false;
}

Scratch scratch_of(const Planned& planned) {
    constexpr std::uint64_t kPlaces = 256;
    Scratch made;
    for (const ops::Parameters& of_stage : planned.parameters) {
        for (const auto& [parameter, of] : of_stage) {
            const std::uint64_t bytes = plan::Tensor{"", of.shape, of.dtype}.bytes();
            if (of.of != ops::Parameter::Of::scratch ||
                !made.places.emplace(of.name, Scratch::Place{made.bytes, bytes}).second)
                continue;
            made.bytes += round_up(bytes, kPlaces);
        }
    }
    return made;
}

Needs needs_of(const Bundle& bundle, const Planned& planned, std::int32_t rank) {
    Needs needs{.heap = fuse::heap_bytes(planned.launch.schedule, scratch_of(planned).bytes)};
    for (const std::int32_t kernel : planned.kernels) needs.workspace += bundle.kernels[at(kernel)].workspace;
    if (bundle.on_host()) return needs;
    const fuse::Schedule& schedule = planned.launch.schedule;
    std::vector<std::uint64_t> offsets = schedule.heap.tensors;
    offsets.push_back(schedule.heap.control);
    for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage)
        needs.tables += 4 * emit::make_table(schedule, rank, static_cast<std::int64_t>(needs.heap),
                                             planned.launch.programs_of(rank), offsets, stage)
                                .size();
    return needs;
}

std::vector<runtime::Operand> operands_of(const Planned& planned, std::int32_t rank) {
    return OperandList(planned, rank).make();
}

runtime::OpOptions op_options(const Bundle& bundle, const Planned& planned) {
    runtime::OpOptions options;
    options.name = planned.what;
    options.what = planned.what;
    options.content = {{"bundle", digest(manifest_to_json(bundle))}};
    return options;
}

}  // namespace syncopate::bundle
