#include "hazards.hpp"

#include <algorithm>
#include <map>
#include <tuple>

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

/// The touches of some rows that a later one may have to follow.
using Frontier = std::vector<Touch>;

/// All touches of one rank's tensor, in an order that the graph allows.
class Memory {
public:
    Memory(StepOrder& order, std::vector<std::pair<std::int32_t, std::int32_t>>& pairs)
        : order_(order), pairs_(pairs) {}

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
        Piece rest{at->second.end, at->second.frontier};
        at->second.end = row;
        pieces_.emplace(row, std::move(rest));
    }

    bool touch_piece(Frontier& frontier, const Touch& touch) {
        Frontier kept;
        for (const Touch& earlier : frontier) {
            if (++touches_ > kMaxTouches) return false;
            bool covered = false;
            if (conflict(earlier.kind, touch.kind) && earlier.move != touch.move) {
                const std::optional<bool> before = is_before(earlier.when, touch.when);
                if (!before) return false;
                if (*before) pairs_.emplace_back(earlier.move, touch.move);
                // Whatever follows this write need not look behind it.
                covered = *before && touch.kind == Kind::write;
            }
            if (!covered) kept.push_back(earlier);
        }
        kept.push_back(touch);
        frontier = std::move(kept);
        return true;
    }

    std::optional<bool> is_before(When first, When second) {
        if (first.step == second.step) return first.phase < second.phase;
        return order_.before(first.step, second.step);
    }

    StepOrder& order_;
    std::vector<std::pair<std::int32_t, std::int32_t>>& pairs_;
    std::map<std::int64_t, Piece> pieces_;  ///< by first row; disjoint
    std::int64_t touches_ = 0;
};

}  // namespace

Result<std::vector<std::pair<std::int32_t, std::int32_t>>> hazards(const Schedule& schedule,
                                                                   StepOrder& order) {
    std::vector<std::int32_t> place(schedule.steps.size(), 0);
    for (std::size_t i = 0; i < order.topological().size(); ++i)
        place[static_cast<std::size_t>(order.topological()[i])] = static_cast<std::int32_t>(i);

    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Touch>> touches;  // by rank and tensor
    for (std::size_t i = 0; i < schedule.moves.size(); ++i) {
        const Move& move = schedule.moves[i];
        const auto number = static_cast<std::int32_t>(i);
        const Kind writing = move.reduce == plan::Reduce::none ? Kind::write : Kind::reduce;
        touches[{move.src.rank, move.src.tensor}].push_back({number, Kind::read, move.read, move.src.rows});
        touches[{move.dst.rank, move.dst.tensor}].push_back({number, writing, move.written, move.dst.rows});
    }
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
    for (auto& [where, list] : touches) {
        std::stable_sort(list.begin(), list.end(), [&](const Touch& a, const Touch& b) {
            return std::tuple(place[static_cast<std::size_t>(a.when.step)], a.when.phase) <
                   std::tuple(place[static_cast<std::size_t>(b.when.step)], b.when.phase);
        });
        Memory memory(order, pairs);
        for (const Touch& touch : list) {
            if (!memory.touch(touch)) return Error{"the steps touch the same chunks too often to be ordered"};
        }
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    return pairs;
}

}  // namespace syncopate::ingest
