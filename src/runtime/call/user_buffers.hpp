// The user's own arrays: what a call copies into the heap and out of it, and what need not be copied because
// a transfer can read it, or a sum write it, where the user has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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

    /// As FusedOp has them. A place is looked up once, and by number in each call.
    Result<std::size_t> place_of(std::string_view name, const plan::Region& region);
    Result<std::optional<std::size_t>> initial_place_of(std::string_view name);
    Status set_input(std::size_t place, std::uint64_t address, std::span<const std::int64_t> strides);
    void clear_inputs();
    Status set_output(std::size_t place, std::uint64_t address, std::span<const std::int64_t> strides);
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
    /// A transfer of this rank that reads an input.
    struct Reader {
        std::size_t index = 0;
        bool by_engine = false;
        bool can = false;  ///< read it where the user has it, as far as the schedule says
    };
    /// What the schedule says of an input, wherever the user has it.
    struct InputFacts {
        bool spared = false;  ///< nobody needs it in the heap, if all readers can read it where it is
        std::vector<Reader> readers;
        bool engine_can = false;                  ///< as Reader::can, of all that the chunk engine sends
        std::vector<const plan::Chunk*> borders;  ///< that are copied all the same
        bool is_initial = false;                  ///< all that this rank holds of the tensor initially
    };
    /// A sum whose result an output has a part of.
    struct Made {
        std::size_t index = 0;
        bool can = false;  ///< be put where the user wants it, as far as the schedule says
    };
    struct OutputFacts {
        std::vector<Made> sums;
        bool covered = false;    ///< sums make all of it
        bool can_shift = false;  ///< what the chunk engine, or the kernel, sums is all of it and nothing else
    };
    struct Place {
        Key key;
        const plan::Tensor* tensor = nullptr;
        plan::Region region;
        BoxView box;  ///< in this rank's heap
        std::optional<InputFacts> as_input{};
        std::optional<OutputFacts> as_output{};
    };

    [[nodiscard]] CopyList copies_of(const Buffers& buffers) const;
    /// Whether the buffer's copies are not needed.
    [[nodiscard]] bool is_read_in_place(const Key& key, const Buffer& buffer) const;
    /// Whether this rank's tiles read what it was given of the tensor (by sy_own).
    [[nodiscard]] bool has_own_readers(std::int32_t tensor) const { return own_ && own_->tensor == tensor; }
    [[nodiscard]] Status require_strides(const Place& place, std::span<const std::int64_t> strides,
                                         const char* what) const;
    [[nodiscard]] InputFacts input_facts(const Place& place) const;
    [[nodiscard]] OutputFacts output_facts(const Place& place) const;
    /// The copies of what tiles at the borders of the input read in the heap; `from`: where the user has it.
    [[nodiscard]] Result<std::vector<StridedCopy>> border_copies(const Place& place,
                                                                 const BoxView& from) const;
    /// Sends the sums into the output to `to` instead; false, and none is, unless they cover all of it.
    bool redirect_sums(const Place& place, const BoxView& to, bool in_place);
    /// Lets the chunk engine, or the kernel, put what it sums at `to` instead, where that is all of the
    /// output, and nothing else; else into the heap.
    void shift_sums(const Place& place, const BoxView& to);
    /// Lets the transfers that send the input read it at `from`; true if then nobody reads the heap's.
    bool redirect_sources(const Place& place, const BoxView& from);
    /// Lets the chunk engine read what it sends of the tensor in the array of the input, at `from`, if that
    /// has all of it; else in the heap. Whether it now reads the array.
    bool shift_engine(const Place& place, const BoxView& from);
    /// The box around what this rank holds of the tensor initially; nullopt if nothing, or that is not known.
    [[nodiscard]] std::optional<plan::Region> initial_box(std::int32_t tensor) const;
    /// Whether this rank's tiles can read what they fetch from it in the user's array of the input; `from`:
    /// where all of the tensor would be.
    [[nodiscard]] bool serves_tiles(const Place& place, const BoxView& from) const;
    /// Lets transfer `index` of this rank read `source`; false where it cannot.
    bool send_from(std::size_t index, const BoxView& source);
    void send_from_heap(std::size_t index);
    /// Whether this rank's kernel or a transfer writes into the region.
    [[nodiscard]] bool is_written(std::int32_t tensor, const plan::Region& region) const;
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
    BoxView own_home_;                    ///< the whole tensor there
    std::optional<BoxView> own_from_;     ///< of the whole tensor: the user's array that they read instead
    std::optional<Key> engine_from_;      ///< the input that the chunk engine reads, instead of the heap
    std::optional<Key> summed_to_;        ///< the output where the chunk engine or the kernel puts its sums
    std::optional<std::uint64_t> kernel_sums_at_;  ///< in the heap; nullopt: its programs sum nothing
    std::uint64_t kernel_shift_ = 0;  ///< of the kernel's: bytes (modulo 2^64) behind the heap's place
    Buffers inputs_;
    Buffers outputs_;
    std::vector<std::unique_ptr<Place>> places_;
    std::map<Key, std::size_t> numbers_;  ///< of places
};

}  // namespace syncopate::runtime
