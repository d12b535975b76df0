// Depend: which ops deliver what a tile reads.
//
// On rank r a tile needs op X if X's destination is in r's memory and the written region shares an element
// with a box that the tile reads of a parameter bound to that tensor. Tiles that read the same boxes form one
// class (the rows of tiles of a GEMM), so the work is classes × the few ops near each box, found by bisection
// along one axis. What its tiles fetch themselves (inline_reads.hpp) is no op that they wait for: they need
// what that op comes after.
//
// In a reduction loop (K of a GEMM) a need also has the first iteration that reads the delivered region:
//
//      iteration       0      1      2      3            a tile's read box, K to the right
//                  |------|------|------|------|
//      X delivers               |////////|               first iteration 1
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "syncopate/fuse/precedence.hpp"
#include "syncopate/fuse/program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::fuse {

/// An op that must be complete before `iteration` of a tile's reduction loop (0: before the tile starts).
struct Need {
    std::int64_t iteration = 0;
    std::int32_t op = 0;  ///< id of Precedence
    auto operator<=>(const Need&) const = default;
};

struct Dependence {
    std::vector<std::int32_t> class_of;                 ///< by tile id
    std::vector<std::vector<std::vector<Need>>> needs;  ///< by rank and class; sorted, one entry per op
    /// By rank and class: the ops that its tiles carry out as they read.
    std::vector<std::vector<std::vector<std::int32_t>>> fetches;
};

/// What earlier stages of a program have written on every rank, by tensor.
using Written = std::map<std::int32_t, std::vector<plan::Region>>;

/// The dependence of every tile on every rank. Bindings must be sound (fuse.hpp). Fails if a tile reads a
/// region of a bound tensor that on that rank is neither initial nor delivered nor in `written`, naming tile,
/// parameter, region and rank.
[[nodiscard]] Result<Dependence> depend(const Program& program, const Precedence& precedence,
                                        const Written& written = {});

}  // namespace syncopate::fuse
