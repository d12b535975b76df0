// Plans of other systems, as Python brings them in.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "bindings.hpp"
#include "syncopate/ingest/ingest.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {

void bind_ingest(nb::module_& m) {
    m.def(
        "import_plan",
        [](const std::string& text, const std::string& format, std::int32_t pick, std::int32_t ranks,
           const std::string& module, const std::string& name) {
            const ingest::Format known = unwrap(ingest::format_from(format));
            ingest::ImportOptions options;
            options.pick = pick;
            options.ranks = ranks;
            options.module = module;
            return unwrap(ingest::import_plan(text, name, known, options)).plan;
        },
        "text"_a, "format"_a = "auto", nb::kw_only(), "pick"_a = -1, "ranks"_a = 0, "module"_a = "",
        "name"_a = "<plan>",
        R"(The plan in a text that another system made, as `syncopate plan import` reads it; not yet checked.

`format`: "auto", "msccl_xml", "mscclpp_json", "hlo", "stablehlo", "partition", "loop". `pick`: which candidate of
HLO or StableHLO; `module`: which module, where there are several; `ranks`: how many devices, where its text does
not say. Raises InputError with the place of what is wrong.)");
}

}  // namespace syncopate::bindings
