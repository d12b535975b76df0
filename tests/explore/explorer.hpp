// Every order in which the agents of a model (model.hpp) can go on, and what goes wrong in one of them: a step that finds
// what another call, or another step, has left, or agents of which none can go on.
//
// What is not branched on: a step that only waits, posts or counts. Words never fall (those that do are branched on), so
// such a step commutes with all others, and nobody is kept from anything by its being done at once.
//
// `reduce`: nor is a step that touches memory, where no other agent can come to a step that conflicts with it before it
// is done (a persistent set of one; Godefroid, Partial-Order Methods, ch. 4). Without, all orders of the steps that
// touch memory are gone through, each state once.
#pragma once

#include <cstdint>
#include <string>

#include "explore/model.hpp"

namespace syncopate::explore {

struct ExploreOptions {
    bool reduce = true;
    std::uint64_t most_states = 200'000;  ///< then it gives up: 16 to 32 bytes each, and those on the path
};

struct Explored {
    std::uint64_t states = 0;
    bool complete = false;  ///< all orders were gone through, or one that is wrong was found
    std::string violation;  ///< "" if there is none
};

[[nodiscard]] Explored explore(const Model& model, const ExploreOptions& options = {});

}  // namespace syncopate::explore
