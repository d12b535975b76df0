#include "syncopate/ingest/candidates/candidates.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "ingest/candidates/array_lists.hpp"
#include "ingest/candidates/dataflow.hpp"
#include "ingest/candidates/devices.hpp"
#include "ingest/candidates/neighbours.hpp"
#include "ingest/candidates/windowed_einsum.hpp"
#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

using Side = DotUse::Side;
using Role = DotUse::Role;

bool has(const std::vector<std::int64_t>& axes, std::int64_t axis) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// The axes of one operand that are neither batch nor contracted, in order: those of the result.
std::vector<std::int64_t> free_axes(const Shape& shape, const std::vector<std::int64_t>& batch,
                                    const std::vector<std::int64_t>& contracting) {
    std::vector<std::int64_t> axes;
    for (std::int64_t axis = 0; axis < static_cast<std::int64_t>(shape.dims.size()); ++axis) {
        if (!has(batch, axis) && !has(contracting, axis)) axes.push_back(axis);
    }
    return axes;
}

std::int64_t extent(const Shape& shape, const std::vector<std::int64_t>& axes) {
    std::int64_t product = 1;
    for (const std::int64_t axis : axes) {
        if (axis < 0 || static_cast<std::size_t>(axis) >= shape.dims.size()) return -1;
        const std::int64_t size = shape.dims[static_cast<std::size_t>(axis)];
        if (size < 0 || __builtin_mul_overflow(product, size, &product)) return -1;
    }
    return product;
}

/// 0, 1, …
bool leading(const std::vector<std::int64_t>& axes) {
    for (std::size_t i = 0; i < axes.size(); ++i) {
        if (axes[i] != static_cast<std::int64_t>(i)) return false;
    }
    return true;
}

/// …, n-2, n-1.
bool trailing(const std::vector<std::int64_t>& axes, const Shape& shape) {
    for (std::size_t i = 0; i < axes.size(); ++i) {
        if (axes[i] != static_cast<std::int64_t>(shape.dims.size() - axes.size() + i)) return false;
    }
    return true;
}

/// How `collective` reduces: its computation must be the sum or the maximum of its two arguments, or for n
/// arrays the tuple of those of arguments i and n + i. `reduced_by`: the opcode of its results.
std::optional<plan::Reduce> reduction(const TensorProgram& program, const Instruction& collective,
                                      std::string& reduced_by, std::string& problem) {
    if (collective.called.size() != 1) {
        problem = "names no computation to reduce with";
        return std::nullopt;
    }
    const Computation& by = program.computations[static_cast<std::size_t>(collective.called[0])];
    const auto at = [&](std::int32_t index) -> const Instruction& {
        return by.instructions[static_cast<std::size_t>(index)];
    };
    const Instruction& root = at(by.root);
    const std::vector<std::int32_t> results =
        root.opcode == "tuple" ? root.operands : std::vector<std::int32_t>{by.root};
    std::string opcode;
    bool of_both = !results.empty();
    for (std::size_t i = 0; i < results.size(); ++i) {
        const Instruction& result = at(results[i]);
        std::set<std::int64_t> parameters;
        for (const std::int32_t operand : result.operands) {
            if (at(operand).opcode == "parameter") parameters.insert(at(operand).index);
        }
        const auto first = static_cast<std::int64_t>(i);
        const auto second = static_cast<std::int64_t>(i + results.size());
        of_both = of_both && result.operands.size() == 2 &&
                  parameters == std::set<std::int64_t>{first, second} && (i == 0 || result.opcode == opcode);
        opcode = result.opcode;
    }
    if (of_both) reduced_by = escaped(opcode, 40);
    if (of_both && opcode == "add") return plan::Reduce::sum;
    if (of_both && opcode == "maximum") return plan::Reduce::max;
    problem = fmt::format(
        "reduces with computation {}, whose result is {}{}; add and maximum of its two "
        "arguments are taken",
        by.name, opcode.empty() ? root.opcode : opcode, of_both ? "" : " of something else");
    return std::nullopt;
}

class Lister {
public:
    explicit Lister(const TensorProgram& program) : program_(program), flow_(program) {}

    std::vector<Candidate> list() {
        for (std::size_t c = 0; c < program_.computations.size(); ++c) {
            const std::vector<Instruction>& instructions = program_.computations[c].instructions;
            for (std::size_t i = 0; i < instructions.size(); ++i) {
                const Site site{static_cast<std::int32_t>(c), static_cast<std::int32_t>(i)};
                if (instructions[i].opcode == "while" && instructions[i].called.size() == 2) loop(site);
            }
        }
        for (std::size_t c = 0; c < program_.computations.size(); ++c) {
            const std::vector<Instruction>& instructions = program_.computations[c].instructions;
            for (std::size_t i = 0; i < instructions.size(); ++i) {
                const Site site{static_cast<std::int32_t>(c), static_cast<std::int32_t>(i)};
                if (is_collective(instructions[i].opcode) && !in_windows_.contains(site)) collective(site);
            }
        }
        for (const auto& [number, neighbours] : alone_)
            note_neighbours(flow_, neighbours, candidates_[number].why);
        std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
            return std::pair(a.where.line, a.where.column) < std::pair(b.where.line, b.where.column);
        });
        return std::move(candidates_);
    }

private:
    void loop(Site site) {
        const WindowedEinsums windows = windowed_einsums(program_, flow_, site, budget_);
        for (const Site permute : windows.permutes) {
            if (windows.why_none.empty()) continue;
            no_window_.emplace(permute, fmt::format("the loop {} is no gather or reduce-scatter: {}",
                                                    flow_.at(site).name, windows.why_none));
        }
        for (const WindowedEinsum& window : windows.found) {
            Candidate made;
            made.kind = window.reduces ? "reduce-scatter" : "all-gather";
            made.name = flow_.at(site).name;
            made.computation = program_.computations[static_cast<std::size_t>(site.computation)].name;
            made.where = flow_.at(site).where;
            made.source = flow_.at(window.permutes.front()).source;
            made.windowed = made.in_loop = true;
            made.trips = window.trips;
            made.num_ranks = window.num_ranks;
            made.groups = window.groups;
            made.pairs = window.pairs;
            made.reduce = window.reduces ? plan::Reduce::sum : plan::Reduce::none;
            made.chunks = static_cast<std::int64_t>(window.groups[0].size());
            Exchange& exchange = made.exchanges.emplace_back();
            exchange.tensor = window.tensor;
            exchange.axis = window.axis;
            exchange.before = window.reduces ? window.whole : window.shard;
            exchange.after = window.reduces ? window.shard : window.whole;
            add_dot(exchange, window.dot, !window.reduces, window.side, window.dot_axis, {});
            if (!exchange.dots.empty()) {
                // The loop's dots work on one shard each: all of them together are one dot of the whole.
                DotUse& use = exchange.dots.back();
                use.name = window.dots;
                std::int64_t& grown = use.role == Role::rows         ? use.m
                                      : use.role == Role::columns    ? use.n
                                      : use.role == Role::contracted ? use.k
                                                                     : use.batch;
                grown *= made.chunks;
            }
            made.problem = misfit(made);
            in_windows_.insert(window.permutes.begin(), window.permutes.end());
            note_surroundings(site.computation, made);
            candidates_.push_back(std::move(made));
        }
    }

    void collective(Site site) {
        const Instruction& by = flow_.at(site);
        Candidate made;
        made.async = by.opcode.ends_with("-start");
        made.kind = by.opcode.substr(0, by.opcode.size() - (made.async ? 6 : 0));
        made.name = by.name;
        made.computation = program_.computations[static_cast<std::size_t>(site.computation)].name;
        made.where = by.where;
        made.source = by.source;
        note_surroundings(site.computation, made);
        if (made.kind.starts_with("sdy.")) {
            made.problem =
                "reshards a global array over a Shardy mesh, which is not what one device runs; write its "
                "placements as partition IR (syncopate.partition/1)";
        }
        if (made.problem.empty()) made.problem = take_participants(by, made);
        if (made.kind == "all-reduce" || made.kind == "reduce-scatter") {
            std::string problem;
            const auto reduce = reduction(program_, by, made.reduced_by, problem);
            if (reduce) made.reduce = *reduce;
            if (!reduce && made.problem.empty()) made.problem = problem;
        }
        if (made.kind == "collective-permute" && made.pairs.empty() && made.problem.empty())
            made.why.emplace_back("moves nothing: it has no pairs, and gives every rank zeros");
        if (by.in_slices && made.problem.empty())
            made.problem = "moves slices whose places are values of the program; a plan's regions are fixed";
        if (by.split_count >= 0 && by.split_count != made.chunks && made.problem.empty())
            made.problem = fmt::format("splits into {} parts over {} ranks", by.split_count, made.chunks);
        if (made.kind == "ragged-all-to-all" && made.problem.empty()) {
            made.problem = "moves as much as its data says; a plan's regions are fixed";
        }
        if (made.kind == "all-to-all" && by.dimensions.empty() && by.concat_dimension < 0) {
            exchange_list(site, made);
        } else {
            for (std::size_t k = 0; k < by.operands.size(); ++k) exchange(site, k, made);
        }
        if (made.problem.empty()) made.problem = misfit(made);
        if (const auto why = no_window_.find(site); why != no_window_.end()) made.why.push_back(why->second);
        if (made.operator_name().empty() && !neighbours_.empty())
            alone_.emplace_back(candidates_.size(), std::move(neighbours_));
        neighbours_.clear();
        candidates_.push_back(std::move(made));
    }

    /// Loops and branches that the computation stands in.
    void note_surroundings(std::int32_t computation, Candidate& made) {
        const auto [found, fresh] = surroundings_.try_emplace(computation);
        Surroundings& around = found->second;
        std::set<std::int32_t> seen;
        for (std::vector<std::int32_t> open{computation}; fresh && !open.empty();) {
            const std::int32_t at = open.back();
            open.pop_back();
            if (!seen.insert(at).second) continue;
            for (const Site caller : flow_.callers(at)) {
                const Instruction& by = flow_.at(caller);
                if (by.opcode == "conditional" && around.branch.empty()) around.branch = by.name;
                if (by.opcode == "while" && !around.in_loop) {
                    around.in_loop = true;
                    around.trips =
                        by.trip_count >= 0 ? by.trip_count : trip_count(program_, flow_, caller, budget_);
                }
                open.push_back(caller.computation);
            }
        }
        if (!around.branch.empty() && made.problem.empty()) {
            made.problem =
                fmt::format("stands in a branch of {}; whether it runs depends on data", around.branch);
        }
        if (around.in_loop && !made.in_loop) {
            made.in_loop = true;
            made.trips = around.trips;
        }
    }

    std::string take_participants(const Instruction& by, Candidate& made) {
        Result<Participants> found = participants(program_, made.kind, by);
        if (!found) return found.error().message;
        made.num_ranks = found->num_ranks;
        made.groups = std::move(found->groups);
        made.pairs = std::move(found->pairs);
        if (!made.groups.empty()) made.chunks = static_cast<std::int64_t>(made.groups[0].size());
        return {};
    }

    /// All-to-all of a list of arrays: the k-th goes to the k-th of the group, and the k-th of the result is
    /// from there. That is an array with an axis 0 for the list, split and joined along it.
    void exchange_list(Site site, Candidate& made) {
        const Instruction& by = flow_.at(site);
        Exchange& exchange = made.exchanges.emplace_back();
        exchange.tensor = by.name;
        exchange.axis = exchange.concat_axis = 0;
        std::set<std::pair<std::string, bool>> known;
        const auto is_new = [&](Site dot, bool feeds) {
            return known.emplace(flow_.at(dot).name, feeds).second;
        };
        const auto feed = [&](const std::vector<Dataflow::Meeting>& readers) {
            for (const Dataflow::Meeting& met : readers) {
                if (!flow_.at(met.site).dot) neighbours_.push_back({met.site, true, met.enters});
                if (flow_.at(met.site).dot && met.operand < 2 && is_new(met.site, true))
                    add_dot(exchange, met.site, true, met.operand == 0 ? Side::lhs : Side::rhs, met.axis,
                            met.through);
            }
        };
        const auto drain = [&](const std::optional<Dataflow::Meeting>& from) {
            if (from && !flow_.at(from->site).dot) neighbours_.push_back({from->site, false});
            if (from && flow_.at(from->site).dot && is_new(from->site, false))
                add_dot(exchange, from->site, false, Side::result, from->axis, from->through);
        };
        // One array of the list is no chunk along an axis of a dot's; the array that all of them make up may be.
        const auto whole = joined_list(flow_, site), cut = cut_list(flow_, site, made.chunks);
        if (whole) feed(flow_.readers(whole->site, std::nullopt, whole->axis, made.chunks));
        if (cut) drain(cut);
        for (std::size_t k = 0; k < by.operands.size(); ++k) {
            const Shape& shape = flow_.at({site.computation, by.operands[k]}).shape;
            if (k == 0) exchange.before = shape;
            if (made.problem.empty() &&
                (shape.dtype != exchange.before.dtype || shape.dims != exchange.before.dims)) {
                made.problem = fmt::format("sends {} to one rank and {} to another",
                                           exchange.before.to_string(), shape.to_string());
            }
            auto readers = flow_.readers(site, element_of(by, k), -1, made.chunks);
            if (whole) std::erase_if(readers, [&](const auto& met) { return met.site == whole->site; });
            feed(readers);
            if (!cut) drain(flow_.maker(site, k, -1, made.chunks));
        }
        const auto arrays = static_cast<std::int64_t>(by.operands.size());
        if (made.problem.empty() && !made.groups.empty() &&
            arrays != static_cast<std::int64_t>(made.groups[0].size())) {
            made.problem = fmt::format("sends {} arrays over {} ranks", arrays, made.groups[0].size());
        }
        if (exchange.before.is_array()) exchange.before.dims.insert(exchange.before.dims.begin(), arrays);
        exchange.after = exchange.before;
    }

    void exchange(Site site, std::size_t k, Candidate& made) {
        const Instruction& by = flow_.at(site);
        Exchange& exchange = made.exchanges.emplace_back();
        const Instruction& operand = flow_.at({site.computation, by.operands[k]});
        exchange.tensor = operand.name;
        exchange.before = exchange.after = operand.shape;
        if (made.kind == "all-gather" || made.kind == "reduce-scatter" || made.kind == "all-to-all") {
            if (!by.dimensions.empty()) exchange.axis = by.dimensions[0];
            exchange.concat_axis = by.concat_dimension;
            resize(by, k, made, exchange);
        }
        if (made.kind == "all-to-all" && exchange.concat_axis < 0) exchange.concat_axis = exchange.axis;
        const std::optional<std::int64_t> element = element_of(by, k);
        // Along which axis chunks arrive, and along which they leave.
        const bool joined = made.kind == "all-gather" || made.kind == "all-to-all";
        const std::int64_t arrives = made.kind == "all-to-all" ? exchange.concat_axis : exchange.axis;
        for (const Dataflow::Meeting& met :
             flow_.readers(site, element, joined ? arrives : -1, made.chunks)) {
            if (flow_.at(met.site).dot && met.operand < 2) {
                add_dot(exchange, met.site, true, met.operand == 0 ? Side::lhs : Side::rhs, met.axis,
                        met.through);
            } else {
                neighbours_.push_back({met.site, true, met.enters});
            }
        }
        const bool cut = made.kind == "reduce-scatter" || made.kind == "all-to-all";
        const auto from = flow_.maker(site, k, cut ? exchange.axis : -1, made.chunks);
        if (from && flow_.at(from->site).dot) {
            add_dot(exchange, from->site, false, Side::result, from->axis, from->through);
        } else if (from) {
            neighbours_.push_back({from->site, false});
        }
    }

    /// The shape that arrives: computed, and compared with what is written.
    static void resize(const Instruction& by, std::size_t k, Candidate& made, Exchange& exchange) {
        if (!exchange.before.is_array() || !made.problem.empty()) return;
        if (by.dimensions.size() > 1) {
            made.problem = fmt::format("names {} axes of {}, where one is expected", by.dimensions.size(),
                                       exchange.before.to_string());
            return;
        }
        const auto rank = static_cast<std::int64_t>(exchange.before.dims.size());
        const auto size_at = [](Shape& shape, std::int64_t axis) -> std::int64_t& {
            return shape.dims[static_cast<std::size_t>(axis)];
        };
        const std::int64_t parts = made.groups.empty() ? 1 : static_cast<std::int64_t>(made.groups[0].size());
        const std::int64_t last = exchange.concat_axis < 0 ? exchange.axis : exchange.concat_axis;
        if (exchange.axis < 0 || exchange.axis >= rank || last < 0 || last >= rank) {
            if (by.dimensions.empty()) {
                made.problem = fmt::format("names no axis of {}", exchange.before.to_string());
                return;
            }
            made.problem = fmt::format("names axis {} of {}", exchange.axis < 0 ? exchange.axis : last,
                                       exchange.before.to_string());
            return;
        }
        if (made.kind != "all-gather") {
            if (size_at(exchange.after, exchange.axis) % parts != 0) {
                made.problem = fmt::format("axis {} of {} is not divisible by {} ranks", exchange.axis,
                                           exchange.before.to_string(), parts);
                return;
            }
            size_at(exchange.after, exchange.axis) /= parts;
        }
        if (made.kind != "reduce-scatter" &&
            __builtin_mul_overflow(size_at(exchange.after, last), parts, &size_at(exchange.after, last))) {
            made.problem = "is too large: its sizes do not fit 64 bits";
            return;
        }
        const Shape* written = &by.shape;
        if (made.async && written->tuple) {  // (what it reads, what it makes, …)
            if (written->elements.size() < 2) return;
            written = &written->elements[1];
        }
        if (by.operands.size() > 1 && written->tuple && k < written->elements.size()) {
            written = &written->elements[k];
        }
        if (written->is_array() && written->dims != exchange.after.dims) {
            made.problem =
                fmt::format("{} over {} ranks makes {} of {}, and {} is written", made.kind, parts,
                            exchange.after.to_string(), exchange.before.to_string(), written->to_string());
        }
    }

    void add_dot(Exchange& exchange, Site site, bool feeds, Side side, std::int64_t axis,
                 std::vector<std::string> through) {
        const Instruction& dot = flow_.at(site);
        if (!dot.dot || dot.operands.size() < 2) return;
        const Shape& lhs = flow_.at({site.computation, dot.operands[0]}).shape;
        const Shape& rhs = flow_.at({site.computation, dot.operands[1]}).shape;
        const DotAxes& axes = *dot.dot;
        const auto rows = free_axes(lhs, axes.lhs_batch, axes.lhs_contracting);
        const auto columns = free_axes(rhs, axes.rhs_batch, axes.rhs_contracting);
        DotUse use;
        use.name = dot.name;
        use.where = dot.where;
        use.source = dot.source;
        use.feeds = feeds;
        use.side = side;
        use.axis = axis;
        use.batch = extent(lhs, axes.lhs_batch);
        use.m = extent(lhs, rows);
        use.n = extent(rhs, columns);
        use.k = extent(lhs, axes.lhs_contracting);
        if (use.batch < 0 || use.m < 0 || use.n < 0 || use.k < 0 ||
            extent(rhs, axes.rhs_contracting) != use.k) {
            return;  // no sound dot: nothing can be said of it
        }
        use.plain =
            axes.lhs_batch.empty() && trailing(axes.lhs_contracting, lhs) && leading(axes.rhs_contracting);
        // A call of cuBLAS makes the product and the memory that it needed.
        const Shape& result =
            dot.shape.tuple && !dot.shape.elements.empty() ? dot.shape.elements[0] : dot.shape;
        use.dtype = side == Side::lhs ? lhs.dtype : side == Side::rhs ? rhs.dtype : result.dtype;
        use.through = std::move(through);
        if (feeds) use.after = dot.after_dot;
        if (axis >= 0) {
            const auto batches = static_cast<std::int64_t>(axes.lhs_batch.size());
            if (side == Side::result) {
                const std::int64_t first_column = batches + static_cast<std::int64_t>(rows.size());
                use.role = axis < batches ? Role::batch : axis < first_column ? Role::rows : Role::columns;
            } else {
                const bool left = side == Side::lhs;
                use.role = has(left ? axes.lhs_batch : axes.rhs_batch, axis) ? Role::batch
                           : has(left ? axes.lhs_contracting : axes.rhs_contracting, axis)
                               ? Role::contracted
                               : (left ? Role::rows : Role::columns);
            }
        }
        exchange.dots.push_back(std::move(use));
    }

    /// What else keeps a plan from being made.
    static std::string misfit(const Candidate& made) {
        for (const Exchange& exchange : made.exchanges) {
            if (!exchange.before.is_array()) {
                return fmt::format("moves {}, whose shape is not known to be an array", exchange.tensor);
            }
            for (const std::int64_t size : exchange.before.dims) {
                if (size < 0) return fmt::format("moves {}, whose size varies", exchange.before.to_string());
                if (size == 0) return fmt::format("moves {}, which is empty", exchange.before.to_string());
            }
            std::string problem = dtype_problem(exchange.before.dtype, made.reduce);
            if (!problem.empty()) return problem;
        }
        if (made.exchanges.empty()) return "moves nothing";
        return {};
    }

    const TensorProgram& program_;
    Dataflow flow_;
    struct Surroundings {
        std::string branch;  // the conditional, if there is one
        bool in_loop = false;
        std::int64_t trips = -1;
    };

    std::vector<Candidate> candidates_;
    std::set<Site> in_windows_;
    std::vector<Neighbour> neighbours_;  // of the collective at hand
    /// Collectives without a dot, by their number, and their neighbours: looked at last, for searches are
    /// bounded.
    std::vector<std::pair<std::size_t, std::vector<Neighbour>>> alone_;
    std::map<Site, std::string> no_window_;              // by permute: why its loop is none
    std::map<std::int32_t, Surroundings> surroundings_;  // by computation
    std::int64_t budget_ = kMaxWindowSteps;
};

const DotUse* first_dot(const Candidate& candidate, bool feeds) {
    for (const Exchange& exchange : candidate.exchanges) {
        for (const DotUse& dot : exchange.dots) {
            if (dot.feeds == feeds) return &dot;
        }
    }
    return nullptr;
}

std::string_view short_name(const std::string& kind) {
    if (kind == "all-gather") return "AG";
    if (kind == "reduce-scatter") return "RS";
    if (kind == "all-reduce") return "AR";
    if (kind == "all-to-all") return "A2A";
    if (kind == "collective-permute") return "permute";
    if (kind == "collective-broadcast") return "broadcast";
    return kind;
}

}  // namespace

std::string Candidate::operator_name() const {
    const bool fed = first_dot(*this, true) != nullptr;
    const bool drained = first_dot(*this, false) != nullptr;
    if (!fed && !drained) return {};
    const std::string by = reduce == plan::Reduce::max ? "max" : reduced_by == "add" ? "" : reduced_by;
    return fmt::format("{}{}{}{}", drained ? "GEMM-" : "", short_name(kind), fed ? "-GEMM" : "",
                       by.empty() ? "" : " by " + by);
}

std::string Candidate::spec() const {
    if (!problem.empty() || exchanges.size() != 1) return {};
    const Exchange& exchange = exchanges[0];
    const bool fed = kind == "all-gather";
    if (!fed && kind != "reduce-scatter" && kind != "all-reduce") return {};
    const DotUse* found = nullptr;
    for (const DotUse& dot : exchange.dots) {
        if (dot.feeds == fed) found = found == nullptr ? &dot : found;
    }
    if (found == nullptr || !found->plain || !found->after.empty()) return {};
    if (fed && (found->side != DotUse::Side::lhs || found->role != DotUse::Role::rows || found->axis != 0)) {
        return {};
    }
    if (!fed) return {};  // `run` knows no operator of this kind
    const auto dtype = plan_dtype(found->dtype);
    const bool multiplied =
        dtype == plan::DType::bf16 || dtype == plan::DType::fp16 || dtype == plan::DType::fp32;
    if (!multiplied) return {};
    return fmt::format("all_gather_matmul:M={},N={},K={},dtype={}", found->m, found->n, found->k,
                       plan::name_of(*dtype));
}

std::vector<Candidate> list_candidates(const TensorProgram& program) { return Lister(program).list(); }

}  // namespace syncopate::ingest
