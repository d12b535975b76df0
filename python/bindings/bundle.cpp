// Bundles, as `syncopate compile` writes them.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "problem.hpp"
#include "stages.hpp"
#include "syncopate/bundle/bundle.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/emit/launches.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

using Boxes = std::map<std::string, std::vector<std::int64_t>>;

/// Of an operator with so many rows by the strategy of a bucket, by stage: the traits of its schedule, and the boxes by which
/// its kernel loads and stores. The same kernels run rows that are alike in both.
std::pair<std::vector<bundle::Traits>, std::vector<Boxes>> variant(const std::string& problem,
                                                                   const ops::Strategy& strategy,
                                                                   bool w_transposed,
                                                                   std::int64_t bucket_rows,
                                                                   std::int64_t rows) {
    const bundle::OperatorPart op{.problem = unwrap(ops::parse_problem(problem)),
                                  .call = {.w_transposed = w_transposed}};
    const bundle::Bucket bucket{.rows = bucket_rows, .strategy = strategy};
    bundle::Lowered lowered = unwrap(bundle::lower(op, bucket, rows, fuse::Device::cuda));
    std::vector<Boxes> boxes;
    for (const emit::KernelLaunch& stage : lowered.launch.stages) {
        Boxes& of_stage = boxes.emplace_back();
        for (const auto& [name, tensor] : stage.arguments.tensors) {
            if (!tensor.block.empty()) of_stage.emplace(name, tensor.block);
        }
    }
    return {std::move(lowered.traits), std::move(boxes)};
}

/// Fails for a manifest or sections that could not be read again.
void write(const std::string& manifest, const nb::dict& sections, const std::string& file) {
    bundle::Bundle made = unwrap(bundle::manifest_from_json(manifest, "the manifest"));
    for (auto [name, content] : sections) {
        const auto bytes = nb::cast<nb::bytes>(content);
        made.sections.emplace(nb::cast<std::string>(name), std::string(bytes.c_str(), bytes.size()));
    }
    unwrap(bundle::write_bundle(made, file));
}

/// The manifest of a bundle of grouped kernels (stages: source, file, kernel, bindings, scalars, tensors, grid), without kernels,
/// and its sections. `names`: by kernel and parameter the name of the call's tensor, where that is another one.
nb::tuple grouped(const std::vector<StageTuple>& stages, const plan::Plan& plan, const std::string& arch,
                  std::int32_t num_sms, std::int64_t programs, const ops::Strategy& strategy, bool drops,
                  const std::vector<std::map<std::string, std::string>>& names) {
    bundle::Bundle made{.made_by = "syncopate " SYNCOPATE_VERSION, .arch = arch};
    made.grouped = bundle::GroupedPart{.ranks = plan.num_ranks(),
                                       .programs = programs,
                                       .drops = drops,
                                       .strategy = strategy,
                                       .names = names};
    emit::Launches launches{.device = made.on_host() ? fuse::Device::host : fuse::Device::cuda, .plan = plan};
    nb::dict sections;
    for (emit::StageText& text : texts_of(stages, num_sms, {})) {
        made.name += (made.name.empty() ? "" : ", ") + text.name.substr(0, text.name.find('@'));
        // Of two files of one name, each has its own section.
        const std::string file =
            fmt::format("original_{}{}", launches.stages.size(), emit::suffix_of(text.file));
        sections[("folder/" + file).c_str()] = nb::bytes(text.source.data(), text.source.size());
        launches.stages.push_back({.kernel = text.name,
                                   .file = file,
                                   .arguments = std::move(text.arguments),
                                   .bindings = std::move(text.bindings)});
    }
    const std::string text = emit::to_json(launches);
    sections["folder/launches.json"] = nb::bytes(text.data(), text.size());
    return nb::make_tuple(bundle::manifest_to_json(made), sections);
}

}  // namespace

void bind_bundle(nb::module_& module) {
    nb::module_ made = module.def_submodule("bundle", "Programs compiled ahead (bundle/bundle.hpp)");
    made.def("variant", &variant, "problem"_a, "strategy"_a, "w_transposed"_a, "bucket_rows"_a, "rows"_a);
    made.def("grouped", &grouped, "stages"_a, "plan"_a, "arch"_a, "num_sms"_a, "programs"_a, "strategy"_a,
             "drops"_a, "names"_a);
    made.def("write", &write, "manifest"_a, "sections"_a, "file"_a);
}

}  // namespace syncopate::bindings
