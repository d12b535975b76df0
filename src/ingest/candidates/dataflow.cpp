#include "ingest/candidates/dataflow.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace syncopate::ingest {
namespace {

using Dims = std::vector<std::int64_t>;
using Path = std::vector<std::int64_t>;  // which element of which tuple, outermost last

/// What follows the start of an asynchronous collective.
bool is_done(const Instruction& instruction) {
    const std::string_view op = instruction.opcode;
    const std::size_t dash = op.rfind('-');
    return dash != op.npos && (op.substr(dash) == "-done" || op.substr(dash) == "-update") &&
           is_collective(op.substr(0, dash));
}

/// Conversions change what is multiplied, so they are named.
bool is_named(const Instruction& instruction) {
    return instruction.opcode == "convert" || instruction.opcode == "reduce-precision" ||
           instruction.opcode == "bitcast-convert";
}

/// A shape as it lies in memory, and the axes in that order; nothing for forms that are not taken.
std::optional<Dims> axes_in_memory(const Instruction& instruction) {
    Dims axes = instruction.layout;
    for (std::size_t i = 0; instruction.layout.empty() && i < instruction.shape.dims.size(); ++i)
        axes.push_back(static_cast<std::int64_t>(i));
    Dims sorted = axes;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
        if (sorted[i] != static_cast<std::int64_t>(i)) return std::nullopt;
    }
    if (axes.size() != instruction.shape.dims.size()) return std::nullopt;
    return axes;
}

/// `axis` of `from`, seen in `to`, of the same bytes in the same order.
std::int64_t axis_after_bitcast(const Instruction& from, const Instruction& to, std::int64_t axis,
                                std::int64_t parts) {
    const auto before = axes_in_memory(from);
    const auto after = axes_in_memory(to);
    if (!before || !after) return from.shape.dims == to.shape.dims && from.layout == to.layout ? axis : -1;
    const auto sizes = [](const Instruction& of, const Dims& axes) {
        Dims dims;
        for (const std::int64_t each : axes) dims.push_back(of.shape.dims[static_cast<std::size_t>(each)]);
        return dims;
    };
    const auto place = std::find(before->begin(), before->end(), axis);
    const std::int64_t found =
        axis_after_reshape(sizes(from, *before), sizes(to, *after), place - before->begin(), parts);
    return found < 0 ? -1 : (*after)[static_cast<std::size_t>(found)];
}

/// `axis` of the operand, seen in the result.
std::int64_t forward(const Instruction& by, const Instruction& operand, std::int64_t axis,
                     std::int64_t parts) {
    if (axis < 0) return -1;
    if (by.opcode == "transpose") {
        const auto found = std::find(by.dimensions.begin(), by.dimensions.end(), axis);
        return found == by.dimensions.end() ? -1 : found - by.dimensions.begin();
    }
    if (by.opcode == "reshape") return axis_after_reshape(operand.shape.dims, by.shape.dims, axis, parts);
    if (by.opcode == "bitcast") return axis_after_bitcast(operand, by, axis, parts);
    return axis;
}

/// `axis` of the result, seen in the operand.
std::int64_t backward(const Instruction& by, const Instruction& operand, std::int64_t axis,
                      std::int64_t parts) {
    if (axis < 0) return -1;
    if (by.opcode == "transpose") {
        return static_cast<std::size_t>(axis) < by.dimensions.size()
                   ? by.dimensions[static_cast<std::size_t>(axis)]
                   : -1;
    }
    if (by.opcode == "reshape") return axis_after_reshape(by.shape.dims, operand.shape.dims, axis, parts);
    if (by.opcode == "bitcast") return axis_after_bitcast(by, operand, axis, parts);
    return axis;
}

/// Whether it takes all of its first operand, as it is: a slice of the whole, a concatenation of one, a broadcast to
/// the same shape.
bool takes_whole(const Instruction& by, const Instruction& operand) {
    if (!operand.shape.is_array() || by.shape.dims != operand.shape.dims ||
        by.shape.dtype != operand.shape.dtype)
        return false;
    if (by.opcode == "concatenate") return by.operands.size() == 1;
    if (by.opcode == "slice" || by.opcode == "dynamic-slice") return true;
    if (by.opcode != "broadcast" && by.opcode != "broadcast-in-dim") return false;
    for (std::size_t i = 0; i < by.dimensions.size(); ++i) {
        if (by.dimensions[i] != static_cast<std::int64_t>(i)) return false;
    }
    return by.dimensions.size() == by.shape.dims.size();
}

bool reshapes(const Instruction& instruction) {
    return instruction.opcode == "transpose" || instruction.opcode == "reshape" ||
           instruction.opcode == "bitcast";
}

}  // namespace

bool is_wrapper(const Instruction& instruction) {
    return instruction.called.size() == 1 &&
           (instruction.opcode == "fusion" || instruction.opcode == "call" ||
            instruction.opcode == "async-start");
}

bool renames(const Instruction& instruction) {
    static constexpr std::array<std::string_view, 13> kOpcodes{"copy",
                                                               "convert",
                                                               "reduce-precision",
                                                               "bitcast-convert",
                                                               "optimization-barrier",
                                                               "domain",
                                                               "copy-start",
                                                               "copy-done",
                                                               "async-done",
                                                               "async-update",
                                                               "add-dependency",
                                                               "sdy.sharding_constraint",
                                                               "sdy.propagation_barrier"};
    // Calls that tell the compiler something of a value, and give it back.
    static constexpr std::array<std::string_view, 11> kTargets{"Sharding",
                                                               "LayoutConstraint",
                                                               "annotate_device_placement",
                                                               "MoveToHost",
                                                               "MoveToDevice",
                                                               "Pin",
                                                               "Unpin",
                                                               "xla.sdy.FuncResultSharding",
                                                               "xla.sdy.Sharding",
                                                               "xla.sdy.PropagationBarrier",
                                                               "InspectSharding"};
    const auto has = [](const auto& names, const std::string& name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    return has(kOpcodes, instruction.opcode) ||
           (instruction.opcode == "custom-call" && has(kTargets, instruction.target));
}

std::int64_t axis_after_reshape(const Dims& from, const Dims& to, std::int64_t axis, std::int64_t parts) {
    if (axis < 0 || static_cast<std::size_t>(axis) >= from.size()) return -1;
    const auto sound = [](const Dims& dims) {
        std::int64_t product = 1;
        return std::all_of(dims.begin(), dims.end(), [&](std::int64_t size) {
            return size > 0 && !__builtin_mul_overflow(product, size, &product);
        });
    };
    if (!sound(from) || !sound(to)) return -1;
    // What is before the axis must also be before some axis of `to`, which then begins with the same
    // elements; of the parts that axis must hold a whole number each.
    std::int64_t before = 1;
    for (std::int64_t i = 0; i < axis; ++i) before *= from[static_cast<std::size_t>(i)];
    const std::int64_t size = from[static_cast<std::size_t>(axis)];
    std::int64_t seen = 1;
    for (std::size_t i = 0; i < to.size(); ++i) {
        if (seen == before && to[i] > 1) {
            // A smaller axis must end inside the old one; a larger one would mix in what came after, which is
            // still a box as long as the parts come first.
            const bool nested = size % to[i] == 0 || to[i] % size == 0;
            return nested && to[i] % parts == 0 ? static_cast<std::int64_t>(i) : -1;
        }
        seen *= to[i];
    }
    return size == 1 ? 0 : -1;
}

Dataflow::Dataflow(const TensorProgram& program) : program_(program) {
    users_.resize(program.computations.size());
    callers_.resize(program.computations.size());
    for (std::size_t c = 0; c < program.computations.size(); ++c) {
        const std::vector<Instruction>& instructions = program.computations[c].instructions;
        users_[c].resize(instructions.size());
        for (std::size_t i = 0; i < instructions.size(); ++i) {
            for (const std::int32_t operand : instructions[i].operands) {
                std::vector<std::int32_t>& users = users_[c][static_cast<std::size_t>(operand)];
                if (users.empty() || users.back() != static_cast<std::int32_t>(i)) {
                    users.push_back(static_cast<std::int32_t>(i));
                }
            }
            const Site site{static_cast<std::int32_t>(c), static_cast<std::int32_t>(i)};
            if (const auto [computation, instruction] = instructions[i].outer; computation >= 0)
                captures_[{computation, instruction}].push_back(site);
            // The end of an asynchronous computation names it again, and passes nothing.
            if (instructions[i].opcode == "async-done" || instructions[i].opcode == "async-update") continue;
            for (const std::int32_t called : instructions[i].called) {
                callers_[static_cast<std::size_t>(called)].push_back(site);
            }
        }
    }
}

std::vector<Site> Dataflow::parameters(std::int32_t computation, std::int64_t number) const {
    const auto& inside = program_.computations[static_cast<std::size_t>(computation)].instructions;
    std::vector<Site> found;
    for (std::size_t i = 0; i < inside.size(); ++i) {
        if (inside[i].opcode == "parameter" && inside[i].index == number)
            found.push_back({computation, static_cast<std::int32_t>(i)});
    }
    return found;
}

std::optional<Site> Dataflow::passed(Site site) const {
    const Instruction& by = at(site);
    if (by.opcode == "captured" && by.outer.first >= 0) return Site{by.outer.first, by.outer.second};
    const std::vector<Site>& calls = callers(site.computation);
    if (by.opcode != "parameter" || calls.size() != 1 || !is_wrapper(at(calls[0]))) return std::nullopt;
    const Instruction& caller = at(calls[0]);
    if (by.index < 0 || static_cast<std::size_t>(by.index) >= caller.operands.size()) return std::nullopt;
    return Site{calls[0].computation, caller.operands[static_cast<std::size_t>(by.index)]};
}

std::optional<Site> Dataflow::invariant(Site parameter, std::int64_t index) const {
    const std::vector<Site>& calls = callers(parameter.computation);
    if (at(parameter).opcode != "parameter" || calls.size() != 1) return std::nullopt;
    const Instruction& loop = at(calls[0]);
    if (loop.opcode != "while" || loop.called.size() != 2 || loop.operands.size() != 1) return std::nullopt;
    const Computation& body = program_.computations[static_cast<std::size_t>(loop.called[1])];
    const Instruction& result = at({loop.called[1], body.root});
    const auto k = static_cast<std::size_t>(index);
    if (result.opcode != "tuple" || index < 0 || k >= result.operands.size()) return std::nullopt;
    const Instruction& passed_on = at({loop.called[1], result.operands[k]});
    const bool same = passed_on.opcode == "get-tuple-element" && passed_on.index == index &&
                      passed_on.operands.size() == 1 &&
                      at({loop.called[1], passed_on.operands[0]}).opcode == "parameter";
    return same ? std::optional(Site{calls[0].computation, loop.operands[0]}) : std::nullopt;
}

std::vector<Dataflow::Meeting> Dataflow::readers(Site from, std::optional<std::int64_t> element,
                                                 std::int64_t axis, std::int64_t parts) const {
    struct State {
        Site site;
        Path path;
        std::int64_t axis;
        std::vector<std::string> through;
        std::vector<Site> calls;  // that were entered on the way, outermost first
    };
    std::vector<Meeting> met;
    std::set<std::tuple<Site, Path, std::int64_t, std::vector<Site>>> seen;
    std::vector<State> open{{from, element ? Path{*element} : Path{}, axis, {}, {}}};
    for (std::size_t steps = 0; !open.empty() && steps < kMaxSteps && met.size() < kMaxMeetings; ++steps) {
        if (++steps_ > kMaxStepsInAll) break;
        const State state = std::move(open.back());
        open.pop_back();
        if (!seen.emplace(state.site, state.path, state.axis, state.calls).second) continue;
        const Computation& owner = program_.computations[static_cast<std::size_t>(state.site.computation)];
        std::vector<Site> calls = state.calls;
        const auto go = [&](Site site, Path path, std::int64_t to, const std::string& opcode = {}) {
            if (state.through.size() >= kMaxThrough || path.size() >= kMaxThrough) return;
            open.push_back({site, std::move(path), to, state.through, calls});
            if (!opcode.empty()) open.back().through.push_back(opcode);
        };
        // Out of a fusion or call, to the one by which it was entered, or else to each that calls it.
        if (owner.root == state.site.instruction) {
            const bool entered =
                !state.calls.empty() && at(state.calls.back()).called[0] == state.site.computation;
            if (entered) {
                calls.pop_back();
                go(state.calls.back(), state.path, state.axis);
                calls = state.calls;
            } else {
                for (const Site caller : callers(state.site.computation)) {
                    const Instruction& by = at(caller);
                    if (is_wrapper(by)) go(caller, state.path, state.axis);
                    // A loop's next step reads it, whatever that makes of it.
                    const bool next = by.opcode == "while" && by.called.back() == state.site.computation;
                    if (next ? !state.path.empty() : by.opcode == "conditional")
                        met.push_back({caller, 0, -1, state.through});
                }
            }
        }
        if (const auto captured = captures_.find(state.site); captured != captures_.end()) {
            for (const Site inside : captured->second) go(inside, state.path, state.axis);
        }
        for (const std::int32_t user : users(state.site)) {
            const Site site{state.site.computation, user};
            const Instruction& by = at(site);
            for (std::size_t k = 0; k < by.operands.size(); ++k) {
                if (by.operands[k] != state.site.instruction) continue;
                const Instruction& operand = at(state.site);
                if (by.opcode == "tuple") {
                    Path path = state.path;
                    path.push_back(static_cast<std::int64_t>(k));
                    go(site, std::move(path), state.axis);
                } else if (by.opcode == "get-tuple-element") {
                    if (!state.path.empty() && state.path.back() == by.index) {
                        go(site, Path(state.path.begin(), state.path.end() - 1), state.axis);
                    }
                } else if (is_done(by)) {
                    go(site, state.path, state.axis);
                } else if (is_wrapper(by)) {
                    const std::int32_t called = by.called[0];
                    if (calls.size() >= kMaxThrough) continue;
                    calls.push_back(site);
                    for (const Site parameter : parameters(called, static_cast<std::int64_t>(k)))
                        go(parameter, state.path, state.axis);
                    calls = state.calls;
                } else if (by.opcode == "while" && by.called.size() == 2 && !state.path.empty()) {
                    // Into a loop that passes it on as it is, and out of it.
                    bool passed_on = false;
                    for (const Site parameter : parameters(by.called[1], 0)) {
                        if (!invariant(parameter, state.path.back())) continue;
                        passed_on = true;
                        go(parameter, state.path, state.axis);
                        go(site, state.path, state.axis);
                    }
                    if (!passed_on) met.push_back({site, k, -1, state.through, true});
                } else if (renames(by) || (k == 0 && state.path.empty() && takes_whole(by, operand))) {
                    if (k == 0) go(site, state.path, state.axis, is_named(by) ? by.opcode : std::string());
                } else if (reshapes(by) && state.path.empty()) {
                    go(site, {}, forward(by, operand, state.axis, parts), by.opcode);
                } else if (state.path.empty()) {
                    met.push_back({site, k, state.axis, state.through});
                }
            }
        }
    }
    std::sort(met.begin(), met.end(), [](const Meeting& a, const Meeting& b) {
        return std::tie(a.site, a.operand) < std::tie(b.site, b.operand);
    });
    return met;
}

std::optional<Dataflow::Meeting> Dataflow::maker(Site to, std::size_t operand, std::int64_t axis,
                                                 std::int64_t parts) const {
    Meeting meeting{{to.computation, at(to).operands[operand]}, 0, axis, {}};
    Path path;
    std::vector<Site> calls;  // that were entered on the way
    for (std::size_t steps = 0; steps < kMaxSteps; ++steps) {
        if (++steps_ > kMaxStepsInAll || meeting.through.size() >= kMaxThrough) break;
        const Instruction& by = at(meeting.site);
        if (by.opcode == "parameter" && !calls.empty() &&
            at(calls.back()).called[0] == meeting.site.computation) {
            const Site caller = calls.back();
            const auto k = static_cast<std::size_t>(by.index);
            if (by.index < 0 || k >= at(caller).operands.size()) break;
            calls.pop_back();
            meeting.site = {caller.computation, at(caller).operands[k]};
        } else if (by.opcode == "parameter" || by.opcode == "captured") {
            std::optional<Site> from = passed(meeting.site);
            if (!from && !path.empty()) from = invariant(meeting.site, path.back());
            if (!from) break;
            meeting.site = *from;
        } else if (by.opcode == "while" && by.called.size() == 2 && !path.empty()) {
            const std::vector<Site> inside = parameters(by.called[1], 0);
            if (inside.size() != 1 || !invariant(inside[0], path.back())) break;
            meeting.site.instruction = by.operands[0];
        } else if (by.opcode == "get-tuple-element" && !by.operands.empty()) {
            path.push_back(by.index);
            meeting.site.instruction = by.operands[0];
        } else if (by.opcode == "tuple" && !path.empty()) {
            const std::int64_t element = path.back();
            path.pop_back();
            if (element < 0 || static_cast<std::size_t>(element) >= by.operands.size()) break;
            meeting.site.instruction = by.operands[static_cast<std::size_t>(element)];
        } else if (is_wrapper(by)) {
            const std::int32_t called = by.called[0];
            calls.push_back(meeting.site);
            meeting.site = {called, program_.computations[static_cast<std::size_t>(called)].root};
        } else if (!by.operands.empty() &&
                   (renames(by) || takes_whole(by, at({meeting.site.computation, by.operands[0]})))) {
            if (is_named(by)) meeting.through.push_back(by.opcode);
            meeting.site.instruction = by.operands[0];
        } else if (reshapes(by) && !by.operands.empty()) {
            meeting.axis = backward(by, at({meeting.site.computation, by.operands[0]}), meeting.axis, parts);
            meeting.through.push_back(by.opcode);
            meeting.site.instruction = by.operands[0];
        } else {
            break;
        }
    }
    const Instruction& made_by = at(meeting.site);
    if (made_by.dot && !made_by.after_dot.empty()) meeting.through.push_back(made_by.after_dot);
    // A call of cuBLAS makes the product and the memory that it needed.
    const bool of_product = made_by.dot && made_by.opcode == "custom-call" && path == Path{0};
    if (!path.empty() && !of_product) return std::nullopt;
    std::reverse(meeting.through.begin(), meeting.through.end());
    return meeting;
}

}  // namespace syncopate::ingest
