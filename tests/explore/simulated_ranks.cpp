#include "explore/simulated_ranks.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

namespace syncopate::explore {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 18;
constexpr std::chrono::milliseconds kIdle{100};
constexpr std::chrono::hours kForEver{1};

}  // namespace

SimulatedRanks::~SimulatedRanks() = default;

void SimulatedRanks::add_rank(std::function<void()> work) {
    const int rank = static_cast<int>(stopped_.size());
    stopped_.emplace_back();
    make(rank, nullptr, std::move(work));
}

void SimulatedRanks::make(int rank, const void* owner, std::function<void()> work) {
    auto fiber = std::make_unique<Fiber>();
    fiber->id = next_id_++;
    fiber->rank = rank;
    fiber->owner = owner;
    fiber->work = std::move(work);
    fiber->priority = random_() >> 8;
    if (stacks_.empty()) stacks_.push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
    fiber->stack = std::move(stacks_.back());
    stacks_.pop_back();
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = &home_;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&fiber->context, reinterpret_cast<void (*)()>(&SimulatedRanks::enter), 2,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
    fibers_.push_back(std::move(fiber));
}

void SimulatedRanks::enter(unsigned low, unsigned high) {
    auto* const self = reinterpret_cast<SimulatedRanks*>((static_cast<std::uintptr_t>(high) << 32) |
                                                         static_cast<std::uintptr_t>(low));
    Fiber* const fiber = self->current_;
    fiber->work();
    fiber->work = nullptr;
    ++self->changes_;
}

bool SimulatedRanks::run() {
    Turns*& turns = Turns::of_thread();
    Turns* const before = std::exchange(turns, this);
    const bool good = loop();
    turns = before;
    return good;
}

bool SimulatedRanks::bury() {
    burying_ = true;
    std::ranges::fill(stopped_, Clock::time_point{});
    return run();
}

bool SimulatedRanks::loop() {
    progress_ = now_;
    for (;;) {
        const bool waited_for =
            std::ranges::any_of(fibers_, [this](const auto& fiber) { return !is_dead(fiber->rank); });
        if (!waited_for) return true;
        ++turns_;
        if (each_turn && !burying_) each_turn();
        Fiber* const next = draw();
        if (next == nullptr) {
            if (!advance()) return false;
            continue;
        }
        next->paused = false;
        current_ = next;
        swapcontext(&home_, &next->context);
        if (next->work) continue;
        stacks_.push_back(std::move(next->stack));
        std::erase_if(fibers_, [next](const auto& fiber) { return fiber.get() == next; });
    }
}

SimulatedRanks::Fiber* SimulatedRanks::draw() {
    able_.clear();
    for (const auto& fiber : fibers_) {
        const bool waits = fiber->paused && fiber->seen == changes_;
        if (!waits && fiber->wake <= now_ && stopped_[static_cast<std::size_t>(fiber->rank)] <= now_)
            able_.push_back(fiber.get());
    }
    if (able_.empty()) return nullptr;
    if (options_.in_order) return able_.front();
    if (options_.seed % 4 == 0) return able_[random_() % able_.size()];
    // Who has the highest priority goes on, and may lose it: some are held back for long.
    Fiber* const next = *std::ranges::max_element(able_, {}, &Fiber::priority);
    if (random_() % 48 == 0) next->priority = random_() >> 9;
    return next;
}

/// To when somebody wakes, or who waits looks at the clock again.
bool SimulatedRanks::advance() {
    if (now_ - progress_ > kForEver) return false;
    Clock::time_point next = now_ + kIdle;
    for (const auto& fiber : fibers_) {
        if (fiber->wake > now_) next = std::min(next, fiber->wake);
    }
    for (const Clock::time_point until : stopped_) {
        if (until > now_) next = std::min(next, until);
    }
    now_ = next;
    for (const auto& fiber : fibers_) fiber->seen = 0;
    return true;
}

void SimulatedRanks::leave() { swapcontext(&current_->context, &home_); }

/// Before something that others can notice.
void SimulatedRanks::step() {
    current_->touching = false;
    progress_ = now_;
    if (!options_.in_order) leave();
    ++changes_;
}

void SimulatedRanks::tell(Event event) {
    if (!observer) return;
    event.fiber = current_->id;
    observer(event);
}

void SimulatedRanks::start(const void* owner, std::function<void()> work) {
    current_->touching = false;
    tell({.kind = Event::Kind::start,
          .address = static_cast<std::uint64_t>(next_id_),
          .value = reinterpret_cast<std::uint64_t>(owner)});
    make(current_->rank, owner, std::move(work));
}

void SimulatedRanks::join(const void* owner) {
    const auto works = [&](const auto& fiber) { return fiber->owner == owner; };
    while (std::ranges::any_of(fibers_, works)) pause();
    current_->touching = false;
    tell({.kind = Event::Kind::join, .address = reinterpret_cast<std::uint64_t>(owner)});
}

void SimulatedRanks::pause() {
    current_->paused = true;
    current_->seen = changes_;
    current_->touching = false;
    leave();
}

void SimulatedRanks::sleep(std::chrono::microseconds time) {
    current_->wake = now_ + time;
    current_->touching = false;
    leave();
}

void SimulatedRanks::awaited(const std::uint32_t* word, std::uint32_t value, bool any) {
    current_->touching = false;
    tell({.kind = Event::Kind::awaited,
          .address = reinterpret_cast<std::uint64_t>(word),
          .value = value,
          .any = any});
}

bool SimulatedRanks::finds_fault(std::uint32_t* fault, bool awaits) {
    current_->touching = false;
    Event event{.kind = Event::Kind::look,
                .fiber = current_->id,
                .address = reinterpret_cast<std::uint64_t>(fault),
                .any = awaits};
    const std::uint32_t struck = strikes ? strikes(event) : 0;
    tell(std::move(event));
    if (struck == 0) return false;
    *fault = struck;
    return true;
}

void SimulatedRanks::apart() {
    current_->touching = false;
    tell({.kind = Event::Kind::apart});
}

void SimulatedRanks::store(const std::uint32_t* word, std::uint32_t value) {
    step();
    tell({.kind = Event::Kind::store, .address = reinterpret_cast<std::uint64_t>(word), .value = value});
}

void SimulatedRanks::add(const std::uint32_t* word, std::uint32_t value) {
    step();
    tell({.kind = Event::Kind::add, .address = reinterpret_cast<std::uint64_t>(word), .value = value});
}

void SimulatedRanks::count(std::uint32_t* word, std::uint32_t target, bool reset,
                           const std::vector<std::uint64_t>& posts, std::uint32_t epoch) {
    step();
    tell({.kind = Event::Kind::count,
          .address = reinterpret_cast<std::uint64_t>(word),
          .value = target,
          .any = reset,
          .posts = posts,
          .epoch = epoch});
    if (++*word != target) return;
    if (reset) *word = 0;
    for (const std::uint64_t post : posts) *reinterpret_cast<std::uint32_t*>(post) = epoch;
}

void SimulatedRanks::touch(Event::Kind kind, std::uint64_t address, std::uint64_t bytes) {
    if (!current_->touching) step();
    current_->touching = true;
    tell({.kind = kind, .address = address, .value = bytes});
}

void SimulatedRanks::read(std::uint64_t address, std::uint64_t bytes) {
    touch(Event::Kind::read, address, bytes);
}

void SimulatedRanks::write(std::uint64_t address, std::uint64_t bytes) {
    touch(Event::Kind::write, address, bytes);
}

}  // namespace syncopate::explore
