// The manifest of a bundle: whatever the text, a manifest that reads the same once written, or an error; and of one
// that is read, its programs for some rows, or an error.
#include "fuzz/target.hpp"
#include "syncopate/bundle/bundle.hpp"
#include "syncopate/bundle/program.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace syncopate;
    const Result<bundle::Bundle> read = bundle::manifest_from_json(fuzz::text_of(data, size), "fuzz.json");
    if (!read) {
        fuzz::require(!read.error().message.empty(), "an error says what is wrong");
        return 0;
    }
    const std::string text = bundle::manifest_to_json(*read);
    const Result<bundle::Bundle> again = bundle::manifest_from_json(text, "again.json");
    fuzz::require(again.ok() && bundle::manifest_to_json(*again) == text,
                  "what is written reads as the same manifest");
    // Schedules of large problems take long, and are no question of the manifest.
    constexpr std::int64_t kMostExtent = 512;
    if (!read->op || read->op->problem.ranks > 8) return 0;
    for (const ops::Extent& extent : read->op->problem.extents) {
        if (extent.value > kMostExtent) return 0;
    }
    for (const std::int64_t rows : {std::int64_t{1}, read->op->buckets.front().rows}) {
        const Result<bundle::Planned> planned = bundle::plan_rows(*read, rows);
        if (!planned) continue;
        const std::vector<runtime::Operand> operands = bundle::operands_of(*planned, 0);
        (void)bundle::form_of(*read, *planned, 0, operands, std::uint64_t{1} << 30);
        (void)bundle::needs_of(*read, *planned, 0);
    }
    return 0;
}
