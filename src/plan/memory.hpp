// What every rank holds during symbolic execution: disjoint boxes with their content, per rank and tensor.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "box_index.hpp"
#include "coalesce.hpp"
#include "content.hpp"

namespace syncopate::plan {

class Memory {
public:
    using Piece = BoxIndex<Content>::Entry;

    /// `key_axes`: see check_passes.hpp. `work` must outlive this.
    Memory(std::vector<std::size_t> key_axes, Work& work) : axes_(std::move(key_axes)), work_(work) {}

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
        work_.spend(static_cast<std::int64_t>(8 * found));
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

    BoxIndex<Content>& at(std::int32_t rank, std::int32_t tensor) {
        const std::int64_t key = rank * static_cast<std::int64_t>(axes_.size()) + tensor;
        return memories_.try_emplace(key, axes_[static_cast<std::size_t>(tensor)], work_).first->second;
    }

    std::vector<std::size_t> axes_;
    Work& work_;
    std::unordered_map<std::int64_t, BoxIndex<Content>> memories_;
};

}  // namespace syncopate::plan
