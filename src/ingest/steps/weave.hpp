// Weaves a schedule into a plan: one-sided transfers, and of the order in which workers run only what
// matters.
//
// Order that matters. In the schedule, two touches of the same memory, of which one writes, are ordered by
// workers, messages and signals, or else they race. Each such order becomes `after` between the two ops; so
// does the order of the messages of one connection. Everything else that workers happen to do one after
// another may overlap in the plan. Touches that nothing orders stay unordered, and plan::check finds them.
//
// Messages. A message is read when it is sent and written when it is received; between these it is in a FIFO
// that belongs to neither memory. A one-sided transfer does both at once. Where that contradicts the order
// above (two ranks that exchange in place: each overwrites what it has sent) the ops would wait for each
// other in a circle. Messages on such a circle go through a buffer of their own instead: a push into it, and
// a local op out of it.
//
// Deadlock. If steps wait for each other, the plan gets every order that the schedule states, and so the same
// circle.
#pragma once

#include <string>
#include <vector>

#include "ingest/steps/schedule.hpp"

namespace syncopate::ingest {

/// Fills plan.ranks and import.origins from `schedule`. The plan's mesh and tensors must be there; a tensor
/// "NAME.relay" joins them if messages need it, and a warning. A circle of steps is also told as a finding of
/// kind cycle, in the words of the file. Fails if the order is too tangled to be found in reasonable time.
[[nodiscard]] Status weave(Schedule schedule, const std::string& file_name, const std::string& name,
                           Import& import);

}  // namespace syncopate::ingest
