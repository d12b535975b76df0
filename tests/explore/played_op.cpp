#include "explore/played_op.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "runtime/waiting_clock.hpp"
#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"
#include "syncopate/runtime/signals/control.hpp"

namespace syncopate::explore {
namespace {

using plan::Region;
using runtime::HostControl;

constexpr std::uint32_t kDifferentCalls = 4;

/// Runs of neighbouring elements of the region: first element and how many.
std::vector<std::pair<std::int64_t, std::int64_t>> runs_of(const plan::Tensor& tensor, const Region& region) {
    std::vector<std::pair<std::int64_t, std::int64_t>> runs;
    if (plan::is_empty(region)) return runs;
    std::vector<std::int64_t> firsts{0};
    for (std::size_t axis = 0; axis + 1 < region.size(); ++axis) {
        std::vector<std::int64_t> next;
        for (const std::int64_t outer : firsts) {
            for (std::int64_t at = region[axis].begin; at < region[axis].end; ++at)
                next.push_back(outer * tensor.shape[axis] + at);
        }
        firsts = std::move(next);
    }
    const std::int64_t length = region.back().end - region.back().begin;
    for (const std::int64_t outer : firsts) {
        const std::int64_t first = outer * tensor.shape.back() + region.back().begin;
        if (!runs.empty() && runs.back().first + runs.back().second == first)
            runs.back().second += length;
        else
            runs.emplace_back(first, length);
    }
    return runs;
}

/// Where the ranks of this process meet.
class Store {
public:
    void put(const std::string& key, const runtime::Bytes& value) {
        const std::lock_guard lock(mutex_);
        values_[key] = value;
        changed_.notify_all();
    }
    runtime::Bytes get(const std::string& key, runtime::Milliseconds timeout) {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); }))
            throw std::runtime_error(key + " has not come");
        return values_.at(key);
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, runtime::Bytes> values_;
};

}  // namespace

Result<std::unique_ptr<PlayedOp>> PlayedOp::make(const Case& played, const Timing& timing) {
    Result<fuse::Schedule> schedule = fuse::fuse(played.program, played.options);
    if (!schedule) return schedule.error();
    if (played.spoil) played.spoil(*schedule);
    std::unique_ptr<PlayedOp> made(new PlayedOp(played, std::move(schedule).value()));
    if (Status created = made->create(timing); !created) return created.error();
    return made;
}

PlayedOp::PlayedOp(const Case& played, fuse::Schedule schedule)
    : case_(played), schedule_(std::move(schedule)) {
    for (std::uint32_t call = 0; call < kDifferentCalls; ++call) {
        const auto fill = [call](std::int32_t tensor, std::int64_t element, std::int32_t rank) {
            return plan::test::small_integer(tensor, element, rank) + 1000.0f * static_cast<float>(call);
        };
        values_.push_back(plan::test::execute(played.program.plan, fill, 1));
    }
    const Result<fuse::Decisions> decisions = fuse::decide(played.program, played.options);
    for (const fuse::StageOrder& order : decisions->orders) {
        program_of_.push_back(order.program_of);
        programs_.push_back(1 + *std::ranges::max_element(order.program_of));
    }
    loaded_.resize(schedule_.ranks.size(), 0);
    const std::vector<std::uint64_t>& places = schedule_.heap.tensors;
    turns_ = fuse::in_turn(schedule_, places);
    for (std::size_t tensor = 0; tensor < places.size(); ++tensor) turns_[tensor] -= places[tensor];
    sums_ = fuse::kernel_summands(schedule_) > 0;
}

std::uint64_t PlayedOp::address(const Part& at, int rank, std::uint32_t call) {
    const auto tensor = static_cast<std::size_t>(at.tensor);
    const plan::Tensor& of = schedule_.tensors[tensor];
    return op(rank).tensor_address(of.name, at.rank).value() +
           static_cast<std::uint64_t>(at.shift) * plan::size_of(of.dtype) + call % 2 * turns_[tensor];
}

PlayedOp::~PlayedOp() = default;

Status PlayedOp::create(const Timing& timing) {
    const auto store = std::make_shared<Store>();
    const std::size_t size = schedule_.ranks.size();
    std::int64_t programs = 0;
    for (const std::int64_t of_stage : programs_) programs += of_stage;
    heaps_.resize(size);
    ops_.resize(size);
    std::vector<Status> made(size, Done{});
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
            made[rank] = [&]() -> Status {
                auto meeting = std::make_shared<runtime::CallbackRendezvous>(
                    static_cast<int>(rank), static_cast<int>(size),
                    [store](const std::string& key, const runtime::Bytes& value) { store->put(key, value); },
                    [store](const std::string& key, runtime::Milliseconds timeout) {
                        return store->get(key, timeout);
                    });
                auto heap = runtime::SymmetricHeap::create({}, meeting, fuse::heap_bytes(schedule_));
                if (!heap) return heap.error();
                heaps_[rank] = *heap;
                auto op = runtime::FusedOp::create(*heap, schedule_,
                                                   {.deadline_ms = timing.deadline_ms,
                                                    .num_programs = programs,
                                                    .max_delay_us = timing.max_delay_us,
                                                    .seed = timing.seed});
                if (!op) return op.error();
                ops_[rank] = std::move(op).value();
                return Done{};
            }();
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : made) {
        if (!status) return status;
    }
    return Done{};
}

std::uint64_t PlayedOp::in_first_mapping(std::uint64_t address) const {
    const runtime::SymmetricHeap& first = *heaps_.front();
    for (const auto& heap : heaps_) {
        const std::uint64_t begin = heap->address(0, 0);
        if (address >= begin && address - begin < heap->stride() * ops_.size())
            return first.address(0, 0) + (address - begin);
    }
    return address;
}

bool PlayedOp::is_known(std::int32_t tensor) const {
    const auto& tensors = case_.program.plan.tensors;
    return tensor < static_cast<std::int32_t>(tensors.size()) &&
           tensors[static_cast<std::size_t>(tensor)].dtype == plan::DType::fp32;
}

float PlayedOp::given(const std::vector<plan::Holding>& holdings, int rank, std::int32_t tensor,
                      std::int64_t element, std::uint32_t call) const {
    const bool partial = std::ranges::any_of(holdings, [&](const plan::Holding& holding) {
        return holding.rank == rank && holding.chunk.tensor == tensor && holding.partial;
    });
    return plan::test::small_integer(tensor, element, partial ? rank : -1) +
           1000.0f * static_cast<float>(call % kDifferentCalls);
}

void PlayedOp::read(SimulatedRanks& ranks, const Part& at, int rank, std::int32_t tensor, const Region& box,
                    std::uint32_t call, const std::string& who) {
    const plan::Tensor& of = schedule_.tensors[static_cast<std::size_t>(tensor)];
    const auto item = static_cast<std::int64_t>(plan::size_of(of.dtype));
    const std::uint64_t base = address(at, rank, call);
    const auto& wanted = values_[call % kDifferentCalls][static_cast<std::size_t>(rank)];
    for (const auto& [first, count] : runs_of(of, box)) {
        const std::uint64_t from = base + static_cast<std::uint64_t>(first * item);
        ranks.read(from, static_cast<std::uint64_t>(count * item));
        if (!is_known(tensor) || !wrong_.empty()) continue;
        const auto* values = reinterpret_cast<const float*>(from);
        for (std::int64_t i = 0; i < count; ++i) {
            const float value = wanted[static_cast<std::size_t>(tensor)][static_cast<std::size_t>(first + i)];
            if (std::isnan(value) || values[i] == value) continue;
            wrong_ = fmt::format("call {}: {} of rank {} reads {} in element {} of {}, which is to be {}",
                                 call, who, rank, values[i], first + i, of.name, value);
            break;
        }
    }
}

void PlayedOp::write(SimulatedRanks& ranks, const std::vector<Part>& at, int rank, std::int32_t tensor,
                     const Region& box, const std::vector<plan::Holding>& given_by, std::uint32_t call) {
    const plan::Tensor& of = schedule_.tensors[static_cast<std::size_t>(tensor)];
    const auto item = static_cast<std::int64_t>(plan::size_of(of.dtype));
    for (const Part& to : at) {
        const std::uint64_t base = address(to, rank, call);
        for (const auto& [first, count] : runs_of(of, box)) {
            const std::uint64_t into = base + static_cast<std::uint64_t>(first * item);
            ranks.write(into, static_cast<std::uint64_t>(count * item));
            if (!is_known(tensor)) continue;
            auto* values = reinterpret_cast<float*>(into);
            for (std::int64_t i = 0; i < count; ++i)
                values[i] = given(given_by, rank, tensor, first + i, call);
        }
    }
}

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
            if (!is_plain()) count_tile(record);
        }
        if (played_.sums_ && !sum(program)) return;
        if (!control_.faulty() && !is_plain()) end();
    }

private:
    using Word = std::int32_t;

    /// It knows nothing of slots: the runtime posts when it has ended.
    [[nodiscard]] bool is_plain() const { return played_.schedule_.plain(); }
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
        runtime::WaitingClock clock;
        const std::chrono::milliseconds deadline(control_.load(emit::control::deadline_ms));
        while (static_cast<std::int32_t>(control_.load(word) - target) < 0) {
            if (control_.faulty()) return false;
            if (deadline.count() != 0 && clock.waited() >= deadline) {
                const std::int32_t signal =
                    (word - emit::control::first_signal) / emit::control::signal_stride;
                control_.raise({signal, 0}, call_, where);
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

    template <typename Boxes>
    static std::vector<Region> boxes_of(const kernel::ByParameter<Region>& whole, const Boxes& exact,
                                        const std::string& param) {
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
        if (!is_plain() && !wait(at(waits), at(waits + 1), record)) return false;
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
        const bool posts_here = !played_.case_.tells_early && stage_ + 1 == played_.programs_.size();
        ranks_.count(word_at(emit::control::finished), call_ * all, false,
                     posts_here ? kernel_posts() : std::vector<std::uint64_t>{}, call_);
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

void PlayedOp::scribble(SimulatedRanks& ranks, const Part& at, const plan::Chunk& chunk) {
    const plan::Tensor& of = schedule_.tensors[static_cast<std::size_t>(chunk.tensor)];
    const std::size_t item = plan::size_of(of.dtype);
    const std::uint64_t base = op(at.rank).tensor_address(of.name).value();
    for (const auto& [first, count] : runs_of(of, chunk.region)) {
        const std::uint64_t into = base + static_cast<std::uint64_t>(first) * item;
        ranks.write(into, static_cast<std::uint64_t>(count) * item);
        std::memset(reinterpret_cast<void*>(into), 0x7f, static_cast<std::size_t>(count) * item);
    }
}

Status PlayedOp::call(SimulatedRanks& ranks, int rank, std::uint32_t number, bool launches) {
    const plan::Plan& plan = case_.program.plan;
    const Part here{rank, 0, 0};
    const auto each = [&](const std::vector<plan::Holding>& holdings, const auto& visit) {
        for (const plan::Holding& held : holdings) {
            if (held.rank != rank || plan::is_empty(held.chunk.region)) continue;
            Part at = here;
            at.tensor = held.chunk.tensor;
            visit(at, held.chunk);
        }
    };
    each(plan.initial, [&](const Part& at, const plan::Chunk& chunk) {
        write(ranks, {at}, rank, chunk.tensor, chunk.region, plan.initial, number);
    });
    // The kernel's stages, one after another, beside what begins the call, or after it.
    const void* const launching = &heaps_[static_cast<std::size_t>(rank)];
    const auto launch = [&] {
        ranks.start(launching, [this, &ranks, rank, number] {
            for (std::size_t stage = 0; stage < programs_.size(); ++stage) {
                if (stage > 0 && !schedule_.stages[stage].overlaps)
                    ranks.join(&ops_[static_cast<std::size_t>(rank)]);
                run_kernel(ranks, rank, number, stage);
            }
            ranks.join(&ops_[static_cast<std::size_t>(rank)]);
        });
    };
    if (case_.starts_early && launches) launch();
    const Status begun = op(rank).begin_call();
    if (begun && launches && !case_.starts_early) launch();
    ranks.join(launching);
    if (!begun) return begun;
    if (Status ended = op(rank).end_call(0, launches); !ended) return ended;
    each(plan.final, [&](const Part& at, const plan::Chunk& chunk) {
        read(ranks, at, rank, chunk.tensor, chunk.region, number, "the user");
    });
    // What the call leaves there is the user's until the next one.
    each(plan.final, [&](const Part& at, const plan::Chunk& chunk) { scribble(ranks, at, chunk); });
    return Done{};
}

}  // namespace syncopate::explore
