#include "syncopate/ingest/stablehlo/stablehlo.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "ingest/stablehlo/mlir_mesh.hpp"
#include "ingest/stablehlo/mlir_text.hpp"
#include "syncopate/at.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ingest {
namespace {

/// dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, array<i64: 1, 0>, [1, 0] or 3 : i64.
struct Numbers {
    std::vector<std::int64_t> values;
    std::vector<std::int64_t> shape;  ///< as the type says; empty: none, or a scalar
    bool splat = false;               ///< one value stands for all
    bool known = true;                ///< all are whole numbers, and few
};

/// 4, -1, 0.000000e+00: a number without a fraction; nothing for others.
std::optional<std::int64_t> whole(TextCursor& at) {
    const std::size_t begin = (at.skip_blanks(), at.offset());
    const auto value = at.integer();
    const char next = at.peek_raw();
    if (next == 'x' || (!value && next != '.')) return std::nullopt;
    if (next != '.' && next != 'e' && next != 'E') return value;
    double real = 0;
    const char* const end = at.text().data() + at.text().size();
    const auto [stop, error] = std::from_chars(at.text().data() + begin, end, real);
    constexpr double kMost = 1e15;
    if (error != std::errc{} || real != std::trunc(real) || std::abs(real) > kMost) return std::nullopt;
    at.seek(static_cast<std::size_t>(stop - at.text().data()));
    return static_cast<std::int64_t>(real);
}

Numbers numbers_in(std::string_view text, const std::string& file_name) {
    Numbers read;
    TextCursor at(text, file_name);
    const bool dense = at.take("dense");
    if (dense && !at.take("<")) return read;
    if (!dense && at.take("array") &&
        (!at.take("<") || at.name().empty() || (!at.take(":") && at.peek() != '>'))) {
        read.known = false;
        return read;
    }
    read.splat = dense && at.peek() != '[';
    while (!at.at_end() && at.peek() != '>' && at.peek() != ':') {
        const char c = at.peek();
        if (c == '[' || c == ']' || c == ',') {
            at.advance();
        } else if (at.take("true")) {
            read.values.push_back(1);
        } else if (at.take("false")) {
            read.values.push_back(0);
        } else {
            const auto value = whole(at);
            if (!value || read.values.size() >= kMaxParticipants) {
                read.known = false;
                return read;
            }
            read.values.push_back(*value);
        }
    }
    if (at.take(">") && at.take(":")) {
        Shape type;
        if (parse_mlir_type(at, type)) read.shape = type.dims;
    }
    return read;
}

bool is_module(const MlirOp& op) { return op.name == "module" || op.name == "builtin.module"; }

/// Makes instructions of operations. Each method returns false once an error is recorded.
class Translator {
public:
    Translator(std::string_view text, const std::string& file_name, const MlirAliases& aliases)
        : at_(text, file_name), file_name_(file_name), aliases_(aliases) {}

    /// Modules at the top stand side by side, each with functions and meshes of its own, as do the functions
    /// between them. With `module` only that one is read.
    Result<TensorProgram> translate(std::span<const MlirOp> ops, std::string_view module) {
        std::vector<std::string_view> names;
        std::vector<std::size_t> places;
        for (std::size_t i = 0; i < ops.size(); ++i) {
            if (!is_module(ops[i])) continue;
            names.push_back(ops[i].symbol);
            places.push_back(i);
        }
        if (!module.empty()) {
            const Result<std::size_t> chosen = choose_module(names, module);
            if (!chosen) return Error{chosen.error().message, at_.locate(0), ErrorClass::usage};
            ops = ops.subspan(places[*chosen], 1);
            names = {names[*chosen]};
        }
        program_.modules.assign(names.begin(), names.end());
        for (std::size_t begin = 0, end = 0; begin < ops.size(); begin = end) {
            for (++end; end < ops.size() && !is_module(ops[end]) && !is_module(ops[begin]);) ++end;
            if (!unit(ops.subspan(begin, end - begin))) return at_.error();
        }
        if (program_.computations.empty()) {
            at_.fail_at(0, "no function");
            return at_.error();
        }
        if (mains_.size() == 1) program_.entry = mains_.front();
        return std::move(program_);
    }

private:
    /// A value: an instruction of the computation being made.
    using Scope = std::unordered_map<std::string_view, std::vector<std::int32_t>>;

    /// A module, or functions outside of any.
    bool unit(std::span<const MlirOp> ops) {
        meshes_.clear();
        functions_.clear();
        calls_.clear();
        if (!top(ops)) return false;
        follow_calls();
        return true;
    }

    bool top(std::span<const MlirOp> ops) {
        for (const MlirOp& op : ops) {
            if (op.name == "sdy.mesh") add_mesh(op, at_.text(), meshes_);
        }
        for (const MlirOp& op : ops) {
            if (is_module(op)) {
                for (const auto& [name, out] : {std::pair{"mhlo.num_replicas", &program_.replicas},
                                                std::pair{"mhlo.num_partitions", &program_.partitions}}) {
                    const MlirAttribute* const said = op.find(name);
                    if (said == nullptr) continue;
                    const Numbers count = numbers_in(said->value, file_name_);
                    if (count.values.size() != 1 || count.values[0] < 1 || count.values[0] > 1 << 20) {
                        return at_.fail_at(said->offset, fmt::format("{} is no count from 1 to 2^20", name));
                    }
                    if (*out != 0 && *out != count.values[0]) {
                        return at_.fail_at(said->offset,
                                           fmt::format("{} is {}, and {} in another module; choose one "
                                                       "module with --module, by its name or number",
                                                       name, count.values[0], *out));
                    }
                    *out = count.values[0];
                }
                if (program_.name.empty()) program_.name = op.symbol;
                for (const MlirRegion& region : op.regions) {
                    if (!top(region.ops)) return false;
                }
            } else if ((op.name == "func.func" || op.name == "func") && !op.regions.empty()) {
                const auto made =
                    computation(op.regions[0], std::string(op.symbol), op.offset, false, nullptr);
                if (!made) return false;
                functions_.emplace(op.symbol, *made);
            }
        }
        return true;
    }

    /// The region as a computation. `tupled`: its arguments are the elements of one tuple, as HLO's loops
    /// have.
    std::optional<std::int32_t> computation(const MlirRegion& region, std::string name, std::size_t offset,
                                            bool tupled, const std::vector<Shape>* types) {
        const auto index = static_cast<std::int32_t>(program_.computations.size());
        program_.computations.emplace_back();
        program_.computations.back().name = std::move(name);
        program_.computations.back().where = at_.locate(offset);
        const std::int32_t outer = std::exchange(current_, index);
        scopes_.emplace_back();
        owners_.push_back(index);
        Shape tuple;
        tuple.tuple = true;
        for (std::size_t i = 0; i < region.arguments.size(); ++i) {
            Shape type = region.arguments[i].type;
            if (type.dtype.empty() && types != nullptr && i < types->size()) type = (*types)[i];
            tuple.elements.push_back(type);
        }
        if (tupled) {
            Instruction all = instruction("parameter", "arguments", offset);
            all.index = 0;
            all.shape = tuple;
            add(std::move(all));
        }
        for (std::size_t i = 0; i < region.arguments.size(); ++i) {
            const MlirArgument& argument = region.arguments[i];
            Instruction made =
                instruction(tupled ? "get-tuple-element" : "parameter", std::string(argument.name), offset);
            made.index = static_cast<std::int64_t>(i);
            made.shape = tuple.elements[i];
            if (tupled) made.operands = {0};
            scopes_.back()[argument.name] = {add(std::move(made))};
        }
        for (const MlirOp& op : region.ops) {
            if (!translate_op(op)) return std::nullopt;
        }
        Computation& done = here();
        if (done.instructions.empty()) add(instruction("tuple", "nothing", offset));
        if (done.root < 0) here().root = static_cast<std::int32_t>(here().instructions.size()) - 1;
        scopes_.pop_back();
        owners_.pop_back();
        current_ = outer;
        return index;
    }

    Computation& here() { return program_.computations[at(current_)]; }

    Instruction instruction(std::string opcode, std::string name, std::size_t offset) {
        Instruction made;
        made.opcode = std::move(opcode);
        made.name = std::move(name);
        made.where = at_.locate(offset);
        return made;
    }

    std::int32_t add(Instruction made) {
        here().instructions.push_back(std::move(made));
        return static_cast<std::int32_t>(here().instructions.size()) - 1;
    }

    /// The instruction that a use names; -1 after an error.
    std::int32_t value(const MlirUse& use) {
        for (std::size_t depth = scopes_.size(); depth-- > 0;) {
            const auto found = scopes_[depth].find(use.name);
            if (found == scopes_[depth].end()) continue;
            if (static_cast<std::size_t>(use.result) >= found->second.size()) {
                at_.fail_at(use.offset,
                            fmt::format("{} has {} results", escaped(use.name), found->second.size()));
                return -1;
            }
            const std::int32_t from = found->second[at(use.result)];
            if (from < 0) continue;  // another result of the same operation was captured
            if (depth + 1 == scopes_.size()) return from;
            // From outside of the region: an instruction that stands for it here.
            Instruction captured = instruction("captured", std::string(use.name), use.offset);
            captured.outer = {owners_[depth], from};
            captured.shape = program_.computations[at(owners_[depth])].instructions[at(from)].shape;
            const std::size_t results = found->second.size();
            std::vector<std::int32_t>& kept = scopes_.back()[use.name];
            kept.resize(results, -1);
            return kept[at(use.result)] = add(std::move(captured));
        }
        at_.fail_at(use.offset, fmt::format("reads {}, which nothing above defines", escaped(use.name)));
        return -1;
    }

    bool translate_op(const MlirOp& op) {
        std::string_view name = op.name;
        for (const std::string_view dialect : {"stablehlo.", "mhlo.", "chlo.", "func."}) {
            if (name.starts_with(dialect)) name.remove_prefix(dialect.size());
        }
        if (name == "return" || op.name == "sdy.return") return returned(op);
        Instruction made = instruction(
            opcode_of(op.name, name),
            op.results.empty() ? std::string(op.name) : std::string(op.results[0].first), op.offset);
        made.source = line_of(op.location, aliases_);
        for (const MlirUse& use : op.operands) {
            const std::int32_t from = value(use);
            if (from < 0) return false;
            made.operands.push_back(from);
        }
        if (op.result_types.size() == 1) {
            made.shape = op.result_types[0];
        } else {
            made.shape.tuple = true;
            made.shape.elements = op.result_types;
        }
        if (!attributes(op, made)) return false;
        if (made.opcode == "while") return loop(op, std::move(made));
        if (made.opcode == "optimization-barrier" && made.operands.size() > 1)
            made.operands = {tuple_of(made.operands, made.name + ".operands", op.offset)};
        const std::size_t regions = op.regions.size();
        for (std::size_t i = 0; i < regions; ++i) {
            const auto called = computation(op.regions[i], fmt::format("{}.{}", made.name, op.name),
                                            op.offset, false, nullptr);
            if (!called) return false;
            made.called.push_back(*called);
        }
        if (made.opcode == "call" && regions == 0) {
            const MlirAttribute* said = op.find("callee");
            if (said == nullptr) said = op.find("decomposition");  // of a composite
            calls_.push_back({current_, -1, said != nullptr ? callee(*said) : op.symbol});
        }
        const std::int32_t index = add(std::move(made));
        if (!calls_.empty() && calls_.back().instruction < 0) calls_.back().instruction = index;
        bind(op, index);
        return true;
    }

    static std::string_view callee(const MlirAttribute& attribute) {
        std::string_view name = attribute.value;
        if (name.starts_with('@')) name.remove_prefix(1);
        return name.substr(0, name.find_first_of(" :"));
    }

    static std::string opcode_of(std::string_view full, std::string_view name) {
        if (full.starts_with("sdy.")) return full == "sdy.manual_computation" ? "call" : std::string(full);
        if (name == "dot_general") return "dot";
        if (name == "composite") return "call";  // of its decomposition
        if (name == "case" || name == "if") return "conditional";
        std::string opcode(name);
        std::replace(opcode.begin(), opcode.end(), '_', '-');
        return opcode;
    }

    /// Gives the results their names; several become elements of a tuple.
    void bind(const MlirOp& op, std::int32_t index) {
        const std::int64_t count = op.num_results();
        std::int64_t element = 0;
        for (const auto& [name, results] : op.results) {
            std::vector<std::int32_t>& values = scopes_.back()[name];
            values.clear();
            for (std::int64_t i = 0; i < results; ++i, ++element) {
                if (count == 1) {
                    values.push_back(index);
                    continue;
                }
                Instruction part = instruction("get-tuple-element", fmt::format("{}#{}", name, i), op.offset);
                part.operands = {index};
                part.index = element;
                if (static_cast<std::size_t>(element) < op.result_types.size()) {
                    part.shape = op.result_types[at(element)];
                }
                values.push_back(add(std::move(part)));
            }
        }
    }

    bool returned(const MlirOp& op) {
        std::vector<std::int32_t> values;
        for (const MlirUse& use : op.operands) {
            values.push_back(value(use));
            if (values.back() < 0) return false;
        }
        here().root = values.size() == 1 ? values[0] : tuple_of(std::move(values), "return", op.offset);
        return true;
    }

    std::int32_t tuple_of(std::vector<std::int32_t> values, std::string name, std::size_t offset) {
        Instruction tuple = instruction("tuple", std::move(name), offset);
        tuple.shape.tuple = true;
        for (const std::int32_t from : values) {
            tuple.shape.elements.push_back(here().instructions[at(from)].shape);
        }
        tuple.operands = std::move(values);
        return add(std::move(tuple));
    }

    /// HLO's loops take and give one tuple.
    bool loop(const MlirOp& op, Instruction made) {
        if (op.regions.size() != 2) return at_.fail_at(op.offset, "a while without a condition and a body");
        const std::int32_t tuple = tuple_of(made.operands, made.name + ".init", op.offset);
        made.operands = {tuple};
        made.shape = here().instructions[at(tuple)].shape;
        const std::vector<Shape> types = made.shape.elements;
        for (std::size_t i = 0; i < 2; ++i) {
            const auto called =
                computation(op.regions[i], made.name + (i == 0 ? ".cond" : ".body"), op.offset, true, &types);
            if (!called) return false;
            made.called.push_back(*called);
        }
        // A body with one result returns it as it is.
        Computation& body = program_.computations[at(made.called[1])];
        if (types.size() == 1) {
            Instruction wrapped;
            wrapped.opcode = "tuple";
            wrapped.name = "return";
            wrapped.shape.tuple = true;
            wrapped.shape.elements = types;
            wrapped.operands = {body.root};
            body.instructions.push_back(std::move(wrapped));
            body.root = static_cast<std::int32_t>(body.instructions.size()) - 1;
        }
        const std::int32_t index = add(std::move(made));
        if (op.num_results() != 1) {
            bind(op, index);
            return true;
        }
        Instruction only = instruction("get-tuple-element", std::string(op.results[0].first), op.offset);
        only.operands = {index};
        only.index = 0;
        if (!types.empty()) only.shape = types[0];
        scopes_.back()[op.results[0].first] = {add(std::move(only))};
        return true;
    }

    bool attributes(const MlirOp& op, Instruction& made) {
        if (made.opcode == "dot") {
            DotAxes& dot = made.dot.emplace();
            if (made.operands.size() < 2) return at_.fail_at(op.offset, "a dot needs two operands");
            if (op.name.ends_with(".dot")) {  // the last axis of the left with the first of the right
                const Shape& lhs = here().instructions[at(made.operands[0])].shape;
                dot.lhs_contracting = {static_cast<std::int64_t>(lhs.dims.size()) - 1};
                dot.rhs_contracting = {0};
            }
        }
        if (made.opcode == "compare" && !op.words.empty()) made.direction = op.words[0];
        if (made.opcode == "custom-call") made.target = op.symbol;
        for (const MlirAttribute& attribute : op.attributes) {
            if (!take(op, attribute, made)) return false;
        }
        // Over a list of arrays it has neither.
        if (made.opcode == "all-to-all" && made.dimensions.empty() != (made.concat_dimension < 0))
            return at_.fail_at(op.offset, "an all_to_all needs both split_dimension and concat_dimension");
        return true;
    }

    bool take(const MlirOp& op, const MlirAttribute& attribute, Instruction& made) {
        const std::string_view key = attribute.name;
        const auto number = [&](std::int64_t& out) {
            const Numbers read = numbers_in(attribute.value, file_name_);
            if (!read.known || read.values.size() != 1) {
                return at_.fail_at(attribute.offset, fmt::format("{} is no whole number", escaped(key)));
            }
            out = read.values[0];
            return true;
        };
        if (key == "all_gather_dim" || key == "scatter_dimension" || key == "split_dimension") {
            return number(made.dimensions.emplace_back());
        }
        if (key == "concat_dimension") return number(made.concat_dimension);
        if (key == "split_count") return number(made.split_count);
        if (key == "index" && made.opcode == "get-tuple-element") return number(made.index);
        if (key == "channel_id") return number(made.channel);
        if (key == "channel_handle") {
            const std::size_t handle = attribute.value.find("handle", attribute.value.find('<'));
            TextCursor at(attribute.value, file_name_);
            if (handle == attribute.value.npos)
                return at_.fail_at(attribute.offset, "a channel without a handle");
            at.seek(handle + 6);
            const auto said = at.take("=") ? at.integer() : std::nullopt;
            if (!said) return at_.fail_at(attribute.offset, "a channel without a handle");
            made.channel = *said;
            return true;
        }
        if (key == "use_global_device_ids") {
            made.global_ids = attribute.value != "false";
            return true;
        }
        if (key == "replica_groups") return groups(attribute, made);
        if (key == "source_target_pairs") return pairs(attribute, made);
        const bool of_axes = made.opcode == "transpose" || made.opcode == "broadcast-in-dim";
        if (key == "permutation" || key == "broadcast_dimensions" || (key == "dims" && of_axes)) {
            made.dimensions = numbers_in(attribute.value, file_name_).values;
            return true;
        }
        if (key == "slice_sizes" || (key == "sizes" && made.opcode == "dynamic-slice")) {
            made.sizes = numbers_in(attribute.value, file_name_).values;
            return true;
        }
        if (key == "value" && made.opcode == "constant") return literal(attribute, made);
        if (key == "call_target_name" && attribute.value.size() >= 2) {
            made.target = attribute.value.substr(1, attribute.value.size() - 2);
        }
        if (key == "comparison_direction") {
            const std::size_t word = attribute.value.rfind(' ');
            made.direction = attribute.value.substr(word == attribute.value.npos ? 0 : word + 1);
            if (made.direction.ends_with('>')) made.direction.pop_back();
        }
        if (made.dot && op.name.ends_with("dot_general")) dot_axes(attribute, *made.dot);
        return true;
    }

    /// dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], …>, or contracting_dims = [1] x
    /// [0].
    void dot_axes(const MlirAttribute& attribute, DotAxes& dot) const {
        const std::string_view value = attribute.value;
        const auto list = [&](std::size_t from) {
            const std::size_t begin = value.find('[', from);
            if (from == value.npos || begin == value.npos) return std::vector<std::int64_t>{};
            return numbers_in(value.substr(begin, value.find(']', begin) - begin + 1), file_name_).values;
        };
        if (attribute.name == "dot_dimension_numbers") {
            dot.lhs_batch = list(value.find("lhs_batching_dimensions"));
            dot.rhs_batch = list(value.find("rhs_batching_dimensions"));
            dot.lhs_contracting = list(value.find("lhs_contracting_dimensions"));
            dot.rhs_contracting = list(value.find("rhs_contracting_dimensions"));
        } else if (attribute.name == "contracting_dims" || attribute.name == "batching_dims") {
            const bool batch = attribute.name == "batching_dims";
            (batch ? dot.lhs_batch : dot.lhs_contracting) = list(0);
            const std::size_t second = value.find(']');
            (batch ? dot.rhs_batch : dot.rhs_contracting) = list(second);
        }
    }

    bool groups(const MlirAttribute& attribute, Instruction& made) {
        ReplicaGroups& out = made.groups.emplace();
        if (attribute.value.starts_with("#stablehlo.replica_group_mesh_axes")) {
            out = groups_along(attribute.value, meshes_);
            return true;
        }
        const Numbers read = numbers_in(attribute.value, file_name_);
        if (!attribute.value.starts_with("dense")) {
            out.problem = "a form other than dense<…> and mesh axes, which is not taken";
            return true;
        }
        if (!read.known) {
            out.problem = "dense<…> that holds something else than whole numbers, or too many";
            return true;
        }
        if (read.values.empty()) return true;  // dense<>: everybody
        if (read.shape.size() != 2 || read.shape[0] < 1 || read.shape[1] < 1) {
            return at_.fail_at(attribute.offset, "replica_groups has no type tensor<GROUPSxSIZExi64>");
        }
        const auto size = static_cast<std::size_t>(read.shape[1]);
        if (read.values.size() % size != 0 ||
            static_cast<std::int64_t>(read.values.size() / size) != read.shape[0]) {
            return at_.fail_at(attribute.offset, "replica_groups and its type differ in size");
        }
        for (std::size_t i = 0; i < read.values.size(); ++i) {
            if (i % size == 0) out.groups.emplace_back();
            const std::int64_t id = read.values[i];
            if (id == -1) continue;  // fills up a group that is smaller
            if (id < 0 || id >= static_cast<std::int64_t>(kMaxParticipants)) {
                return at_.fail_at(attribute.offset, "a replica's number out of range");
            }
            out.groups.back().push_back(static_cast<std::int32_t>(id));
        }
        return true;
    }

    bool pairs(const MlirAttribute& attribute, Instruction& made) {
        const Numbers read = numbers_in(attribute.value, file_name_);
        if (!read.known || read.values.size() % 2 != 0) {
            return at_.fail_at(attribute.offset, "source_target_pairs is no list of pairs of whole numbers");
        }
        for (std::size_t i = 0; i < read.values.size(); i += 2) {
            for (const std::int64_t id : {read.values[i], read.values[i + 1]}) {
                if (id < 0 || id >= std::int64_t{1} << 20) {
                    return at_.fail_at(attribute.offset, "a rank out of range; expected 0 to 2^20");
                }
            }
            made.pairs.emplace_back(static_cast<std::int32_t>(read.values[i]),
                                    static_cast<std::int32_t>(read.values[i + 1]));
        }
        return true;
    }

    bool literal(const MlirAttribute& attribute, Instruction& made) const {
        Numbers read = numbers_in(attribute.value, file_name_);
        std::int64_t count = 1;
        for (const std::int64_t size : made.shape.dims) {
            if (size < 0 || __builtin_mul_overflow(count, size, &count)) return true;
        }
        if (!read.known || count > static_cast<std::int64_t>(kMaxLiteral)) return true;
        if (read.splat && read.values.size() == 1) {
            read.values.assign(static_cast<std::size_t>(count), read.values[0]);
        }
        made.literal_known = static_cast<std::int64_t>(read.values.size()) == count;
        if (made.literal_known) made.literal = std::move(read.values);
        return true;
    }

    void follow_calls() {
        for (const Call& call : calls_) {
            // Of several functions of one name (split files) none is followed.
            const auto [first, last] = functions_.equal_range(call.name);
            if (first == last || std::next(first) != last) continue;
            program_.computations[at(call.computation)].instructions[at(call.instruction)].called.push_back(
                first->second);
        }
        const auto [first, last] = functions_.equal_range("main");
        for (auto main = first; main != last; ++main) mains_.push_back(main->second);
    }

    struct Call {
        std::int32_t computation = -1;
        std::int32_t instruction = -1;
        std::string_view name;
    };

    TextCursor at_;
    const std::string& file_name_;
    const MlirAliases& aliases_;
    TensorProgram program_;
    std::int32_t current_ = -1;
    std::vector<Scope> scopes_;
    std::vector<std::int32_t> owners_;  // of the scopes: their computations
    std::multimap<std::string_view, std::int32_t> functions_;
    MlirMeshes meshes_;
    std::vector<Call> calls_;
    std::vector<std::int32_t> mains_;  // of all modules
};

}  // namespace

Result<TensorProgram> read_stablehlo(std::string_view text, const std::string& file_name,
                                     std::string_view module) {
    MlirAliases aliases;
    SYNCOPATE_TAKE(std::vector<MlirOp> ops, parse_mlir(text, file_name, aliases));
    return Translator(text, file_name, aliases).translate(ops, module);
}

}  // namespace syncopate::ingest
