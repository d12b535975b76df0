// Plans of other systems, as Python brings them in.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "bindings.hpp"
#include "syncopate/ingest/ingest.hpp"

namespace nb = nanobind;

namespace syncopate::bindings {

void bind_ingest(nb::module_& m) {
    m.def(
        "import_plan",
        [](const std::string& text, const std::string& name, const std::string& format, std::int32_t pick,
           std::int32_t ranks, const std::string& module) {
            const ingest::Format known = unwrap(ingest::format_from(format));
            ingest::ImportOptions options;
            options.pick = pick;
            options.ranks = ranks;
            options.module = module;
            return unwrap(ingest::import_plan(text, name, known, options)).plan;
        },
        nb::arg("text"), nb::arg("name"), nb::arg("format") = "auto", nb::arg("pick") = -1,
        nb::arg("ranks") = 0, nb::arg("module") = "",
        "The plan in a text of another system; see ingest/ingest.hpp.");
}

}  // namespace syncopate::bindings
