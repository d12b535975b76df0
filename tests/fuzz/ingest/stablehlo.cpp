// The reader of StableHLO, and all that follows it: whatever the bytes, candidates that can be shown, and
// plans that can be checked and written, or an error.
#include "syncopate/ingest/stablehlo/stablehlo.hpp"
#include "fuzz/target.hpp"
#include "syncopate/ingest/candidates/candidates.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/json/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace syncopate;
    const std::string_view text = syncopate::fuzz::text_of(data, size);
    const auto program = ingest::read_stablehlo(text, "fuzz.mlir");
    if (!program) {
        if (program.error().message.empty() || program.error().location.line < 1) std::abort();
        return 0;
    }
    const auto candidates = ingest::list_candidates(*program);
    if (ingest::candidates_table(candidates).empty() || ingest::candidates_json(candidates).empty())
        std::abort();
    for (const ingest::Candidate& candidate : candidates) {
        const auto plan = ingest::plan_of(candidate);
        if (!plan || plan->num_ranks() > 64) continue;
        if (!plan::check(*plan).empty() || !plan::from_json(plan::to_json(*plan))) std::abort();
    }
    return 0;
}
