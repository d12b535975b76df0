// What every rank holds during symbolic execution: disjoint boxes with their content, per rank and tensor.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "plan/check/cells.hpp"
#include "plan/check/content.hpp"
#include "plan/model/box_index.hpp"
#include "plan/model/coalesce.hpp"

namespace syncopate::plan {

class Memory {
public:
    using Piece = BoxIndex<Content>::Entry;

    /// `key_axes`: see check_passes.hpp. `cells` and `budget` must outlive this.
    Memory(std::vector<std::size_t> key_axes, const Cells& cells, Budget& budget)
        : axes_(std::move(key_axes)), cells_(cells), budget_(budget), contents_(cells.size(), nullptr) {}

    /// What a cell holds; null for nothing. Others write and read even memory by cells only, but for hold()
    /// before and finish() after.
    [[nodiscard]] Content& operator[](Cells::Cell cell) { return contents_[static_cast<std::size_t>(cell)]; }

    /// Before the first op: a holding.
    void hold(const Holding& holding, Content content) {
        const Chunk& chunk = holding.chunk;
        write(holding.rank, chunk, {{chunk.region, content}});
        const Cells::Range cells =
            cells_.near(cells_.of(holding.rank, chunk.tensor), chunk.tensor, chunk.region);
        for (Cells::Cell cell = cells.first; cell < cells.last && !budget_.exhausted(); ++cell) {
            budget_.spend();
            if (overlaps(cells_.box(cell), chunk.region)) (*this)[cell] = content;
        }
    }

    /// After the last op: read(), of even memory too.
    [[nodiscard]] std::vector<Piece> finish(std::int32_t rank, const Chunk& chunk) {
        const Cells::Range all = cells_.of(rank, chunk.tensor);
        if (all.empty() || laid_.contains(key(rank, chunk.tensor))) return read(rank, chunk);
        const Cells::Range cells = cells_.near(all, chunk.tensor, chunk.region);
        std::vector<Piece> pieces;
        std::int64_t elements = 0;
        for (Cells::Cell cell = cells.first; cell < cells.last && !budget_.exhausted(); ++cell) {
            budget_.spend();
            if (!contains(chunk.region, cells_.box(cell))) continue;
            elements += num_elements(cells_.box(cell));  // they are disjoint
            if ((*this)[cell] != nullptr) pieces.push_back({cells_.box(cell), (*this)[cell]});
        }
        if (elements == num_elements(chunk.region)) {
            coalesce(pieces);
            return pieces;
        }
        // There is more than cells: what has been held since the start, or parts of a cell.
        for (Cells::Cell cell = all.first; cell < all.last && !budget_.exhausted(); ++cell) {
            std::vector<Piece> content;
            if ((*this)[cell] != nullptr) content.push_back({cells_.box(cell), (*this)[cell]});
            write(rank, {chunk.tensor, cells_.box(cell)}, content);
        }
        laid_.insert(key(rank, chunk.tensor));
        return read(rank, chunk);
    }

    /// The held parts of a chunk, clipped to it, those with equal content merged where they touch. If that
    /// makes many into few, the memory itself is merged too, so that it pays once.
    [[nodiscard]] std::vector<Piece> read(std::int32_t rank, const Chunk& chunk) {
        std::vector<Piece> pieces;
        BoxIndex<Content>& memory = at(rank, chunk.tensor);
        memory.visit_overlapping(chunk.region, [&](const Piece& piece) {
            pieces.push_back({*intersect(piece.box, chunk.region), piece.value});
            return true;
        });
        const std::size_t found = pieces.size();
        budget_.spend(static_cast<std::int64_t>(8 * found));
        coalesce(pieces);
        if (found >= kManyPieces && pieces.size() <= found / 2) write(rank, chunk, pieces);
        return pieces;
    }

    /// Replaces what the chunk held by `pieces`, which lie inside it; what they leave out is no longer held.
    void write(std::int32_t rank, const Chunk& chunk, const std::vector<Piece>& pieces) {
        BoxIndex<Content>& memory = at(rank, chunk.tensor);
        if (pieces.size() == 1 && pieces.front().box == chunk.region) {  // the usual case
            if (Piece* const same = memory.find(chunk.region)) {
                same->value = pieces.front().value;
                return;
            }
        }
        for (Piece& old : memory.extract_overlapping(chunk.region)) {
            for (Region& rest : subtract(old.box, chunk.region)) memory.insert(std::move(rest), old.value);
        }
        for (const Piece& piece : pieces) memory.insert(piece.box, piece.value);
    }

private:
    static constexpr std::size_t kManyPieces = 8;

    [[nodiscard]] std::int64_t key(std::int32_t rank, std::int32_t tensor) const {
        return rank * static_cast<std::int64_t>(axes_.size()) + tensor;
    }
    BoxIndex<Content>& at(std::int32_t rank, std::int32_t tensor) {
        return memories_.try_emplace(key(rank, tensor), axes_[static_cast<std::size_t>(tensor)], budget_)
            .first->second;
    }

    std::vector<std::size_t> axes_;
    const Cells& cells_;
    Budget& budget_;
    std::vector<Content> contents_;          ///< by cell
    std::unordered_set<std::int64_t> laid_;  ///< even memory whose cells finish() has written into memories_
    std::unordered_map<std::int64_t, BoxIndex<Content>> memories_;
};

}  // namespace syncopate::plan
