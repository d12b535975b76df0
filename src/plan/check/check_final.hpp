// Whether a rank holds at the end what `final` asks for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "plan/check/check_passes.hpp"
#include "plan/check/memory.hpp"

namespace syncopate::plan {

/// Judges one entry of `final` after the other against the memory at the end.
///
/// Elements that some rank holds at the start have a value of their own, or contributions: only these will
/// do. Those that no rank holds at the start (of a tensor that only receives) get what the plan brings them,
/// which must be the same for every entry of `final`: a tensor has one value. Only what is "of" one rank,
/// that rank's own contribution, may be another thing on every rank, as after an all-to-all of buffers.
class FinalCheck {
public:
    /// All arguments must outlive this, but for `key_axes`.
    FinalCheck(const Plan& plan, Memory& memory, const ContentPool& pool,
               const std::vector<std::size_t>& key_axes, Budget& budget);

    void judge(std::size_t index);
    std::vector<Finding> take() { return std::move(findings_); }

private:
    using Piece = Memory::Piece;
    struct Source {  ///< of what an element without a value of its own has got
        std::int32_t tensor;
        std::int32_t shift;
        std::int32_t rank;  ///< where
    };

    bool judge_content(std::size_t index, const Holding& wanted, const Contributors* reduction,
                       const Piece& piece);
    bool judge_origin(const Holding& wanted, const Piece& piece, const std::string& where);
    void judge_arrival(std::size_t index, const Holding& wanted, const std::vector<Piece>& held);
    [[nodiscard]] std::string place_of(const Origin& origin, const Region& box) const;
    void add(Finding::Kind kind, std::int32_t rank, std::string message) {
        findings_.push_back({kind, rank, -1, std::move(message)});
    }

    const Plan& plan_;
    Memory& memory_;
    const ContentPool& pool_;
    Budget& budget_;
    Contributors all_;
    std::vector<BoxIndex<bool>> held_at_start_;  ///< by tensor, on any rank; boxes differ
    std::vector<BoxIndex<Source>> brought_;      ///< by tensor
    std::vector<Finding> findings_;
};

}  // namespace syncopate::plan
