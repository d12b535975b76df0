// Topologies from JSON (schema syncopate.topology/1): read, written, read again; and small ones carry a plan,
// whose simulation ends and is no faster than the lower bound, or is refused.
#include "fuzz/target.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/plan/synthesise/synthesise.hpp"
#include "syncopate/plan/templates/templates.hpp"
#include "syncopate/plan/topology/topology.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace syncopate;
    const std::string_view text = fuzz::text_of(data, size);
    const Result<plan::Topology> read = plan::topology_from_json(text, "fuzz.json");
    if (!read) {
        fuzz::require(!read.error().message.empty(), "an error says what is wrong");
        fuzz::require(read.error().location.line > 0, "an error in a text names its line");
        return 0;
    }
    const Result<plan::Topology> again = plan::topology_from_json(plan::to_json(*read), "again.json");
    fuzz::require(again.ok() && *again == *read, "what is written reads as the same topology");
    const std::int32_t ranks = read->num_devices();
    if (ranks > 8) return 0;
    const plan::Mesh mesh{{{"gpu", ranks}}};
    const plan::Tensor tensor{"A", {32, 32}, plan::DType::bf16};
    const auto run = [&](const plan::Plan& plan) {
        const Result<plan::Simulation> simulated = plan::simulate(plan, *read);
        if (!simulated) return;
        fuzz::require(simulated->makespan_us >= simulated->bound.us * 0.999, "no run beats the lower bound");
    };
    for (const char* name : {"all_gather", "all_reduce"}) {
        if (const Result<plan::Plan> plan = plan::make_plan(name, mesh, tensor, {})) run(*plan);
    }
    for (const auto kind : {plan::CollectiveKind::reduce_scatter, plan::CollectiveKind::all_to_all}) {
        const Result<plan::Plan> plan =
            plan::synthesise(mesh, tensor, *read, {.kind = kind, .chunks = 2, .attempts = 1});
        if (plan) run(*plan);
    }
    return 0;
}
