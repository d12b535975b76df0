#include "ingest/candidates/dataflow.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace syncopate::ingest {
namespace {

using Dims = std::vector<std::int64_t>;
using Path = std::vector<std::int64_t>;  // which element of which tuple, outermost last

bool is_wrapper(const Instruction& instruction) {
    return instruction.called.size() == 1 &&
           (instruction.opcode == "fusion" || instruction.opcode == "call" ||
            instruction.opcode == "async-start");
}

bool renames(const Instruction& instruction) {
    const std::string& op = instruction.opcode;
    return op == "copy" || op == "convert" || op == "optimization-barrier" || op == "copy-start" ||
           op == "copy-done" || op == "async-done" || op == "async-update" ||
           (op == "custom-call" && instruction.target == "Sharding");
}

/// The end of an asynchronous collective, whose start came before.
bool is_done(const Instruction& instruction) {
    return instruction.opcode.ends_with("-done") && instruction.opcode.size() > 5 &&
           is_collective(instruction.opcode.substr(0, instruction.opcode.size() - 5));
}

/// `axis` of the operand, seen in the result.
std::int64_t forward(const Instruction& by, const Shape& operand, std::int64_t axis, std::int64_t parts) {
    if (axis < 0) return -1;
    if (by.opcode == "transpose") {
        const auto found = std::find(by.dimensions.begin(), by.dimensions.end(), axis);
        return found == by.dimensions.end() ? -1 : found - by.dimensions.begin();
    }
    if (by.opcode == "reshape") return axis_after_reshape(operand.dims, by.shape.dims, axis, parts);
    if (by.opcode == "bitcast") return operand.dims == by.shape.dims ? axis : -1;
    return axis;
}

/// `axis` of the result, seen in the operand.
std::int64_t backward(const Instruction& by, const Shape& operand, std::int64_t axis, std::int64_t parts) {
    if (axis < 0) return -1;
    if (by.opcode == "transpose") {
        return static_cast<std::size_t>(axis) < by.dimensions.size()
                   ? by.dimensions[static_cast<std::size_t>(axis)]
                   : -1;
    }
    if (by.opcode == "reshape") return axis_after_reshape(by.shape.dims, operand.dims, axis, parts);
    if (by.opcode == "bitcast") return operand.dims == by.shape.dims ? axis : -1;
    return axis;
}

bool reshapes(const Instruction& instruction) {
    return instruction.opcode == "transpose" || instruction.opcode == "reshape" ||
           instruction.opcode == "bitcast";
}

}  // namespace

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
            for (const std::int32_t called : instructions[i].called) {
                callers_[static_cast<std::size_t>(called)].push_back(
                    {static_cast<std::int32_t>(c), static_cast<std::int32_t>(i)});
            }
        }
    }
}

std::vector<Dataflow::Meeting> Dataflow::readers(Site from, std::optional<std::int64_t> element,
                                                 std::int64_t axis, std::int64_t parts) const {
    struct State {
        Site site;
        Path path;
        std::int64_t axis;
        std::vector<std::string> through;
    };
    std::vector<Meeting> met;
    std::set<std::tuple<Site, Path, std::int64_t>> seen;
    std::vector<State> open{{from, element ? Path{*element} : Path{}, axis, {}}};
    for (std::size_t steps = 0; !open.empty() && steps < kMaxSteps && met.size() < kMaxMeetings; ++steps) {
        if (++steps_ > kMaxStepsInAll) break;
        const State state = std::move(open.back());
        open.pop_back();
        if (!seen.emplace(state.site, state.path, state.axis).second) continue;
        const Computation& owner = program_.computations[static_cast<std::size_t>(state.site.computation)];
        const auto go = [&](Site site, Path path, std::int64_t to, const std::string& opcode) {
            if (state.through.size() >= kMaxThrough || path.size() >= kMaxThrough) return;
            State next{site, std::move(path), to, state.through};
            if (!opcode.empty()) next.through.push_back(opcode);
            open.push_back(std::move(next));
        };
        // Out of a fusion or call, to what it is called by.
        if (owner.root == state.site.instruction) {
            for (const Site caller : callers(state.site.computation)) {
                if (is_wrapper(at(caller))) go(caller, state.path, state.axis, {});
            }
        }
        for (const std::int32_t user : users(state.site)) {
            const Site site{state.site.computation, user};
            const Instruction& by = at(site);
            for (std::size_t k = 0; k < by.operands.size(); ++k) {
                if (by.operands[k] != state.site.instruction) continue;
                const Shape& operand = at(state.site).shape;
                if (by.opcode == "tuple") {
                    Path path = state.path;
                    path.push_back(static_cast<std::int64_t>(k));
                    go(site, std::move(path), state.axis, {});
                } else if (by.opcode == "get-tuple-element") {
                    if (!state.path.empty() && state.path.back() == by.index) {
                        go(site, Path(state.path.begin(), state.path.end() - 1), state.axis, {});
                    }
                } else if (is_done(by)) {
                    go(site, state.path, state.axis, {});
                } else if (is_wrapper(by)) {
                    const std::int32_t called = by.called[0];
                    const auto& inside = program_.computations[static_cast<std::size_t>(called)].instructions;
                    for (std::size_t i = 0; i < inside.size(); ++i) {
                        if (inside[i].opcode == "parameter" &&
                            inside[i].index == static_cast<std::int64_t>(k)) {
                            go({called, static_cast<std::int32_t>(i)}, state.path, state.axis, {});
                        }
                    }
                } else if (renames(by)) {
                    go(site, state.path, state.axis, by.opcode == "convert" ? by.opcode : std::string());
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
    for (std::size_t steps = 0; steps < kMaxSteps; ++steps) {
        if (++steps_ > kMaxStepsInAll || meeting.through.size() >= kMaxThrough) break;
        const Instruction& by = at(meeting.site);
        const auto operand_shape = [&](std::size_t k) -> const Shape& {
            return at({meeting.site.computation, by.operands[k]}).shape;
        };
        if (by.opcode == "parameter") {
            const std::vector<Site>& calls = callers(meeting.site.computation);
            if (calls.size() != 1 || !is_wrapper(at(calls[0]))) break;
            const Instruction& caller = at(calls[0]);
            if (by.index < 0 || static_cast<std::size_t>(by.index) >= caller.operands.size()) break;
            meeting.site = {calls[0].computation, caller.operands[static_cast<std::size_t>(by.index)]};
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
            meeting.site = {called, program_.computations[static_cast<std::size_t>(called)].root};
        } else if (renames(by) && !by.operands.empty()) {
            if (by.opcode == "convert") meeting.through.push_back(by.opcode);
            meeting.site.instruction = by.operands[0];
        } else if (reshapes(by) && !by.operands.empty()) {
            meeting.axis = backward(by, operand_shape(0), meeting.axis, parts);
            meeting.through.push_back(by.opcode);
            meeting.site.instruction = by.operands[0];
        } else {
            break;
        }
    }
    if (!path.empty()) return std::nullopt;
    std::reverse(meeting.through.begin(), meeting.through.end());
    return meeting;
}

}  // namespace syncopate::ingest
