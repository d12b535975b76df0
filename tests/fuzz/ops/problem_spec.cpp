// The SPEC of an operator, as commands and bundles take it: whatever the text, a problem that reads the same once written, or an
// error; and of a problem, an outline of its plan by a strategy of JSON in the same input, behind a line's end, or an error; and of
// a mixture of experts its schedule, too.
#include "fuzz/target.hpp"
#include "syncopate/fuse/fuse.hpp"
#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/ops/strategy.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace syncopate;
    const std::string_view text = fuzz::text_of(data, size);
    const std::size_t end = text.find('\n');
    const Result<ops::Problem> problem = ops::parse_problem(text.substr(0, end), 2);
    if (!problem) {
        fuzz::require(!problem.error().message.empty(), "an error says what is wrong");
        return 0;
    }
    const Result<ops::Problem> again = ops::parse_problem(problem->key(), 2);
    fuzz::require(again.ok() && again->key() == problem->key(), "what is written reads as the same problem");
    if (end == std::string_view::npos) return 0;
    const Result<ops::Strategy> strategy = ops::strategy_from_json(text.substr(end + 1), "fuzz.json");
    if (!strategy) {
        fuzz::require(!strategy.error().message.empty(), "an error says what is wrong");
        return 0;
    }
    // Plans of many ranks, or of large tensors in small chunks, take long, and are no question of the text.
    constexpr std::int64_t kMostExtent = 4096;
    if (problem->ranks > 8) return 0;
    for (const ops::Extent& extent : problem->extents) {
        if (extent.value > kMostExtent) return 0;
    }
    if (!ops::problem_objection(*problem).empty()) return 0;
    const Result<ops::Outline> outline = ops::outline(*problem, *strategy, {});
    if (!outline) {
        fuzz::require(!outline.error().message.empty(), "an error says what is wrong");
        return 0;
    }
    if (problem->op != "moe" || problem->extent("E") > 64 || problem->extent("T") > 64) return 0;
    // Tables of a mixture are as long as tiles and programs say.
    const Result<fuse::StagedProgram> program = ops::program(*problem, *strategy, {});
    if (!program) {
        fuzz::require(!program.error().message.empty(), "an error says what is wrong");
        return 0;
    }
    for (const fuse::Device device : {fuse::Device::host, fuse::Device::cuda})
        (void)fuse::fuse(*program, ops::fuse_options(*strategy, device));
    return 0;
}
