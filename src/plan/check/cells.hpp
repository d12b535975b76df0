// Boxes of memory that ops take whole: a number each, in place of a search for boxes that overlap.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "plan/check/event_graph.hpp"
#include "plan/model/budget.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

/// Where a rank's memory of a tensor is **even**, the boxes that transfers read and write there are, any two,
/// equal or disjoint; each different one is a cell. So are those of templates, and of most plans. What is
/// known of a cell is one entry of an array, where a search among boxes follows a dozen pointers, each to
/// memory that is not cached once a plan has hundreds of thousands of ops.
///
/// Not even is also memory that a collective works on, that a holding covers part of a box of, or that
/// receives from memory that is not even: what lies in a cell is always one thing.
class Cells {
public:
    using Cell = std::int32_t;
    static constexpr Cell kNone = -1;  ///< the memory is not even

    /// What an event moves; of a collective nothing.
    struct Transfer {
        Cell source = kNone;
        Cell destination = kNone;  ///< only if the source has one
        std::int16_t source_rank = -1;
        std::int16_t destination_rank = -1;
        bool is_collective = false;
        bool stays = false;  ///< both boxes are equal, tensors apart
        Reduce reduce = Reduce::none;
    };

    /// `key_axes`: see check_passes.hpp. The plan must be well-formed, and outlive this. O(n log n) for n ops
    /// and holdings, and a step of `budget` for each cell near a holding.
    Cells(const Plan& plan, const EventGraph& graph, const std::vector<std::size_t>& key_axes,
          Budget& budget);

    [[nodiscard]] const Transfer& transfer(std::int32_t event) const { return transfers_[at(event)]; }
    [[nodiscard]] std::size_t size() const { return boxes_.size(); }
    [[nodiscard]] const Region& box(Cell cell) const { return *boxes_[at(cell)]; }

    /// The cells of one memory, [first, last), rising along the key axis; none if it is not even.
    struct Range {
        Cell first = 0;
        Cell last = 0;
        [[nodiscard]] bool empty() const { return first == last; }
    };
    [[nodiscard]] Range of(std::int32_t rank, std::int32_t tensor) const;
    /// Of these, all that overlap `region`, and perhaps others.
    [[nodiscard]] Range near(Range cells, std::int32_t tensor, const Region& region) const;

private:
    struct Use {       ///< of a box, by the source or the destination of a transfer
        Interval key;  ///< the box along the key axis
        const Region* box;
        std::int32_t event;
        bool writes;
    };
    struct Memory {  ///< the memory of one rank for one tensor
        Range cells;
        std::size_t axis = 0;
        bool even = true;
        const Region* first_box = nullptr;
        bool differ_along_axis_only = true;  ///< so far all boxes, from the first one
    };
    [[nodiscard]] std::int64_t key(std::int32_t rank, std::int32_t tensor) const {
        return rank * static_cast<std::int64_t>(axes_.size()) + tensor;
    }
    std::int32_t place(std::int32_t rank, std::int32_t tensor);
    [[nodiscard]] Use use(Memory& place, const Region& box, std::int32_t event, bool writes) const;
    [[nodiscard]] static std::ptrdiff_t first_difference(const Memory& place, const Use& a, const Use& b);
    void number(Memory& place, std::span<Use> uses);
    void look_at_holdings(const std::vector<Holding>& holdings, Budget& budget);
    void spread_unevenness(std::span<const std::int32_t> sources, std::span<const std::int32_t> destinations);

    const std::vector<std::size_t> axes_;
    std::vector<Transfer> transfers_;   ///< by event
    std::vector<const Region*> boxes_;  ///< by cell
    std::unordered_map<std::int64_t, std::int32_t> place_of_;
    std::vector<Memory> places_;
};

}  // namespace syncopate::plan
