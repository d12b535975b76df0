// The reader of MSCCL XML, and what follows it: whatever the bytes, a plan that can be checked and written,
// or an error.
#include "syncopate/ingest/msccl/msccl_xml.hpp"
#include "fuzz/target.hpp"
#include "syncopate/plan/json/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text = syncopate::fuzz::text_of(data, size);
    const auto import = syncopate::ingest::read_msccl_xml(text, "fuzz.xml");
    if (!import) {
        if (import.error().message.empty()) std::abort();
        return 0;
    }
    for (const auto& finding : syncopate::ingest::check_import(*import)) {
        if (finding.to_string("fuzz.xml").empty()) std::abort();
    }
    if (!syncopate::plan::from_json(syncopate::plan::to_json(import->plan))) std::abort();
    return 0;
}
