#include "ingest/candidates/loop_execution.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace syncopate::ingest {
namespace {

using Kind = LoopValue::Kind;
using Ranks = std::vector<LoopValue>;  // one value for each rank
constexpr int kMaxCalls = 8;           // of fusions in fusions

LoopValue integers(std::vector<std::int64_t> values) {
    LoopValue value;
    value.kind = Kind::integers;
    value.integers = std::move(values);
    return value;
}

std::optional<std::int64_t> scalar(const LoopValue& value) {
    if (value.kind != Kind::integers || value.integers.size() != 1) return std::nullopt;
    return value.integers[0];
}

std::optional<std::int64_t> arithmetic(const Instruction& by, std::int64_t a, std::int64_t b) {
    const std::string& op = by.opcode;
    std::int64_t result = 0;
    if (op == "add") return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    if (op == "subtract") return __builtin_sub_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    if (op == "multiply") return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    const bool divides = b != 0 && !(a == std::numeric_limits<std::int64_t>::min() && b == -1);
    if (op == "remainder") return divides ? std::optional(a % b) : std::nullopt;
    if (op == "divide") return divides ? std::optional(a / b) : std::nullopt;
    if (op == "minimum") return std::min(a, b);
    if (op == "maximum") return std::max(a, b);
    if (op == "and" && by.shape.dtype == "pred") return a != 0 && b != 0;
    if (op == "or" && by.shape.dtype == "pred") return a != 0 || b != 0;
    if (op == "compare") {
        if (by.direction == "EQ") return a == b;
        if (by.direction == "NE") return a != b;
        if (by.direction == "LT") return a < b;
        if (by.direction == "LE") return a <= b;
        if (by.direction == "GT") return a > b;
        if (by.direction == "GE") return a >= b;
    }
    return std::nullopt;
}

/// The bits of the element type decide what wraps: unsigned numbers below zero, and what is too large, are
/// not numbers that this reader knows.
bool fits(const std::string& dtype, std::int64_t value) {
    if (dtype == "pred") return value == 0 || value == 1;
    if (dtype.size() < 2 || (dtype[0] != 's' && dtype[0] != 'u')) return false;
    const int bits = std::atoi(dtype.c_str() + 1);
    if (dtype[0] == 'u' && value < 0) return false;
    if (bits >= 64 || bits < 1) return bits == 64;
    const std::int64_t limit = std::int64_t{1} << (dtype[0] == 'u' ? bits : bits - 1);
    return value < limit && value >= -limit;
}

/// What a copy of the value costs.
std::int64_t weight(const LoopValue& value) {
    auto total = static_cast<std::int64_t>(1 + value.integers.size() + value.contributions.size());
    for (const LoopValue& child : value.children) total += weight(child);
    return total;
}

class Executor {
public:
    Executor(const TensorProgram& program, const Dataflow& flow, std::int32_t num_ranks, bool by_partition,
             std::int64_t& budget)
        : program_(program),
          flow_(flow),
          num_ranks_(static_cast<std::size_t>(num_ranks)),
          by_partition_(by_partition),
          budget_(budget) {
        out_.num_ranks = num_ranks;
    }

    std::optional<LoopExecution> run(Site loop) {
        const Instruction& by = flow_.at(loop);
        if (by.called.size() != 2 || by.operands.size() != 1) return std::nullopt;
        Ranks state = initial({loop.computation, by.operands[0]});
        for (;;) {
            const std::optional<Ranks> goes_on = call(by.called[0], {&state}, 0);
            if (!goes_on) return std::nullopt;
            for (const LoopValue& value : *goes_on) {
                if (scalar(value) != scalar(goes_on->front()) || !scalar(value)) return std::nullopt;
            }
            if (*scalar(goes_on->front()) == 0) break;
            std::optional<Ranks> next = call(by.called[1], {&state}, 0);
            if (!next) return std::nullopt;
            state = *std::move(next);
            ++out_.trips;
        }
        for (LoopValue& value : state) out_.results.push_back(std::move(value.children));
        return std::move(out_);
    }

private:
    /// The tuple that goes into the loop: whole numbers where the text says them, else tokens.
    Ranks initial(Site site) {
        Ranks state(num_ranks_);
        const Instruction& tuple = flow_.at(site);
        const Shape& shape = tuple.shape;
        for (std::size_t element = 0; element < shape.elements.size(); ++element) {
            const LoopValue known = tuple.opcode == "tuple" && element < tuple.operands.size()
                                        ? constant({site.computation, tuple.operands[element]})
                                        : LoopValue{};
            for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
                LoopValue value = known;
                if (value.kind == Kind::unknown) {
                    value.kind = Kind::array;
                    value.element = static_cast<std::int32_t>(element);
                    value.origin = static_cast<std::int32_t>(rank);
                }
                state[rank].kind = Kind::tuple;
                state[rank].children.push_back(std::move(value));
            }
        }
        return state;
    }

    LoopValue constant(Site site) const {
        for (int steps = 0; steps < kMaxCalls; ++steps) {
            const Instruction& by = flow_.at(site);
            const bool whole = by.shape.dtype.starts_with('s') || by.shape.dtype.starts_with('u');
            if (by.opcode == "constant" && by.literal_known && whole) return integers(by.literal);
            const bool same = by.opcode == "copy" || by.opcode == "convert" || by.opcode == "reshape";
            if (!same || by.operands.empty()) break;
            site.instruction = by.operands[0];
        }
        return {};
    }

    /// The computation's result on each rank, for its arguments; nullopt when that takes too long.
    std::optional<Ranks> call(std::int32_t computation, const std::vector<const Ranks*>& arguments,
                              int depth) {
        const Computation& body = program_.computations[static_cast<std::size_t>(computation)];
        std::vector<Ranks> values(body.instructions.size());
        for (std::size_t i = 0; i < body.instructions.size(); ++i) {
            const Site site{computation, static_cast<std::int32_t>(i)};
            const Instruction& by = body.instructions[i];
            Ranks& result = values[i];
            const auto operand = [&](std::size_t k) -> const Ranks& {
                return values[static_cast<std::size_t>(by.operands[k])];
            };
            if (by.opcode == "parameter" && by.index < static_cast<std::int64_t>(arguments.size())) {
                result = *arguments[static_cast<std::size_t>(by.index)];
            } else if ((by.opcode == "fusion" || by.opcode == "call") && by.called.size() == 1 &&
                       depth < kMaxCalls) {
                std::vector<const Ranks*> inner;
                for (std::size_t k = 0; k < by.operands.size(); ++k) inner.push_back(&operand(k));
                std::optional<Ranks> called = call(by.called[0], inner, depth + 1);
                if (!called) return std::nullopt;
                result = *std::move(called);
            } else if (by.opcode == "collective-permute" || by.opcode == "collective-permute-start") {
                if (by.operands.size() == 1) result = permute(site, by, operand(0));
            } else {
                result.resize(num_ranks_);
                for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
                    std::vector<const LoopValue*> of;
                    for (std::size_t k = 0; k < by.operands.size(); ++k) of.push_back(&operand(k)[rank]);
                    result[rank] = compute(site, by, of, static_cast<std::int32_t>(rank));
                }
            }
            result.resize(num_ranks_);
            for (const LoopValue& value : result) budget_ -= weight(value);
            if (budget_ < 0) return std::nullopt;
        }
        return std::move(values[static_cast<std::size_t>(body.root)]);
    }

    Ranks permute(Site site, const Instruction& by, const Ranks& from) {
        Ranks result(num_ranks_);
        const auto note = [](std::vector<std::int32_t>& list, std::int32_t element) {
            if (std::find(list.begin(), list.end(), element) == list.end()) list.push_back(element);
        };
        if (std::find(out_.permutes.begin(), out_.permutes.end(), site) == out_.permutes.end()) {
            out_.permutes.push_back(site);
        }
        for (const auto& [source, target] : by.pairs) {
            const auto s = static_cast<std::size_t>(source);
            const auto t = static_cast<std::size_t>(target);
            if (s >= num_ranks_ || t >= num_ranks_) continue;
            result[t] = from[s];
            if (from[s].kind == Kind::array) note(out_.permuted, from[s].element);
            if (from[s].kind == Kind::sum) note(out_.permuted_sums, from[s].element);
        }
        return result;
    }

    LoopValue compute(Site site, const Instruction& by, const std::vector<const LoopValue*>& of,
                      std::int32_t rank) {
        const std::string& op = by.opcode;
        if (op == "constant") return by.literal_known ? integers(by.literal) : LoopValue{};
        if (op == "partition-id") return integers({by_partition_ ? rank : 0});
        if (op == "replica-id") return integers({by_partition_ ? 0 : rank});
        if (op == "tuple") {
            LoopValue value;
            value.kind = Kind::tuple;
            for (const LoopValue* child : of) value.children.push_back(*child);
            return value;
        }
        if (of.empty()) return {};
        if (op == "get-tuple-element") {
            const auto index = static_cast<std::size_t>(by.index);
            const bool there = of[0]->kind == Kind::tuple && by.index >= 0 && index < of[0]->children.size();
            return there ? of[0]->children[index] : LoopValue{};
        }
        if (op == "dot" || (op == "custom-call" && by.dot)) return product(site, of, rank);
        if (op == "dynamic-slice") return dynamic_slice(by, of);
        if (op == "dynamic-update-slice") return update(site, of);
        if (op == "copy" || op == "convert" || op == "reshape" || op == "bitcast" || op == "transpose" ||
            op == "collective-permute-done" || op == "copy-start" || op == "copy-done" ||
            op == "optimization-barrier") {
            return renamed(site, by, *of[0]);
        }
        if (of.size() == 2 && of[0]->kind == Kind::integers && of[1]->kind == Kind::integers) {
            return elementwise(by, *of[0], *of[1]);
        }
        if (op == "add" && of.size() == 2) return added(*of[0], *of[1]);
        if (op == "select" && of.size() == 3 && scalar(*of[0])) return *scalar(*of[0]) != 0 ? *of[1] : *of[2];
        if (op == "clamp" && of.size() == 3 && scalar(*of[0]) && scalar(*of[1]) && scalar(*of[2])) {
            return integers({std::min(std::max(*scalar(*of[0]), *scalar(*of[1])), *scalar(*of[2]))});
        }
        return {};
    }

    static LoopValue elementwise(const Instruction& by, const LoopValue& a, const LoopValue& b) {
        if (a.integers.size() != b.integers.size()) return {};
        LoopValue value = integers({});
        for (std::size_t i = 0; i < a.integers.size(); ++i) {
            const auto result = arithmetic(by, a.integers[i], b.integers[i]);
            if (!result || !fits(by.shape.dtype, *result)) return {};
            value.integers.push_back(*result);
        }
        return value;
    }

    static LoopValue renamed(Site site, const Instruction& by, const LoopValue& from) {
        const bool moves = by.opcode == "reshape" || by.opcode == "bitcast" || by.opcode == "transpose";
        if (from.kind == Kind::integers) {
            if (by.opcode == "transpose" && from.integers.size() > 1) return {};
            for (const std::int64_t value : from.integers) {
                if (by.opcode == "convert" && !fits(by.shape.dtype, value)) return {};
            }
            return from;
        }
        if (!moves) return from;
        if (from.kind != Kind::product) return {};
        LoopValue value = from;
        for (Contribution& made : value.contributions) made.reshaped.push_back(site);
        return value;
    }

    /// Each operand that is a rank's array may be the shard that goes round, or a weight that stays: which it
    /// is shows only when the loop has ended. So the product has one contribution for each.
    static LoopValue product(Site site, const std::vector<const LoopValue*>& of, std::int32_t rank) {
        if (of.size() < 2) return {};
        Contribution made;
        made.dot = site;
        made.rank = rank;
        for (std::size_t k = 0; k < 2; ++k) {
            if (of[k]->kind != Kind::slice) continue;
            if (made.sliced >= 0 || of[k]->origin != rank) return {};
            made.sliced = of[k]->element;
            made.slice_is_rhs = k == 1;
            made.slice_at = of[k]->integers;
        }
        LoopValue value;
        value.kind = Kind::product;
        for (std::size_t k = 0; k < 2; ++k) {
            if (of[k]->kind != Kind::array) continue;
            Contribution& as_shard = value.contributions.emplace_back(made);
            as_shard.shard = of[k]->element;
            as_shard.origin = of[k]->origin;
            as_shard.shard_is_rhs = k == 1;
        }
        if (value.contributions.empty() && made.sliced >= 0) value.contributions.push_back(made);
        return value.contributions.empty() ? LoopValue{} : value;
    }

    static LoopValue dynamic_slice(const Instruction& by, const std::vector<const LoopValue*>& of) {
        std::vector<std::int64_t> starts;
        for (std::size_t k = 1; k < of.size(); ++k) {
            const auto start = scalar(*of[k]);
            if (!start) return {};
            starts.push_back(*start);
        }
        if (of[0]->kind == Kind::integers) {  // a look-up in a table
            if (starts.size() != 1 || by.sizes.size() != 1) return {};
            const auto size = static_cast<std::int64_t>(of[0]->integers.size());
            if (by.sizes[0] < 1 || by.sizes[0] > size) return {};
            const std::int64_t start = std::clamp<std::int64_t>(starts[0], 0, size - by.sizes[0]);
            const auto begin = of[0]->integers.begin() + start;
            return integers({begin, begin + by.sizes[0]});
        }
        if (of[0]->kind != Kind::array) return {};
        LoopValue value = *of[0];
        value.kind = Kind::slice;
        value.integers = std::move(starts);
        return value;
    }

    LoopValue update(Site site, const std::vector<const LoopValue*>& of) {
        if (of.size() < 3 || of[0]->kind != Kind::array || of[1]->kind != Kind::product) return {};
        LoopWrite write;
        write.into = of[0]->element;
        write.site = site;
        for (std::size_t k = 2; k < of.size(); ++k) {
            const auto start = scalar(*of[k]);
            if (!start) return {};
            write.at.push_back(*start);
        }
        for (const Contribution& product : of[1]->contributions) {
            write.product = product;
            out_.writes.push_back(write);
        }
        return *of[0];
    }

    static LoopValue added(const LoopValue& a, const LoopValue& b) {
        const LoopValue& product = a.kind == Kind::product ? a : b;
        const LoopValue& into = a.kind == Kind::product ? b : a;
        if (product.kind != Kind::product || (into.kind != Kind::array && into.kind != Kind::sum)) return {};
        LoopValue value = into;
        value.kind = Kind::sum;
        value.contributions.insert(value.contributions.end(), product.contributions.begin(),
                                   product.contributions.end());
        return value;
    }

    const TensorProgram& program_;
    const Dataflow& flow_;
    std::size_t num_ranks_;
    bool by_partition_;
    std::int64_t& budget_;
    LoopExecution out_;
};

}  // namespace

std::optional<LoopExecution> execute_loop(const TensorProgram& program, const Dataflow& flow, Site loop,
                                          std::int32_t num_ranks, bool by_partition, std::int64_t& budget) {
    return Executor(program, flow, num_ranks, by_partition, budget).run(loop);
}

}  // namespace syncopate::ingest
