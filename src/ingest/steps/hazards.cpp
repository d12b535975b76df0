#include "ingest/steps/hazards.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "syncopate/at.hpp"

namespace syncopate::ingest {
namespace {

enum class Kind : std::uint8_t { read, reduce, write };

/// One side of a move: it touches rows of one rank's tensor.
struct Touch {
    std::int32_t move;
    Kind kind;
    When when;
    plan::Interval rows;
};

bool conflict(Kind a, Kind b) { return a == Kind::write || b == Kind::write || a != b; }

/// The touches of some rows that a later one may have to follow. Reads follow no reads, so they are kept
/// apart.
struct Frontier {
    std::vector<Touch> writes;  ///< and reductions
    std::vector<Touch> reads;
};

/// The pairs found so far, and how much work finding them has been.
struct Search {
    StepOrder& order;
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs{};
    std::int64_t touches = 0;

    [[nodiscard]] bool exhausted() const {
        return touches > kMaxTouches || pairs.size() > static_cast<std::size_t>(kMaxPairs);
    }
};

/// All touches of one rank's tensor, in an order that the graph allows.
class Memory {
public:
    explicit Memory(Search& search) : search_(search) {}

    /// False once it has taken too long.
    bool touch(const Touch& touch) {
        split(touch.rows.begin);
        split(touch.rows.end);
        // Rows never touched before become pieces of their own.
        std::int64_t row = touch.rows.begin;
        for (auto at = pieces_.lower_bound(row); row < touch.rows.end;) {
            if (at == pieces_.end() || at->first > row) {
                const std::int64_t end =
                    at == pieces_.end() ? touch.rows.end : std::min(at->first, touch.rows.end);
                at = pieces_.emplace_hint(at, row, Piece{end, {}});
            }
            if (!touch_piece(at->second.frontier, touch)) return false;
            row = at->second.end;
            ++at;
        }
        return true;
    }

private:
    struct Piece {
        std::int64_t end;
        Frontier frontier;
    };

    void split(std::int64_t row) {
        auto at = pieces_.upper_bound(row);
        if (at == pieces_.begin()) return;
        --at;
        if (at->first == row || at->second.end <= row) return;
        search_.touches +=
            static_cast<std::int64_t>(at->second.frontier.reads.size() + at->second.frontier.writes.size());
        Piece rest{at->second.end, at->second.frontier};
        at->second.end = row;
        pieces_.emplace(row, std::move(rest));
    }

    bool touch_piece(Frontier& frontier, const Touch& touch) {
        ++search_.touches;
        if (!follow(frontier.writes, touch)) return false;
        if (touch.kind != Kind::read && !follow(frontier.reads, touch)) return false;
        (touch.kind == Kind::read ? frontier.reads : frontier.writes).push_back(touch);
        return true;
    }

    /// Pairs `touch` with those before it, and takes out those behind which nothing that follows need look:
    /// what comes before a write.
    bool follow(std::vector<Touch>& earlier, const Touch& touch) {
        std::size_t kept = 0;
        for (const Touch& other : earlier) {
            ++search_.touches;
            bool covered = false;
            if (conflict(other.kind, touch.kind) && other.move != touch.move) {
                const std::optional<bool> before = is_before(other.when, touch.when);
                if (!before) return false;
                if (*before) search_.pairs.emplace_back(other.move, touch.move);
                covered = *before && touch.kind == Kind::write;
            }
            if (!covered) earlier[kept++] = other;
        }
        earlier.resize(kept);
        return !search_.exhausted();
    }

    std::optional<bool> is_before(When first, When second) {
        if (first.step == second.step) return first.phase < second.phase;
        return search_.order.before(first.step, second.step);
    }

    Search& search_;
    std::map<std::int64_t, Piece> pieces_;  ///< by first row; disjoint
};

}  // namespace

Result<std::vector<std::pair<std::int32_t, std::int32_t>>> hazards(const Schedule& schedule,
                                                                   StepOrder& order) {
    std::vector<std::int32_t> place(schedule.steps.size(), 0);
    for (std::size_t i = 0; i < order.topological().size(); ++i)
        place[at(order.topological()[i])] = static_cast<std::int32_t>(i);

    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Touch>> touches;  // by rank and tensor
    for (std::size_t i = 0; i < schedule.moves.size(); ++i) {
        const Move& move = schedule.moves[i];
        const auto number = static_cast<std::int32_t>(i);
        const Kind writing = move.reduce == plan::Reduce::none ? Kind::write : Kind::reduce;
        touches[{move.src.rank, move.src.tensor}].push_back({number, Kind::read, move.read, move.src.rows});
        touches[{move.dst.rank, move.dst.tensor}].push_back({number, writing, move.written, move.dst.rows});
    }
    Search search{order};
    for (auto& [where, list] : touches) {
        std::stable_sort(list.begin(), list.end(), [&](const Touch& a, const Touch& b) {
            return std::tuple(place[at(a.when.step)], a.when.phase) <
                   std::tuple(place[at(b.when.step)], b.when.phase);
        });
        Memory memory(search);
        for (const Touch& touch : list) {
            if (!memory.touch(touch)) return Error{"the steps touch the same chunks too often to be ordered"};
        }
    }
    auto& pairs = search.pairs;
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    return std::move(pairs);
}

}  // namespace syncopate::ingest
