#include "syncopate/ingest/hlo/hlo.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "ingest/hlo/backend_config.hpp"
#include "ingest/hlo/replica_groups.hpp"
#include "ingest/hlo/source_lines.hpp"
#include "ingest/program/text_cursor.hpp"
#include "syncopate/at.hpp"
#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

using Ids = std::vector<std::int32_t>;

/// A module's part of the text: from its line "HloModule NAME" to the next one's.
struct Part {
    std::string_view name;
    std::size_t begin = 0, end = 0;
};

/// Where the line that begins at `line` ends, or the one in which a string that begins in it does: tables hold
/// whole modules as strings.
std::size_t end_of_line(std::string_view text, std::size_t line) {
    bool in_string = false;
    for (std::size_t i = line; i < text.size(); ++i) {
        if (text[i] == '\\' && in_string) {
            ++i;
        } else if (text[i] == '"') {
            in_string = !in_string;
        } else if (!in_string && text.substr(i, 2) == "//") {
            return std::min(text.find('\n', i), text.size());
        } else if (text[i] == '\n' && !in_string) {
            return i;
        }
    }
    return text.size();
}

/// Computations before the first such line belong to its module.
std::vector<Part> parts_of(std::string_view text) {
    constexpr std::string_view kWord = "HloModule";
    std::vector<Part> parts;
    for (std::size_t line = 0; line < text.size();) {
        const std::size_t end = end_of_line(text, line);
        const std::size_t first = std::min(text.find_first_not_of(" \t", line), end);
        std::string_view rest = text.substr(first, end - first);
        if (rest.starts_with(kWord)) {
            rest.remove_prefix(kWord.size());
            const std::size_t name = std::min(rest.find_first_not_of(" \t"), rest.size());
            if (!parts.empty()) parts.back().end = first;
            rest.remove_prefix(name);
            parts.push_back({rest.substr(0, rest.find_first_of(", \t\r")), parts.empty() ? 0 : first});
        }
        line = end + 1;
    }
    if (parts.empty()) parts.emplace_back();
    parts.back().end = text.size();
    return parts;
}

/// Reads a module. Each method returns false once an error is recorded in the cursor.
class HloReader {
public:
    /// The module lies in `text` from `begin` to the end.
    HloReader(std::string_view text, std::size_t begin, const std::string& file_name) : at_(text, file_name) {
        at_.seek(begin);
    }

    Result<TensorProgram> read() {
        if (!module()) return at_.error();
        return std::move(program_);
    }

private:
    struct Call {  // a computation named before or after its definition
        std::size_t computation = 0, instruction = 0;
        std::string_view name;
        std::size_t offset = 0;
    };

    bool module() {
        if (at_.at_end()) return at_.fail("empty: expected HLO text");
        if (at_.take("HloModule")) {
            program_.name = at_.name(true);
            if (program_.name.empty()) return at_.fail("expected the module's name, found " + at_.found());
            if (!attributes([&](std::string_view key) { return module_attribute(key); }) || !lines_.read(at_))
                return false;
        }
        while (!at_.at_end()) {
            if (!computation()) return false;
        }
        if (program_.computations.empty()) return at_.fail("no computation");
        if (program_.entry < 0 && program_.computations.size() == 1) program_.entry = 0;
        return resolve();
    }

    bool module_attribute(std::string_view key) {
        if (key == "num_partitions") return count(program_.partitions);
        if (key == "replica_count") return count(program_.replicas);
        return skip_value();
    }

    bool count(std::int64_t& out) {
        const std::size_t start = at_.offset();
        const auto value = at_.integer();
        if (!value || *value < 1 || *value > std::int64_t{1} << 20) {
            return at_.fail_at(start, "expected a count from 1 to 2^20");
        }
        out = *value;
        return true;
    }

    bool computation() {
        Computation computation;
        const std::size_t start = (at_.skip_blanks(), at_.offset());
        computation.where = at_.locate(start);
        std::string_view name = reference();
        const bool entry = name == "ENTRY";
        if (entry) name = reference();
        if (name.empty() && !(entry && (at_.peek() == '(' || at_.peek() == '{'))) {
            return at_.fail("expected a computation: NAME { … }, found " + at_.found());
        }
        computation.name = name;
        if (at_.peek() == '(') {
            if (!at_.skip_balanced(false)) return false;
            Shape result;
            if (at_.take("->") && !shape(result, 0)) return false;
        }
        if (!at_.expect("{", fmt::format("to begin computation {}", escaped(name)))) return false;
        instructions_.clear();
        const std::size_t index = program_.computations.size();
        program_.computations.push_back(std::move(computation));
        while (at_.peek() != '}') {
            if (at_.at_end()) return at_.fail_at(start, "a computation that is never closed");
            if (!instruction(index)) return false;
        }
        at_.advance();
        Computation& made = program_.computations[index];
        if (made.instructions.empty()) {
            return at_.fail_at(start, fmt::format("computation {} holds no instruction", escaped(name)));
        }
        if (made.root < 0) made.root = static_cast<std::int32_t>(made.instructions.size()) - 1;
        if (!by_name_.emplace(made.name, static_cast<std::int32_t>(index)).second && !made.name.empty()) {
            return at_.fail_at(start, fmt::format("a second computation called {}", escaped(made.name)));
        }
        if (entry) {
            if (program_.entry >= 0) return at_.fail_at(start, "a second ENTRY computation");
            program_.entry = static_cast<std::int32_t>(index);
        }
        return attributes([&](std::string_view) { return skip_value(); });
    }

    std::string_view reference() {
        at_.take("%");
        return at_.name(true);
    }

    bool instruction(std::size_t computation) {
        if (++num_instructions_ > kMaxInstructions) {
            return at_.fail(fmt::format("more than {} instructions", kMaxInstructions));
        }
        Instruction made;
        at_.skip_blanks();
        const std::size_t start = at_.offset();
        std::string_view name = reference();
        const bool root = name == "ROOT" && at_.peek() != '=';
        if (root) name = reference();
        if (name.empty()) return at_.fail("expected an instruction: NAME = …, found " + at_.found());
        made.where = at_.locate(start);
        made.name = name;
        if (!at_.expect("=", fmt::format("after the instruction's name {}", escaped(name)))) return false;
        bool has_shape = at_.peek() == '(';
        if (!has_shape) {
            const std::size_t before = at_.offset();
            has_shape = !at_.name().empty() && at_.peek_raw() == '[';
            at_.seek(before);
        }
        if (has_shape && !shape(made.shape, 0, &made.layout)) return false;
        made.opcode = at_.name();
        if (made.opcode.empty()) return at_.fail("expected an opcode, found " + at_.found());
        respell(made);
        current_ = {computation, program_.computations[computation].instructions.size(), {}, 0};
        sparse_ = false;
        if (!at_.expect("(", "before the operands of " + made.opcode) || !operands(computation, made) ||
            !attributes([&](std::string_view key) { return attribute(key, made); })) {
            return false;
        }
        // Products of groups of rows, or of sparse operands: the axes alone do not say what is multiplied.
        if (made.opcode == "ragged-dot" || sparse_) made.dot.reset();
        Computation& owner = program_.computations[computation];
        if (!has_shape) infer_shape(owner, made);
        const auto index = static_cast<std::int32_t>(owner.instructions.size());
        if (!instructions_.emplace(name, index).second) {
            return at_.fail_at(start, fmt::format("a second instruction called {} in computation {}",
                                                  escaped(name), escaped(owner.name)));
        }
        if (root) {
            if (owner.root >= 0) return at_.fail_at(start, "a second ROOT in one computation");
            owner.root = index;
        }
        owner.instructions.push_back(std::move(made));
        return true;
    }

    /// XLA prints the start of an asynchronous computation of one instruction as that instruction: dot-start,
    /// call-start. Its result is then (operands, result, …), and what follows it names the end.
    static void respell(Instruction& made) {
        std::string& opcode = made.opcode;
        if (opcode == "opt-barrier") opcode = "optimization-barrier";
        const std::size_t dash = opcode.rfind('-');
        if (dash == opcode.npos || dash == 0) return;
        const std::string base = opcode.substr(0, dash);
        const std::string suffix = opcode.substr(dash);
        static constexpr std::array<std::string_view, 4> kOwn{"async", "copy", "send", "recv"};
        if (is_collective(base) || std::find(kOwn.begin(), kOwn.end(), base) != kOwn.end()) return;
        if (suffix == "-done" || suffix == "-update") {
            opcode = "async" + suffix;
        } else if (suffix == "-start") {
            opcode = base;
            if (made.shape.tuple && made.shape.elements.size() >= 2)
                made.shape = Shape(made.shape.elements[1]);
        }
    }

    /// Only get-tuple-element can be told without knowing what each opcode computes.
    static void infer_shape(const Computation& owner, Instruction& made) {
        if (made.opcode != "get-tuple-element" || made.operands.size() != 1) return;
        const Shape& tuple = owner.instructions[at(made.operands[0])].shape;
        if (tuple.tuple && made.index >= 0 && static_cast<std::size_t>(made.index) < tuple.elements.size()) {
            made.shape = tuple.elements[at(made.index)];
        }
    }

    /// bf16[128,64]{1,0:T(8,128)}, or a tuple of such. An array's order in memory goes into `layout`.
    bool shape(Shape& out, int depth, std::vector<std::int64_t>* layout = nullptr) {
        if (depth >= kMaxProgramNesting) {
            return at_.fail(fmt::format("tuples nested more than {} deep", kMaxProgramNesting));
        }
        if (at_.take("(")) {
            out.tuple = true;
            if (at_.take(")")) return true;
            do {
                if (++num_instructions_ > kMaxInstructions) return at_.fail("too many tuple elements");
                if (!shape(out.elements.emplace_back(), depth + 1)) return false;
            } while (at_.take(","));
            return at_.expect(")", "after a tuple's elements");
        }
        out.dtype = at_.name();
        if (out.dtype.empty()) return at_.fail("expected a shape such as f32[8,16], found " + at_.found());
        if (!at_.expect("[", "after the element type " + escaped(out.dtype))) return false;
        if (!at_.take("]")) {
            do {
                if (out.dims.size() >= kMaxShapeAxes) return at_.fail("an array with too many axes");
                const bool bounded = at_.take("<=");  // a dynamic axis and its bound
                if (!bounded && at_.take("?")) {
                    out.dims.push_back(-1);
                    continue;
                }
                const auto size = at_.integer();
                if (!size || *size < 0) return at_.fail("expected an axis' size, found " + at_.found());
                out.dims.push_back(bounded ? -1 : *size);
            } while (at_.take(","));
            if (!at_.expect("]", "after an array's sizes")) return false;
        }
        // The layout follows at once: a blank before '{' would begin something else.
        if (at_.peek_raw() != '{') return true;
        const std::size_t begin = at_.offset();
        if (!at_.skip_balanced(false)) return false;
        if (layout != nullptr) *layout = order_in_memory(at_.since(begin), out.dims.size());
        return true;
    }

    bool operands(std::size_t computation, Instruction& made) {
        if (made.opcode == "constant") return constant(made);
        if (made.opcode == "parameter") {
            const auto number = at_.integer();
            if (!number || *number < 0)
                return at_.fail("expected a parameter's number, found " + at_.found());
            made.index = *number;
            return at_.expect(")", "after the parameter's number");
        }
        if (at_.take(")")) return true;
        do {
            Shape ignored;
            if (at_.peek() == '(') {
                if (!shape(ignored, 0)) return false;
            } else if (at_.peek() != '%') {
                const std::size_t before = at_.offset();
                const bool typed = !at_.name().empty() && at_.peek_raw() == '[';
                at_.seek(before);
                if (typed && !shape(ignored, 0)) return false;
            }
            at_.skip_blanks();
            const std::size_t start = at_.offset();
            const std::string_view name = reference();
            if (name.empty()) return at_.fail("expected an operand's name, found " + at_.found());
            const auto found = instructions_.find(name);
            if (found == instructions_.end()) {
                return at_.fail_at(
                    start,
                    fmt::format("{} reads {}, which no instruction above it in computation {} is called",
                                escaped(made.name), escaped(name),
                                escaped(program_.computations[computation].name)));
            }
            made.operands.push_back(found->second);
        } while (at_.take(","));
        return at_.expect(")", "after the operands of " + made.opcode);
    }

    /// Keeps whole numbers; skips other literals.
    bool constant(Instruction& made) {
        made.literal_known = true;
        for (int depth = 1; depth > 0;) {
            const char c = at_.peek();
            if (c == '\0') return at_.fail("a constant that never ends");
            if (c == '"') {
                made.literal_known = false;
                if (!at_.skip_string()) return false;
            } else if (c == '{' || c == '(') {
                ++depth;
                at_.advance();
            } else if (c == '}' || c == ')') {
                --depth;
                at_.advance();
            } else if (c == ',') {
                at_.advance();
            } else if (const auto value = at_.integer();
                       value && std::string_view(".eE").find(at_.peek_raw()) == std::string_view::npos) {
                if (made.literal.size() < kMaxLiteral) {
                    made.literal.push_back(*value);
                } else {
                    made.literal_known = false;
                }
            } else {
                const std::size_t start = at_.offset();
                const std::string_view word = at_.name();
                if (word == "true" || word == "false") {
                    if (made.literal.size() < kMaxLiteral) made.literal.push_back(word == "true" ? 1 : 0);
                } else {
                    made.literal_known = false;
                    if (at_.offset() == start) at_.advance();
                }
            }
        }
        if (!made.literal_known) made.literal.clear();
        return true;
    }

    /// ", key=value" as often as it comes; `decode` is called with the cursor at the value.
    template <typename Decode>
    bool attributes(Decode decode) {
        while (at_.take(",")) {
            const std::string_view key = at_.name();
            if (key.empty()) return at_.fail("expected an attribute: NAME=…, found " + at_.found());
            if (!at_.expect("=", fmt::format("after the attribute's name {}", escaped(key)))) return false;
            if (!decode(key)) return false;
        }
        return true;
    }

    /// Any value: a bracket with all that is in it, a string, or what reaches to the next blank or comma.
    bool skip_value() {
        const char c = at_.peek();
        if (c == '"') return at_.skip_string();
        if (c == '{' || c == '[' || c == '(') {
            if (!at_.skip_balanced(false)) return false;
        } else {
            const std::size_t start = at_.offset();
            while (std::string_view(" \t\r\n,(){}[]\"").find(at_.peek_raw()) == std::string_view::npos &&
                   at_.peek_raw() != '\0') {
                at_.advance();
            }
            if (at_.offset() == start) return at_.fail("expected a value, found " + at_.found());
        }
        // What follows at once belongs to it: mesh['x'=2] {'x'}, [2,4]<=[8]T(1,0).
        while (at_.peek_raw() == '[' || at_.peek_raw() == '{' || at_.peek_raw() == '(') {
            if (!at_.skip_balanced(false)) return false;
        }
        return true;
    }

    bool attribute(std::string_view key, Instruction& made) {
        at_.skip_blanks();
        const std::size_t start = at_.offset();
        if (key == "dimensions") return integers(made.dimensions);
        if (key == "sparsity") sparse_ = true;
        if (key == "dynamic_slice_sizes") return integers(made.sizes);
        if (key == "slice_sizes" && is_collective(made.opcode)) made.in_slices = true;
        if (key == "lhs_batch_dims") return integers(axes(made).lhs_batch);
        if (key == "rhs_batch_dims") return integers(axes(made).rhs_batch);
        if (key == "lhs_contracting_dims") return integers(axes(made).lhs_contracting);
        if (key == "rhs_contracting_dims") return integers(axes(made).rhs_contracting);
        if (key == "replica_groups" && is_collective(made.opcode)) {
            return parse_replica_groups(at_, made.groups.emplace());
        }
        if (key == "source_target_pairs") return pairs(made.pairs);
        if (key == "index" && made.opcode == "get-tuple-element") return whole(made.index);
        if (key == "channel_id") return whole(made.channel);
        if (key == "slice") return slices(made);
        if (key == "to_apply" || key == "calls" || key == "condition" || key == "body" ||
            key == "true_computation" || key == "false_computation") {
            return call(key);
        }
        if (key == "branch_computations" || key == "called_computations") return calls();
        if (key == "use_global_device_ids") {
            made.global_ids = at_.take("true");
            return made.global_ids || at_.take("false") || at_.fail("expected true or false");
        }
        if (key == "direction") {
            made.direction = at_.name();
            return true;
        }
        if (key == "literal") {  // of a custom-call: a shape, then the value
            Shape ignored;
            return shape(ignored, 0) && skip_value();
        }
        if (!skip_value()) return false;
        const std::string_view raw = at_.since(start);
        if (key == "backend_config") take_backend_config(raw, made);
        if (key == "metadata") made.source = lines_.line_of(raw);
        if (key == "custom_call_target" && raw.size() >= 2) made.target = raw.substr(1, raw.size() - 2);
        return true;
    }

    static DotAxes& axes(Instruction& made) {
        if (!made.dot) made.dot.emplace();
        return *made.dot;
    }

    bool whole(std::int64_t& out) {
        const auto value = at_.integer();
        if (!value) return at_.fail("expected a whole number, found " + at_.found());
        out = *value;
        return true;
    }

    bool integers(std::vector<std::int64_t>& out) {
        if (!at_.expect("{", "to begin a list of axes")) return false;
        if (at_.take("}")) return true;
        do {
            if (out.size() >= kMaxShapeAxes) return at_.fail("too many axes");
            if (!whole(out.emplace_back())) return false;
        } while (at_.take(","));
        return at_.expect("}", "after a list of axes");
    }

    /// {[0:4], [2:8]}: the starts; none with a stride, which takes no block.
    bool slices(Instruction& made) {
        bool strided = false;
        if (!at_.expect("{", "to begin slices")) return false;
        if (at_.take("}")) return true;
        do {
            std::int64_t ignored = 0, stride = 1;
            if (made.sizes.size() >= kMaxShapeAxes) return at_.fail("too many axes");
            if (!at_.expect("[", "to begin a slice") || !whole(made.sizes.emplace_back()) ||
                !at_.expect(":", "in a slice") || !whole(ignored) || (at_.take(":") && !whole(stride)) ||
                !at_.expect("]", "after a slice")) {
                return false;
            }
            strided = strided || stride != 1;
        } while (at_.take(","));
        if (strided) made.sizes.clear();
        return at_.expect("}", "after slices");
    }

    bool pairs(std::vector<std::pair<std::int32_t, std::int32_t>>& out) {
        if (!at_.expect("{", "to begin pairs of ranks")) return false;
        if (at_.take("}")) return true;
        do {
            if (out.size() >= kMaxParticipants) return at_.fail("too many pairs");
            std::int64_t source = 0;
            std::int64_t target = 0;
            at_.skip_blanks();
            const std::size_t start = at_.offset();
            if (!at_.expect("{", "to begin a pair of ranks") || !whole(source) ||
                !at_.expect(",", "between the ranks of a pair") || !whole(target) ||
                !at_.expect("}", "after a pair of ranks")) {
                return false;
            }
            if (source < 0 || target < 0 || source >= std::int64_t{1} << 20 ||
                target >= std::int64_t{1} << 20) {
                return at_.fail_at(start, "a rank out of range; expected 0 to 2^20");
            }
            out.emplace_back(static_cast<std::int32_t>(source), static_cast<std::int32_t>(target));
        } while (at_.take(","));
        return at_.expect("}", "after pairs of ranks");
    }

    bool call(std::string_view key) {
        at_.skip_blanks();
        Call made = current_;
        made.offset = at_.offset();
        made.name = reference();
        if (made.name.empty()) {
            return at_.fail(
                fmt::format("expected a computation's name after {}=, found {}", key, at_.found()));
        }
        // In `called`, a while's condition comes before its body.
        if (key == "condition" && !calls_.empty() && calls_.back().computation == made.computation &&
            calls_.back().instruction == made.instruction) {
            calls_.insert(calls_.end() - 1, made);
        } else {
            calls_.push_back(made);
        }
        return true;
    }

    bool calls() {
        if (at_.peek() != '{') return call("called_computations");
        at_.advance();
        if (at_.take("}")) return true;
        do {
            if (!call("called_computations")) return false;
        } while (at_.take(","));
        return at_.expect("}", "after the called computations");
    }

    bool resolve() {
        for (const Call& call : calls_) {
            const auto found = by_name_.find(std::string(call.name));
            if (found == by_name_.end()) {
                return at_.fail_at(call.offset,
                                   fmt::format("no computation is called {}", escaped(call.name)));
            }
            program_.computations[call.computation].instructions[call.instruction].called.push_back(
                found->second);
        }
        return true;
    }

    TextCursor at_;
    TensorProgram program_;
    SourceLines lines_;
    std::unordered_map<std::string_view, std::int32_t> instructions_;  // of the computation being read
    std::unordered_map<std::string, std::int32_t> by_name_;
    std::vector<Call> calls_;
    Call current_;
    bool sparse_ = false;  // the instruction being read names a sparse operand
    std::size_t num_instructions_ = 0;
};

}  // namespace

Result<TensorProgram> read_hlo(std::string_view text, const std::string& file_name, std::string_view module) {
    if (text.size() > kMaxProgramBytes) {
        return Error{fmt::format("larger than {} MiB", kMaxProgramBytes >> 20), {file_name}};
    }
    const std::vector<Part> parts = parts_of(text);
    std::vector<std::string_view> names;
    for (const Part& part : parts) names.push_back(part.name);
    const Result<std::size_t> chosen = choose_module(names, module);
    if (!chosen) {
        const std::size_t place = parts.size() > 1 ? parts[1].begin : 0;
        return Error{chosen.error().message, TextCursor(text, file_name).locate(place), ErrorClass::usage};
    }
    const Part& part = parts[*chosen];
    return HloReader(text.substr(0, part.end), part.begin, file_name).read();
}

}  // namespace syncopate::ingest
