#include "syncopate/runtime/cuda/engine/engine_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/runtime/call/executors.hpp"
#include "syncopate/runtime/signals/control.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

static_assert(fuse::kBytesAtOnce ==
              std::int64_t{device::kBlockEngineThreads} * device::kEngineUnit * device::kEngineLoadsAtOnce);

using device::EngineOp;
using device::EngineSource;

/// By SumType.
constexpr std::array kSummed{plan::DType::bf16, plan::DType::fp16, plan::DType::fp32, plan::DType::int32};

constexpr std::uint64_t kMostPieces = std::uint64_t{1} << 31;

bool is_sum(const PreparedTransfer& transfer) { return transfer.sum() != nullptr; }

/// Bytes of a row that one piece may have. All summands of a piece are in a warp's shared memory together.
std::uint64_t most_bytes(device::EngineMethod method, std::size_t num_sources) {
    const bool copies = num_sources == 0;
    if (method == device::EngineMethod::ldst)
        return copies ? device::kEngineLdstBytes : device::kEngineSumBytes;
    if (copies) return device::kEnginePieceBytes;
    constexpr std::uint64_t kWarpBytes = 32 * device::kEngineUnit;
    const std::uint64_t each = device::kEnginePieceBytes / num_sources;
    return each / kWarpBytes > 0 ? each / kWarpBytes * kWarpBytes
                                 : each / device::kEngineUnit * device::kEngineUnit;
}

/// Sets the box's cut into pieces.
void cut(EngineOp& op, std::uint64_t most) {
    constexpr std::uint64_t kLine = 128;  // bytes that memory moves at a time
    if (op.row_bytes > most) {
        const std::uint64_t even = round_up(ceil_div(op.row_bytes, ceil_div(op.row_bytes, most)), kLine);
        op.part_bytes = static_cast<std::uint32_t>(std::min(most, even));
        op.parts_per_row = static_cast<std::uint32_t>(ceil_div(op.row_bytes, op.part_bytes));
        op.rows_per_piece = 1;
        return;
    }
    op.part_bytes = static_cast<std::uint32_t>(op.row_bytes);
    op.parts_per_row = 1;
    op.rows_per_piece = static_cast<std::uint32_t>(op.row_bytes == 0 ? 1 : most / op.row_bytes);
}

/// What of a box is no multiple of 16 bytes, in words; empty when all is.
std::string odd_part(const EngineOp& op, const EngineSource& box) {
    const auto odd = [](std::uint64_t value) { return value % device::kEngineUnit != 0; };
    if (odd(box.address)) return fmt::format("its address {:#x}", box.address);
    if (odd(op.row_bytes)) return fmt::format("its rows of {} bytes", op.row_bytes);
    if (op.rows_per_plane > 1 && odd(box.pitch)) return fmt::format("its pitch of {} bytes", box.pitch);
    if (op.num_rows > op.rows_per_plane && odd(box.plane))
        return fmt::format("its plane of {} bytes", box.plane);
    return {};
}

EngineSource source_of(const StridedCopy& copy) { return {copy.src, copy.src_pitch, copy.src_plane}; }
EngineSource destination_of(const StridedCopy& copy) { return {copy.dst, copy.dst_pitch, copy.dst_plane}; }

class Tabling {
public:
    Tabling(const fuse::RankSchedule& schedule, const std::vector<PreparedTransfer>& transfers,
            std::uint64_t control)
        : schedule_(schedule), transfers_(transfers), control_(control) {}

    Result<EngineTable> run() {
        for (std::size_t index = 0; index < transfers_.size(); ++index) {
            const bool relays = schedule_.transfers[index].step.relay >= 0;
            if (!relays && !is_by_engine(schedule_.transfers[index])) continue;
            if (Status added = relays ? add_relay(index) : add(index); !added) {
                return error_at(schedule_.transfers[index].op, added.error().message);
            }
        }
        return std::move(table_);
    }

private:
    Status add(std::size_t index) {
        const PreparedTransfer& transfer = transfers_[index];
        const auto first_wait = static_cast<std::uint32_t>(table_.waits.size());
        add_waits(transfer.waits);
        EngineOp op{.counter = table_.num_counters++,
                    .first_post = static_cast<std::uint32_t>(table_.posts.size()),
                    .first_wait = first_wait,
                    .num_waits = static_cast<std::uint32_t>(table_.waits.size()) - first_wait,
                    .method = row_of(schedule_.transfers[index].backend).method,
                    .where = emit::control::at_transfer(static_cast<std::int64_t>(index)),
                    .shifted = is_shifted(schedule_.transfers[index]) ? 1u : 0u};
        table_.posts.insert(table_.posts.end(), transfer.post_words.begin(), transfer.post_words.end());

        const std::size_t first = table_.ops.size();
        const std::uint32_t pieces_before = table_.num_pieces;
        if (Status made =
                is_sum(transfer) ? add_sum(op, *transfer.sum()) : add_copies(op, *transfer.copies());
            !made)
            return made;
        if (table_.ops.size() == first) {
            SYNCOPATE_TRY(add_box(op, StridedCopy{.height = 0}, {}));
        }
        const bool posts = !transfer.post_words.empty();
        for (std::size_t i = first; i < table_.ops.size(); ++i) {
            table_.ops[i].expected = posts ? table_.num_pieces - pieces_before : 0;
            table_.ops[i].first_counted = pieces_before;
        }
        table_.ops.back().num_posts = static_cast<std::uint32_t>(transfer.post_words.size());
        return Done{};
    }

    /// Of the first tensor that a copy reads on the rank itself, and of that one only.
    bool is_shifted(const fuse::Transfer& transfer) {
        if (transfer.copy() == nullptr || transfer.src_rank != transfer.op.rank) return false;
        if (table_.shifted_tensor < 0) table_.shifted_tensor = transfer.src.tensor;
        return table_.shifted_tensor == transfer.src.tensor;
    }

    /// Waits for what a step of a stream follows, then opens its gate.
    Status add_relay(std::size_t index) {
        const auto first_wait = static_cast<std::uint32_t>(table_.waits.size());
        add_waits(schedule_.transfers[index].step.relayed);
        const EngineOp relay{.expected = 1,
                             .first_counted = table_.num_pieces,
                             .counter = table_.num_counters++,
                             .first_post = static_cast<std::uint32_t>(table_.posts.size()),
                             .num_posts = 1,
                             .first_wait = first_wait,
                             .num_waits = static_cast<std::uint32_t>(table_.waits.size()) - first_wait,
                             .method = device::EngineMethod::ldst,
                             .where = emit::control::at_transfer(static_cast<std::int64_t>(index)),
                             .opens = 1};
        const std::int32_t gate = emit::relay_gate_of(schedule_, schedule_.transfers[index].step.relay);
        table_.posts.push_back(control_ + static_cast<std::uint64_t>(gate) * 4);
        return add_box(relay, StridedCopy{.height = 0}, {});
    }

    void add_waits(const std::vector<fuse::Wait>& waits) {
        for (const fuse::Wait& wait : waits) {
            if (schedule_.has_begun(wait)) continue;
            table_.waits.push_back(
                {control_ + static_cast<std::uint64_t>(emit::control::word_of(wait.signal)) * 4,
                 static_cast<std::uint32_t>(wait.lag), wait.signal});
        }
    }

    Status add_copies(const EngineOp& like, const std::vector<StridedCopy>& copies) {
        for (const StridedCopy& copy : copies) {
            if (copy.bytes() == 0) continue;
            EngineOp op = like;
            op.source = source_of(copy);
            SYNCOPATE_TRY(add_box(op, copy, {}));
        }
        return Done{};
    }

    Status add_sum(const EngineOp& like, const PreparedSum& sum) {
        const std::optional<device::SumType> type = sum_type_of(sum.dtype);
        if (!type) return Error{fmt::format("elements of type {} are not summed", plan::name_of(sum.dtype))};
        const auto first_copy = static_cast<std::uint32_t>(table_.copies.size());
        table_.copies.insert(table_.copies.end(), sum.copies.begin(), sum.copies.end());
        for (std::size_t part = 0; part < sum.parts.size(); ++part) {
            const StridedCopy& box = sum.parts[part].slot;
            if (box.bytes() == 0) continue;
            EngineOp op = like;
            op.reduce =
                sum.reduce == plan::Reduce::max ? device::EngineReduce::max : device::EngineReduce::sum;
            op.type = *type;
            op.first_copy = first_copy;
            op.num_copies = static_cast<std::uint32_t>(sum.copies.size());
            std::vector<EngineSource> sources;
            for (std::int32_t slot = 0; slot <= sum.num_slots; ++slot) {
                if (slot == sum.own) sources.push_back(destination_of(box));
                if (slot < sum.num_slots) sources.push_back(source_of(slot_of(sum, part, slot)));
            }
            SYNCOPATE_TRY(add_box(op, box, sources));
        }
        return Done{};
    }

    /// `sources`: of a sum.
    Status add_box(EngineOp op, const StridedCopy& box, const std::vector<EngineSource>& sources) {
        if (box.height * box.depth >= kMostPieces)
            return Error{fmt::format("a box of {} rows is too large; split it", box.height * box.depth)};
        op.dst = destination_of(box);
        op.row_bytes = box.width;
        op.num_rows = static_cast<std::uint32_t>(box.height * box.depth);
        op.rows_per_plane = static_cast<std::uint32_t>(std::max<std::uint64_t>(box.height, 1));
        const auto check = [&](const EngineSource& what, const char* name) -> Status {
            const std::string odd = odd_part(op, what);
            if (odd.empty()) return Done{};
            return Error{
                fmt::format("the chunk engine moves multiples of 16 bytes, and of {} {} is none; use "
                            "copy_engine",
                            name, odd)};
        };
        SYNCOPATE_TRY(check(op.dst, "the destination"));
        if (sources.empty()) {
            SYNCOPATE_TRY(check(op.source, "the source"));
        }
        for (const EngineSource& source : sources) {
            SYNCOPATE_TRY(check(source, "a summand"));
        }
        const std::uint64_t most = most_bytes(op.method, sources.size());
        if (most == 0) {
            return Error{fmt::format("a sum of {} boxes by tma_dedicated is too wide; use ldst_dedicated",
                                     sources.size())};
        }
        cut(op, most);
        const std::uint64_t pieces =
            std::max<std::uint64_t>(1, ceil_div(op.num_rows, op.rows_per_piece) * op.parts_per_row);
        if (table_.num_pieces + pieces >= kMostPieces)
            return Error{"the transfers have more pieces than the chunk engine counts; use copy_engine"};
        op.num_pieces = static_cast<std::uint32_t>(pieces);
        table_.num_pieces += op.num_pieces;
        op.last_piece = table_.num_pieces;
        op.first_source = static_cast<std::uint32_t>(table_.sources.size());
        op.num_sources = static_cast<std::uint32_t>(sources.size());
        table_.sources.insert(table_.sources.end(), sources.begin(), sources.end());
        table_.ops.push_back(op);
        return Done{};
    }

    const fuse::RankSchedule& schedule_;
    const std::vector<PreparedTransfer>& transfers_;
    std::uint64_t control_;
    EngineTable table_;
};

}  // namespace

std::string sum_engine_name(const EngineTable& table) {
    if (table.empty()) return {};
    const EngineOp& like = table.ops.front();
    std::uint32_t most_sources = 0;
    for (const EngineOp& op : table.ops) {
        most_sources = std::max(most_sources, op.num_sources);
    }
    const char* const type = like.type == device::kSumBf16   ? "bf16"
                             : like.type == device::kSumFp16 ? "fp16"
                             : like.type == device::kSumFp32 ? "fp32"
                                                             : "int32";
    return fmt::format("sy_sum_engine_{}_{}_{}", type,
                       like.reduce == device::EngineReduce::max ? "max" : "sum",
                       most_sources <= 2   ? 2
                       : most_sources <= 4 ? 4
                                           : 8);
}

std::optional<device::SumType> sum_type_of(plan::DType dtype) {
    const auto* const at = std::ranges::find(kSummed, dtype);
    if (at == kSummed.end()) return std::nullopt;
    return static_cast<device::SumType>(at - kSummed.begin());
}

plan::DType dtype_of(device::SumType type) { return kSummed[at(type)]; }

Result<EngineTable> make_engine_table(const fuse::RankSchedule& schedule,
                                      const std::vector<PreparedTransfer>& transfers, std::uint64_t control) {
    return Tabling(schedule, transfers, control).run();
}

}  // namespace syncopate::runtime
