#include "tune/play/tiles_play.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <queue>
#include <utility>

#include "syncopate/at.hpp"

namespace syncopate::tune {
namespace {

class Playing {
public:
    Playing(std::span<const Slot> slots, const StagePrograms& programs, Memory& memory)
        : slots_(slots), programs_(programs), memory_(memory) {
        played_.ends.assign(slots.size(), programs.begin);
        played_.stored.assign(slots.size(), 0);
        add_in_order();
        if (are_packed()) pack();
        const double rounds =
            std::ceil(static_cast<double>(tiles_.size()) / static_cast<double>(programs.count));
        double stored = 0;
        for (const Slot& slot : slots) stored += slot.stores;
        if (stored > 0) stall_us_ = over(stored, programs.stall_gbps) / std::max(rounds, 1.0);
    }

    TilesPlayed run() {
        if (std::ranges::none_of(slots_,
                                 [](const Slot& slot) { return slot.phases.size() > 1 || slot.loads > 0; }))
            return in_one_go();
        for (std::int64_t program = 0; program < programs_.count; ++program) begin_next(programs_.begin);
        while (!steps_.empty()) {
            const Step step = steps_.top();
            steps_.pop();
            const Slot& slot = slots_[tiles_[step.tile].slot];
            if (step.phase == slot.phases.size()) {
                end(step);
                begin_next(step.time);
            } else if (const double ready = slot.phases[step.phase].ready; ready > step.time) {
                push(ready, step.tile, step.phase);
            } else {
                push(phase_end(step, slot), step.tile, step.phase + 1);
            }
        }
        return std::move(played_);
    }

private:
    struct Tile {
        std::uint32_t slot = 0;
        std::int32_t column = 0;
        bool narrow = false;
    };
    [[nodiscard]] double ready(const Tile& tile) const { return slots_[tile.slot].phases.front().ready; }

    /// When each program is free, the soonest first.
    class Free {
    public:
        explicit Free(const StagePrograms& programs)
            : times_(at(std::max<std::int64_t>(1, programs.count)), programs.begin) {}
        [[nodiscard]] double soonest() const { return times_.front(); }
        void replace_soonest(double time) {
            times_.front() = time;
            sift_down(times_);
        }

    private:
        std::vector<double> times_;
    };
    double take(Free& free, const Tile& tile) const {
        const Slot& slot = slots_[tile.slot];
        const double end = std::max(free.soonest(), ready(tile)) + (tile.narrow ? slot.narrow_us : slot.us);
        free.replace_soonest(end);
        return end;
    }

    /// The same of tiles that wait once: each begins as soon as a program is free and all is there.
    TilesPlayed in_one_go() {
        const auto count = static_cast<std::size_t>(std::max<std::int64_t>(1, programs_.count));
        std::vector<double> free(std::min(count, tiles_.size()), programs_.begin);
        for (std::size_t tile = 0; tile < tiles_.size(); ++tile) {
            const Slot& slot = slots_[tiles_[tile].slot];
            double& soonest = tile < free.size() ? free[tile] : free.front();
            const Step step{std::max(soonest, slot.phases.front().ready), 0, tile, 0};
            soonest = phase_end(step, slot);
            end({soonest, 0, tile, 1});
            if (tile + 1 == free.size())
                std::ranges::make_heap(free, std::greater<>());
            else if (tile >= free.size())
                sift_down(free);
        }
        return std::move(played_);
    }
    /// Restores a heap, the soonest first, whose first entry has grown.
    static void sift_down(std::vector<double>& heap) {
        const double value = heap.front();
        std::size_t at = 0;
        for (std::size_t child = 1; child < heap.size(); child = 2 * at + 1) {
            if (child + 1 < heap.size() && heap[child + 1] < heap[child]) ++child;
            if (heap[child] >= value) break;
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = value;
    }

    /// Of tiles of two lengths that may begin alike the long ones come first, so that the last round is short.
    void add_in_order() {
        for (std::size_t begin = 0; begin < slots_.size();) {
            std::size_t end = begin + 1;
            while (end < slots_.size() && alike(slots_[begin], slots_[end])) ++end;
            for (const bool narrow : {false, true}) add_tiles(begin, end, narrow);
            begin = end;
        }
    }

    /// Whether tiles of two lengths wait once each, and make nothing that anybody waits for.
    [[nodiscard]] bool are_packed() const {
        const auto some = [&](auto is) { return std::ranges::any_of(slots_, is); };
        return some([](const Slot& slot) { return slot.run.wide > 0; }) &&
               some([](const Slot& slot) { return slot.run.narrow > 0; }) &&
               !some([](const Slot& slot) { return slot.group != 0 || slot.phases.size() > 1; });
    }

    /// As fuse orders them (pack.hpp): in their order, or the long ones first, or whoever is free takes the longest
    /// that can begin; whichever ends first.
    void pack() {
        std::ranges::stable_sort(tiles_, {}, [&](const Tile& tile) { return ready(tile); });
        std::vector<Tile> queues[2];  // wide, narrow
        for (const Tile& tile : tiles_) queues[tile.narrow ? 1 : 0].push_back(tile);
        std::vector<Tile> long_first = queues[0];
        std::ranges::copy(queues[1], std::back_inserter(long_first));
        std::vector<Tile> packed;
        std::size_t next[2] = {0, 0};
        Free free(programs_);
        while (packed.size() < tiles_.size()) {
            const bool narrow = next[0] == queues[0].size() ||
                                (next[1] < queues[1].size() && ready(queues[0][next[0]]) > free.soonest() &&
                                 ready(queues[1][next[1]]) < ready(queues[0][next[0]]));
            packed.push_back(queues[narrow ? 1 : 0][next[narrow ? 1 : 0]++]);
            take(free, packed.back());
        }
        double soonest = end_of(tiles_);
        for (std::vector<Tile>* order : {&long_first, &packed}) {
            if (const double end = end_of(*order); end < soonest) {
                soonest = end;
                tiles_ = *order;
            }
        }
    }
    [[nodiscard]] double end_of(const std::vector<Tile>& order) const {
        Free free(programs_);
        double end = 0;
        for (const Tile& tile : order) end = std::max(end, take(free, tile));
        return end;
    }

    static bool alike(const Slot& a, const Slot& b) {
        return a.group == b.group && std::ranges::equal(a.phases, b.phases, {}, &Phase::ready, &Phase::ready);
    }

    /// Of the slots [begin, end): some rows of tiles share the columns that they read, column after column.
    void add_tiles(std::size_t begin, std::size_t end, bool narrow) {
        const auto count = [&](std::size_t slot) {
            return narrow ? slots_[slot].run.narrow : slots_[slot].run.wide;
        };
        for (std::size_t first = begin; first < end; first += programs_.rows_together) {
            const std::size_t last = std::min(end, first + programs_.rows_together);
            std::int64_t columns = 0;
            for (std::size_t slot = first; slot < last; ++slot) columns = std::max(columns, count(slot));
            for (std::int64_t n = 0; n < columns; ++n) {
                for (std::size_t slot = first; slot < last; ++slot) {
                    if (n < count(slot))
                        tiles_.push_back(
                            {static_cast<std::uint32_t>(slot), static_cast<std::int32_t>(n), narrow});
                }
            }
        }
    }

    /// A tile before a phase of it. Of those at one time the one that came first goes first.
    struct Step {
        double time = 0;
        std::uint64_t serial = 0;
        std::size_t tile = 0;
        std::size_t phase = 0;
        bool operator>(const Step& other) const {
            return std::pair(time, serial) > std::pair(other.time, other.serial);
        }
    };

    void push(double time, std::size_t tile, std::size_t phase) {
        steps_.push({time, serial_++, tile, phase});
    }
    void begin_next(double time) {
        if (next_ < tiles_.size()) push(time, next_++, 0);
    }
    [[nodiscard]] static double share(const Slot& slot) {
        return 1.0 / static_cast<double>(slot.run.wide + slot.run.narrow);
    }

    double phase_end(const Step& step, const Slot& slot) {
        if (played_.begun < 0) played_.begun = step.time;
        const LoopPart part = slot.phases[step.phase].part;
        const Tile& tile = tiles_[step.tile];
        const double us = (tile.narrow ? slot.narrow_us : slot.us) * part.share;
        double now = step.time + us + (step.phase == 0 ? 0 : programs_.phase_us);
        // Tiles that go on slice by slice are in step with each other, and not with those that do not wait; of
        // several rounds, those whose rows come one after another are not in step.
        const bool one_round = static_cast<std::int64_t>(tiles_.size()) <= programs_.count;
        const double since = slot.phases.size() > 1 ? -1 : one_round ? 0 : slot.phases.front().ready;
        if (!programs_.reads) {
        } else if (programs_.column_bytes > 0) {
            const double wide = tile.narrow ? 0.5 : 1;
            const std::int64_t column =
                slot.run.first_column + tile.column + (tile.narrow ? slot.run.wide : 0);
            const std::array<Block, 2> blocks{
                slot.reads.front(), Block{static_cast<std::int32_t>(column), wide * programs_.column_bytes}};
            memory_.read(blocks, part, step.time, us, since);
        } else {
            memory_.read(slot.reads, part, step.time, us, since);
        }
        if (slot.loads > 0) {
            loaded_ = std::max(loaded_, step.time) + over(slot.loads * part.share, programs_.read_gbps);
            now = std::max(now, loaded_);
        }
        return now + (step.phase + 1 == slot.phases.size() ? stall_us_ : 0);
    }

    /// From the first store on they leave at one rate; what a tile itself waits for is its stall.
    void end(const Step& step) {
        const std::size_t number = tiles_[step.tile].slot;
        const Slot& slot = slots_[number];
        played_.ends[number] = std::max(played_.ends[number], step.time);
        if (slot.stores <= 0) return;
        left_ = (left_ == 0 ? step.time - stall_us_ : left_) +
                over(slot.stores * share(slot), programs_.store_gbps);
        played_.stored[number] = std::max({played_.stored[number], step.time, left_});
    }

    std::span<const Slot> slots_;
    const StagePrograms& programs_;
    Memory& memory_;
    TilesPlayed played_;
    std::priority_queue<Step, std::vector<Step>, std::greater<>> steps_;
    std::vector<Tile> tiles_;
    double stall_us_ = 0;   ///< of each tile: all of them share the way out
    std::size_t next_ = 0;  ///< tile that nobody has begun
    std::uint64_t serial_ = 0;
    double loaded_ = 0;  ///< when all that was asked of peers has come
    double left_ = 0;    ///< when all that was stored there has left
};

}  // namespace

TilesPlayed play_tiles(std::span<const Slot> slots, const StagePrograms& programs, Memory& memory) {
    return Playing(slots, programs, memory).run();
}

}  // namespace syncopate::tune
