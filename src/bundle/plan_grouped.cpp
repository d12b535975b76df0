#include "bundle/plan_grouped.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bundle/compiled_for.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/emit/launches.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/names.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/ops/ragged.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {

Result<Planned> plan_grouped(const Bundle& bundle) {
    const GroupedPart& part = *bundle.grouped;
    const std::string folder = "folder/", place = bundle.file + ": section " + folder;
    SYNCOPATE_TAKE(
        emit::Launches launches,
        emit::launches_from_json(bundle.sections.at(folder + "launches.json"), place + "launches.json"));
    const fuse::Device device = bundle.on_host() ? fuse::Device::host : fuse::Device::cuda;
    if (launches.device != device || launches.plan.num_ranks() != part.ranks ||
        launches.stages.size() != part.names.size())
        return Error{
            "section folder/launches.json is of another device, or of other ranks or kernels, than the "
            "manifest says",
            {.file = bundle.file}};
    std::vector<emit::StageText> texts;
    for (emit::KernelLaunch& launch : launches.stages) {
        const auto source = bundle.sections.find(folder + launch.file);
        if (source == bundle.sections.end())
            return Error{fmt::format("section folder/{} is not there, which has the kernel {}",
                                     escaped(launch.file), escaped(launch.kernel)),
                         {.file = bundle.file}};
        texts.push_back({source->second, launch.file, launch.kernel, std::move(launch.arguments),
                         std::move(launch.bindings)});
    }
    SYNCOPATE_TAKE(ops::RaggedProgram program, ops::ragged_program(texts, launches.plan, part.programs));
    const fuse::Options options = ops::fuse_options(part.strategy, device);
    SYNCOPATE_TAKE(fuse::Schedule schedule, fuse::fuse(program.program, options));
    Planned made;
    made.launch = emit::schedule_file_of(program.program, std::move(schedule), options);
    made.kernels = part.kernels;
    if (!bundle.on_host() && made.kernels.size() != made.launch.stages.size())
        return Error{fmt::format("section manifest.json has kernels of {} stages, and its program has {}",
                                 made.kernels.size(), made.launch.stages.size()),
                     {.file = bundle.file}};
    made.names.resize(made.launch.stages.size());
    made.parameters = ops::ragged_parameters(
        program, made.launch.schedule.stages.at(ops::kRaggedStages).overlaps, part.names);
    for (const ops::RaggedTensor* one : program.of.brought()) made.order.push_back(one->name);
    made.order.push_back(program.of.counts);
    std::map<std::string, const ops::Parameter*> known;
    for (const bool written : {false, true}) {  // what is read, then what is made
        for (const ops::Parameters& of_stage : made.parameters) {
            for (const auto& [parameter, of] : of_stage) {
                if (of.of != ops::Parameter::Of::operand || of.written != written) continue;
                const auto [same, is_new] = known.emplace(of.name, &of);
                if (!is_new && (same->second->shape != of.shape || same->second->dtype != of.dtype))
                    return Error{
                        fmt::format("section manifest.json: names: {} and another tensor are both {}",
                                    escaped(parameter), escaped(of.name)),
                        {.file = bundle.file}};
                if (std::ranges::find(made.order, of.name) == made.order.end()) made.order.push_back(of.name);
            }
        }
    }
    made.seen = ops::kSeen;
    made.judge = [counts = program.of.counts, bound = program.of.bound, drops = part.drops](auto before,
                                                                                            auto now) {
        return ops::ragged_verdict(counts, bound, before, now, drops);
    };
    made.program = program.program;
    made.grouped = std::make_shared<const ops::RaggedProgram>(std::move(program));
    made.what = bundle.name;
    SYNCOPATE_TRY(require_compiled_for(bundle, made));
    return made;
}

}  // namespace syncopate::bundle
