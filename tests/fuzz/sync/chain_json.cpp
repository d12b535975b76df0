// Chains from JSON (schema syncopate.chain/1): read, and judged where they are small.
#include "fuzz/target.hpp"
#include "syncopate/sync/chain.hpp"
#include "syncopate/sync/check.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace syncopate;
    const std::string_view text = fuzz::text_of(data, size);
    const Result<sync::Chain> chain = sync::chain_from_json(text, "fuzz.json");
    if (!chain) {
        fuzz::require(!chain.error().message.empty(), "an error says what is wrong");
        fuzz::require(chain.error().location.line > 0, "an error in a text names its line");
        return 0;
    }
    std::int64_t blocks = 0;
    for (const sync::ChainStage& stage : chain->stages) blocks += stage.num_blocks();
    if (blocks > 256) return 0;
    for (const sync::Finding& finding : sync::check(*chain).findings)
        fuzz::require(!finding.message.empty(), "a finding says what is wrong");
    return 0;
}
