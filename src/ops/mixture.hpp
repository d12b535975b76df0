// Mixture: what programs of mixtures of experts have in common, expert parallel (moe.cpp) and tensor parallel
// (moe_tensor.cpp): their extents, and how their plans' tensors and stages are written down.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/product.hpp"
#include "syncopate/kernel/stated/statement.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/ops/parameters.hpp"

namespace syncopate::ops {

struct MixtureSizes {
    MixtureSizes(const Problem& problem, const Strategy& strategy);

    [[nodiscard]] static std::int64_t blocks(std::int64_t rows, std::int64_t size) {
        return (rows + size - 1) / size;
    }
    /// Tiles of tokens: as many as programs, where each then has few tokens.
    [[nodiscard]] std::int64_t combined() const;
    /// Programs of a product: as many on each multiprocessor as there is shared memory for, so that one loads
    /// while another ends a tile.
    [[nodiscard]] std::int64_t programs_of(std::int64_t products) const;
    [[nodiscard]] MixtureSending sending() const;
    /// Of a grid of this kernel.
    [[nodiscard]] std::int64_t programs_of(std::string_view kernel) const;
    /// Rows of memory in which a rank's experts' rows have place.
    [[nodiscard]] std::int64_t rows() const;
    /// Of fp8: scales of a row of x, and of what the first product makes of it.
    [[nodiscard]] std::int64_t x_scales() const { return by_block ? blocks(hidden, kScaled) : 1; }
    [[nodiscard]] std::int64_t a_scales() const { return blocks(inner, kScaled); }

    bool is_tensor_parallel;
    std::int64_t ranks, tokens, experts, topk, hidden;
    std::int64_t own;    ///< experts of which a rank has weights
    std::int64_t inner;  ///< columns of F that it has
    std::int64_t item;
    bool by_block;
    TileConfig tile;
    std::int64_t programs;
    std::int64_t bound = 0;  ///< rows that come to a rank at most
};

/// Builds a plan and its stages; a mixture says in which order.
class Mixture {
public:
    virtual ~Mixture() = default;
    [[nodiscard]] virtual Outline outline() = 0;
    [[nodiscard]] Result<fuse::StagedProgram> program(const Outline& outline) const;
    /// Those of its stages.
    [[nodiscard]] std::vector<std::string> kernels() const;

protected:
    using Statement = kernel::stated::Statement;

    Mixture(const Problem& problem, const Strategy& strategy);
    Mixture(const Mixture&) = delete;
    Mixture& operator=(const Mixture&) = delete;

    [[nodiscard]] virtual std::vector<Statement> stages() const = 0;
    [[nodiscard]] virtual std::map<std::string, kernel::Scalar> scalars() const;

    static plan::Interval one(std::int64_t at) { return {at, at + 1}; }

    std::int32_t add(const char* name, std::vector<std::int64_t> shape, plan::DType dtype);
    /// A tensor whose rows come in groups, of `row` each.
    std::int32_t add_ragged(const char* name, std::vector<std::string> groups, std::vector<std::int64_t> many,
                            const std::vector<std::int64_t>& row, plan::DType dtype, std::int64_t rows,
                            std::int64_t bound);
    /// Whose groups are rows of a rank for an expert.
    std::int32_t add_routed(const char* name, const std::vector<std::int64_t>& row, plan::DType dtype,
                            std::int64_t rows, std::int64_t bound) {
        return add_ragged(name, {"rows_from_rank", "expert"}, {of_.ranks, of_.experts}, row, dtype, rows,
                          bound);
    }
    static void hold(std::vector<plan::Holding>& list, std::int64_t rank, std::int32_t tensor,
                     plan::Region region) {
        list.push_back({static_cast<std::int32_t>(rank), {tensor, std::move(region)}});
    }
    void push(std::int64_t from, std::int64_t to, std::int32_t tensor, plan::Region region);

    template <typename Each>
    void each_peer(Each each) const {  // those behind a rank first, so that no rank is asked by all at once
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            for (std::int64_t step = 1; step < of_.ranks; ++step) each(rank, (rank + step) % of_.ranks);
        }
    }

    /// Of each rank a row: rows for each expert, then how many ids name none. Every rank is told.
    void add_counts();
    /// What a rank makes of its own tokens, in so many blocks. The kernel stores it where the user wants it.
    void add_done(std::int64_t blocks);
    /// The plan, and what its stages are bound to.
    Outline finished();

    static Statement stage(const char* kernel, std::vector<std::string> tensors);
    /// One tensor more.
    static void with(Statement& stage, std::vector<kernel::stated::Access>& accesses, const char* param,
                     const std::vector<std::string>& ranges);
    [[nodiscard]] bool is_scaled() const { return problem_.scales != Scales::none; }
    /// Experts of all ranks: a rank runs its own, as the plan says who makes what.
    static Statement grouped(const char* kernel, std::vector<std::string> tensors, const char* columns);
    static Statement counting();

    const Problem& problem_;
    MixtureSizes of_;
    std::string_view part_;
    plan::Plan plan_;
    std::int32_t counts_ = -1;
};

/// Why no program can do the problem; "" where one can.
[[nodiscard]] std::string mixture_objection(const Problem& problem);

/// What the kernels of a mixture take beside the plan's tensors (mixture_parameters.cpp).
[[nodiscard]] Result<std::vector<Parameters>> mixture_parameters(const Problem& problem,
                                                                 const Strategy& strategy, const Call& call);

/// OperatorRow::judge, of kSeen.
[[nodiscard]] std::string mixture_verdict(const Problem& problem, std::span<const std::uint32_t> before,
                                          std::span<const std::uint32_t> now, bool drops);

/// Expert parallel: every rank has all columns of its share of the experts (moe.cpp).
[[nodiscard]] std::unique_ptr<Mixture> expert_mixture(const Problem& problem, const Strategy& strategy);

/// Tensor parallel: every rank has its share of all experts' columns (moe_tensor.cpp).
[[nodiscard]] std::unique_ptr<Mixture> tensor_mixture(const Problem& problem, const Strategy& strategy);

}  // namespace syncopate::ops
