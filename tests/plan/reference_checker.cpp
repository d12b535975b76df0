#include "plan/reference_checker.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

namespace syncopate::plan::test {
namespace {

using Kind = Finding::Kind;
using Word = std::int16_t;
using State = std::basic_string<Word>;  // progress of every task, what they have read, every cell

constexpr Word kIdle = 0;
constexpr Word kDone = 1;
constexpr Word kRunning = 2;  // + 3^part × (0: not begun, 1: has read, 2: has written)

/// Something that a cell may hold, as a term for each thing added or compared.
struct Term {
    std::int32_t rank;  ///< who contributes; -1: the value
    std::int32_t tensor;
    std::int64_t element;
    auto operator<=>(const Term&) const = default;
};
struct Thing {
    char how = '1';  ///< '1': one term, '+', 'm', '?': both
    std::vector<Term> terms;
    auto operator<=>(const Thing&) const = default;
};

/// One element moved: what `to` gets from `from` (several: of a collective).
struct Move {
    std::vector<std::size_t> from;
    std::size_t to;
};

/// An op, a collective, or the kernel writing some elements of `produced`.
struct Task {
    bool kernel = false;
    bool collective = false;
    Reduce reduce = Reduce::none;    ///< into the destination; of a collective: of its sources
    std::vector<std::size_t> waits;  ///< tasks
    std::vector<Move> moves;
    std::set<std::size_t> reads, writes, adds;               ///< cells; adds: reductions of a transfer
    std::vector<Thing> makes;                                ///< of the kernel: for each move
    std::vector<std::pair<std::size_t, std::size_t>> parts;  ///< ranges of moves
    std::size_t held_at = 0;                                 ///< where in the state lies what it has read
};

class Runner {
public:
    Runner(const Plan& plan, const ReferenceOptions& options) : plan_(plan), options_(options) {
        things_.emplace_back();  // number 0: nothing
        std::size_t cells = 0;
        for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
            for (const Tensor& tensor : plan.tensors) {
                first_cell_.push_back(cells);
                cells += static_cast<std::size_t>(volume(tensor.shape));
            }
        }
        num_cells_ = cells;
        add_ops();
        add_kernel();
        std::size_t at = tasks_.size();
        for (Task& task : tasks_) {
            task.held_at = at;
            for (const Move& move : task.moves) at += task.kernel ? 0 : move.from.size();
        }
        memory_at_ = at;
        for (const auto* holdings : {&plan.initial, &plan.produced}) {
            for (const Holding& holding : *holdings) {
                for (const std::int64_t element : elements(holding.chunk))
                    own_.insert({holding.chunk.tensor, element});
            }
        }
    }

    ReferenceVerdict run() {
        if (stuck_) wrong(Kind::malformed);
        if (!stop()) explore();
        verdict_.states = seen_.size();
        return verdict_;
    }

private:
    // ---- the plan, element by element
    // -----------------------------------------------------------------------

    static std::int64_t volume(const std::vector<std::int64_t>& shape) {
        std::int64_t product = 1;
        for (const std::int64_t size : shape) product *= size;
        return product;
    }

    /// Row-major numbers of the chunk's elements.
    std::vector<std::int64_t> elements(const Chunk& chunk) const {
        const auto& shape = plan_.tensors[static_cast<std::size_t>(chunk.tensor)].shape;
        std::vector<std::int64_t> numbers{0};
        for (std::size_t axis = 0; axis < shape.size(); ++axis) {
            std::vector<std::int64_t> next;
            for (const std::int64_t number : numbers) {
                for (std::int64_t i = chunk.region[axis].begin; i < chunk.region[axis].end; ++i)
                    next.push_back(number * shape[axis] + i);
            }
            numbers = std::move(next);
        }
        return numbers;
    }

    std::size_t cell(std::int32_t rank, std::int32_t tensor, std::int64_t element) const {
        return first_cell_[static_cast<std::size_t>(rank) * plan_.tensors.size() +
                           static_cast<std::size_t>(tensor)] +
               static_cast<std::size_t>(element);
    }
    std::vector<std::size_t> cells(std::int32_t rank, const Chunk& chunk) const {
        std::vector<std::size_t> all;
        for (const std::int64_t element : elements(chunk)) all.push_back(cell(rank, chunk.tensor, element));
        return all;
    }

    void add_ops() {
        std::map<OpRef, std::size_t> task_of;
        using Call = std::tuple<CollectiveKind, std::vector<std::int32_t>, std::size_t>;
        std::map<Call, std::vector<OpRef>> calls;
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            std::map<std::pair<CollectiveKind, std::vector<std::int32_t>>, std::size_t> count;
            const auto& ops = plan_.ranks[static_cast<std::size_t>(rank)];
            for (std::size_t i = 0; i < ops.size(); ++i) {
                const Op& op = ops[i];
                const OpRef ref{rank, static_cast<std::int32_t>(i)};
                if (op.kind == OpKind::collective) {
                    calls[{op.collective, *op.ranks, count[{op.collective, *op.ranks}]++}].push_back(ref);
                    continue;
                }
                task_of[ref] = tasks_.size();
                Task& task = tasks_.emplace_back();
                task.reduce = op.reduce;
                const auto from = cells(op.kind == OpKind::pull ? op.peer : rank, op.src);
                const auto to = cells(op.kind == OpKind::push ? op.peer : rank, op.dst);
                for (std::size_t n = 0; n < from.size(); ++n) task.moves.push_back({{from[n]}, to[n]});
            }
        }
        for (const auto& [call, members] : calls) {
            stuck_ |= members.size() != std::get<1>(call).size();
            if (stuck_) return;
            for (const OpRef ref : members) task_of[ref] = tasks_.size();
            add_collective(std::get<1>(call), members);
        }
        for (const auto& [ref, task] : task_of) {
            for (const OpRef earlier : plan_.op(ref).after) tasks_[task].waits.push_back(task_of.at(earlier));
        }
        for (Task& task : tasks_) {
            for (const Move& move : task.moves) {
                task.reads.insert(move.from.begin(), move.from.end());
                (task.reduce != Reduce::none && !task.collective ? task.adds : task.writes).insert(move.to);
            }
            const std::size_t parts = task.collective ? 1 : std::min(options_.parts, task.moves.size());
            for (std::size_t part = 0; part < parts; ++part) {
                task.parts.emplace_back(part * task.moves.size() / parts,
                                        (part + 1) * task.moves.size() / parts);
            }
        }
    }

    void add_collective(const std::vector<std::int32_t>& ranks, const std::vector<OpRef>& unordered) {
        std::vector<OpRef> members;  // in rank-list order
        for (const std::int32_t rank : ranks) {
            members.push_back(*std::find_if(unordered.begin(), unordered.end(),
                                            [&](OpRef ref) { return ref.rank == rank; }));
        }
        Task& task = tasks_.emplace_back();
        task.collective = true;
        const CollectiveKind kind = plan_.op(members[0]).collective;
        const bool reduces = kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter;
        const Reduce asked = plan_.op(members[0]).reduce;
        task.reduce = !reduces ? Reduce::none : asked == Reduce::none ? Reduce::sum : asked;
        bool in_place = true;
        for (const OpRef ref : members) {
            in_place &= plan_.op(ref).src.tensor == plan_.op(members[0]).src.tensor &&
                        plan_.op(ref).dst.tensor == plan_.op(members[0]).src.tensor;
        }
        const std::size_t count = members.size();
        for (std::size_t q = 0; q < count; ++q) {
            const OpRef target = members[q];
            const auto to = elements(plan_.op(target).dst);
            for (std::size_t n = 0; n < to.size(); ++n) {
                Move move;
                move.to = cell(target.rank, plan_.op(target).dst.tensor, to[n]);
                for (std::size_t p = 0; p < count; ++p) {
                    const Op& source = plan_.op(members[p]);
                    if (kind == CollectiveKind::broadcast && p != 0) continue;
                    const auto from = elements(source.src);
                    std::size_t at = from.size();  // of what n gets, in the source
                    if (in_place) {
                        at = static_cast<std::size_t>(std::find(from.begin(), from.end(), to[n]) -
                                                      from.begin());
                    } else {  // one axis only
                        const std::size_t block = std::max<std::size_t>(1, from.size() / count);
                        switch (kind) {
                            case CollectiveKind::all_gather:
                                if (n / from.size() == p) at = n % from.size();
                                break;
                            case CollectiveKind::reduce_scatter: at = q * to.size() + n; break;
                            case CollectiveKind::all_to_all:
                                if (n / block == p) at = q * block + n % block;
                                break;
                            default: at = n;
                        }
                    }
                    if (at < from.size())
                        move.from.push_back(cell(members[p].rank, source.src.tensor, from[at]));
                }
                if (!move.from.empty()) task.moves.push_back(std::move(move));
            }
            if (kind != CollectiveKind::broadcast || q == 0) {
                for (const std::size_t source : cells(target.rank, plan_.op(target).src))
                    task.reads.insert(source);
            }
        }
    }

    void add_kernel() {
        const std::size_t ops = tasks_.size();
        std::set<std::size_t> written;
        for (const Task& task : tasks_) written.insert(task.writes.begin(), task.writes.end());
        for (const Holding& holding : plan_.produced) {
            // Tile by tile, so any element may come long after its neighbour. Only where an op writes as well
            // can that be seen; the rest of the entry comes at once.
            std::optional<std::size_t> rest;
            for (const std::int64_t element : elements(holding.chunk)) {
                const std::size_t to = cell(holding.rank, holding.chunk.tensor, element);
                if (written.contains(to) || !rest) {
                    if (!written.contains(to)) rest = tasks_.size();
                    tasks_.emplace_back().kernel = true;
                }
                Task& task = written.contains(to) ? tasks_.back() : tasks_[*rest];
                task.moves.push_back({{}, to});
                task.writes.insert(to);
                task.makes.push_back(
                    {'1', {{holding.partial ? holding.rank : -1, holding.chunk.tensor, element}}});
                task.parts = {{0, task.moves.size()}};
            }
        }
        for (std::size_t op = 0; op < ops; ++op) {  // who reads what the kernel writes waits for it
            for (std::size_t kernel = ops; kernel < tasks_.size(); ++kernel) {
                if (meet(tasks_[op].reads, tasks_[kernel].writes) ||
                    meet(tasks_[op].adds, tasks_[kernel].writes))
                    tasks_[op].waits.push_back(kernel);
            }
        }
    }

    static bool meet(const std::set<std::size_t>& a, const std::set<std::size_t>& b) {
        return std::any_of(a.begin(), a.end(), [&](std::size_t cell) { return b.contains(cell); });
    }

    // ---- running it ---------------------------------------------------------------------------------------

    Word number(const Thing& thing) {
        const auto [at, fresh] = numbers_.emplace(thing, static_cast<Word>(things_.size()));
        if (fresh) things_.push_back(thing);
        return at->second;
    }

    void wrong(Kind kind) {
        verdict_.ok = false;
        verdict_.kinds.insert(kind);
    }
    bool stop() const { return !verdict_.ok && !options_.explore_all; }

    void explore() {
        State state(memory_at_ + num_cells_, 0);
        for (const Holding& holding : plan_.initial) {
            for (const std::int64_t element : elements(holding.chunk)) {
                state[memory_at_ + cell(holding.rank, holding.chunk.tensor, element)] =
                    number({'1', {{holding.partial ? holding.rank : -1, holding.chunk.tensor, element}}});
            }
        }
        std::vector<State> open{state};
        seen_.insert(state);
        while (!open.empty() && !stop()) {
            const State now = std::move(open.back());
            open.pop_back();
            look_for_conflicts(now);
            bool any = false;
            bool left = false;
            for (std::size_t task = 0; task < tasks_.size() && !stop(); ++task) {
                left |= now[task] != kDone;
                for (State& next : steps(now, task)) {
                    any = true;
                    if (seen_.size() >= options_.max_states) {
                        verdict_.complete = false;
                        return;
                    }
                    if (seen_.insert(next).second) open.push_back(std::move(next));
                }
            }
            if (!any && left) wrong(Kind::cycle);
            if (!left) look_at_the_end(now);
        }
    }

    /// The states that one step of the task leads to.
    std::vector<State> steps(const State& now, std::size_t index) {
        const Task& task = tasks_[index];
        std::vector<State> next;
        if (now[index] == kDone) return next;
        if (now[index] == kIdle) {
            for (const std::size_t earlier : task.waits) {
                if (now[earlier] != kDone) return next;
            }
            State started = now;
            started[index] = kRunning;
            if (task.kernel) {
                started[index] = kDone;
                for (std::size_t n = 0; n < task.moves.size(); ++n)
                    started[memory_at_ + task.moves[n].to] = number(task.makes[n]);
            }
            next.push_back(std::move(started));
            return next;
        }
        Word code = static_cast<Word>(now[index] - kRunning);
        Word weight = 1;
        bool all_written = true;
        for (const auto& [begin, end] : task.parts) {
            const Word done = static_cast<Word>(code / weight % 3);
            if (done < 2) {
                all_written = false;
                State after = now;
                after[index] = static_cast<Word>(after[index] + weight);
                if (done == 0) {
                    read(after, task, begin, end);
                } else {
                    write(after, task, begin, end);
                }
                next.push_back(std::move(after));
            }
            weight = static_cast<Word>(weight * 3);
        }
        if (all_written) {
            State done = now;
            done[index] = kDone;
            next.push_back(std::move(done));
        }
        return next;
    }

    std::size_t held(const Task& task, std::size_t move) const {
        std::size_t at = task.held_at;
        for (std::size_t n = 0; n < move; ++n) at += task.moves[n].from.size();
        return at;
    }

    void read(State& state, const Task& task, std::size_t begin, std::size_t end) {
        for (std::size_t n = begin; n < end; ++n) {
            const std::size_t at = held(task, n);
            for (std::size_t i = 0; i < task.moves[n].from.size(); ++i) {
                const Word thing = state[memory_at_ + task.moves[n].from[i]];
                if (thing == 0) wrong(Kind::early_read);
                state[at + i] = thing;
            }
        }
        if (task.collective) {  // also what it reads and nobody takes
            for (const std::size_t cell : task.reads) {
                if (state[memory_at_ + cell] == 0) wrong(Kind::early_read);
            }
        }
    }

    void write(State& state, const Task& task, std::size_t begin, std::size_t end) {
        for (std::size_t n = begin; n < end; ++n) {
            const std::size_t at = held(task, n);
            Word& target = state[memory_at_ + task.moves[n].to];
            Word thing = state[at];
            if (task.collective) {
                for (std::size_t i = 1; i < task.moves[n].from.size(); ++i) {
                    if (task.reduce != Reduce::none) {
                        thing = joined(thing, state[at + i], task.reduce);
                    } else if (thing != state[at + i]) {
                        wrong(Kind::write_race);
                    }
                }
            } else if (task.reduce != Reduce::none) {
                if (target == 0) wrong(Kind::early_read);
                thing = joined(target, thing, task.reduce);
            }
            target = thing;
            for (std::size_t i = 0; i < task.moves[n].from.size(); ++i) state[at + i] = 0;
        }
    }

    Word joined(Word left, Word right, Reduce reduce) {
        if (left == 0 || right == 0) return std::max(left, right);
        const Thing a = things_[static_cast<std::size_t>(left)];
        const Thing b = things_[static_cast<std::size_t>(right)];
        if (reduce == Reduce::max && a == b) return left;
        Thing sum;
        std::merge(a.terms.begin(), a.terms.end(), b.terms.begin(), b.terms.end(),
                   std::back_inserter(sum.terms));
        if (reduce == Reduce::sum) {
            const bool value = std::any_of(sum.terms.begin(), sum.terms.end(),
                                           [](const Term& term) { return term.rank < 0; });
            const bool twice = std::adjacent_find(sum.terms.begin(), sum.terms.end()) != sum.terms.end();
            if (value || twice) wrong(Kind::duplicate_contribution);
        }
        sum.terms.erase(std::unique(sum.terms.begin(), sum.terms.end()), sum.terms.end());
        const char how = reduce == Reduce::sum ? '+' : 'm';
        const bool clean = (a.how == '1' || a.how == how) && (b.how == '1' || b.how == how);
        sum.how = clean ? how : '?';
        return number(sum);
    }

    // ---- what is wrong ------------------------------------------------------------------------------------

    void look_for_conflicts(const State& now) {
        for (std::size_t a = 0; a < tasks_.size(); ++a) {
            if (tasks_[a].kernel || now[a] < kRunning) continue;
            for (std::size_t b = 0; b < tasks_.size(); ++b) {
                const Task& one = tasks_[a];
                const Task& other = tasks_[b];
                if (other.kernel) {
                    if (now[b] != kDone && meet(one.writes, other.writes)) wrong(Kind::overwrite);
                    continue;
                }
                if (b <= a || now[b] < kRunning) continue;
                if (meet(one.writes, other.writes) || meet(one.writes, other.adds) ||
                    meet(one.adds, other.writes) ||
                    (one.reduce != other.reduce && meet(one.adds, other.adds)))
                    wrong(Kind::write_race);
                if (meet(one.reads, other.writes) || meet(one.writes, other.reads)) wrong(Kind::overwrite);
                if (meet(one.reads, other.adds) || meet(one.adds, other.reads)) wrong(Kind::early_read);
            }
        }
    }

    void look_at_the_end(const State& now) {
        std::map<std::pair<std::int32_t, std::int64_t>, std::pair<std::int32_t, std::int64_t>> brought;
        for (const Holding& wanted : plan_.final) {
            std::set<std::int32_t> ranks(wanted.of.begin(), wanted.of.end());
            for (std::int32_t rank = 0; wanted.of_all && rank < plan_.num_ranks(); ++rank) ranks.insert(rank);
            if (ranks.empty()) ranks.insert(-1);
            for (const std::int64_t element : elements(wanted.chunk)) {
                const Word held = now[memory_at_ + cell(wanted.rank, wanted.chunk.tensor, element)];
                if (held == 0) {
                    wrong(Kind::final_not_reached);
                    continue;
                }
                const Thing& thing = things_[static_cast<std::size_t>(held)];
                const std::pair at{wanted.chunk.tensor, element};
                std::pair source{thing.terms[0].tensor, thing.terms[0].element};
                std::set<std::int32_t> from;
                bool one_source = thing.how != '?';
                for (const Term& term : thing.terms) {
                    one_source &= source == std::pair{term.tensor, term.element};
                    from.insert(term.rank);
                }
                const bool own = own_.contains(at);
                const bool personal =
                    wanted.of.size() == 1;  // what one rank made need not be the same everywhere
                if (!one_source || (own && source != at) ||
                    (!personal && brought.emplace(at, source).first->second != source) || from != ranks) {
                    const bool lacks = one_source && !from.contains(-1) && !ranks.contains(-1) &&
                                       (!own || source == at) &&
                                       !std::includes(from.begin(), from.end(), ranks.begin(), ranks.end());
                    wrong(lacks ? Kind::missing_contribution : Kind::final_not_reached);
                }
            }
        }
    }

    const Plan& plan_;
    ReferenceOptions options_;
    std::vector<std::size_t> first_cell_;  ///< by rank and tensor
    std::size_t num_cells_ = 0;
    std::vector<Task> tasks_;
    std::size_t memory_at_ = 0;
    bool stuck_ = false;                                   ///< a collective that somebody does not join
    std::set<std::pair<std::int32_t, std::int64_t>> own_;  ///< elements that someone holds at the start
    std::vector<Thing> things_;
    std::map<Thing, Word> numbers_;
    ReferenceVerdict verdict_;
    struct HashState {
        std::size_t operator()(const State& state) const {
            std::size_t hash = 0xcbf29ce484222325U;
            for (const Word word : state)
                hash = (hash ^ static_cast<std::size_t>(static_cast<std::uint16_t>(word))) * 0x100000001b3U;
            return hash ^ (hash >> 31);
        }
    };
    std::unordered_set<State, HashState> seen_;
};

}  // namespace

ReferenceVerdict run_every_way(const Plan& plan, const ReferenceOptions& options) {
    return Runner(plan, options).run();
}

}  // namespace syncopate::plan::test
