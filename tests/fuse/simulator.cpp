#include "fuse/simulator.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "syncopate/fuse/inline/kernel_sums.hpp"

namespace syncopate::fuse {
namespace {

using plan::Region;

/// The elements of `region` as linear indices.
std::vector<std::int64_t> elements_of(const plan::Tensor& tensor, const Region& region) {
    std::vector<std::int64_t> elements{0};
    for (std::size_t axis = 0; axis < region.size(); ++axis) {
        std::vector<std::int64_t> next;
        for (const std::int64_t outer : elements) {
            for (std::int64_t at = region[axis].begin; at < region[axis].end; ++at)
                next.push_back(outer * tensor.shape[axis] + at);
        }
        elements = std::move(next);
    }
    return elements;
}

/// One step: `possible` (empty: always), then `act`.
struct Step {
    std::function<bool()> possible;
    std::function<void()> act;
};

/// What an element holds: the call that wrote it, whether as a sum, and what.
struct Content {
    std::int64_t call = -1;
    bool summed = false;
    float value = 0;
};

/// An element of a tensor in the memory of a rank.
struct Element {
    std::int32_t rank = 0;
    std::int32_t tensor = 0;
    std::int64_t index = 0;
};

struct Agent {
    std::int32_t rank = 0;
    enum class Kind { main, program, transfer } kind = Kind::main;
    std::vector<Step> steps;
    std::size_t next = 0;
    std::uint64_t priority = 0;
    [[nodiscard]] bool done() const { return next >= steps.size(); }
};

class World {
public:
    World(const StagedProgram& program, const Schedule& schedule, const std::vector<std::int64_t>& program_of,
          const SimulatorOptions& options)
        : program_(program),
          schedule_(schedule),
          program_of_(program_of),
          options_(options),
          random_(options.seed),
          tells_(schedule.stages.size() == 1 && options.seed % 2 == 1) {
        const std::size_t num_ranks = schedule.ranks.size();
        memory_.resize(num_ranks);
        signals_.resize(num_ranks);
        epoch_.resize(num_ranks, 0);
        open_programs_.resize(num_ranks, std::vector<std::int64_t>(schedule.stages.size(), 0));
        loading_.resize(num_ranks, 0);
        turns_.resize(schedule.tensors.size(), 0);
        for (const std::int32_t tensor : alternating_tensors(schedule)) {
            if (options.alternate) turns_[tensor] = num_elements(schedule.tensors[tensor].whole());
        }
        for (std::size_t rank = 0; rank < num_ranks; ++rank) {
            for (std::size_t tensor = 0; tensor < schedule.tensors.size(); ++tensor) {
                const std::int64_t elements = num_elements(schedule.tensors[tensor].whole());
                memory_[rank].emplace_back(elements + turns_[tensor], Content{});
            }
            counters_.emplace_back(schedule.ranks[rank].chunks.size(), 0);
            signals_[rank].resize(schedule.ranks[rank].signals.size(), 0);
        }
        num_programs_ = program_of.empty() ? 0 : 1 + *std::max_element(program_of.begin(), program_of.end());
        for (std::size_t rank = 0; rank < num_ranks; ++rank) add_agents(static_cast<std::int32_t>(rank));
    }

    std::optional<std::string> run() {
        const bool priorities = random_() % 4 != 0;  // else every step is drawn anew
        for (Agent& agent : agents_) agent.priority = draw_priority(agent);
        std::uniform_int_distribution<int> change(0, 60);
        while (true) {
            std::vector<Agent*> able;
            bool all_done = true;
            for (Agent& agent : agents_) {
                if (agent.done()) continue;
                all_done = all_done && agent.kind != Agent::Kind::main;
                const Step& step = agent.steps[agent.next];
                if (!step.possible || step.possible()) able.push_back(&agent);
            }
            if (all_done) return std::nullopt;
            if (able.empty()) return "nobody can go on";
            Agent* chosen = able[random_() % able.size()];
            if (priorities) {
                chosen = *std::max_element(able.begin(), able.end(), [](const Agent* a, const Agent* b) {
                    return a->priority < b->priority;
                });
                if (change(random_) == 0) chosen->priority = draw_priority(*chosen) / 2;
            }
            Step& step = chosen->steps[chosen->next++];
            step.act();
            if (!fault_.empty()) return fault_;
        }
    }

private:
    std::uint64_t draw_priority(const Agent& agent) {
        const std::uint64_t priority = (std::uint64_t{1} << 40) + random_() % (std::uint64_t{1} << 40);
        if (options_.straggler != agent.rank) return priority;
        const std::uint64_t held_back = options_.seed / 4 % 7 + 1;  // which kinds of its agents
        return (held_back >> static_cast<int>(agent.kind) & 1) != 0 ? priority >> 36 : priority;
    }

    void expect(std::int32_t rank, std::int32_t tensor, std::int64_t element, std::int32_t call,
                const std::string& who, std::optional<bool> summed = {}) {
        const Content& found = memory_[rank][tensor][element];
        if (!fault_.empty()) return;
        // A word that a channel carries only tells that something is complete (channel.hpp).
        if (schedule_.tensors[tensor].name.starts_with("words.channel")) return;
        const std::string what = who + " on rank " + std::to_string(rank) + " reads element " +
                                 std::to_string(element) + " of tensor " + std::to_string(tensor);
        if (found.call != call)
            fault_ = what + " of call " + std::to_string(found.call) + " in call " + std::to_string(call);
        // One sum for each element is how push_reduce sums; other plans add one contribution after another,
        // and are judged by values.
        if (found.call == call && summed && *summed != found.summed && options_.values == nullptr)
            fault_ = what + (found.summed ? " summed already" : " not summed yet");
    }

    /// Whether what `transfer` reads is the result of a sum there: the plan says so, whatever the schedule
    /// does.
    bool reads_sum(const Transfer& transfer) const {
        const auto& list = program_.plan.ranks[transfer.op.rank];
        if (transfer.op.index >= static_cast<std::int32_t>(list.size())) return false;
        const plan::Op& op = list[transfer.op.index];
        return std::any_of(op.after.begin(), op.after.end(), [&](plan::OpRef ref) {
            const plan::Op& before = program_.plan.op(ref);
            return before.reduce != plan::Reduce::none &&
                   before.destination_rank(ref.rank) == transfer.src_rank &&
                   before.dst.tensor == op.src.tensor && overlaps(before.dst.region, op.src.region);
        });
    }

    /// What rank `rank` holds of the tensor before anything is sent: a contribution to it, or its value.
    float given(const std::vector<plan::Holding>& holdings, std::int32_t rank, std::int32_t tensor,
                std::int64_t element) const {
        const bool partial = std::any_of(holdings.begin(), holdings.end(), [&](const plan::Holding& holding) {
            return holding.rank == rank && holding.chunk.tensor == tensor && holding.partial;
        });
        return plan::test::small_integer(tensor, element, partial ? rank : -1);
    }

    /// Elements from a tensor's first place to the one of the call in which `rank` is.
    [[nodiscard]] std::int64_t turn(std::int32_t rank, std::int32_t tensor) const {
        return epoch_[rank] % 2 * turns_[tensor];
    }

    /// The element that a tile or the end reads must have the value that the plan gives it there.
    void expect_value(const Content& found, std::int32_t rank, std::int32_t tensor, std::int64_t element,
                      const std::string& who) {
        if (options_.values == nullptr || !fault_.empty()) return;
        const auto& values = (*options_.values)[rank];
        if (static_cast<std::size_t>(tensor) >= values.size()) return;
        const float wanted = values[tensor][element];
        if (std::isnan(wanted) || wanted == found.value) return;
        fault_ = who + " on rank " + std::to_string(rank) + " reads " + std::to_string(found.value) +
                 " in element " + std::to_string(element) + " of tensor " + std::to_string(tensor) +
                 ", which holds " + std::to_string(wanted);
    }

    Step wait_step(std::int32_t rank, Wait wait) {
        return {[this, rank, wait] { return signals_[rank][wait.signal] >= epoch_[rank] - wait.lag; }, [] {}};
    }
    Step post_step(std::int32_t rank, Post post) {
        return {{}, [this, rank, post] {
                    reach(rank, post.rank);
                    signals_[post.rank][post.signal] = epoch_[rank];
                }};
    }
    /// A rank touches only memory of its own node.
    void reach(std::int32_t rank, std::int32_t other) {
        if (schedule_.mesh.node_of(rank) == schedule_.mesh.node_of(other) || !fault_.empty()) return;
        fault_ = "rank " + std::to_string(rank) + " touches memory of rank " + std::to_string(other) +
                 ", of another node";
    }
    void read_steps(std::vector<Step>& steps, std::int32_t rank, std::int32_t tensor, Region region,
                    const std::string& who, const std::optional<Place>& from = {}) {
        const std::int32_t where = from ? from->rank : rank;
        const std::int32_t what = from ? from->tensor : tensor;
        const std::int64_t shift = from ? from->rows * schedule_.tensors[tensor].shape.back() : 0;
        for (const auto& half : halves(elements_of(schedule_.tensors[tensor], region))) {
            steps.push_back({{}, [=, this] {
                                 reach(rank, where);
                                 for (const std::int64_t e : half) {
                                     expect(where, what, e + shift, epoch_[rank], who);
                                     expect_value(memory_[where][what][e + shift], rank, tensor, e, who);
                                 }
                             }});
        }
    }
    static std::array<std::pair<std::size_t, std::size_t>, 2> halves_of(std::size_t size) {
        return {{{0, size / 2}, {size / 2, size}}};
    }
    static std::vector<std::vector<std::int64_t>> halves(const std::vector<std::int64_t>& elements) {
        const auto middle = elements.begin() + static_cast<std::ptrdiff_t>(elements.size() / 2);
        return {{elements.begin(), middle}, {middle, elements.end()}};
    }

    std::vector<Step> read_steps_of(std::int32_t rank, const Slot& slot, std::int64_t number) {
        std::vector<Step> steps;
        for (const Wait& wait : slot.waits) steps.push_back(wait_step(rank, wait));
        const Stage& stage = program_.stages[stage_of(number)];
        const kernel::Tile& tile = stage.kernel.tiles[slot.tile];
        for (const auto& [param, tensor_name] : stage.bindings) {
            const std::int32_t tensor = *program_.plan.find_tensor(tensor_name);
            if (!tile.reads.contains(param)) continue;
            const Region& box = tile.reads.at(param);
            const std::string who = "tile " + std::to_string(slot.tile);
            const std::optional<Place> from =
                schedule_.loads() && schedule_.loads()->tensor == tensor ? slot.from : std::nullopt;
            if (slot.phases.empty()) {
                read_steps(steps, rank, tensor, box, who, from);
                continue;
            }
            kernel::LoopSlice slice;
            for (const kernel::LoopSlice& s : stage.kernel.loops.front().slices) {
                if (s.param == param) slice = s;
            }
            std::vector<bool> ran(static_cast<std::size_t>(stage.kernel.loops.front().trips), false);
            for (const Phase& phase : slot.phases) {
                for (const Wait& wait : phase.waits) steps.push_back(wait_step(rank, wait));
                for (std::int64_t iteration = phase.iteration_begin; iteration < phase.iteration_end;
                     ++iteration) {
                    if (ran[static_cast<std::size_t>(iteration)]) fault_ = "an iteration runs twice";
                    ran[static_cast<std::size_t>(iteration)] = true;
                    Region part = box;
                    part[slice.dim].begin =
                        std::max(box[slice.dim].begin, slice.base + iteration * slice.step);
                    part[slice.dim].end =
                        std::min(box[slice.dim].end, slice.base + iteration * slice.step + slice.extent);
                    read_steps(steps, rank, tensor, part, who, from);
                }
            }
            if (std::ranges::find(ran, false) != ran.end()) fault_ = "phases leave an iteration out";
        }
        return steps;
    }

    std::vector<Step> write_steps_of(std::int32_t rank, const Slot& slot, std::int64_t number) {
        std::vector<Step> steps;
        const Stage& stage = program_.stages[stage_of(number)];
        const kernel::Tile& tile = stage.kernel.tiles[slot.tile];
        for (const auto& [param, tensor_name] : stage.bindings) {
            if (!tile.writes.contains(param)) continue;
            const std::int32_t tensor = *program_.plan.find_tensor(tensor_name);
            for (const auto& half : halves(elements_of(schedule_.tensors[tensor], tile.writes.at(param)))) {
                steps.push_back({{}, [=, this, &slot] {
                                     for (const std::int64_t e : half) {
                                         const float value = given(program_.plan.produced, rank, tensor, e);
                                         for (const Element& to : stored_at(rank, slot, tensor, e)) {
                                             reach(rank, to.rank);
                                             memory_[to.rank][to.tensor][to.index + turn(rank, to.tensor)] = {
                                                 epoch_[rank], false, value};
                                         }
                                     }
                                 }});
            }
        }
        for (const std::int32_t chunk : slot.makes) {
            if (!schedule_.ranks[rank].chunks[chunk].counts(number)) continue;
            steps.push_back({{}, [this, rank, chunk] {
                                 const MadeChunk& made = schedule_.ranks[rank].chunks[chunk];
                                 const auto count = static_cast<std::int64_t>(made.counting.size());
                                 if (++counters_[rank][chunk] != count * epoch_[rank]) return;
                                 for (const Post& post : made.posts) {
                                     reach(rank, post.rank);
                                     signals_[post.rank][post.signal] = epoch_[rank];
                                 }
                             }});
        }
        return steps;
    }

    [[nodiscard]] std::size_t stage_of(std::int64_t slot) const {
        std::size_t stage = 0;
        while (slot >= schedule_.stages[stage].first + schedule_.stages[stage].count) ++stage;
        return stage;
    }

    /// Where a tile stores an element of `tensor`: in the places of the chunk that holds it, or in its own.
    std::vector<Element> stored_at(std::int32_t rank, const Slot& slot, std::int32_t tensor,
                                   std::int64_t element) const {
        const plan::Tensor& of = schedule_.tensors[tensor];
        plan::Region here = of.whole();  // the element as a box
        std::int64_t rest = element;
        for (std::size_t axis = of.shape.size(); axis-- > 0; rest /= of.shape[axis])
            here[axis] = {rest % of.shape[axis], rest % of.shape[axis] + 1};
        for (const std::int32_t index : slot.makes) {
            const MadeChunk& chunk = schedule_.ranks[rank].chunks[index];
            if (chunk.stores.empty() || chunk.chunk.tensor != tensor || !overlaps(chunk.chunk.region, here))
                continue;
            std::vector<Element> places;
            for (const Place& place : chunk.stores)
                places.push_back({place.rank, place.tensor, element + place.rows * of.shape.back()});
            return places;
        }
        return {{rank, tensor, element}};
    }

    /// The slots of one stage that a program runs, once the stage before has ended.
    std::vector<Step> program_steps(std::int32_t rank, std::size_t stage, std::int64_t program) {
        const RankSchedule& own = schedule_.ranks[rank];
        std::vector<Step> steps;
        if (stage > 0)
            steps.push_back({[this, rank, stage] { return open_programs_[rank][stage - 1] == 0; }, [] {}});
        const StageSlots slots = schedule_.stages[stage];
        std::size_t read = steps.size();  // steps until the last tile has been read
        for (std::int64_t slot = slots.first; slot < slots.first + slots.count; ++slot) {
            if (program_of_[slot] != program) continue;
            std::vector<Step> reads = read_steps_of(rank, own.slots[slot], slot);
            std::ranges::move(reads, std::back_inserter(steps));
            read = steps.size();
            std::vector<Step> writes = write_steps_of(rank, own.slots[slot], slot);
            std::ranges::move(writes, std::back_inserter(steps));
        }
        steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(read),
                     {{}, [this, rank] { --loading_[rank]; }});
        steps.push_back({{}, [this, rank, stage] { --open_programs_[rank][stage]; }});
        return steps;
    }

    std::vector<Step> transfer_steps(std::int32_t rank, const Transfer& transfer) {
        std::vector<Step> steps;
        for (const Wait& wait : transfer.waits) steps.push_back(wait_step(rank, wait));
        if (transfer.sum() != nullptr) {
            sum_steps(steps, rank, transfer);
            for (const Post& post : transfer.posts) steps.push_back(post_step(rank, post));
            return steps;
        }
        move_steps(steps, rank, transfer);
        for (const Post& post : transfer.posts) steps.push_back(post_step(rank, post));
        return steps;
    }

    /// A round of a rank's sides: all begin; what is sent leaves, and what comes is received. A send is over, as it
    /// happens, once its bytes have left, which the receiver may not even wait for yet, or once they were received.
    std::vector<Step> round_steps(std::int32_t rank, const std::vector<const Transfer*>& round) {
        std::vector<Step> steps;
        for (const Transfer* side : round) {
            for (const Wait& wait : side->waits) steps.push_back(wait_step(rank, wait));
        }
        steps.push_back({{}, [this, rank, round] {
                             for (const Transfer* side : round) {
                                 begun_[{rank, side->channel()->number}] = epoch_[rank];
                                 if (side->channel()->sends)
                                     leaves_[side->channel()->number] = random_() % 2 == 0;
                             }
                         }});
        for (const bool sends : {true, false}) {
            for (const Transfer* side : round) {
                if (side->channel()->sends == sends) side_steps(steps, rank, *side);
            }
        }
        for (const Transfer* side : round) {
            const std::int32_t number = side->channel()->number;
            if (side->channel()->sends)
                steps.push_back(
                    {[=, this] { return leaves_[number] || received_[number] >= epoch_[rank]; }, [] {}});
            for (const Post& post : side->posts) steps.push_back(post_step(rank, post));
        }
        return steps;
    }

    /// Of a send what it reads; of a receive what it writes.
    void side_steps(std::vector<Step>& steps, std::int32_t rank, const Transfer& side) {
        const std::int32_t number = side.channel()->number;
        if (side.channel()->sends) {
            const std::int32_t peer = side.dst_rank;
            steps.push_back(
                {[=, this] { return leaves_[number] || begun_[{peer, number}] >= epoch_[rank]; }, [] {}});
            for (const auto& half :
                 halves(elements_of(schedule_.tensors[side.src.tensor], side.src.region))) {
                steps.push_back({{}, [=, this, &side] {
                                     std::vector<Content>& sent = sent_[{number, epoch_[rank]}];
                                     take(sent, side, half, rank);
                                 }});
            }
            steps.push_back({{}, [=, this] { left_[number] = epoch_[rank]; }});
            return;
        }
        steps.push_back({[=, this] { return left_[number] >= epoch_[rank]; }, [] {}});
        const auto to = elements_of(schedule_.tensors[side.dst.tensor], side.dst.region);
        for (const auto& [first, last] : halves_of(to.size())) {
            steps.push_back({{}, [=, this, &side] {
                                 const std::vector<Content>& sent = sent_[{number, epoch_[rank]}];
                                 for (std::size_t at = first; at < last; ++at)
                                     memory_[rank][side.dst.tensor][to[at]] = sent[at];
                             }});
        }
        steps.push_back({{}, [=, this] {
                             received_[number] = epoch_[rank];
                             sent_.erase({number, epoch_[rank]});
                         }});
    }

    /// Appends the elements that a transfer reads.
    void take(std::vector<Content>& taken, const Transfer& transfer,
              const std::vector<std::int64_t>& elements, std::int32_t rank) {
        const std::string who =
            "op " + std::to_string(transfer.op.index) + " of rank " + std::to_string(transfer.op.rank);
        const std::optional<bool> summed =
            reads_sum(transfer) ? std::optional<bool>(true) : std::optional<bool>();
        for (const std::int64_t e : elements) {
            expect(transfer.src_rank, transfer.src.tensor, e, epoch_[rank], who, summed);
            taken.push_back(memory_[transfer.src_rank][transfer.src.tensor][e]);
        }
    }

    void move_steps(std::vector<Step>& steps, std::int32_t rank, const Transfer& transfer) {
        const auto from_halves =
            halves(elements_of(schedule_.tensors[transfer.src.tensor], transfer.src.region));
        const auto to_halves =
            halves(elements_of(schedule_.tensors[transfer.dst.tensor], transfer.dst.region));
        auto buffer = std::make_shared<std::vector<Content>>();
        for (std::size_t half = 0; half < 2; ++half) {
            steps.push_back({{}, [=, this, &transfer] {
                                 buffer->clear();
                                 reach(rank, transfer.src_rank);
                                 reach(rank, transfer.dst_rank);
                                 take(*buffer, transfer, from_halves[half], rank);
                             }});
            steps.push_back({{}, [=, this, &transfer] {
                                 for (std::size_t at = 0; at < buffer->size(); ++at) {
                                     memory_[transfer.dst_rank][transfer.dst.tensor][to_halves[half][at]] =
                                         (*buffer)[at];
                                 }
                             }});
        }
    }

    /// Every slot, and what the destination holds itself, must be this call's; then the sum takes its place.
    void sum_steps(std::vector<Step>& steps, std::int32_t rank, const Transfer& transfer) {
        const Sum& sum = *transfer.sum();
        const std::string who = "the sum of op " + std::to_string(transfer.op.index);
        const auto to = elements_of(schedule_.tensors[transfer.dst.tensor], transfer.dst.region);
        const auto totals = std::make_shared<std::vector<std::optional<float>>>(to.size());
        const auto add = [totals, reduce = sum.reduce](std::size_t at, float value) {
            std::optional<float>& total = (*totals)[at];
            if (!total)
                total = value;
            else
                total = reduce == plan::Reduce::max ? std::max(*total, value) : *total + value;
        };
        steps.push_back({{}, [totals] { std::ranges::fill(*totals, std::nullopt); }});
        // The slots of a box follow one another, and may hold sums of other ranks; a source is one slot, of
        // what a kernel made.
        std::vector<Source> sources = sum.sources;
        const std::optional<bool> summed = sources.empty() ? std::optional<bool>() : std::optional(false);
        if (sources.empty()) sources.push_back({rank, transfer.src});
        for (const Source& source : sources) {
            const auto from = elements_of(schedule_.tensors[source.chunk.tensor], source.chunk.region);
            for (const auto& [first, last] : halves_of(from.size())) {
                steps.push_back({{}, [=, this] {
                                     const std::int32_t tensor = source.chunk.tensor;
                                     reach(rank, source.rank);
                                     for (std::size_t at = first; at < last; ++at) {
                                         const std::int64_t element = from[at] + turn(rank, tensor);
                                         expect(source.rank, tensor, element, epoch_[rank], who, summed);
                                         add(at % to.size(), memory_[source.rank][tensor][element].value);
                                     }
                                 }});
            }
        }
        for (const auto& [first, last] : halves_of(to.size())) {
            steps.push_back({{}, [=, this, &transfer, &sum] {
                                 for (std::size_t at = first; at < last; ++at) {
                                     Content& here = memory_[rank][transfer.dst.tensor][to[at]];
                                     if (sum.own >= 0) {
                                         expect(rank, transfer.dst.tensor, to[at], epoch_[rank], who, false);
                                         add(at, here.value);
                                     }
                                     here = {epoch_[rank], true, (*totals)[at].value_or(0)};
                                 }
                             }});
            for (const std::int32_t peer : sum.peers) {
                steps.push_back({{}, [=, this, &transfer] {
                                     reach(rank, peer);
                                     for (std::size_t at = first; at < last; ++at)
                                         memory_[peer][transfer.dst.tensor][to[at]] = {
                                             epoch_[rank], true, (*totals)[at].value_or(0)};
                                 }});
            }
        }
    }

    /// What arrives at `rank` and the plan asks for at the end: it is the user's until the next call.
    std::vector<plan::Chunk> kept(std::int32_t rank) const {
        std::vector<plan::Chunk> result;
        for (const RankSchedule& other : schedule_.ranks) {
            for (const Transfer& transfer : other.transfers) {
                if (transfer.dst_rank != rank) continue;
                for (const plan::Holding& held : program_.plan.final) {
                    if (held.rank != rank || held.chunk.tensor != transfer.dst.tensor) continue;
                    if (auto part = intersect(transfer.dst.region, held.chunk.region))
                        result.push_back({transfer.dst.tensor, *std::move(part)});
                }
            }
        }
        return result;
    }

    void add_agents(std::int32_t rank) {
        const RankSchedule& own = schedule_.ranks[rank];
        const std::size_t first_worker = agents_.size() + 1;
        agents_.push_back({rank, Agent::Kind::main, {}, 0, 0});
        for (std::size_t stage = 0; stage < schedule_.stages.size(); ++stage) {
            for (std::int64_t program = 0; program < num_programs_; ++program) {
                agents_.push_back({rank, Agent::Kind::program, {}, 0, 0});
                workers_.push_back(program_steps(rank, stage, program));
            }
        }
        // The posts by the last program to end, or to have loaded all that it will (sy_loaded).
        agents_.push_back({rank, Agent::Kind::program, {}, 0, 0});
        std::vector<Step> posts;
        posts.push_back(
            {[this, rank] { return (tells_ ? loading_[rank] : open_programs_[rank].back()) == 0; }, [] {}});
        for (const Post& post : own.kernel_posts) posts.push_back(post_step(rank, post));
        workers_.push_back(std::move(posts));
        std::map<std::int32_t, std::vector<Step>> streams;  // of copies, by number
        std::vector<Step> sums, channel;
        std::vector<const Transfer*> round;
        for (const Transfer& transfer : own.transfers) {
            if (const Channel* const side = transfer.channel()) {
                round.push_back(&transfer);
                const Transfer* const next = &transfer + 1;
                const bool last = next == own.transfers.data() + own.transfers.size();
                if (!last && next->channel() != nullptr && next->channel()->round == side->round) continue;
                std::ranges::move(round_steps(rank, std::exchange(round, {})), std::back_inserter(channel));
                continue;
            }
            std::vector<Step> steps = transfer_steps(rank, transfer);
            if (transfer.backend == plan::Backend::copy_engine) {
                std::vector<Step>& lane =
                    transfer.copy() == nullptr ? sums : streams[transfer.copy()->stream];
                for (Step& step : steps) lane.push_back(std::move(step));
            } else {  // host and the chunk engine
                agents_.push_back({rank, Agent::Kind::transfer, {}, 0, 0});
                workers_.push_back(std::move(steps));
            }
        }
        for (auto& [number, stream] : streams) {
            agents_.push_back({rank, Agent::Kind::transfer, {}, 0, 0});
            workers_.push_back(std::move(stream));
        }
        for (std::vector<Step>* lane : {&sums, &channel}) {
            agents_.push_back({rank, Agent::Kind::transfer, {}, 0, 0});
            workers_.push_back(std::move(*lane));
        }
        const std::size_t end_worker = agents_.size();
        const std::size_t worker_shift = first_worker - (workers_.size() - (end_worker - first_worker));

        std::vector<Step> call;
        for (const plan::Holding& holding : program_.plan.initial) {  // the user's
            if (holding.rank != rank) continue;
            const auto elements = elements_of(schedule_.tensors[holding.chunk.tensor], holding.chunk.region);
            for (const auto& half : halves(elements)) {
                call.push_back({{}, [=, this] {
                                    for (const std::int64_t e : half) {
                                        memory_[rank][holding.chunk.tensor][e] = {
                                            epoch_[rank] + 1, false,
                                            given(program_.plan.initial, rank, holding.chunk.tensor, e)};
                                    }
                                }});
            }
        }
        call.push_back({{}, [this, rank] { ++epoch_[rank]; }});
        for (const Post& post : own.begin_posts) call.push_back(post_step(rank, post));
        const auto start = [=, this](bool kernel) {
            for (std::size_t at = first_worker; at < end_worker; ++at) {
                if ((agents_[at].kind == Agent::Kind::program) != kernel) continue;
                agents_[at].steps = workers_[at - worker_shift];
                agents_[at].next = 0;
            }
        };
        // The kernel may start before the begin waits are over, what is transferred may not.
        call.push_back({{}, [=, this] {
                            std::ranges::fill(open_programs_[rank], num_programs_);
                            loading_[rank] = num_programs_;
                            start(true);
                        }});
        for (const Wait& wait : own.begin_waits) call.push_back(wait_step(rank, wait));
        call.push_back({{}, [=] { start(false); }});
        call.push_back({[=, this] {
                            for (std::size_t at = first_worker; at < end_worker; ++at) {
                                if (!agents_[at].done()) return false;
                            }
                            return true;
                        },
                        [] {}});
        for (const Wait& wait : own.end_waits) call.push_back(wait_step(rank, wait));
        for (const Post& post : own.end_posts) call.push_back(post_step(rank, post));
        for (const plan::Chunk& chunk : kept(rank))
            read_steps(call, rank, chunk.tensor, chunk.region, "the end");
        Agent& main = agents_[first_worker - 1];
        for (std::int32_t n = 0; n < options_.calls; ++n)
            main.steps.insert(main.steps.end(), call.begin(), call.end());
    }

    const StagedProgram& program_;
    const Schedule& schedule_;
    const std::vector<std::int64_t>& program_of_;
    SimulatorOptions options_;
    std::mt19937_64 random_;
    bool tells_;  ///< peers may overwrite when all is loaded, not when the kernel has ended
    std::int64_t num_programs_ = 0;
    std::vector<std::vector<std::vector<Content>>> memory_;  ///< by rank, tensor, element
    std::vector<std::int64_t> turns_;  ///< by tensor: elements between its two places; 0: it has one
    std::vector<std::vector<std::int64_t>> counters_;  ///< by rank and made chunk
    std::vector<std::vector<std::int64_t>> signals_;
    std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t>
        begun_;                                             ///< by rank and pair of sides: the call
    std::map<std::int32_t, std::int32_t> left_, received_;  ///< by pair: the call
    std::map<std::int32_t, bool> leaves_;                   ///< by pair: its send awaits no receive
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Content>> sent_;  ///< by pair and call
    std::vector<std::int32_t> epoch_;
    std::vector<std::vector<std::int64_t>> open_programs_;  ///< by rank and stage
    std::vector<std::int64_t> loading_;                     ///< by rank: programs of a stage alone
    std::vector<Agent> agents_;
    std::vector<std::vector<Step>> workers_;  ///< one call of each program and transfer
    std::string fault_;
};

}  // namespace

std::optional<std::string> simulate(const StagedProgram& program, const Schedule& schedule,
                                    const std::vector<std::int64_t>& program_of,
                                    const SimulatorOptions& options) {
    return World(program, schedule, program_of, options).run();
}

std::optional<std::string> simulate(const Program& program, const Schedule& schedule,
                                    const std::vector<std::int64_t>& program_of,
                                    const SimulatorOptions& options) {
    return simulate(StagedProgram{{{program.kernel, program.bindings}}, program.plan}, schedule, program_of,
                    options);
}

}  // namespace syncopate::fuse
