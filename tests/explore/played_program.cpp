// A program of the kernel, played from the table that the emitted one reads.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>

#include "explore/played_op.hpp"
#include "runtime/waiting_clock.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::explore {

using plan::Region;
using runtime::HostControl;

/// One program of a stage in one call.
class PlayedOp::Program {
public:
    Program(PlayedOp& played, SimulatedRanks& ranks, int rank, std::uint32_t call, std::size_t stage)
        : played_(played),
          ranks_(ranks),
          rank_(rank),
          call_(call),
          stage_(stage),
          own_(played.schedule_.ranks[static_cast<std::size_t>(rank)]),
          bound_(played.case_.program.stages[stage]),
          op_(played.op(rank)),
          control_(op_.control_address()),
          table_(op_.table(stage)) {
        // Of kernels that sum, the table for odd calls stands behind.
        if (call % 2 == 1) table_ = table_.subspan(static_cast<std::size_t>(at(emit::table::other)));
    }

    /// Returns early after a fault.
    void run(std::int64_t program) {
        const fuse::StageSlots& slots = played_.schedule_.stages[stage_];
        std::int64_t last = -1;
        const auto count =
            std::min<std::int64_t>(slots.count, static_cast<std::int64_t>(own_.slots.size()) - slots.first);
        const auto mine = [&](std::int64_t at) {
            return played_.program_of_[stage_][static_cast<std::size_t>(at)] == program;
        };
        for (std::int64_t at = 0; at < count; ++at) last = mine(at) ? at : last;
        if (last < 0) loaded();
        for (std::int64_t at = 0; at < count; ++at) {
            if (!mine(at)) continue;
            const fuse::Slot& slot = own_.slots[static_cast<std::size_t>(slots.first + at)];
            const std::int32_t record =
                emit::table::first_slot + emit::table::slot_words * static_cast<std::int32_t>(at);
            if (!load(slot, record)) return;
            if (at == last) loaded();
            store(slot);
            count_tile(record);
        }
        if (played_.sums_ && !sum(program)) return;
        if (!control_.faulty()) end();
    }

private:
    using Word = std::int32_t;

    [[nodiscard]] Word at(std::int32_t index) const { return table_[static_cast<std::size_t>(index)]; }
    [[nodiscard]] const kernel::Tile& tile_of(const fuse::Slot& slot) const {
        return bound_.kernel.tiles[static_cast<std::size_t>(slot.tile)];
    }

    [[nodiscard]] bool wait(std::int32_t first, std::int32_t end, std::int32_t where) const {
        for (std::int32_t wait = first; wait < end; wait += emit::table::pair_words) {
            const std::int32_t lag = at(wait + 1) & ((1 << emit::table::wait_count_shift) - 1);
            const std::int32_t posts = 1 + (at(wait + 1) >> emit::table::wait_count_shift);
            const std::int32_t from = at(wait) - emit::control::first_signal;
            if (posts > 1 || from % emit::control::signal_stride != 0) {
                if (!wait_counted(
                        at(wait),
                        (call_ - static_cast<std::uint32_t>(lag)) * static_cast<std::uint32_t>(posts), where))
                    return false;
            } else if (!control_.wait({from / emit::control::signal_stride, lag}, call_, where)) {
                return false;
            }
        }
        return true;
    }

    /// For a word to which several add [P5].
    [[nodiscard]] bool wait_counted(std::int32_t word, std::uint32_t target, std::int32_t where) const {
        if (control_.faulty()) return false;
        runtime::WaitingClock clock;
        const std::chrono::milliseconds deadline(control_.load(emit::control::deadline_ms));
        while (static_cast<std::int32_t>(control_.load(word) - target) < 0) {
            if (control_.faulty()) return false;
            if (deadline.count() != 0 && clock.waited() >= deadline) {
                const std::int32_t signal =
                    (word - emit::control::first_signal) / emit::control::signal_stride;
                control_.raise(signal, control_.load(word), target, call_, where);
                return false;
            }
            ranks_.pause();
        }
        ranks_.awaited(word_at(word), target, false);
        return true;
    }

    [[nodiscard]] Part place(std::int32_t tensor, const std::optional<fuse::Place>& place) const {
        if (!place) return {rank_, tensor, 0};
        return {place->rank, place->tensor,
                place->rows * played_.schedule_.tensors[static_cast<std::size_t>(tensor)].shape.back()};
    }

    void read(const fuse::Slot& slot, std::int32_t tensor, const Region& box) const {
        const bool away = played_.schedule_.loads() && played_.schedule_.loads()->tensor == tensor;
        played_.read(ranks_, place(tensor, away ? slot.from : std::nullopt), rank_, tensor, box, call_,
                     fmt::format("tile {}", slot.tile));
    }

    /// What the tile reads of a parameter in iterations [begin, end) of a loop; loop -1: outside of all.
    void read_part(const fuse::Slot& slot, const std::string& param, std::int32_t tensor, std::int32_t loop,
                   std::int64_t begin, std::int64_t end) const {
        const kernel::Tile& tile = tile_of(slot);
        const auto cut = [&](Region box, std::int32_t dim, std::int64_t base, std::int64_t step,
                             std::int64_t extent) {
            if (dim >= 0) {
                plan::Interval& range = box[static_cast<std::size_t>(dim)];
                range.begin = std::max(range.begin, base + begin * step);
                range.end = std::min(range.end, base + (end - 1) * step + extent);
            }
            if (begin < end || loop < 0) read(slot, tensor, box);
        };
        if (bound_.kernel.tiles_differ) {
            if (!tile.loop_reads.contains(param)) return;
            for (const kernel::LoopRead& one : *tile.loop_reads.at(param)) {
                if (one.loop != loop) continue;
                for (const Region& box : one.boxes) cut(box, one.dim, one.base, one.step, one.extent);
            }
            return;
        }
        const kernel::LoopSlice* slice = nullptr;
        if (!bound_.kernel.loops.empty()) {
            for (const kernel::LoopSlice& of : bound_.kernel.loops.front().slices)
                slice = of.param == param ? &of : slice;
        }
        if ((slice == nullptr) != (loop < 0)) return;
        for (const Region& box : boxes_of(tile.reads, tile.read_boxes, param)) {
            if (slice == nullptr)
                read(slot, tensor, box);
            else
                cut(box, slice->dim, slice->base, slice->step, slice->extent);
        }
    }

    template <typename Whole, typename Boxes>
    static std::vector<Region> boxes_of(const Whole& whole, const Boxes& exact, const std::string& param) {
        if (exact.contains(param)) return exact.at(param);
        return whole.contains(param) ? std::vector<Region>{whole.at(param)} : std::vector<Region>{};
    }

    template <typename Visit>
    void each_parameter(const Visit& visit) const {
        for (const auto& [param, name] : bound_.bindings)
            visit(param, *played_.case_.program.plan.find_tensor(name));
    }

    [[nodiscard]] bool load(const fuse::Slot& slot, std::int32_t record) const {
        const std::int32_t waits = record + emit::table::slot_waits;
        if (!wait(at(waits), at(waits + 1), record)) return false;
        const kernel::Tile& tile = tile_of(slot);
        if (slot.phases.empty()) {
            each_parameter([&](const std::string& param, std::int32_t tensor) {
                for (const Region& box : boxes_of(tile.reads, tile.read_boxes, param))
                    read(slot, tensor, box);
            });
            return true;
        }
        each_parameter(
            [&](const std::string& param, std::int32_t tensor) { read_part(slot, param, tensor, -1, 0, 0); });
        std::int32_t phase = at(record + emit::table::slot_phases);
        for (const fuse::Phase& of : slot.phases) {
            const std::int32_t range = phase + emit::table::phase_waits;
            if (!wait(at(range), at(range + 1), record)) return false;
            each_parameter([&](const std::string& param, std::int32_t tensor) {
                read_part(slot, param, tensor, of.loop, at(phase), at(phase + 1));
            });
            phase += emit::table::phase_words;
        }
        return true;
    }

    void store(const fuse::Slot& slot) const {
        const kernel::Tile& tile = tile_of(slot);
        const plan::Plan& plan = played_.case_.program.plan;
        each_parameter([&](const std::string& param, std::int32_t tensor) {
            for (const Region& box : boxes_of(tile.writes, tile.write_boxes, param)) {
                std::vector<Part> places;
                for (const fuse::Place& to : own_.stores_of(slot)) {
                    if (played_.schedule_.stores() && played_.schedule_.stores()->tensor == tensor)
                        places.push_back(place(tensor, to));
                }
                if (places.empty()) places.push_back(place(tensor, {}));
                played_.write(ranks_, places, rank_, tensor, box, plan.produced, call_);
            }
        });
    }

    [[nodiscard]] std::vector<std::uint64_t> posts(std::int32_t first, std::int32_t end) const {
        std::vector<std::uint64_t> words;
        for (std::int32_t pair = first; pair < end; pair += emit::table::pair_words)
            words.push_back(op_.control_address() + number(pair));
        return words;
    }
    [[nodiscard]] std::uint32_t* word_at(std::int32_t index) const {
        return reinterpret_cast<std::uint32_t*>(op_.control_address()) + index;
    }

    void count_tile(std::int32_t slot) const {
        const std::int32_t makes = slot + emit::table::slot_makes;
        for (std::int32_t record = at(makes); record < (at(makes + 1) & ~emit::table::at_once);
             record += emit::table::made_words) {
            const Word counter = at(record + emit::table::made_counter);
            for (std::int32_t gate = 0; gate < 2; ++gate) {
                if (at(record + emit::table::made_gates + gate) != 0)
                    (void)control_.add(counter + emit::control::gate + gate, 1);
            }
            if (at(record + emit::table::made_told) == 0) continue;
            const std::int32_t told = record + emit::table::made_posts;
            if (played_.sums_) {  // [P5]
                for (const std::uint64_t word : posts(at(told), at(told + 1)))
                    (void)HostControl(word).add(0, 1);
                continue;
            }
            ranks_.count(word_at(counter), static_cast<std::uint32_t>(at(record + emit::table::made_tiles)),
                         true, posts(at(told), at(told + 1)), call_);
        }
    }

    [[nodiscard]] std::uint64_t number(std::int32_t pair) const {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(at(pair))) |
               (static_cast<std::uint64_t>(at(pair + 1)) << 32);
    }
    /// The program's share of what the kernel sums.
    [[nodiscard]] bool sum(std::int64_t program) const {
        const std::int32_t record = at(emit::table::sum);
        if (!wait(at(record), at(record + 1), -1)) return false;
        const fuse::Transfer& transfer = own_.transfers.front();
        const plan::Tensor& of = played_.schedule_.tensors[static_cast<std::size_t>(transfer.dst.tensor)];
        const std::uint64_t item = plan::size_of(of.dtype);
        const std::int64_t elements = at(record + emit::table::sum_elements);
        const std::int64_t first = elements * program / played_.programs_[stage_];
        const std::int64_t last = elements * (program + 1) / played_.programs_[stage_];
        const auto share = static_cast<std::uint64_t>(last - first) * item;
        if (share == 0) return true;
        const std::uint64_t skipped = static_cast<std::uint64_t>(first) * item;
        for (std::int32_t i = 0; i < at(record + emit::table::sum_summands); ++i) {
            const std::int32_t place = record + emit::table::sum_places + emit::table::pair_words * i;
            ranks_.read(op_.control_address() + number(place) + skipped, share);
        }
        const std::int64_t begin = fuse::first_element(of, transfer.dst.region);
        ranks_.write(played_.address({rank_, transfer.dst.tensor, begin}, rank_, call_) + skipped, share);
        return true;
    }

    [[nodiscard]] std::vector<std::uint64_t> kernel_posts() const {
        const std::int32_t first = at(emit::table::kernel_posts);
        return posts(first, first + emit::table::pair_words * at(emit::table::num_kernel_posts));
    }
    void loaded() const {
        if (!played_.case_.tells_early || stage_ + 1 < played_.programs_.size()) return;
        ranks_.count(&played_.loaded_[static_cast<std::size_t>(rank_)],
                     call_ * static_cast<std::uint32_t>(played_.programs_[stage_]), false, kernel_posts(),
                     call_);
    }
    void end() const {
        const auto all = static_cast<std::uint32_t>(at(emit::table::num_programs));
        ranks_.count(word_at(emit::control::finished), call_ * all, false,
                     played_.case_.tells_early ? std::vector<std::uint64_t>{} : kernel_posts(), call_);
    }

    PlayedOp& played_;
    SimulatedRanks& ranks_;
    int rank_;
    std::uint32_t call_;
    std::size_t stage_;
    const fuse::RankSchedule& own_;
    const fuse::Stage& bound_;
    runtime::FusedOp& op_;
    HostControl control_;
    std::span<const std::int32_t> table_;
};

void PlayedOp::run_kernel(SimulatedRanks& ranks, int rank, std::uint32_t call, std::size_t stage) {
    for (std::int64_t program = 0; program < programs_[stage]; ++program) {
        ranks.start(&ops_[static_cast<std::size_t>(rank)], [this, &ranks, rank, call, stage, program] {
            Program(*this, ranks, rank, call, stage).run(program);
        });
    }
}

}  // namespace syncopate::explore
