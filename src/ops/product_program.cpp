// The kernels of operators around products, as they state themselves, for the strategy's tiles.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "ops/product.hpp"
#include "syncopate/at.hpp"
#include "syncopate/ops/gluon_box.hpp"
#include "syncopate/ops/statements.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

using kernel::Arguments;
using kernel::TensorArgument;

/// One of an operator's products, and what its kernel is called with.
class ProductStage {
public:
    ProductStage(const Problem& problem, const Strategy& strategy, const Call& call,
                 const ProductShape& shape, const TileConfig& tile)
        : problem_(problem),
          strategy_(strategy),
          call_(call),
          shape_(shape),
          tile_(tile),
          form_{.kernel = kernel_of(strategy, tile),
                .w_transposed = call.w_transposed,
                .scales = problem.scales,
                .whole_bias = call.bias == 2} {}

    /// `bindings`: tensors of `plan` in the place of the product's own.
    Result<fuse::Stage> make(const Bindings& bindings, const plan::Plan& plan) const {
        Arguments arguments = called_with();
        for (const auto& [param, name] : bindings) {
            const auto tensor = plan.find_tensor(name);
            const auto given = arguments.tensors.find(param);
            if (!tensor || given == arguments.tensors.end()) continue;
            given->second.shape = plan.tensors[at(*tensor)].shape;
        }
        SYNCOPATE_TAKE(kernel::Kernel kernel, kernel::stated::analyse(matmul_statement(form_), arguments));
        return fuse::Stage{std::move(kernel), bindings};
    }

private:
    static MatmulKernel kernel_of(const Strategy& strategy, const TileConfig& tile) {
        if (strategy.kernel == ProductKernel::gluon) return MatmulKernel::gluon;
        return tile.num_wide >= 0 ? MatmulKernel::mixed : MatmulKernel::plain;
    }

    [[nodiscard]] bool is_gluon() const { return form_.kernel == MatmulKernel::gluon; }

    [[nodiscard]] Arguments called_with() const {
        const std::int32_t narrow = tile_.block_n / 2;
        const bool mixed = form_.kernel == MatmulKernel::mixed;
        const std::int64_t wide = mixed ? tile_.num_wide : ceil_div(shape_.n, tile_.block_n);
        const std::int64_t rest =
            mixed
                ? ceil_div(std::max<std::int64_t>(0, shape_.n - std::int64_t{tile_.num_wide} * tile_.block_n),
                           narrow)
                : 0;
        const std::int64_t tiles = ceil_div(shape_.m, tile_.block_m) * (wide + rest);
        Arguments made;
        made.scalars = {{"M", shape_.m},
                        {"N", shape_.n},
                        {"K", shape_.k},
                        {"BLOCK_M", std::int64_t{tile_.block_m}},
                        {"BLOCK_N", std::int64_t{tile_.block_n}},
                        {"BLOCK_K", std::int64_t{tile_.block_k}},
                        {"GROUP_M", std::int64_t{tile_.group_m}}};
        const std::int64_t programs = strategy_.programs.value_or(static_cast<std::int32_t>(tiles));
        std::int64_t split = 1;
        if (is_gluon()) {
            split = tile_.split_k;
            made.scalars["SPLIT_K"] = split;
        } else if (mixed) {
            made.scalars["num_wide"] = std::int64_t{tile_.num_wide};
        }
        const std::int64_t at_once = std::min(tiles, std::max<std::int64_t>(programs / split, 1));
        made.grid = {at_once * split, 1, 1};
        add_tensors(made);
        return made;
    }

    void add_tensors(Arguments& made) const {
        const GluonBox box =
            is_gluon() ? gluon_box(tile_, shape_.m, plan::size_of(problem_.dtype)) : plain_box();
        const auto add = [&](const char* param, std::vector<std::int64_t> shape, plan::DType dtype,
                             std::vector<std::int64_t> block = {}) {
            made.tensors[param] =
                TensorArgument{.shape = std::move(shape), .dtype = dtype, .block = std::move(block)};
        };
        const auto turned = [&](std::int64_t depth, std::int64_t columns) {
            return call_.w_transposed ? std::vector{columns, depth} : std::vector{depth, columns};
        };
        add("a_desc", {shape_.m, shape_.k}, problem_.dtype, {box.rows, box.depth});
        add("b_desc", turned(shape_.k, shape_.n), problem_.dtype, turned(box.depth, box.columns));
        const std::int64_t stored = is_gluon() ? std::min(tile_.block_m, 64) : tile_.block_m;
        add("c_desc", {shape_.m, shape_.n}, problem_.out,
            {stored, is_gluon() ? box.columns : stored_columns()});
        if (call_.bias == 1) add("bias_ptr", {shape_.n}, problem_.out);
        if (call_.bias == 2) add("bias_ptr", {shape_.m, shape_.n}, problem_.out);
        if (problem_.scales == Scales::none) return;
        const bool by_row = problem_.scales == Scales::row;
        add("scale_a_ptr", x_scales_shape(problem_), plan::DType::fp32);
        add("scale_b_ptr",
            by_row ? std::vector{shape_.n}
                   : std::vector{ceil_div(shape_.n, kScaled), ceil_div(shape_.k, kScaled)},
            plan::DType::fp32);
    }

    [[nodiscard]] GluonBox plain_box() const { return {tile_.block_m, tile_.block_n, tile_.block_k}; }

    /// Of the plain kernels: a tile of many columns is stored in two halves.
    [[nodiscard]] std::int64_t stored_columns() const {
        const bool halves = tile_.block_n == 256 || form_.kernel == MatmulKernel::mixed;
        return halves ? tile_.block_n / 2 : tile_.block_n;
    }

    const Problem& problem_;
    const Strategy& strategy_;
    const Call& call_;
    const ProductShape& shape_;
    const TileConfig& tile_;
    MatmulForm form_;
};

}  // namespace

Result<fuse::StagedProgram> program_of(const Problem& problem, const Strategy& strategy, const Call& call,
                                       const std::vector<ProductShape>& shapes) {
    SYNCOPATE_TAKE(Outline outlined, outline(problem, strategy, call));
    const std::size_t tiles = strategy.tiles.size();
    if (tiles != shapes.size() && tiles != 1)
        return usage(fmt::format("{}: the strategy has tiles of {} products, and there are {}", problem.op,
                                 tiles, shapes.size()));
    fuse::StagedProgram made;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
        const ProductStage stage(problem, strategy, call, shapes[i], strategy.tiles[tiles == 1 ? 0 : i]);
        SYNCOPATE_TAKE(fuse::Stage analysed, stage.make(outlined.bindings[i], outlined.plan));
        made.stages.push_back(std::move(analysed));
    }
    made.plan = std::move(outlined.plan);
    return made;
}

Result<fuse::StagedProgram> product_program(const Problem& problem, const Strategy& strategy,
                                            const Call& call) {
    return program_of(problem, strategy, call, problem.products());
}

}  // namespace syncopate::ops
