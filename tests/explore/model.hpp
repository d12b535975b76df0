// A few calls of all ranks as steps: what the library's executors did in calls that came one after another (played_op.hpp),
// as agents that are ordered by nothing but their waits. The explorer takes them in every other order.
//
//      rank 0, call 1   main     | write A | post | wait | start … | join | wait | post | read C | → main of call 2
//                       engine   | wait start | wait | move | count | → joined
//                       program  | wait start | wait | read tile | write tile | count, post | → joined
//
// Memory is atoms: bytes that the same steps touch. An atom holds which step has written it last, and each step knows
// what it must find. That is right for any order, as every value has one writer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "explore/played_op.hpp"

namespace syncopate::explore {

struct Step;

/// What an agent does instead of all that follows.
struct Detour {
    std::vector<Step> steps;
    std::uint32_t then = 0;  ///< the look of its agent at which it comes back; 0: it has ended
};

struct Step {
    /// `look`: whether the rank has a fault; `clear`: the control block of rank `word` is as before the first call.
    enum class Kind : std::uint8_t { wait, store, add, count, move, look, clear };
    Kind kind = Kind::move;
    std::uint32_t word = 0;
    std::uint32_t value = 0;  ///< awaited, stored, added; of count: the target
    bool any =
        false;  ///< wait: any value but 0; count: at the target the word is set to 0; look: a wait follows
                ///< that only a fault ends early
    std::vector<std::uint32_t> posts{};  ///< of count: words that are set to `epoch` at the target
    std::uint32_t epoch = 0;
    std::vector<std::uint16_t> reads{};   ///< atoms, rising
    std::vector<std::uint16_t> found{};   ///< what they must hold: the number of a step
    std::vector<std::uint16_t> writes{};  ///< atoms, rising
    std::uint16_t number = 0;             ///< among all steps, in the order of the record; from 1
    bool left_out = false;                ///< by a mutation
    /// Of a look, and of the waits behind it: what its agent does instead of all that follows where its rank has found a
    /// fault itself, or has been told of one.
    Detour found_fault{};
    Detour told_fault{};
    /// Of a wait for another node's rank: the word by which that rank tells of a fault, if it has one.
    std::optional<std::uint32_t> broken{};
    bool own =
        true;  ///< of a schedule or a table; else of threads that start and are joined, or of what a library does
};

struct Agent {
    int rank = 0;
    int call = 0;
    std::vector<Step> steps;
    /// The same for the same agent of another call.
    std::string role;
};

struct Model {
    std::string name;
    std::vector<Agent> agents;
    std::size_t num_words = 0;
    std::size_t num_atoms = 0;
    std::vector<bool> monotonic;          ///< by word: it never falls
    std::vector<std::string> word_names;  ///< "word 32 of rank 1"
    std::vector<std::pair<std::uint32_t, std::uint32_t>>
        record;  ///< agent and step, in the order of the record
    int calls = 0;
    // Of one that goes on after faults: its call `calls` + 1 is the reset, or the recovery, and one more call follows.
    std::vector<std::uint32_t> fault_words;  ///< by rank
    std::vector<int> owners;                 ///< by word: the rank in whose control block it is; else -1
    /// By word by which a rank tells one of another node of a fault, who tells and who is told; else -1.
    std::vector<int> tells, told;
    std::vector<int> nodes;  ///< by rank

    [[nodiscard]] const Step& at(std::pair<std::uint32_t, std::uint32_t> place) const {
        return agents[place.first].steps[place.second];
    }
    [[nodiscard]] std::string describe(std::size_t agent, std::size_t step) const;
    /// Whether it is a wait for other threads' signals, which may fail: not for their beginning or end.
    [[nodiscard]] bool is_of_channel(std::uint32_t word) const {
        return word_names[word].starts_with("channel");
    }
    [[nodiscard]] bool can_fail(const Step& step) const {
        return step.kind == Step::Kind::wait &&
               (step.own || word_names[step.word].starts_with("collective") ||
                word_names[step.word].starts_with("channel"));
    }
};

/// Records so many calls of an op. Fails where it cannot be made, or is not right even so.
[[nodiscard]] Result<Model> record(const Case& played, int calls = 3);

enum class GoesOn : std::uint8_t { reset, recover };
/// The same, then all go on as after a fault, and make one more call. What each look and wait of the first calls leads to
/// where there is a fault is what the executors do when they find one there.
[[nodiscard]] Result<Model> record_with_faults(const Case& played, int calls, GoesOn how);

}  // namespace syncopate::explore
