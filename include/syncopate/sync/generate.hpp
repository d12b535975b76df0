// From policies and footprints to what blocks do: which semaphores each block posts and awaits, and in which
// order tiles run. Policies and orders of kind `auto` are made up here.
//
// A policy says which blocks of the producer share a semaphore; the footprints say which blocks a consumer
// needs, and so which semaphores it awaits, each until all who share it have posted:
//
//      producer's blocks    | 0 1 2 3 | 4 5 6 7 |  row: semaphore 0, semaphore 1
//      consumer's block     reads what 2 … 5 write: awaits semaphore 0 and 1, 4 posts each
//
// `auto` lets two blocks share a semaphore exactly if the same consumers need both: no consumer waits for a
// block that it does not need, and none awaits two semaphores where one would do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "syncopate/sync/chain.hpp"

namespace syncopate::sync {

/// The semaphores that one stage's blocks post: each block at most one of an array. Inputs of several
/// consumers that group the blocks alike share an array.
struct SemaphoreArray {
    std::int32_t stage = 0;              ///< who posts
    std::vector<std::int32_t> of_block;  ///< by block, linear: the semaphore; -1: none
    std::vector<std::int32_t> posts;     ///< by semaphore: how many blocks post it in one call
};

/// A block until semaphore `semaphore` of array `array` has `count` posts of this call, or of the call
/// before.
struct Wait {
    std::int32_t array = 0;
    std::int32_t semaphore = 0;
    std::int32_t count = 0;
    std::int32_t lag = 0;  ///< 1: of the call before
    auto operator<=>(const Wait&) const = default;
};

/// One input of one stage, from one producer; or, with lag 1, one output and one of its readers.
struct Link {
    std::int32_t stage = 0;  ///< who waits
    std::string tensor;
    std::int32_t from = 0;                 ///< whose posts it awaits
    PolicyKind policy = PolicyKind::none;  ///< as in the chain
    PolicyKind found =
        PolicyKind::none;     ///< of `auto`: the named policy that groups blocks alike, else `custom`
    std::int32_t array = -1;  ///< -1: nothing is awaited
    std::int32_t lag = 0;
    std::vector<std::vector<Wait>> waits;  ///< by block of `stage`
};

struct Synchronization {
    std::vector<SemaphoreArray> arrays;
    std::vector<Link> links;                        ///< by stage, then tensor, then producer
    std::vector<std::vector<std::int32_t>> orders;  ///< by stage: the n-th tile to run
    std::vector<OrderKind> order_kinds;             ///< by stage; of `auto`: what was chosen

    /// All waits of a block, each once, sorted.
    [[nodiscard]] std::vector<Wait> waits_of(std::int32_t stage, std::int64_t block) const;
};

/// Something that makes no sense in a chain: a stage and a block ({-1, -1, -1}: not about one).
struct Malformed {
    std::int32_t stage = -1;
    std::int64_t block = -1;
    std::string message;
};

/// Either all of it, or what is malformed.
struct Generated {
    Synchronization synchronization;
    std::vector<Footprints> boxes;  ///< by stage and tensor: [stage · tensors + tensor], tensors by name
    std::vector<Malformed> malformed;
};

/// Never fails: what makes no sense is listed.
[[nodiscard]] Generated generate(const Chain& chain);

}  // namespace syncopate::sync
