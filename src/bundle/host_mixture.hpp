// Host mixture: the kernels of a mixture of experts (python/syncopate/kernels/moe.py and its neighbours) as plain loops, for bundles for
// host. As on a GPU the counts of a call are known to the ranks alone, and the tables of the stages behind the layout
// are made in each call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "bundle/host_slots.hpp"
#include "syncopate/bundle/program.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/executable/executable.hpp"
#include "syncopate/runtime/host/table_player.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {

/// HostOperator::make of moe.
[[nodiscard]] Result<runtime::Executable::HostKernels> host_mixture(std::shared_ptr<const Planned> planned,
                                                                    std::vector<runtime::Operand> operands,
                                                                    runtime::FusedOp& op,
                                                                    std::uint64_t scratch);

/// Of one executable: what expert parallel and tensor parallel ones have in common.
class HostMixture {
public:
    using Tensors = std::span<const runtime::CallTensor>;
    HostMixture(std::shared_ptr<const Planned> planned, std::vector<runtime::Operand> operands,
                runtime::FusedOp& op, std::uint64_t scratch);
    virtual ~HostMixture() = default;
    HostMixture(const HostMixture&) = delete;
    HostMixture& operator=(const HostMixture&) = delete;

    [[nodiscard]] Status run(Tensors tensors) const;
    /// Those of its stages.
    [[nodiscard]] virtual std::span<const std::string_view> kernels() const = 0;

protected:
    /// What makes the tables, when the counts of all ranks are there.
    [[nodiscard]] virtual std::string_view layout() const = 0;
    virtual Status lay_out(Tensors tensors) const = 0;
    /// A tile of a kernel that is not here.
    virtual Status make(std::string_view kernel, const runtime::TableSlot& slot, Tensors tensors) const = 0;
    /// By rank, where rows come back to; a route is its number among those of all ranks.
    [[nodiscard]] virtual Result<std::vector<std::uint64_t>> back() const = 0;

    [[nodiscard]] std::int32_t rank() const { return op_.rank(); }
    [[nodiscard]] std::uint64_t given(Tensors tensors, std::string_view name) const;
    template <typename T>
    [[nodiscard]] T* scratch(const char* name) const {
        return reinterpret_cast<T*>(scratch_at_ + scratch_.places.find(name)->second.offset);
    }
    template <typename T>
    [[nodiscard]] Result<T*> heap(const char* tensor, std::int64_t of_rank) const {
        SYNCOPATE_TAKE(const std::uint64_t address, op_.tensor_address(tensor, static_cast<int>(of_rank)));
        return reinterpret_cast<T*>(address);
    }
    [[nodiscard]] std::int64_t id_of(Tensors tensors, std::int64_t route) const;
    /// The number of a route's expert; experts_: it names none.
    [[nodiscard]] std::int64_t expert_of(Tensors tensors, std::int64_t route) const;

    [[nodiscard]] Status make_slots(std::string_view kernel, const HostGroups& groups, const SlotCut& cut,
                                    std::span<const std::int64_t> order) const;
    /// Those of the two products, of this rank's experts.
    [[nodiscard]] Status make_product_slots(const HostGroups& runs) const;
    /// What the calls of all ranks had: rows over the bound, and ids that name no expert.
    void tell(std::int64_t over, std::uint32_t bad) const;

    std::shared_ptr<const Planned> planned_;
    std::vector<runtime::Operand> operands_;
    runtime::FusedOp& op_;
    Scratch scratch_;
    std::uint64_t scratch_at_;
    std::int64_t ranks_, tokens_, experts_, topk_, hidden_;
    bool is_tensor_parallel_;
    std::int64_t inner_;   ///< columns of F that a rank has
    std::int64_t own_;     ///< experts of which it has weights
    std::int64_t first_;   ///< the number of the first of these
    std::int64_t routes_;  ///< of a rank
    std::int64_t bound_;
    plan::DType dtype_, out_;
    bool is_scaled_, by_block_;
    std::int64_t x_scales_;  ///< of a row; 0 where there are none
    bool int32_ids_ = false;
    ops::TileConfig tile_;

private:
    /// A matrix of rows for each expert, or of rows that came.
    struct Factors {
        const float* values = nullptr;
        bool by_block = false;
    };

    [[nodiscard]] Status count(const runtime::TableSlot& slot, Tensors tensors) const;
    [[nodiscard]] Status up(const runtime::TableSlot& slot, Tensors tensors) const;
    [[nodiscard]] Status down(const runtime::TableSlot& slot, Tensors tensors) const;
    [[nodiscard]] float product(std::uint64_t rows, std::int64_t row, std::int64_t depth, std::uint64_t w,
                                std::int64_t expert, std::int64_t columns, std::int64_t column,
                                Factors of_rows, Factors of_w) const;
    template <typename Each>
    void each(const runtime::TableSlot& slot, std::int64_t columns, const Each& one) const;
};

[[nodiscard]] std::unique_ptr<const HostMixture> expert_host_mixture(std::shared_ptr<const Planned> planned,
                                                                     std::vector<runtime::Operand> operands,
                                                                     runtime::FusedOp& op,
                                                                     std::uint64_t scratch);
[[nodiscard]] std::unique_ptr<const HostMixture> tensor_host_mixture(std::shared_ptr<const Planned> planned,
                                                                     std::vector<runtime::Operand> operands,
                                                                     runtime::FusedOp& op,
                                                                     std::uint64_t scratch);

}  // namespace syncopate::bundle
