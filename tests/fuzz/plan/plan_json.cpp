// Plans from JSON (schema syncopate.plan/1): read, check, show, write and read again.
#include "fuzz/target.hpp"
#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/draw/show.hpp"
#include "syncopate/plan/json/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace syncopate;
    const std::string_view text = fuzz::text_of(data, size);
    const Result<plan::Plan> read = plan::from_json(text, "fuzz.json");
    if (!read) {
        fuzz::require(!read.error().message.empty(), "an error says what is wrong");
        fuzz::require(read.error().location.line > 0, "an error in a text names its line");
        return 0;
    }
    const std::vector<plan::Finding> findings = plan::check(*read);
    fuzz::require(plan::check(*read) == findings, "check gives the same answer twice");
    fuzz::require(!plan::to_table(*read, {}).empty(), "a plan can be shown");
    const Result<plan::Plan> again = plan::from_json(plan::to_json(*read), "again.json");
    fuzz::require(again.ok() && *again == *read, "what is written reads as the same plan");
    return 0;
}
