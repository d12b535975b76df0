#include "ingest/steps/weave.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "ingest/steps/hazards.hpp"
#include "ingest/steps/step_order.hpp"
#include "syncopate/at.hpp"

namespace syncopate::ingest {
namespace {

using Pair = std::pair<std::int32_t, std::int32_t>;  ///< move before move

/// Messages of one connection come one after another.
void add_connections(const Schedule& schedule, std::vector<Pair>& pairs) {
    std::int32_t most = -1;
    for (const Move& move : schedule.moves) most = std::max(most, move.fifo);
    std::vector<std::int32_t> latest(at(most + 1), -1);
    for (std::size_t i = 0; i < schedule.moves.size(); ++i) {
        const std::int32_t fifo = schedule.moves[i].fifo;
        if (fifo < 0) continue;
        if (latest[at(fifo)] >= 0) pairs.emplace_back(latest[at(fifo)], static_cast<std::int32_t>(i));
        latest[at(fifo)] = static_cast<std::int32_t>(i);
    }
}

/// The moves on a circle of pairs, by colour of Kosaraju's algorithm (Sharir, "A strong-connectivity
/// algorithm", 1981), without recursion.
std::vector<bool> on_circle(std::size_t count, const std::vector<Pair>& pairs) {
    const auto lists = [&](bool forward) {
        std::vector<std::vector<std::int32_t>> next(count);
        for (const auto& [before, after] : pairs) {
            if (forward) next[at(before)].push_back(after);
            if (!forward) next[at(after)].push_back(before);
        }
        return next;
    };
    const auto visit = [](const std::vector<std::vector<std::int32_t>>& next, std::int32_t root,
                          std::vector<bool>& seen, auto&& leave) {
        std::vector<std::pair<std::int32_t, std::size_t>> stack{{root, 0}};
        seen[at(root)] = true;
        while (!stack.empty()) {
            auto& [node, child] = stack.back();
            if (child < next[at(node)].size()) {
                const std::int32_t to = next[at(node)][child++];
                if (!seen[at(to)]) {
                    seen[at(to)] = true;
                    stack.emplace_back(to, 0);
                }
                continue;
            }
            leave(node);
            stack.pop_back();
        }
    };
    std::vector<std::int32_t> finished;
    std::vector<bool> seen(count, false);
    const auto forward = lists(true);
    for (std::size_t node = 0; node < count; ++node) {
        if (!seen[node]) {
            visit(forward, static_cast<std::int32_t>(node), seen,
                  [&](std::int32_t n) { finished.push_back(n); });
        }
    }
    const auto backward = lists(false);
    std::vector<bool> circular(count, false);
    seen.assign(count, false);
    for (auto root = finished.rbegin(); root != finished.rend(); ++root) {
        if (seen[at(*root)]) continue;
        std::vector<std::int32_t> component;
        visit(backward, *root, seen, [&](std::int32_t n) { component.push_back(n); });
        if (component.size() > 1) {
            for (const std::int32_t node : component) circular[at(node)] = true;
        }
    }
    return circular;
}

/// Splits every message that is on a circle into a push to a place of its own and a local op from there.
/// Returns how many there were.
std::size_t relay(Schedule& schedule, const std::vector<bool>& circular, std::int32_t relay_tensor,
                  std::vector<std::int64_t>& relay_rows) {
    std::vector<Move> moves;
    std::size_t count = 0;
    for (std::size_t i = 0; i < schedule.moves.size(); ++i) {
        const Move& move = schedule.moves[i];
        if (!circular[i] || move.read.step == move.written.step) {
            moves.push_back(move);
            continue;
        }
        std::int64_t& used = relay_rows[at(move.dst.rank)];
        const Span place{move.dst.rank, relay_tensor, {used, used + move.dst.rows.size()}};
        used = place.rows.end;
        Move in = move;
        in.dst = place;
        in.written = move.read;
        in.reduce = plan::Reduce::none;
        Move out = move;
        out.kind = plan::OpKind::local;
        out.src = place;
        out.read = move.written;
        out.fifo = -1;
        moves.push_back(in);
        moves.push_back(out);
        ++count;
    }
    schedule.moves = std::move(moves);
    return count;
}

/// Every order that the schedule states, between moves: for schedules that have a circle.
/// nullopt if that takes too long.
std::optional<std::vector<Pair>> stated_order(const Schedule& schedule, const StepOrder& order) {
    std::vector<std::vector<std::int32_t>> at_step(schedule.steps.size());
    for (std::size_t i = 0; i < schedule.moves.size(); ++i) {
        const Move& move = schedule.moves[i];
        at_step[at(move.read.step)].push_back(static_cast<std::int32_t>(i));
        if (move.written.step != move.read.step)
            at_step[at(move.written.step)].push_back(static_cast<std::int32_t>(i));
    }
    const auto phase = [&](std::int32_t move, std::int32_t step) {
        const Move& m = schedule.moves[at(move)];
        return m.written.step == step ? m.written.phase : m.read.phase;
    };
    constexpr std::int64_t kMaxLooks = 32'000'000;
    std::int64_t looks = 0;
    std::vector<Pair> pairs;
    std::vector<std::int32_t> seen(schedule.steps.size(), -1);
    for (std::int32_t step = 0; at(step) < schedule.steps.size(); ++step) {
        if (at_step[at(step)].empty()) continue;
        for (const std::int32_t a : at_step[at(step)]) {
            for (const std::int32_t b : at_step[at(step)]) {
                if (phase(a, step) < phase(b, step)) pairs.emplace_back(a, b);
            }
        }
        // Back over steps that move nothing.
        std::vector<std::int32_t> stack{step};
        while (!stack.empty()) {
            const std::int32_t from = stack.back();
            stack.pop_back();
            for (const std::int32_t earlier : order.waits(from, false)) {
                if (++looks + static_cast<std::int64_t>(pairs.size()) > kMaxLooks) return std::nullopt;
                if (seen[at(earlier)] == step) continue;
                seen[at(earlier)] = step;
                if (at_step[at(earlier)].empty()) stack.push_back(earlier);
                for (const std::int32_t a : at_step[at(earlier)]) {
                    for (const std::int32_t b : at_step[at(step)]) pairs.emplace_back(a, b);
                }
            }
        }
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    return pairs;
}

std::string describe_circle(const Schedule& schedule, const std::vector<std::int32_t>& circle) {
    constexpr std::size_t kShown = 16;
    std::string text = "deadlock, whatever the timing: ";
    for (std::size_t i = 0; i < circle.size(); ++i) {
        if (circle.size() > kShown && i == kShown / 2) {
            text += fmt::format("… {} more … -> ", circle.size() - kShown);
            i = circle.size() - kShown / 2;
        }
        text += describe(schedule.steps[at(circle[i])]) + " -> ";
    }
    return text + describe(schedule.steps[at(circle.front())]) + " (each waits for the next)";
}

/// Lists each rank's ops in the order of the steps that start them, and turns pairs of moves into `after`.
void write_ops(const Schedule& schedule, const std::vector<Pair>& pairs,
               const std::vector<std::int32_t>& place, Import& import) {
    plan::Plan& plan = import.plan;
    std::vector<std::int32_t> list(schedule.moves.size());
    std::iota(list.begin(), list.end(), 0);
    const auto key = [&](std::int32_t i) {
        const Move& move = schedule.moves[at(i)];
        const When when = move.kind == plan::OpKind::local ? move.written : move.read;
        return std::tuple(place[at(when.step)], when.phase);
    };
    std::stable_sort(list.begin(), list.end(),
                     [&](std::int32_t a, std::int32_t b) { return key(a) < key(b); });

    const auto chunk = [&](const Span& span) {
        plan::Chunk whole{span.tensor, plan.tensors[at(span.tensor)].whole()};
        whole.region.front() = span.rows;
        return whole;
    };
    plan.ranks.assign(at(plan.mesh.num_ranks()), {});
    import.origins.assign(plan.ranks.size(), {});
    std::vector<plan::OpRef> ref(schedule.moves.size());
    for (const std::int32_t i : list) {
        const Move& move = schedule.moves[at(i)];
        const std::int32_t owner = move.owner();
        auto& ops = plan.ranks[at(owner)];
        ref[at(i)] = {owner, static_cast<std::int32_t>(ops.size())};
        plan::Op op;
        op.kind = move.kind;
        if (move.kind != plan::OpKind::local) op.peer = move.peer();
        op.src = chunk(move.src);
        op.dst = chunk(move.dst);
        op.reduce = move.reduce;
        ops.push_back(std::move(op));
        const std::int32_t step = move.kind == plan::OpKind::local ? move.written.step : move.read.step;
        import.origins[at(owner)].push_back(schedule.steps[at(step)].origin);
    }
    for (const auto& [before, after] : pairs) {
        const plan::OpRef op = ref[at(after)];
        plan.ranks[at(op.rank)][at(op.index)].after.push_back(ref[at(before)]);
    }
}

}  // namespace

Status weave(Schedule schedule, const std::string& file_name, const std::string& name, Import& import) {
    StepOrder order(schedule);
    std::vector<std::int32_t> place(schedule.steps.size());
    if (order.has_cycle()) {
        std::iota(place.begin(), place.end(), 0);
        const std::vector<std::int32_t> circle = order.cycle();
        const Step& first = schedule.steps[at(circle.front())];
        const std::string told = describe_circle(schedule, circle);
        const auto pairs = stated_order(schedule, order);
        if (!pairs) return Error{describe(first) + ": " + told, {file_name, first.origin.line}};
        write_ops(schedule, *pairs, place, import);
        import.findings.push_back({{plan::Finding::Kind::cycle, first.rank, -1, told}, first.origin});
        return Done{};
    }
    for (std::size_t i = 0; i < place.size(); ++i)
        place[at(order.topological()[i])] = static_cast<std::int32_t>(i);

    auto pairs = hazards(schedule, order);
    if (!pairs) return Error{pairs.error().message, {file_name}};
    add_connections(schedule, *pairs);
    const std::vector<bool> circular = on_circle(schedule.moves.size(), *pairs);
    std::vector<std::int64_t> relay_rows(at(import.plan.mesh.num_ranks()), 0);
    const auto relay_tensor = static_cast<std::int32_t>(import.plan.tensors.size());
    if (const std::size_t relayed = relay(schedule, circular, relay_tensor, relay_rows); relayed > 0) {
        plan::Tensor tensor = import.plan.tensors.front();
        tensor.name = name + ".relay";
        tensor.shape.front() = *std::max_element(relay_rows.begin(), relay_rows.end());
        import.plan.tensors.push_back(std::move(tensor));
        import.warnings.push_back(
            fmt::format("{} messages overwrite what their own sender still needs, which a FIFO hides; they "
                        "go through {}.relay",
                        relayed, name));
        pairs = hazards(schedule, order);
        if (!pairs) return Error{pairs.error().message, {file_name}};
        add_connections(schedule, *pairs);
    }
    std::sort(pairs->begin(), pairs->end());
    pairs->erase(std::unique(pairs->begin(), pairs->end()), pairs->end());
    write_ops(schedule, *pairs, place, import);
    return Done{};
}

}  // namespace syncopate::ingest
