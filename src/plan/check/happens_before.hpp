// Whether one event certainly comes before another: reachability in the graph of waits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/check/chain_clocks.hpp"
#include "plan/check/event_graph.hpp"
#include "plan/model/budget.hpp"

namespace syncopate::plan {

/// Answers whether one event comes before another in every run. The graph must have no cycle, and all
/// arguments must outlive this. Memory: 12 words for each event, 18 with clocks.
///
/// Most answers need no search: the level of an event (its longest path) and the intervals of a few
/// depth-first searches (GRAIL: Yildirim, Chaoji and Zaki, "GRAIL: Scalable Reachability Index for Large
/// Graphs", VLDB 2010) say "surely not", and the trees of the same searches say "surely". What they leave
/// open is searched from both ends at once, an edge here and an edge there, so that the cost is that of the
/// cheaper direction; the intervals keep both searches on paths that may lead to the other end. Where many
/// searches grow long, as in a lattice of waits, chain clocks answer instead, for plans with up to a few
/// thousand chains. Each edge looked at is one step of `budget`; once that is exhausted the answer is always
/// true.
class HappensBefore {
public:
    HappensBefore(const EventGraph& graph, const Followers& followers,
                  std::span<const std::int32_t> topological, Budget& budget);

    /// Says that what follows is asked about `event`, or what comes before it. Events come in topological
    /// order: clocks are kept for those near the present one only.
    void look_at(std::int32_t event) { now_ = event; }

    [[nodiscard]] bool before(std::int32_t first, std::int32_t second);

private:
    /// One depth-first search along the followers. Ranks count events as the search leaves them, so that an
    /// event's followers, near and far, have ranks in [lowest, rank], and those in its own subtree exactly
    /// [tree, rank].
    struct Interval {
        std::int32_t tree = 0;
        std::int32_t lowest = 0;
        std::int32_t rank = -1;
    };
    static constexpr std::size_t kSearches = 3;
    struct Label {
        std::int32_t level = 0;  ///< the longest path to the event
        std::array<Interval, kSearches> searches;
    };

    enum class Guess : std::uint8_t { no, yes, open };

    /// A search from one end, advanced edge by edge.
    struct Side {
        struct Frame {
            std::int32_t event;
            std::size_t next;
        };
        std::vector<Frame> stack;
        std::vector<std::uint32_t> visited;  ///< the number of the search that came here last
    };
    enum class Step : std::uint8_t { found, exhausted, going };

    static constexpr std::int64_t kLongSearch = 64;     ///< edges, from each end
    static constexpr std::int64_t kManySearches = 256;  ///< long ones, before clocks are tried

    bool search(std::int32_t first, std::int32_t second);
    std::optional<bool> ask_clocks(std::int32_t first, std::int32_t second);
    void label(std::span<const std::int32_t> topological, std::size_t search);
    [[nodiscard]] Guess guess(std::int32_t first, std::int32_t second) const;
    Step advance(Side& side, std::int32_t goal);

    const EventGraph& graph_;
    const Followers& followers_;
    Budget& budget_;
    std::vector<Label> labels_;
    Side backward_;
    Side forward_;
    std::uint32_t search_ = 0;
    std::span<const std::int32_t> topological_;
    std::optional<ChainClocks> clocks_;
    std::int64_t long_searches_ = 0;
    std::int32_t now_ = -1;
};

}  // namespace syncopate::plan
