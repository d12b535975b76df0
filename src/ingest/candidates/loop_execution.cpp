#include "ingest/candidates/loop_execution.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "ingest/candidates/neighbours.hpp"
#include "ingest/candidates/whole_numbers.hpp"
#include "syncopate/at.hpp"

namespace syncopate::ingest {
namespace {

using Kind = LoopValue::Kind;
using Ranks = std::vector<LoopValue>;  // one value for each rank
constexpr int kMaxCalls = 8;           // of fusions in fusions
constexpr int kMaxOutside = 64;        // instructions that are followed in a row before the loop
constexpr std::size_t kMaxLosses = 64;

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

LoopValue unknown(Site because) {
    LoopValue value;
    value.because = because;
    return value;
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

    LoopExecution run(Site loop) {
        const Instruction& by = flow_.at(loop);
        if (by.called.size() != 2 || by.operands.size() != 1) return failed("has no condition and body");
        Ranks state = initial({loop.computation, by.operands[0]});
        out_.losses.clear();
        out_.permutes.clear();
        for (;;) {
            const std::optional<Ranks> goes_on = call(by.called[0], {&state}, 0);
            if (!goes_on) return failed("takes too many steps to be executed here");
            for (const LoopValue& value : *goes_on) {
                if (!scalar(value)) return failed(depends(value));
                if (scalar(value) != scalar(goes_on->front()))
                    return failed("runs more often on one rank than on another");
            }
            if (*scalar(goes_on->front()) == 0) break;
            std::optional<Ranks> next = call(by.called[1], {&state}, 0);
            if (!next) return failed("takes too many steps to be executed here");
            state = *std::move(next);
            ++out_.trips;
        }
        for (LoopValue& value : state) out_.results.push_back(std::move(value.children));
        return std::move(out_);
    }

private:
    LoopExecution failed(std::string problem) {
        out_.problem = std::move(problem);
        return std::move(out_);
    }

    [[nodiscard]] std::string depends(const LoopValue& condition) const {
        if (condition.because.computation < 0) return "goes on for as long as its data says";
        return fmt::format("goes on for as long as {} says, whose value is not known here",
                           named(flow_.at(condition.because)));
    }

    /// The tuple that goes into the loop: whole numbers where they can be computed, else tokens.
    Ranks initial(Site site) {
        Ranks state(num_ranks_);
        const Instruction& tuple = flow_.at(site);
        const Shape& shape = tuple.shape;
        for (std::size_t element = 0; element < shape.elements.size(); ++element) {
            const Ranks known = is_whole(shape.elements[element].dtype)
                                    ? element_of(site, static_cast<std::int64_t>(element), 0)
                                    : Ranks(num_ranks_);
            for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
                LoopValue value = known[rank];
                if (value.kind != Kind::integers) {
                    value = unknown(value.because);
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

    /// Element `index` of the tuple at `site`, outside of the loop.
    Ranks element_of(Site site, std::int64_t index, int depth) {
        const Instruction& by = flow_.at(site);
        const auto k = static_cast<std::size_t>(index);
        if (depth > kMaxOutside || index < 0) return Ranks(num_ranks_, unknown(site));
        if (by.opcode == "tuple" && k < by.operands.size())
            return outside({site.computation, by.operands[k]}, depth + 1);
        if ((by.opcode == "optimization-barrier" || by.opcode == "copy") && !by.operands.empty())
            return element_of({site.computation, by.operands[0]}, index, depth + 1);
        if (by.opcode == "parameter") {  // of an outer loop, which passes it on as it is
            const auto from = flow_.invariant(site, index);
            return from ? element_of(*from, index, depth + 1) : Ranks(num_ranks_, unknown(site));
        }
        Ranks tuple = outside(site, depth + 1);
        for (LoopValue& value : tuple) {
            const bool there = value.kind == Kind::tuple && k < value.children.size();
            value = there ? LoopValue(value.children[k]) : unknown(site);
        }
        return tuple;
    }

    /// What is known of an instruction that is not in the loop.
    Ranks outside(Site site, int depth) {
        if (const auto known = outside_.find(site); known != outside_.end()) return known->second;
        // Until it is known it is unknown: functions may call themselves.
        outside_.emplace(site, Ranks(num_ranks_, unknown(site)));
        if (depth > kMaxOutside || budget_ < 0) return outside_.at(site);
        Ranks value = compute_outside(site, depth + 1);
        value.resize(num_ranks_);
        for (const LoopValue& each : value) budget_ -= weight(each);
        return outside_.at(site) = std::move(value);
    }

    Ranks compute_outside(Site site, int depth) {
        const Instruction& by = flow_.at(site);
        if (!by.shape.tuple && !is_whole(by.shape.dtype)) return Ranks(num_ranks_, unknown(site));
        if (by.opcode == "parameter" || by.opcode == "captured") {
            const auto from = flow_.passed(site);
            return from ? outside(*from, depth) : Ranks(num_ranks_, unknown(site));
        }
        if (by.opcode == "get-tuple-element" && by.operands.size() == 1)
            return element_of({site.computation, by.operands[0]}, by.index, depth);
        const bool wraps = is_wrapper(by);
        if (!wraps && !by.called.empty()) return Ranks(num_ranks_, unknown(site));
        std::vector<Ranks> operands;
        for (const std::int32_t operand : by.operands)
            operands.push_back(outside({site.computation, operand}, depth));
        if (!wraps) return on_each_rank(site, by, operands);
        std::vector<const Ranks*> arguments;
        for (const Ranks& operand : operands) arguments.push_back(&operand);
        const auto& body = program_.computations[at(by.called[0])].instructions;
        constexpr std::size_t kMost = 512;  // a whole model is not executed for an index
        auto called = body.size() <= kMost ? call(by.called[0], arguments, 1) : std::nullopt;
        return called ? *std::move(called) : Ranks(num_ranks_, unknown(site));
    }

    Ranks on_each_rank(Site site, const Instruction& by, const std::vector<Ranks>& operands) {
        Ranks result(num_ranks_);
        for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
            std::vector<const LoopValue*> of;
            for (const Ranks& operand : operands) of.push_back(&operand[rank]);
            result[rank] = compute(site, by, of, static_cast<std::int32_t>(rank));
        }
        return result;
    }

    /// The computation's result on each rank, for its arguments; nullopt when that takes too long.
    std::optional<Ranks> call(std::int32_t computation, const std::vector<const Ranks*>& arguments,
                              int depth) {
        const Computation& body = program_.computations[at(computation)];
        std::vector<Ranks> values(body.instructions.size());
        for (std::size_t i = 0; i < body.instructions.size(); ++i) {
            const Site site{computation, static_cast<std::int32_t>(i)};
            const Instruction& by = body.instructions[i];
            Ranks& result = values[i];
            const auto operand = [&](std::size_t k) -> const Ranks& { return values[at(by.operands[k])]; };
            if (by.opcode == "parameter" && by.index < static_cast<std::int64_t>(arguments.size())) {
                result = *arguments[at(by.index)];
            } else if (by.opcode == "captured") {
                const auto from = flow_.passed(site);
                result = from ? outside(*from, 0) : Ranks(num_ranks_, unknown(site));
            } else if (is_wrapper(by) && depth < kMaxCalls) {
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
        return std::move(values[at(body.root)]);
    }

    Ranks permute(Site site, const Instruction& by, const Ranks& from) {
        Ranks result(num_ranks_, unknown(site));  // of ranks that nobody sends to
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
            if (from[s].kind == Kind::unknown) lose({site, from[s].because});
        }
        return result;
    }

    void lose(LoopLoss loss) {
        if (loss.because.computation < 0) loss.because = loss.site;
        if (out_.losses.size() < kMaxLosses &&
            std::find(out_.losses.begin(), out_.losses.end(), loss) == out_.losses.end())
            out_.losses.push_back(loss);
    }

    LoopValue compute(Site site, const Instruction& by, const std::vector<const LoopValue*>& of,
                      std::int32_t rank) {
        LoopValue value = known(site, by, of, rank);
        if (value.kind != Kind::unknown) return value;
        // What is unknown already says why; else this instruction is where it begins.
        Site because = value.because;
        for (const LoopValue* operand : of) {
            const bool blank = operand->kind == Kind::unknown || operand->kind == Kind::array;
            if (because.computation < 0 && blank) because = operand->because;
        }
        value.because = because.computation < 0 ? site : because;
        for (const LoopValue* operand : of) {
            const bool product = operand->kind == Kind::product || operand->kind == Kind::sum;
            if (product || operand->kind == Kind::array || operand->kind == Kind::slice)
                lose({site, because, product, product ? -1 : operand->element});
        }
        return value;
    }

    LoopValue known(Site site, const Instruction& by, const std::vector<const LoopValue*>& of,
                    std::int32_t rank) {
        const std::string& op = by.opcode;
        if (op == "constant")
            return by.literal_known && is_whole(by.shape.dtype) ? integers(by.literal) : LoopValue{};
        if (op == "iota") return numbers(site, by, of);
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
            // A call of cuBLAS makes the product and the memory that it needed.
            if (of[0]->kind == Kind::product && index == 0) return *of[0];
            return there ? of[0]->children[index] : LoopValue{};
        }
        if (by.dot) return product(site, of, rank);
        if (std::all_of(of.begin(), of.end(), [](auto* v) { return v->kind == Kind::integers; }))
            return numbers(site, by, of);
        if (op == "dynamic-slice") return dynamic_slice(of);
        if (op == "dynamic-update-slice") return update(site, of);
        if (op == "copy" || op == "convert" || op == "reshape" || op == "bitcast" || op == "transpose" ||
            op == "collective-permute-done" || op == "copy-start" || op == "copy-done" ||
            op == "async-done" || op == "async-update" || op == "optimization-barrier" ||
            op == "reduce-precision") {
            return renamed(site, by, *of[0]);
        }
        if (op == "add" && of.size() == 2) return added(*of[0], *of[1]);
        if (op == "select" && of.size() == 3 && scalar(*of[0])) return *scalar(*of[0]) != 0 ? *of[1] : *of[2];
        return {};
    }

    LoopValue numbers(Site site, const Instruction& by, const std::vector<const LoopValue*>& of) const {
        std::vector<const WholeNumbers*> operands;
        std::vector<const Shape*> shapes;
        for (std::size_t k = 0; k < of.size(); ++k) {
            operands.push_back(&of[k]->integers);
            shapes.push_back(&flow_.at({site.computation, by.operands[k]}).shape);
        }
        auto values = compute_whole(by, operands, shapes);
        return values ? integers(*std::move(values)) : LoopValue{};
    }

    static LoopValue renamed(Site site, const Instruction& by, const LoopValue& from) {
        const bool moves = by.opcode == "reshape" || by.opcode == "bitcast" || by.opcode == "transpose";
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

    static LoopValue dynamic_slice(const std::vector<const LoopValue*>& of) {
        std::vector<std::int64_t> starts;
        for (std::size_t k = 1; k < of.size(); ++k) {
            const auto start = scalar(*of[k]);
            if (!start) return unknown(of[k]->because);
            starts.push_back(*start);
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
            if (!start) return unknown(of[k]->because);
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
    std::map<Site, Ranks> outside_;
    LoopExecution out_;
};

}  // namespace

LoopExecution execute_loop(const TensorProgram& program, const Dataflow& flow, Site loop,
                           std::int32_t num_ranks, bool by_partition, std::int64_t& budget) {
    return Executor(program, flow, num_ranks, by_partition, budget).run(loop);
}

}  // namespace syncopate::ingest
