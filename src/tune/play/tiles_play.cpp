#include "tune/play/tiles_play.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace syncopate::tune {
namespace {

class Playing {
public:
    Playing(std::span<const Slot> slots, const StagePrograms& programs, Memory& memory)
        : slots_(slots), programs_(programs), memory_(memory) {
        played_.ends.assign(slots.size(), programs.begin);
        played_.stored.assign(slots.size(), 0);
    }

    TilesPlayed run() {
        for (std::int64_t program = 0; program < programs_.count; ++program)
            begin_next(programs_.begin + programs_.poll_us);
        while (!steps_.empty()) {
            const Step step = steps_.top();
            steps_.pop();
            const Slot& slot = slots_[step.slot];
            if (step.phase == slot.phases.size()) {
                end(step);
                begin_next(step.time);
            } else if (const double ready = slot.phases[step.phase].ready; ready > step.time) {
                push(ready, step.slot, step.phase);
            } else {
                push(phase_end(step, slot), step.slot, step.phase + 1);
            }
        }
        return std::move(played_);
    }

private:
    /// A slot before a phase of it. Of those at one time the one that came first goes first.
    struct Step {
        double time = 0;
        std::uint64_t serial = 0;
        std::size_t slot = 0;
        std::size_t phase = 0;
        bool operator>(const Step& other) const {
            return std::pair(time, serial) > std::pair(other.time, other.serial);
        }
    };

    void push(double time, std::size_t slot, std::size_t phase) {
        steps_.push({time, serial_++, slot, phase});
    }
    void begin_next(double time) {
        if (next_ < slots_.size()) push(time, next_++, 0);
    }

    [[nodiscard]] double stall_us(const Slot& slot) const {
        return slot.stores <= 0
                   ? 0
                   : over(slot.stores * static_cast<double>(programs_.count), programs_.stall_gbps);
    }

    double phase_end(const Step& step, const Slot& slot) {
        const LoopPart part = slot.phases[step.phase].part;
        const double us = slot.us * part.share;
        double now = step.time + us + (step.phase == 0 ? 0 : programs_.phase_us);
        now = std::max(now, memory_.read(slot.reads, part, step.time, us));
        if (slot.loads > 0) {
            loaded_ = std::max({loaded_, step.time, programs_.begin + programs_.read_us}) +
                      over(slot.loads * part.share, programs_.read_gbps);
            now = std::max(now, loaded_);
        }
        return now + (step.phase + 1 == slot.phases.size() ? stall_us(slot) : 0);
    }

    /// From the first store on they leave at one rate; what a tile itself waits for is its stall.
    void end(const Step& step) {
        const Slot& slot = slots_[step.slot];
        played_.ends[step.slot] = step.time;
        if (slot.stores <= 0) return;
        left_ = (left_ == 0 ? step.time - stall_us(slot) : left_) + over(slot.stores, programs_.store_gbps);
        played_.stored[step.slot] = std::max(step.time, left_);
    }

    std::span<const Slot> slots_;
    const StagePrograms& programs_;
    Memory& memory_;
    TilesPlayed played_;
    std::priority_queue<Step, std::vector<Step>, std::greater<>> steps_;
    std::size_t next_ = 0;  ///< slot that nobody has begun
    std::uint64_t serial_ = 0;
    double loaded_ = 0;  ///< when all that was asked of peers has come
    double left_ = 0;    ///< when all that was stored there has left
};

}  // namespace

TilesPlayed play_tiles(std::span<const Slot> slots, const StagePrograms& programs, Memory& memory) {
    return Playing(slots, programs, memory).run();
}

}  // namespace syncopate::tune
