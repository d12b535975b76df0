// The reader of partition IR, and all that follows it: whatever the bytes, a plan without a finding, or an
// error.
#include "syncopate/ingest/partition/partition_ir.hpp"
#include "fuzz/target.hpp"
#include "syncopate/plan/json/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace syncopate;
    const std::string_view text = syncopate::fuzz::text_of(data, size);
    const auto import = ingest::import_partition(text, "fuzz.json");
    if (!import) {
        if (import.error().message.empty()) std::abort();
        return 0;
    }
    std::size_t ops = 0;
    for (const auto& list : import->plan.ranks) ops += list.size();
    if (ops > 20'000) return 0;  // large ones only take long
    if (!ingest::check_import(*import).empty()) std::abort();
    if (!plan::from_json(plan::to_json(import->plan))) std::abort();
    return 0;
}
