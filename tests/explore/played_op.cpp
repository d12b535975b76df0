#include "explore/played_op.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>

#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/model/decisions.hpp"
#include "syncopate/fuse/passes/heap.hpp"

namespace syncopate::explore {
namespace {

using plan::Region;

constexpr std::uint32_t kDifferentCalls = 4;
constexpr std::chrono::milliseconds kLook{5};  ///< between looks at a store

/// Runs of neighbouring elements of the region: first element and how many.
std::vector<std::pair<std::int64_t, std::int64_t>> plan_runs(const plan::Tensor& tensor,
                                                             const Region& region) {
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

}  // namespace

void Store::put(const std::string& key, const runtime::Bytes& value) {
    tell(key);
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
}

runtime::Bytes Store::put_first(const std::string& key, const runtime::Bytes& value) {
    tell(key);
    const std::lock_guard lock(mutex_);
    return values_.try_emplace(key, value).first->second;
}

runtime::Bytes Store::get(const std::string& key, runtime::Milliseconds timeout) {
    turn();
    std::unique_lock lock(mutex_);
    const auto come = [&] { return values_.contains(key); };
    if (runtime::Turns::of_thread() == nullptr) {
        (void)changed_.wait_for(lock, timeout, come);
    } else {
        for (const auto end = runtime::now_on_host() + timeout; !come() && runtime::now_on_host() < end;) {
            lock.unlock();
            runtime::sleep_on_host(std::min<std::chrono::microseconds>(timeout, kLook));
            lock.lock();
        }
    }
    if (!come()) throw std::runtime_error(key + " has not come");
    if (runtime::Turns* const turns = runtime::Turns::of_thread()) turns->awaited(&words_[key], 1, false);
    return values_.at(key);
}

/// For who records: a key is a word that is 1 once its value is there.
void Store::tell(const std::string& key) {
    runtime::Turns* const turns = runtime::Turns::of_thread();
    if (turns == nullptr) return;
    turn();
    const std::uint32_t* const word = [&] {
        const std::lock_guard lock(mutex_);
        return &words_[key];
    }();
    turns->store(word, 1);
}

/// Of ranks that run by turns, another one may go on before each step.
void Store::turn() {
    if (runtime::Turns::of_thread() != nullptr) runtime::sleep_on_host(std::chrono::microseconds(0));
}

std::shared_ptr<runtime::Rendezvous> Store::meeting(const std::shared_ptr<Store>& store, int rank, int size) {
    return std::make_shared<runtime::CallbackRendezvous>(
        rank, size, [store](const std::string& key, const runtime::Bytes& value) { store->put(key, value); },
        [store](const std::string& key, runtime::Milliseconds timeout) { return store->get(key, timeout); },
        [store](const std::string& key, const runtime::Bytes& value) {
            return store->put_first(key, value);
        });
}

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
    groups_.resize(size);
    heaps_.resize(size);
    ops_.resize(size);
    std::vector<Status> made(size, Done{});
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
            made[rank] = [&]() -> Status {
                groups_[rank] = Store::meeting(store, static_cast<int>(rank), static_cast<int>(size));
                groups_[rank]->set_ranks_of_node(schedule_.mesh.ranks_of_node());
                const auto& meeting = groups_[rank];
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

Result<runtime::Recovered> PlayedOp::recover(int rank, runtime::Milliseconds deadline) {
    const auto index = static_cast<std::size_t>(rank);
    auto recovered = runtime::recover(groups_[index], nullptr, deadline);
    if (!recovered) return recovered.error();
    groups_[index] = recovered->group;
    forget_loaded(index);
    return recovered;
}

Status PlayedOp::reset(int rank) {
    const Status reset = op(rank).reset();
    forget_loaded(static_cast<std::size_t>(rank));
    return reset;
}

void PlayedOp::forget_loaded(std::size_t rank) {
    if (runtime::Turns* const turns = runtime::Turns::of_thread()) turns->store(&loaded_[rank], 0);
    loaded_[rank] = 0;
}

std::uint64_t PlayedOp::in_first_mapping(std::uint64_t address) const {
    const runtime::SymmetricHeap& first = *heaps_.front();
    for (const auto& heap : heaps_) {
        const int mapped = heap->first_mapped();  // its node's
        const std::uint64_t begin = heap->address(mapped, 0);
        if (address >= begin &&
            address - begin < heap->stride() * static_cast<std::uint64_t>(heap->num_mapped()))
            return first.address(0, 0) + static_cast<std::uint64_t>(mapped) * heap->stride() +
                   (address - begin);
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

void PlayedOp::expect(const Run& run, int rank, std::int32_t tensor, std::uint32_t call,
                      const std::string& who) {
    if (!is_known(tensor) || !wrong_.empty()) return;
    const auto& wanted =
        values_[call % kDifferentCalls][static_cast<std::size_t>(rank)][static_cast<std::size_t>(tensor)];
    const auto* values = reinterpret_cast<const float*>(run.address);
    for (std::int64_t i = 0; i < run.count; ++i) {
        const float value = wanted[static_cast<std::size_t>(run.first + i)];
        if (std::isnan(value) || values[i] == value) continue;
        wrong_ = fmt::format("call {}: {} of rank {} reads {} in element {} of {}, which is to be {}", call,
                             who, rank, values[i], run.first + i,
                             schedule_.tensors[static_cast<std::size_t>(tensor)].name, value);
        return;
    }
}

void PlayedOp::put(const Run& run, int rank, std::int32_t tensor, const std::vector<plan::Holding>& given_by,
                   std::uint32_t call) const {
    if (!is_known(tensor)) return;
    auto* values = reinterpret_cast<float*>(run.address);
    for (std::int64_t i = 0; i < run.count; ++i)
        values[i] = given(given_by, rank, tensor, run.first + i, call);
}

std::vector<PlayedOp::Run> PlayedOp::runs_in_heap(const Part& at, int rank, std::int32_t tensor,
                                                  const Region& box, std::uint32_t call) {
    const plan::Tensor& of = schedule_.tensors[static_cast<std::size_t>(tensor)];
    const std::uint64_t item = plan::size_of(of.dtype);
    const std::uint64_t base = address(at, rank, call);
    std::vector<Run> runs;
    for (const auto& [first, count] : plan_runs(of, box))
        runs.push_back({base + static_cast<std::uint64_t>(first) * item, first, count,
                        static_cast<std::uint64_t>(count) * item});
    return runs;
}

void PlayedOp::read(SimulatedRanks& ranks, const Part& at, int rank, std::int32_t tensor, const Region& box,
                    std::uint32_t call, const std::string& who) {
    for (const Run& run : runs_in_heap(at, rank, tensor, box, call)) {
        ranks.read(run.address, run.bytes);
        expect(run, rank, tensor, call, who);
    }
}

void PlayedOp::write(SimulatedRanks& ranks, const std::vector<Part>& at, int rank, std::int32_t tensor,
                     const Region& box, const std::vector<plan::Holding>& given_by, std::uint32_t call) {
    for (const Part& to : at) {
        for (const Run& run : runs_in_heap(to, rank, tensor, box, call)) {
            ranks.write(run.address, run.bytes);
            put(run, rank, tensor, given_by, call);
        }
    }
}

/// The user's memory of a holding, as runs of neighbouring elements: where each is, and its first one in the tensor.
std::vector<PlayedOp::Run> PlayedOp::runs_of_user(int rank, const plan::Holding& held, bool is_output,
                                                  std::uint32_t call) {
    const plan::Tensor& of = schedule_.tensors[static_cast<std::size_t>(held.chunk.tensor)];
    const std::size_t item = plan::size_of(of.dtype);
    std::vector<Run> runs;
    std::uint64_t next = case_.arrays ? array_of(held, is_output) : 0;
    const std::uint64_t base = address({rank, held.chunk.tensor, 0}, rank, call);
    for (const auto& [first, count] : plan_runs(of, held.chunk.region)) {
        const std::uint64_t at = case_.arrays ? next : base + static_cast<std::uint64_t>(first) * item;
        runs.push_back({at, first, count, static_cast<std::uint64_t>(count) * item});
        next += runs.back().bytes;
    }
    return runs;
}

/// The user's own array of what a rank is given, or is to get.
std::uint64_t PlayedOp::array_of(const plan::Holding& held, bool is_output) {
    std::vector<float>& array = arrays_[{is_output, &held}];
    const plan::Tensor& of = schedule_.tensors[static_cast<std::size_t>(held.chunk.tensor)];
    array.resize(static_cast<std::size_t>(plan::num_elements(held.chunk.region)) * plan::size_of(of.dtype) /
                     sizeof(float) +
                 1);
    return reinterpret_cast<std::uint64_t>(array.data());
}

Status PlayedOp::give_arrays(int rank) {
    const auto give = [&](const std::vector<plan::Holding>& holdings, bool is_output) -> Status {
        for (const plan::Holding& held : holdings) {
            const plan::Region& region = held.chunk.region;
            if (held.rank != rank || plan::is_empty(region)) continue;
            std::vector<std::int64_t> strides(region.size(), 1);
            for (std::size_t axis = region.size() - 1; axis-- > 0;)
                strides[axis] = strides[axis + 1] * region[axis + 1].size();
            const std::string& name = schedule_.tensors[static_cast<std::size_t>(held.chunk.tensor)].name;
            const std::uint64_t array = array_of(held, is_output);
            const Status given = is_output ? op(rank).set_output(name, region, array, strides)
                                           : op(rank).set_input(name, region, array, strides);
            if (!given) return given;
        }
        return Done{};
    };
    if (Status given = give(case_.program.plan.initial, false); !given) return given;
    return give(case_.program.plan.final, true);
}

Status PlayedOp::call(SimulatedRanks& ranks, int rank, std::uint32_t number, bool launches) {
    const plan::Plan& plan = case_.program.plan;
    if (case_.arrays && number == 1) {
        if (Status given = give_arrays(rank); !given) return given;
    }
    const auto each = [&](const std::vector<plan::Holding>& holdings, bool is_output, const auto& visit) {
        for (const plan::Holding& held : holdings) {
            if (held.rank != rank || plan::is_empty(held.chunk.region)) continue;
            for (const Run& run : runs_of_user(rank, held, is_output, number)) visit(held.chunk.tensor, run);
        }
    };
    each(plan.initial, false, [&](std::int32_t tensor, const Run& run) {
        ranks.write(run.address, run.bytes);
        put(run, rank, tensor, plan.initial, number);
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
    each(plan.final, true, [&](std::int32_t tensor, const Run& run) {
        ranks.read(run.address, run.bytes);
        expect(run, rank, tensor, number, "the user");
    });
    // What the call leaves there is the user's until the next one.
    each(plan.final, true, [&](std::int32_t, const Run& run) {
        ranks.write(run.address, run.bytes);
        std::memset(reinterpret_cast<void*>(run.address), 0x7f, run.bytes);
    });
    return Done{};
}

}  // namespace syncopate::explore
