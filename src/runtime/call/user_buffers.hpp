// The user's own arrays: what a call copies into the heap and out of it, and what need not be copied because
// a transfer can read it, or a sum write it, where the user has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/call/call_executor.hpp"
#include "runtime/call/op_memory.hpp"
#include "syncopate/at.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/call/op.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"
#include "syncopate/runtime/heap/heap.hpp"

namespace syncopate::runtime {

class UserBuffers {
public:
    /// All of these must outlive it.
    UserBuffers(const SymmetricHeap& heap, const fuse::Schedule& schedule, const OpOptions& options,
                const OpMemory& memory, CallExecutor& executor);

    /// As FusedOp has them.
    Status set_input(std::string_view name, const plan::Region& region, std::uint64_t address,
                     std::span<const std::int64_t> strides);
    Status set_input(std::string_view name, std::uint64_t address, std::span<const std::int64_t> strides);
    void clear_inputs();
    Status set_output(std::string_view name, const plan::Region& region, std::uint64_t address,
                      std::span<const std::int64_t> strides);
    [[nodiscard]] std::optional<FusedOp::OwnPlace> own_place() const;
    [[nodiscard]] std::optional<std::uint64_t> sum_place() const;

    /// Pointers to copies: a handful on the stack; more would need an allocation.
    class CopyList {
    public:
        void add(const StridedCopy& copy);
        [[nodiscard]] std::span<const StridedCopy* const> all() const;

    private:
        static constexpr std::size_t kOnStack = 64;
        const StridedCopy* few_[kOnStack];
        std::vector<const StridedCopy*> many_;
        std::size_t count_ = 0;
    };
    [[nodiscard]] CopyList copies_in() const { return copies_of(inputs_); }
    [[nodiscard]] CopyList copies_out() const { return copies_of(outputs_); }

private:
    struct Buffer {
        std::uint64_t address = 0;
        std::vector<std::int64_t> strides;
        std::vector<StridedCopy> copies;
        std::vector<StridedCopy>
            borders;          ///< an input's: what is copied even where the others are not needed
        bool spared = false;  ///< an input's: nobody needs them while all who can read the array itself do
        bool engine_reads = false;  ///< the chunk engine did when it was given
    };
    using Key = std::pair<std::int32_t, std::vector<std::int64_t>>;  ///< tensor and region
    using Buffers = std::map<Key, Buffer>;
    struct HeapBox {
        Key key;
        const plan::Tensor* tensor = nullptr;
        BoxView box;  ///< in this rank's heap
    };

    [[nodiscard]] CopyList copies_of(const Buffers& buffers) const;
    /// Whether the buffer's copies are not needed.
    [[nodiscard]] bool is_read_in_place(const Key& key, const Buffer& buffer) const;
    /// Whether this rank's tiles read what it was given of the tensor (by sy_own).
    [[nodiscard]] bool has_own_readers(std::int32_t tensor) const { return own_ && own_->tensor == tensor; }
    [[nodiscard]] Result<HeapBox> place_of(std::string_view name, const plan::Region& region,
                                           std::span<const std::int64_t> strides, const char* what) const;
    /// The copies of what tiles at the borders of `region` read in the heap; `from`: where the user has it.
    [[nodiscard]] Result<std::vector<StridedCopy>> border_copies(std::int32_t tensor,
                                                                 const plan::Region& region,
                                                                 const BoxView& from) const;
    /// Sends the sums into `region` to `to` instead; false, and none is, unless they cover all of it.
    bool redirect_sums(std::int32_t tensor, const plan::Region& region, const BoxView& to, bool in_place);
    /// Lets the chunk engine, or the kernel, put what it sums at `to` instead, where that is all of `key`, an
    /// output, and nothing else; else into the heap.
    void shift_sums(const Key& key, const plan::Region& region, const BoxView& to);
    /// Lets the transfers that send `region` read it at `from`; true if then nobody reads the heap's.
    bool redirect_sources(std::int32_t tensor, const plan::Region& region, const BoxView& from);
    /// Lets the chunk engine read what it sends of the tensor in the array of `region`, at `from`, if that
    /// has all of it; else in the heap. Whether it now reads the array.
    bool shift_engine(std::int32_t tensor, const plan::Region& region, const BoxView& from);
    /// The box around what this rank holds of the tensor initially; nullopt if nothing, or that is not known.
    [[nodiscard]] std::optional<plan::Region> initial_box(std::int32_t tensor) const;
    /// Whether this rank's tiles can read what they fetch from it in the user's array of `region`; `from`:
    /// where all of the tensor would be.
    [[nodiscard]] bool serves_tiles(const HeapBox& place, const plan::Region& region,
                                    const BoxView& from) const;
    /// Lets transfer `index` of this rank read `source`; false where it cannot.
    bool send_from(std::size_t index, const BoxView& source);
    void send_from_heap(std::size_t index);
    /// Whether this rank's kernel or a transfer writes into the region.
    [[nodiscard]] bool is_written(std::int32_t tensor, const plan::Region& region) const;
    /// What the kernel's programs sum; null: nothing.
    [[nodiscard]] const fuse::Transfer* kernel_sum() const;
    /// Whether another transfer of any rank, such as the next of several rounds of sums, reads or writes this
    /// rank's part of what `sum` makes.
    [[nodiscard]] bool is_used_besides(const fuse::Transfer& sum) const;
    [[nodiscard]] int rank() const { return heap_.rank(); }
    [[nodiscard]] const std::vector<fuse::Transfer>& transfers() const {
        return schedule_.ranks[at(rank())].transfers;
    }
    [[nodiscard]] BoxView in_heap(const plan::Chunk& chunk) const {
        return memory_.box_of(heap_, schedule_, rank(), chunk);
    }

    const SymmetricHeap& heap_;
    const fuse::Schedule& schedule_;
    const OpOptions& options_;
    const OpMemory& memory_;
    CallExecutor& executor_;
    std::vector<bool> fetched_by_tiles_;  ///< by tensor: some rank's tiles load this rank's from the heap
    std::optional<fuse::Place> own_;      ///< where tiles read what this rank was given, if it is in the heap
    std::optional<BoxView> own_from_;     ///< of the whole tensor: the user's array that they read instead
    std::optional<Key> engine_from_;      ///< the input that the chunk engine reads, instead of the heap
    std::optional<Key> summed_to_;        ///< the output where the chunk engine or the kernel puts its sums
    std::uint64_t kernel_shift_ = 0;      ///< of the kernel's: bytes (modulo 2^64) behind the heap's place
    Buffers inputs_;
    Buffers outputs_;
};

}  // namespace syncopate::runtime
