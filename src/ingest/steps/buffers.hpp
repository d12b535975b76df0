// The input, output and scratch buffers that chunk formats speak of, as tensors of a plan, and what the
// collective asks of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingest/steps/schedule.hpp"

namespace syncopate::ingest {

/// What a file says that its plan does, as far as it can be checked. `other` (custom, broadcast, …) cannot.
enum class Collective : std::uint8_t { other, all_gather, reduce_scatter, all_reduce, all_to_all };

enum class Buffer : std::uint8_t { input, output, scratch };
[[nodiscard]] std::optional<Buffer> buffer_from(std::string_view name);  ///< "i", "o", "s"
[[nodiscard]] std::string_view name_of(Buffer buffer);                   ///< "input", …

/// Sizes in chunks, of one rank.
struct BufferSizes {
    Collective collective = Collective::other;
    std::int32_t ranks = 1;
    bool in_place = false;
    std::int64_t input = 0;
    std::int64_t output = 0;
    std::int64_t scratch = 0;      ///< of the rank that has most
    std::int64_t granularity = 1;  ///< without a size from the user, rows of a chunk are a multiple of this
};

/// Rows that a rank holds at the start, or must hold at the end, and the rows of the input that their data
/// are.
struct Placed {
    Span where;
    std::int64_t from = 0;  ///< first row in the tensor of the input
};

/// Where chunks lie. A tensor of a plan is one array with one value (or sum) for each element, so buffers in
/// which ranks hold different things lie one behind another in their tensor, rank 0's first: the input of an
/// all-gather, the output of a reduce-scatter, and both of an all-to-all. Buffers to be added up, or equal in
/// the end, lie on each other.
///
/// Input and output are NAME.input and NAME.output, or with `in_place` both NAME: chunk k of a rank's share
/// of an all-gather then is the output's where it lies, as MSCCL has it, and likewise the output of a
/// reduce-scatter. Scratch is NAME.scratch.
class Buffers {
public:
    /// Puts the mesh, the tensors, `initial` and `final` into `plan`. `tensor` gives name, dtype and shape of
    /// the larger of the tensors of input and output, whose axis 0 must be a multiple of its chunks; without
    /// it: data, bf16, 1024 or more elements a chunk. Sizes must be those of the collective. Fails (usage) if
    /// the shape does not fit.
    static Result<Buffers> make(const BufferSizes& sizes, const std::optional<plan::Tensor>& tensor,
                                plan::Plan& plan);

    /// Chunks [index, index + count) of a buffer, which must be in it (see chunks).
    [[nodiscard]] Span span(std::int32_t rank, Buffer buffer, std::int64_t index, std::int64_t count) const;
    /// How many a rank's buffer has.
    [[nodiscard]] std::int64_t chunks(Buffer buffer) const;

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] const std::vector<Placed>& held() const { return held_; }      ///< at the start
    [[nodiscard]] const std::vector<Placed>& wanted() const { return wanted_; }  ///< at the end
    [[nodiscard]] std::int64_t rows_per_chunk() const { return rows_; }

private:
    [[nodiscard]] std::int64_t ranks_behind(Buffer buffer) const;
    void hold_and_ask(plan::Plan& plan);

    BufferSizes sizes_;
    std::string name_;
    std::int64_t rows_ = 0;  ///< of a chunk
    std::vector<Placed> held_;
    std::vector<Placed> wanted_;
};

}  // namespace syncopate::ingest
