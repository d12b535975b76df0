// push_exchange over several nodes. What a node has for one rank of another node is brought together there, at the rank
// with the receiver's place, in a tensor of its own, and crosses in one message:
//
//     rank 0, place 0 of node 0 (2 nodes of 3)
//     within   X[4] -> rank 1, X[5] -> rank 2    for node 1, to the rank here that has the receiver's place
//              X[3] -> its own relay             beside those of ranks 1 and 2
//     across   relay (of 0, 1 and 2) -> rank 3   one message, into rows that lie side by side there
//     within   X[1] -> rank 1, X[2] -> rank 2    what stays in the node goes straight to its receivers
//
// What is for the next node is brought together while this one's crosses. A block that stays in its node is cut into
// `split` chunks; of what crosses, so many groups of senders cross one after another.
#pragma once

#include "plan/model/cut.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"

namespace syncopate::plan {

/// Adds the ops, and the relay as the last tensor, to a plan that push_exchange has begun: tensors 0 and 1 are what is
/// sent and what comes. Blocks are pushed.
void push_exchange_nodes(Plan& plan, const PushExchangeOptions& options, const Cut& cut);

}  // namespace syncopate::plan
