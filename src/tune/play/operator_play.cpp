// A call of one of the library's operators on a machine: its program, arranged by fuse, played.
#include "tune/play/operator_play.hpp"

#include <algorithm>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/try.hpp"
#include "syncopate/tune/candidates/program.hpp"
#include "tune/play/player.hpp"
#include "tune/play/product_tiles.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {

double result_copied_us(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    const OperatorRow::Kind kind = operator_row(problem.op)->kind;
    const bool sent_on = kind == OperatorRow::Kind::reduces && !strategy.one_step;
    if (kind != OperatorRow::Kind::sends && !sent_on) return 0;
    const ProductShape shape = problem.products().back();
    return local_copy_us(machine,
                         static_cast<double>(shape.m) * static_cast<double>(shape.n) * problem.out_item());
}

Result<Estimate> play_operator(const Problem& problem, const Machine& machine, const Strategy& strategy) {
    std::vector<ProductTiles> products;
    Strategy runs = strategy;
    runs.tiles.clear();
    runs.kernel = strategy.kernel_sums ? ProductKernel::gluon : ProductKernel::plain;
    const std::vector<Product> all = products_of(problem, strategy);
    for (const Product& one : all) {
        products.emplace_back(problem, machine, strategy, one);
        runs.tiles.push_back(products.back().run_tile());
        runs.programs = products.back().run_programs();
    }
    const double fixed = fixed_us(machine.rates, strategy, all.front().kind);
    // Of a chain, on one rank, tiles of the second product wait for those of the first.
    const bool chain = all.front().kind == OperatorRow::Kind::other;
    if (problem.ranks == 1 && !chain) {
        Estimate made{.fixed = machine.rates.call_us};
        for (const ProductTiles& product : products) made.compute += product.alone_us();
        made.us = made.fixed + made.compute;
        return made;
    }
    // Scales are few bytes.
    Problem unscaled = problem;
    unscaled.scales = Scales::none;
    SYNCOPATE_TAKE(fuse::StagedProgram program, ops::program(unscaled, runs));
    SYNCOPATE_TAKE(fuse::Decisions work,
                   fuse::arrange(program, options_of(strategy, fuse::Device::cuda, machine)));
    std::vector<StageTiles> stages;
    for (std::size_t i = 0; i < products.size(); ++i)
        stages.push_back(products[i].stage(program.stages[i].kernel));
    // Ranks of several nodes send in other rounds.
    Estimate made = play(program, work, stages, fixed, machine, strategy, problem.nodes == 1);
    made.copied = result_copied_us(problem, machine, strategy);
    made.exposed += made.copied;
    made.us += made.copied;
    if (!chain) return made;
    made.compute = 0;
    for (const ProductTiles& product : products) made.compute += product.alone_us();
    made.exposed = std::max(0.0, made.us - made.fixed - made.compute);
    return made;
}

}  // namespace syncopate::tune
