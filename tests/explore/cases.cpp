#include "explore/cases.hpp"

#include <fmt/format.h>

#include <utility>

#include <gtest/gtest.h>

#include "fuse/sample.hpp"
#include "fuse/summing.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::explore {
namespace {

using fuse::sample::Gemm;
using plan::Backend;

/// Of host, then of cuda by each backend that is given, each with the kernel starting early, and telling early.
class Cases {
public:
    void add(const std::string& name, const fuse::StagedProgram& program,
             const std::vector<Backend>& backends, bool on_host = true) {
        fuse::StagedProgram exact = program;
        for (plan::Tensor& tensor : exact.plan.tensors) tensor.dtype = plan::DType::fp32;
        for (fuse::Stage& stage : exact.stages) {
            for (auto& [param, tensor] : stage.kernel.arguments.tensors) tensor.dtype = plan::DType::fp32;
        }
        if (on_host) {
            made_.push_back({name + " on host", exact, {.device = fuse::Device::host}});
            made_.push_back({.name = name + " on host from arrays",
                             .program = exact,
                             .options = {.device = fuse::Device::host},
                             .arrays = true});
        }
        bool early = false;
        for (const Backend backend : backends) {
            early = !early;
            if (on_host) {
                made_.push_back({.name = fmt::format("{} by {} from arrays", name, plan::name_of(backend)),
                                 .program = exact,
                                 .options = {.device = fuse::Device::cuda, .preferred = backend},
                                 .arrays = true});
            }
            made_.push_back({fmt::format("{} by {}", name, plan::name_of(backend)),
                             exact,
                             {.device = fuse::Device::cuda, .preferred = backend},
                             true,
                             early});
        }
    }
    void add(const std::string& name, const fuse::Program& program, const std::vector<Backend>& backends,
             bool on_host = true) {
        add(name, fuse::StagedProgram{{{program.kernel, program.bindings}}, program.plan}, backends, on_host);
    }
    std::vector<Case> take() { return std::move(made_); }

private:
    std::vector<Case> made_;
};

plan::Tensor c_of(const Gemm& g) { return {"C", {g.M, g.N}, plan::DType::fp32}; }

fuse::Program makes(const Gemm& g, plan::Plan plan) {
    return {fuse::sample::gemm(g), std::move(plan), {{"c_ptr", "C"}}};
}

const std::vector<Backend> kTransfers{Backend::copy_engine, Backend::tma_dedicated, Backend::ldst_dedicated};

/// The operator of `spec` by a strategy: on cuda with its kernel starting early.
void add_operator(const std::string& spec, const std::string& json, fuse::Device device,
                  std::vector<Case>& cases) {
    const Result<ops::Problem> problem = ops::parse_problem(spec);
    const Result<ops::Strategy> strategy = ops::strategy_from_json(json);
    ASSERT_TRUE(problem) << problem.error().to_string();
    ASSERT_TRUE(strategy) << strategy.error().to_string();
    const Result<fuse::StagedProgram> program = ops::program(*problem, *strategy);
    ASSERT_TRUE(program) << spec << " " << json << ": " << program.error().to_string();
    const bool cuda = device == fuse::Device::cuda;
    fuse::Options options = ops::fuse_options(*strategy, device);
    if (!cuda) options.preferred = Backend::host;
    cases.push_back(
        {fmt::format("{} {} on {}", spec, json, fuse::name_of(device)), *program, options, cuda, false});
}

constexpr const char* kTile = R"({"block_m": 16, "block_n": 32, "block_k": 16, "stages": 2})";

}  // namespace

std::vector<Case> plan_cases(int ranks) {
    Cases cases;
    const auto of = [&](const char* name) { return fmt::format("{} of {}", name, ranks); };
    const plan::Mesh mesh = fuse::sample::ranks(ranks);
    const Gemm even{2 * ranks, 4, 8, 2, 4, 4, 2};
    const Gemm uneven{2 * ranks + 1, 8, 4, 2, 4, 4, 0};
    const auto gathered = [&](const Gemm& g, plan::AllGatherOptions options = {}) {
        return fuse::sample::all_gather_gemm(g, ranks, options);
    };
    cases.add(of("push"), gathered(even), kTransfers);
    cases.add(of("uneven push in two"), gathered(uneven, {.split = 2}), {Backend::copy_engine});
    cases.add(of("pull"), gathered(even, {.pull = true}), kTransfers);
    cases.add(of("push along K"), gathered({2, 4, 4 * ranks, 2, 4, 4, 1}, {.axis = 1}), kTransfers);
    cases.add(of("ring push"),
              fuse::Program{fuse::sample::gemm(even),
                            fuse::sample::ring_all_gather(ranks, fuse::sample::a_of(even)),
                            {{"a_ptr", "A"}}},
              kTransfers);
    cases.add(of("ring pull"),
              fuse::Program{fuse::sample::gemm(even),
                            fuse::sample::ring_all_gather(ranks, fuse::sample::a_of(even), true),
                            {{"a_ptr", "A"}}},
              {Backend::copy_engine});
    cases.add(
        of("unread ring"),
        fuse::Program{
            fuse::sample::gemm(even), fuse::sample::ring_all_gather(ranks, fuse::sample::a_of(even)), {}},
        {Backend::tma_dedicated});
    plan::AllGatherOptions transient{.pull = true};
    transient.transient = true;
    cases.add(of("fetched by tiles"), gathered(even, transient), {Backend::ldst_inline}, false);
    const plan::Tensor x{"X", {even.M, even.K}, plan::DType::fp32};
    cases.add(
        of("exchanged"),
        fuse::Program{fuse::sample::gemm(even),
                      plan::push_exchange(mesh, x, "A", {.produced = false, .for_kernel = true}).value(),
                      {{"a_ptr", "A"}}},
        kTransfers);
    cases.add(of("exchanged, fetched by tiles"),
              fuse::Program{fuse::sample::gemm(even),
                            plan::push_exchange(mesh, x, "A", {.produced = false, .transient = true}).value(),
                            {{"a_ptr", "A"}}},
              {Backend::ldst_inline}, false);
    const Gemm makes_even{2 * ranks, 4, 4, 2, 4, 4, 2};
    const auto reduced = [&](const Gemm& g, plan::PushReduceOptions options = {}) {
        return makes(g, plan::push_reduce(mesh, c_of(g), options).value());
    };
    std::vector<Backend> all = kTransfers;
    all.push_back(Backend::ldst_inline);
    cases.add(of("reduce-scatter"), reduced(makes_even), all);
    cases.add(of("reduce-scatter in two"), reduced({4 * ranks, 4, 4, 2, 4, 4, 3}, {.split = 2}),
              {Backend::tma_dedicated});
    cases.add(of("pulled reduce-scatter"), makes(makes_even, fuse::sample::pulled(reduced(makes_even).plan)),
              {Backend::tma_dedicated, Backend::ldst_dedicated});
    cases.add(of("all-reduce"), reduced(makes_even, {.all = true}), all);
    cases.add(of("exchange of what is made"),
              makes(makes_even, plan::push_exchange(mesh, c_of(makes_even), "D").value()), all);
    // Direct collectives: of the ranks of device host together, and by nccl, in whose place they are here.
    for (const char* kind : {"all_gather", "broadcast", "reduce_scatter", "all_reduce"}) {
        const bool gathers = std::string_view(kind) == "all_gather" || std::string_view(kind) == "broadcast";
        plan::Plan plan =
            plan::make_collective(kind, mesh, gathers ? fuse::sample::a_of(even) : c_of(makes_even)).value();
        if (!gathers) std::swap(plan.initial, plan.produced);
        cases.add(fmt::format("direct {} of {}", kind, ranks),
                  gathers ? fuse::Program{fuse::sample::gemm(even), plan, {{"a_ptr", "A"}}}
                          : makes(makes_even, plan),
                  {Backend::automatic});
    }
    std::vector<Case> made = cases.take();
    // Sums in the kernel, of staging that has two places.
    for (const auto& [name, plan] :
         {std::pair("all-reduce in the kernel", fuse::sample::to_all(ranks, {}, 16 * ranks)),
          std::pair("reduce-scatter in the kernel", fuse::sample::to_owners(ranks))}) {
        const fuse::Program program = fuse::sample::summed(plan);
        made.push_back({of(name),
                        {{{program.kernel, program.bindings}}, program.plan},
                        fuse::sample::in_kernel(),
                        true});
    }
    return made;
}

std::vector<Case> node_cases(int nodes, int places) {
    Cases cases;
    const int ranks = nodes * places;
    const plan::Mesh mesh{{{"node", nodes}, {"gpu", places}}, "node"};
    const auto of = [&](const char* name) {
        return fmt::format("{} of {} nodes of {}", name, nodes, places);
    };
    const Gemm even{2 * ranks, 4, 8, 2, 4, 4, 2};
    const Gemm makes_even{2 * ranks, 4, 4, 2, 4, 4, 2};
    const plan::Tensor a = fuse::sample::a_of(even);
    const plan::Tensor x{"X", a.shape, a.dtype};
    plan::AllGatherOptions hierarchical;
    hierarchical.algorithm = plan::Algorithm::hierarchical;
    const auto reads = [&](plan::Plan plan) {
        return fuse::Program{fuse::sample::gemm(even), std::move(plan), {{"a_ptr", "A"}}};
    };
    const std::vector<Backend> copies{Backend::copy_engine};
    cases.add(of("all-gather"), reads(plan::all_gather(mesh, a, hierarchical).value()), kTransfers);
    cases.add(of("direct all-gather"), reads(plan::all_gather(mesh, a, {}).value()), copies);
    cases.add(of("reduce-scatter"), makes(makes_even, plan::push_reduce(mesh, c_of(makes_even), {}).value()),
              kTransfers);
    cases.add(of("all-reduce"),
              makes(makes_even, plan::push_reduce(mesh, c_of(makes_even), {.all = true}).value()), copies);
    cases.add(of("exchange"),
              reads(plan::push_exchange(mesh, x, "A", {.produced = false, .for_kernel = true}).value()),
              copies);
    cases.add(of("exchange of what is made"),
              makes(makes_even, plan::push_exchange(mesh, c_of(makes_even), "D").value()), copies);
    return cases.take();
}

std::vector<Case> operator_cases(int ranks) {
    struct Way {
        const char* spec;
        const char* strategy;
    };
    const std::vector<Way> ways{
        {"all_gather_matmul:M={0},N=32,K=32", R"("backend": "copy_engine")"},
        {"all_gather_matmul:M={0},N=32,K=32",
         R"("backend": "tma_dedicated", "chunking": {"rows": 1, "slices": 2})"},
        {"all_gather_matmul:M={0},N=32,K=32", R"("backend": "ldst_inline", "pull": true)"},
        {"all_gather_matmul:M={0},N=32,K=32", R"("backend": "tma_inline")"},
        {"all_to_all_matmul:M={0},N=32,K=32", R"("backend": "tma_dedicated")"},
        {"matmul_reduce_scatter:M={0},N=32,K=32", R"("backend": "copy_engine")"},
        {"matmul_reduce_scatter:M={0},N=32,K=32", R"("backend": "tma_dedicated", "stored": 1)"},
        {"matmul_all_reduce:M={0},N=32,K=32", R"("backend": "tma_dedicated")"},
        {"matmul_all_reduce:M={0},N=32,K=32", R"("backend": "ldst_inline", "one_step": true)"},
        {"matmul_all_to_all:M={0},N=32,K=32", R"("backend": "copy_engine")"},
        {"feed_forward:M={0},K=32,F=32,N=32", R"("backend": "copy_engine")"},
        {"feed_forward:M={0},K=32,F=32,N=32", R"("backend": "tma_dedicated")"},
    };
    std::vector<Case> cases;
    const auto add = [&](const std::string& spec, const std::string& json, fuse::Device device) {
        add_operator(spec, json, device, cases);
    };
    for (const Way& way : ways) {
        const std::string spec =
            fmt::format(fmt::runtime(way.spec), 32 * ranks) + fmt::format(",dtype=fp32,ranks={}", ranks);
        const std::string json = fmt::format(R"({{"tiles": [{}], {}}})", kTile, way.strategy);
        add(spec, json, fuse::Device::cuda);
        if (std::string_view(way.strategy) == R"("backend": "copy_engine")")
            add(spec, json, fuse::Device::host);
    }
    if (ranks == 2) {
        add("mlp_chain:M=32,H=32,F=32,dtype=fp32,ranks=1",
            fmt::format(R"({{"tiles": [{}]}})",
                        R"({"block_m": 16, "block_n": 16, "block_k": 16, "stages": 2})"),
            fuse::Device::cuda);
    }
    std::vector<std::string> kinds{"all_gather", "ring", "ulysses"};
    if (ranks == 4) kinds = {"double_ring", "ulysses_ring"};
    for (const std::string& kind : kinds) {
        const std::string spec =
            fmt::format("attention:kind={0},B=1,H={2},HKV={2},S={1},D=16,causal=1,dtype=fp32,ranks={2}", kind,
                        64 * ranks, ranks);
        for (const fuse::Device device : {fuse::Device::host, fuse::Device::cuda}) add(spec, "{}", device);
    }
    return cases;
}

std::vector<Case> operator_node_cases(int nodes, int places) {
    const int ranks = nodes * places;
    const std::string where = fmt::format(",dtype=fp32,ranks={},nodes={}", ranks, nodes);
    std::vector<Case> cases;
    for (const char* spec : {"all_gather_matmul:M={},N=32,K=32", "all_to_all_matmul:M={},N=32,K=32",
                             "matmul_reduce_scatter:M={},N=32,K=32", "matmul_all_reduce:M={},N=32,K=32",
                             "matmul_all_to_all:M={},N=32,K=32", "feed_forward:M={},K=32,F=32,N=32"}) {
        const std::string of = fmt::format(fmt::runtime(spec), 16 * ranks) + where;
        for (const char* backend : {"copy_engine", "tma_dedicated"}) {
            const std::string json = fmt::format(R"({{"tiles": [{}], "backend": "{}"}})", kTile, backend);
            add_operator(of, json, fuse::Device::cuda, cases);
        }
        add_operator(of, fmt::format(R"({{"tiles": [{}]}})", kTile), fuse::Device::host, cases);
    }
    std::vector<std::string> kinds{"all_gather", "ring"};
    if (places > 1) kinds = {"all_gather", "double_ring", "ulysses_ring"};
    for (const std::string& kind : kinds) {
        const std::string spec =
            fmt::format("attention:kind={0},B=1,H={1},HKV={1},S={2},D=16,causal=1", kind, ranks, 32 * ranks);
        for (const fuse::Device device : {fuse::Device::host, fuse::Device::cuda})
            add_operator(spec + where, "{}", device, cases);
    }
    return cases;
}

}  // namespace syncopate::explore
