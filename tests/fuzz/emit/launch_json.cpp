// The reader of what `fuse` leaves in a folder for `run`, schedule.json (schema syncopate.schedule/1 and the
// plan in it): whatever the bytes, a launch that reads the same once written, or an error.
#include "fuzz/target.hpp"
#include "syncopate/emit/artifact.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace syncopate;
    const Result<emit::ScheduleFile> read =
        emit::schedule_file_from_json(fuzz::text_of(data, size), "fuzz.json");
    if (!read) {
        fuzz::require(!read.error().message.empty(), "an error says what is wrong");
        return 0;
    }
    const std::string text = emit::to_json(*read);
    const Result<emit::ScheduleFile> again = emit::schedule_file_from_json(text, "again.json");
    fuzz::require(again.ok() && emit::to_json(*again) == text, "what is written reads as the same launch");
    return 0;
}
