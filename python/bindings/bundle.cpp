// Bundles, as `syncopate compile` writes them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "problem.hpp"
#include "syncopate/bundle/bundle.hpp"
#include "syncopate/bundle/program.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

/// By stage, of the schedule of an operator with so many rows by the strategy of a bucket.
std::vector<bundle::Traits> traits(const std::string& problem, const ops::Strategy& strategy,
                                   bool w_transposed, std::int64_t bucket_rows, std::int64_t rows) {
    const bundle::OperatorPart op{.problem = unwrap(ops::parse_problem(problem)),
                                  .call = {.w_transposed = w_transposed}};
    const bundle::Bucket bucket{.rows = bucket_rows, .strategy = strategy};
    return unwrap(bundle::lower(op, bucket, rows, fuse::Device::cuda)).traits;
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

}  // namespace

void bind_bundle(nb::module_& module) {
    nb::module_ made = module.def_submodule("bundle", "Programs compiled ahead (bundle/bundle.hpp)");
    made.def("traits", &traits, "problem"_a, "strategy"_a, "w_transposed"_a, "bucket_rows"_a, "rows"_a);
    made.def("write", &write, "manifest"_a, "sections"_a, "file"_a);
}

}  // namespace syncopate::bindings
