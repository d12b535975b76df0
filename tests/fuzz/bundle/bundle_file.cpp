// The reader of bundles: whatever the bytes, a bundle that is written with the same bytes again, or an error. Digests
// keep most inputs from getting far, so its manifest is read by itself, too (bundle_manifest.cpp).
#include "fuzz/target.hpp"
#include "syncopate/bundle/bundle.hpp"
#include "syncopate/bundle/program.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace syncopate;
    const Result<bundle::Bundle> read = bundle::from_bytes(fuzz::text_of(data, size), "fuzz.sybundle");
    if (!read) {
        fuzz::require(read.error().to_string().find("fuzz.sybundle") == 0, "an error names the file");
        return 0;
    }
    const Result<bundle::Bundle> again = bundle::from_bytes(bundle::to_bytes(*read), "fuzz.sybundle");
    fuzz::require(again.ok(), "what is written can be read");
    fuzz::require(bundle::to_bytes(*again) == bundle::to_bytes(*read), "and is the same");
    return 0;
}
