#include "fuse/simulator.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>

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

/// What an element holds: the call that wrote it, and whether as a sum.
struct Content {
    std::int64_t call = -1;
    bool summed = false;
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
    World(const Program& program, const Schedule& schedule, const std::vector<std::int64_t>& program_of,
          const SimulatorOptions& options)
        : program_(program),
          schedule_(schedule),
          program_of_(program_of),
          options_(options),
          random_(options.seed) {
        const std::size_t num_ranks = schedule.ranks.size();
        memory_.resize(num_ranks);
        signals_.resize(num_ranks);
        epoch_.resize(num_ranks, 0);
        open_programs_.resize(num_ranks, 0);
        for (std::size_t rank = 0; rank < num_ranks; ++rank) {
            for (const plan::Tensor& tensor : schedule.tensors) {
                memory_[rank].emplace_back(num_elements(tensor.whole()), Content{});
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
        const std::string what = who + " on rank " + std::to_string(rank) + " reads element " +
                                 std::to_string(element) + " of tensor " + std::to_string(tensor);
        if (found.call != call)
            fault_ = what + " of call " + std::to_string(found.call) + " in call " + std::to_string(call);
        if (found.call == call && summed && *summed != found.summed)
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

    Step wait_step(std::int32_t rank, Wait wait) {
        return {[this, rank, wait] { return signals_[rank][wait.signal] >= epoch_[rank] - wait.lag; }, [] {}};
    }
    Step post_step(std::int32_t rank, Post post) {
        return {{}, [this, rank, post] { signals_[post.rank][post.signal] = epoch_[rank]; }};
    }
    void read_steps(std::vector<Step>& steps, std::int32_t rank, std::int32_t tensor, Region region,
                    const std::string& who, const std::optional<Place>& from = {}) {
        const std::int32_t where = from ? from->rank : rank;
        const std::int32_t what = from ? from->tensor : tensor;
        if (from) region[0] = {region[0].begin + from->rows, region[0].end + from->rows};
        const std::vector<std::int64_t> elements = elements_of(schedule_.tensors[what], region);
        for (const auto& half : halves(elements)) {
            steps.push_back({{}, [=, this] {
                                 for (const std::int64_t e : half) expect(where, what, e, epoch_[rank], who);
                             }});
        }
    }
    static std::vector<std::vector<std::int64_t>> halves(const std::vector<std::int64_t>& elements) {
        const auto middle = elements.begin() + static_cast<std::ptrdiff_t>(elements.size() / 2);
        return {{elements.begin(), middle}, {middle, elements.end()}};
    }

    std::vector<Step> slot_steps(std::int32_t rank, const Slot& slot, std::int64_t number) {
        std::vector<Step> steps;
        for (const Wait& wait : slot.waits) steps.push_back(wait_step(rank, wait));
        const kernel::Tile& tile = program_.kernel.tiles[slot.tile];
        for (const auto& [param, tensor_name] : program_.bindings) {
            const std::int32_t tensor = *program_.plan.find_tensor(tensor_name);
            if (!tile.reads.contains(param)) continue;
            const Region& box = tile.reads.at(param);
            const std::string who = "tile " + std::to_string(slot.tile);
            const std::optional<Place> from =
                schedule_.loads && schedule_.loads->tensor == tensor ? slot.from : std::nullopt;
            if (slot.phases.empty()) {
                read_steps(steps, rank, tensor, box, who, from);
                continue;
            }
            kernel::LoopSlice slice;
            for (const kernel::LoopSlice& s : program_.kernel.loops.front().slices) {
                if (s.param == param) slice = s;
            }
            std::int64_t iteration = 0;
            for (const Phase& phase : slot.phases) {
                for (const Wait& wait : phase.waits) steps.push_back(wait_step(rank, wait));
                for (; iteration < phase.iteration_end; ++iteration) {
                    Region part = box;
                    part[slice.dim].begin =
                        std::max(box[slice.dim].begin, slice.base + iteration * slice.step);
                    part[slice.dim].end =
                        std::min(box[slice.dim].end, slice.base + iteration * slice.step + slice.extent);
                    read_steps(steps, rank, tensor, part, who, from);
                }
            }
            if (iteration != program_.kernel.loops.front().trips)
                fault_ = "phases do not end at the last iteration";
        }
        for (const auto& [param, tensor_name] : program_.bindings) {
            if (!tile.writes.contains(param)) continue;
            const std::int32_t tensor = *program_.plan.find_tensor(tensor_name);
            for (const auto& half : halves(elements_of(schedule_.tensors[tensor], tile.writes.at(param)))) {
                steps.push_back({{}, [=, this] {
                                     for (const std::int64_t e : half)
                                         memory_[rank][tensor][e] = {epoch_[rank], false};
                                 }});
            }
        }
        for (const std::int32_t chunk : slot.makes) {
            if (!schedule_.ranks[rank].chunks[chunk].counts(number)) continue;
            steps.push_back({{}, [this, rank, chunk] {
                                 const MadeChunk& made = schedule_.ranks[rank].chunks[chunk];
                                 const auto count = static_cast<std::int64_t>(made.counting.size());
                                 if (++counters_[rank][chunk] != count * epoch_[rank]) return;
                                 for (const Post& post : made.posts)
                                     signals_[post.rank][post.signal] = epoch_[rank];
                             }});
        }
        return steps;
    }

    std::vector<Step> program_steps(std::int32_t rank, std::int64_t program) {
        const RankSchedule& own = schedule_.ranks[rank];
        std::vector<Step> steps;
        for (std::size_t slot = 0; slot < own.slots.size(); ++slot) {
            if (program_of_[slot] != program) continue;
            for (Step& step : slot_steps(rank, own.slots[slot], static_cast<std::int64_t>(slot)))
                steps.push_back(std::move(step));
        }
        steps.push_back({{}, [this, rank] { --open_programs_[rank]; }});
        return steps;
    }

    std::vector<Step> transfer_steps(std::int32_t rank, const Transfer& transfer) {
        std::vector<Step> steps;
        for (const Wait& wait : transfer.waits) steps.push_back(wait_step(rank, wait));
        if (transfer.reduce != plan::Reduce::none) {
            sum_steps(steps, rank, transfer);
            for (const Post& post : transfer.posts) steps.push_back(post_step(rank, post));
            return steps;
        }
        const std::optional<bool> summed =
            reads_sum(transfer) ? std::optional<bool>(true) : std::optional<bool>();
        const auto from = elements_of(schedule_.tensors[transfer.src.tensor], transfer.src.region);
        const auto to = elements_of(schedule_.tensors[transfer.dst.tensor], transfer.dst.region);
        const auto from_halves = halves(from);
        const auto to_halves = halves(to);
        auto buffer = std::make_shared<std::vector<Content>>();
        const std::string who =
            "op " + std::to_string(transfer.op.index) + " of rank " + std::to_string(transfer.op.rank);
        for (std::size_t half = 0; half < 2; ++half) {
            steps.push_back({{}, [=, this, &transfer] {
                                 buffer->clear();
                                 for (const std::int64_t e : from_halves[half]) {
                                     expect(transfer.src_rank, transfer.src.tensor, e, epoch_[rank], who,
                                            summed);
                                     buffer->push_back(memory_[transfer.src_rank][transfer.src.tensor][e]);
                                 }
                             }});
            steps.push_back({{}, [=, this, &transfer] {
                                 for (std::size_t at = 0; at < buffer->size(); ++at) {
                                     memory_[transfer.dst_rank][transfer.dst.tensor][to_halves[half][at]] =
                                         (*buffer)[at];
                                 }
                             }});
        }
        for (const Post& post : transfer.posts) steps.push_back(post_step(rank, post));
        return steps;
    }

    /// Every slot, and what the destination holds itself, must be this call's; then the sum takes its place.
    void sum_steps(std::vector<Step>& steps, std::int32_t rank, const Transfer& sum) {
        const std::string who = "the sum of op " + std::to_string(sum.op.index);
        if (sum.sources.empty()) read_steps(steps, rank, sum.src.tensor, sum.src.region, who);
        for (const Source& source : sum.sources) {
            for (const auto& half :
                 halves(elements_of(schedule_.tensors[source.chunk.tensor], source.chunk.region))) {
                steps.push_back({{}, [=, this, &source] {
                                     for (const std::int64_t e : half)
                                         expect(source.rank, source.chunk.tensor, e, epoch_[rank], who,
                                                false);
                                 }});
            }
        }
        for (const auto& half : halves(elements_of(schedule_.tensors[sum.dst.tensor], sum.dst.region))) {
            steps.push_back({{}, [=, this, &sum] {
                                 for (const std::int64_t e : half) {
                                     if (sum.own >= 0)
                                         expect(rank, sum.dst.tensor, e, epoch_[rank], who, false);
                                     memory_[rank][sum.dst.tensor][e] = {epoch_[rank], true};
                                 }
                             }});
            for (const std::int32_t peer : sum.peers) {
                steps.push_back({{}, [=, this, &sum] {
                                     for (const std::int64_t e : half)
                                         memory_[peer][sum.dst.tensor][e] = {epoch_[rank], true};
                                 }});
            }
        }
    }

    /// Regions that arrive at `rank` for nobody but the end of the call.
    std::vector<plan::Chunk> kept(std::int32_t rank) const {
        std::vector<plan::Chunk> result;
        for (const RankSchedule& other : schedule_.ranks) {
            for (const Transfer& transfer : other.transfers) {
                if (transfer.dst_rank != rank) continue;
                bool read = false;
                for (const RankSchedule& third : schedule_.ranks) {
                    for (const Transfer& reader : third.transfers) {
                        read |= transfer.reduce == plan::Reduce::none && reader.src_rank == rank &&
                                reader.src.tensor == transfer.dst.tensor &&
                                overlaps(reader.src.region, transfer.dst.region);
                    }
                }
                for (const auto& [param, tensor] : program_.bindings) {
                    if (program_.plan.find_tensor(tensor) != transfer.dst.tensor) continue;
                    for (const kernel::Tile& tile : program_.kernel.tiles) {
                        const auto box = tile.reads.find(param);
                        read |= box != tile.reads.end() && overlaps(box->second, transfer.dst.region);
                    }
                }
                if (!read) result.push_back(transfer.dst);
            }
        }
        return result;
    }

    void add_agents(std::int32_t rank) {
        const RankSchedule& own = schedule_.ranks[rank];
        const std::size_t first_worker = agents_.size() + 1;
        agents_.push_back({rank, Agent::Kind::main, {}, 0, 0});
        for (std::int64_t program = 0; program < num_programs_; ++program) {
            agents_.push_back({rank, Agent::Kind::program, {}, 0, 0});
            workers_.push_back(program_steps(rank, program));
        }
        // The posts by the last program to end.
        agents_.push_back({rank, Agent::Kind::program, {}, 0, 0});
        std::vector<Step> posts;
        posts.push_back({[this, rank] { return open_programs_[rank] == 0; }, [] {}});
        for (const Post& post : own.kernel_posts) posts.push_back(post_step(rank, post));
        workers_.push_back(std::move(posts));
        std::map<std::int32_t, std::vector<Step>> streams;  // of copies, by number
        std::vector<Step> sums;
        for (const Transfer& transfer : own.transfers) {
            std::vector<Step> steps = transfer_steps(rank, transfer);
            if (transfer.backend == plan::Backend::copy_engine) {
                std::vector<Step>& lane =
                    transfer.reduce != plan::Reduce::none ? sums : streams[transfer.copy_stream];
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
        agents_.push_back({rank, Agent::Kind::transfer, {}, 0, 0});
        workers_.push_back(std::move(sums));
        const std::size_t end_worker = agents_.size();
        const std::size_t worker_shift = first_worker - (workers_.size() - (end_worker - first_worker));

        std::vector<Step> call;
        for (const plan::Holding& holding : program_.plan.initial) {  // the user's
            if (holding.rank != rank) continue;
            const auto elements = elements_of(schedule_.tensors[holding.chunk.tensor], holding.chunk.region);
            for (const auto& half : halves(elements)) {
                call.push_back({{}, [=, this] {
                                    for (const std::int64_t e : half) {
                                        memory_[rank][holding.chunk.tensor][e] = {epoch_[rank] + 1, false};
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
                            open_programs_[rank] = num_programs_;
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
        for (const plan::Chunk& chunk : kept(rank))
            read_steps(call, rank, chunk.tensor, chunk.region, "the end");
        for (const Post& post : own.end_posts) call.push_back(post_step(rank, post));
        Agent& main = agents_[first_worker - 1];
        for (std::int32_t n = 0; n < options_.calls; ++n)
            main.steps.insert(main.steps.end(), call.begin(), call.end());
    }

    const Program& program_;
    const Schedule& schedule_;
    const std::vector<std::int64_t>& program_of_;
    SimulatorOptions options_;
    std::mt19937_64 random_;
    std::int64_t num_programs_ = 0;
    std::vector<std::vector<std::vector<Content>>> memory_;  ///< by rank, tensor, element
    std::vector<std::vector<std::int64_t>> counters_;        ///< by rank and made chunk
    std::vector<std::vector<std::int64_t>> signals_;
    std::vector<std::int32_t> epoch_;
    std::vector<std::int64_t> open_programs_;
    std::vector<Agent> agents_;
    std::vector<std::vector<Step>> workers_;  ///< one call of each program and transfer
    std::string fault_;
};

}  // namespace

std::optional<std::string> simulate(const Program& program, const Schedule& schedule,
                                    const std::vector<std::int64_t>& program_of,
                                    const SimulatorOptions& options) {
    return World(program, schedule, program_of, options).run();
}

}  // namespace syncopate::fuse
