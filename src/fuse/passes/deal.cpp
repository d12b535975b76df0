#include "syncopate/fuse/passes/deal.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

namespace syncopate::fuse {
namespace {

/// Closer to the mean than this nothing is gained: estimates are not so good.
constexpr double kGoodEnough = 1.005;
constexpr std::size_t kMostExchanges = 64;

struct Dealt {
    std::vector<std::size_t> tiles;  ///< by slot
    std::vector<double> loads;       ///< by program

    [[nodiscard]] double end() const { return *std::ranges::max_element(loads); }
};

class Dealing {
public:
    Dealing(std::span<const double> times, std::size_t programs) : times_(times), programs_(programs) {}

    [[nodiscard]] Dealt in_order() const {
        std::vector<std::size_t> tiles(times_.size());
        std::iota(tiles.begin(), tiles.end(), std::size_t{0});
        return with_loads(std::move(tiles));
    }

    /// The longest tile of a round goes to the program that has least to do before it.
    [[nodiscard]] Dealt in_rounds() const {
        Dealt made = in_order();
        made.loads.assign(programs_, 0);
        std::vector<std::size_t> takers;
        for (std::size_t first = 0; first < times_.size(); first += programs_) {
            const std::size_t count = std::min(programs_, times_.size() - first);
            const std::span<std::size_t> round = std::span(made.tiles).subspan(first, count);
            std::ranges::stable_sort(round, std::greater<>(), [&](std::size_t tile) { return times_[tile]; });
            takers.resize(count);
            std::iota(takers.begin(), takers.end(), std::size_t{0});
            std::ranges::stable_sort(takers, {}, [&](std::size_t program) { return made.loads[program]; });
            const std::vector<std::size_t> longest_first(round.begin(), round.end());
            for (std::size_t i = 0; i < count; ++i) {
                round[takers[i]] = longest_first[i];
                made.loads[takers[i]] += times_[longest_first[i]];
            }
        }
        return made;
    }

    /// Each goes to the program that is free first, of those with a slot left.
    [[nodiscard]] Dealt as_they_end() const {
        using Free = std::tuple<double, std::size_t, std::size_t>;  // when, its next slot, program
        std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
        for (std::size_t program = 0; program < programs_; ++program) free.emplace(0.0, program, program);
        std::vector<std::size_t> tiles(times_.size());
        for (std::size_t tile = 0; tile < times_.size(); ++tile) {
            const auto [now, slot, program] = free.top();
            free.pop();
            tiles[slot] = tile;
            if (slot + programs_ < times_.size()) free.emplace(now + times_[tile], slot + programs_, program);
        }
        return with_loads(std::move(tiles));
    }

    /// Exchanges tiles of one round while that lets the last program end earlier.
    void exchange(Dealt& made) const {
        const double mean =
            std::accumulate(made.loads.begin(), made.loads.end(), 0.0) / static_cast<double>(programs_);
        for (std::size_t turn = 0; turn < kMostExchanges; ++turn) {
            const auto last =
                static_cast<std::size_t>(std::ranges::max_element(made.loads) - made.loads.begin());
            if (made.loads[last] <= kGoodEnough * mean) return;
            const std::optional<std::pair<std::size_t, std::size_t>> slots = best_exchange(made, last);
            if (!slots) return;
            const auto [longer, shorter] = *slots;
            const double gain = times_[made.tiles[longer]] - times_[made.tiles[shorter]];
            std::swap(made.tiles[longer], made.tiles[shorter]);
            made.loads[last] -= gain;
            made.loads[shorter % programs_] += gain;
        }
    }

    /// By slot, each program's tiles in the order in which all are to begin: one that waits comes behind one that makes.
    [[nodiscard]] std::vector<std::size_t> each_in_order(Dealt dealt) const {
        std::vector<std::size_t> own;
        for (std::size_t program = 0; program < std::min(programs_, times_.size()); ++program) {
            own.clear();
            for (std::size_t slot = program; slot < times_.size(); slot += programs_)
                own.push_back(dealt.tiles[slot]);
            std::ranges::sort(own);
            for (std::size_t i = 0; i < own.size(); ++i) dealt.tiles[program + i * programs_] = own[i];
        }
        return std::move(dealt.tiles);
    }

private:
    [[nodiscard]] Dealt with_loads(std::vector<std::size_t> tiles) const {
        Dealt made{std::move(tiles), std::vector<double>(programs_, 0)};
        for (std::size_t slot = 0; slot < made.tiles.size(); ++slot)
            made.loads[slot % programs_] += times_[made.tiles[slot]];
        return made;
    }

    /// The slots of `last` and of another program after whose exchange the later of both ends earliest.
    [[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> best_exchange(const Dealt& made,
                                                                                   std::size_t last) const {
        std::optional<std::pair<std::size_t, std::size_t>> best;
        double earliest = made.loads[last];
        for (std::size_t slot = last; slot < times_.size(); slot += programs_) {
            const std::size_t first = slot - last;
            const std::size_t end = std::min(first + programs_, times_.size());
            for (std::size_t other = first; other < end; ++other) {
                const double gain = times_[made.tiles[slot]] - times_[made.tiles[other]];
                if (gain <= 0) continue;
                const double later = std::max(made.loads[last] - gain, made.loads[other - first] + gain);
                if (later >= earliest) continue;
                earliest = later;
                best = {slot, other};
            }
        }
        return best;
    }

    std::span<const double> times_;
    std::size_t programs_;
};

}  // namespace

std::vector<std::size_t> deal_tiles(std::span<const double> times, std::size_t programs) {
    const Dealing dealing(times, std::max<std::size_t>(programs, 1));
    Dealt best = dealing.in_order();
    if (times.size() <= programs) return std::move(best.tiles);
    for (Dealt& other : std::array{dealing.as_they_end(), dealing.in_rounds()}) {
        dealing.exchange(other);
        if (other.end() < best.end()) best = std::move(other);
    }
    return dealing.each_in_order(std::move(best));
}

}  // namespace syncopate::fuse
