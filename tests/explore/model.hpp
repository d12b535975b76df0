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
#include <string>
#include <vector>

#include "explore/played_op.hpp"

namespace syncopate::explore {

struct Step {
    enum class Kind : std::uint8_t { wait, store, add, count, move };
    Kind kind = Kind::move;
    std::uint32_t word = 0;
    std::uint32_t value = 0;             ///< awaited, stored, added; of count: the target
    bool any = false;                    ///< wait: any value but 0; count: at the target the word is set to 0
    std::vector<std::uint32_t> posts{};  ///< of count: words that are set to `epoch` at the target
    std::uint32_t epoch = 0;
    std::vector<std::uint16_t> reads{};   ///< atoms, rising
    std::vector<std::uint16_t> found{};   ///< what they must hold: the number of a step
    std::vector<std::uint16_t> writes{};  ///< atoms, rising
    std::uint16_t number = 0;             ///< among all steps, in the order of the record; from 1
    bool left_out = false;                ///< by a mutation
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

    [[nodiscard]] const Step& at(std::pair<std::uint32_t, std::uint32_t> place) const {
        return agents[place.first].steps[place.second];
    }
    [[nodiscard]] std::string describe(std::size_t agent, std::size_t step) const;
};

/// Records so many calls of an op. Fails where it cannot be made, or is not right even so.
[[nodiscard]] Result<Model> record(const Case& played, int calls = 3);

}  // namespace syncopate::explore
