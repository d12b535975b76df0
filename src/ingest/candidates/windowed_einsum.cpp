#include "ingest/candidates/windowed_einsum.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "ingest/candidates/loop_execution.hpp"
#include "ingest/candidates/neighbours.hpp"

namespace syncopate::ingest {
namespace {

/// For each rank, whose part is at which place along the axis.
using Places = std::vector<std::map<std::int64_t, std::int32_t>>;

bool has(const std::vector<std::int64_t>& axes, std::int64_t axis) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// `axis` of what a product was reshaped to, as an axis of the dot's result.
std::int64_t before_reshapes(const Dataflow& flow, const Contribution& product, std::int64_t axis) {
    for (std::size_t i = product.reshaped.size(); i-- > 0 && axis >= 0;) {
        const Site site = product.reshaped[i];
        const Instruction& by = flow.at(site);
        const Shape& operand = flow.at({site.computation, by.operands[0]}).shape;
        if (by.opcode == "transpose") {
            axis = static_cast<std::size_t>(axis) < by.dimensions.size()
                       ? by.dimensions[static_cast<std::size_t>(axis)]
                       : -1;
        } else {
            axis = axis_after_reshape(by.shape.dims, operand.dims, axis, 1);
        }
    }
    return axis;
}

/// The axis of the shard's side that becomes `axis` of the dot's result; -1 if that comes from the other
/// side.
std::int64_t axis_of_side(const Dataflow& flow, const Contribution& product, bool rhs, std::int64_t axis) {
    const Instruction& dot = flow.at(product.dot);
    const DotAxes& axes = *dot.dot;
    const auto batches = static_cast<std::int64_t>(axes.lhs_batch.size());
    const auto& batch = rhs ? axes.rhs_batch : axes.lhs_batch;
    if (axis < batches) {
        return static_cast<std::size_t>(axis) < batch.size() ? batch[static_cast<std::size_t>(axis)] : -1;
    }
    std::int64_t at = batches;
    for (const bool right : {false, true}) {
        const Shape& shape = flow.at({product.dot.computation, dot.operands[right ? 1 : 0]}).shape;
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(shape.dims.size()); ++i) {
            if (has(right ? axes.rhs_batch : axes.lhs_batch, i) ||
                has(right ? axes.rhs_contracting : axes.lhs_contracting, i)) {
                continue;
            }
            if (at++ == axis) return right == rhs ? i : -1;
        }
    }
    return -1;
}

/// The one axis along which the places differ; -1 if that is none or several.
std::int64_t varying_axis(const std::vector<const std::vector<std::int64_t>*>& places) {
    std::int64_t found = -1;
    for (const auto* place : places) {
        if (place->size() != places[0]->size()) return -1;
        for (std::size_t i = 0; i < place->size(); ++i) {
            if ((*place)[i] == (*places[0])[i] || found == static_cast<std::int64_t>(i)) continue;
            if (found >= 0) return -1;
            found = static_cast<std::int64_t>(i);
        }
    }
    return found;
}

/// The rings: every rank of one sees the same parts at the same places, each its own exactly once, `size`
/// apart.
std::optional<std::vector<std::vector<std::int32_t>>> rings(const Places& places, std::int64_t size) {
    std::set<std::vector<std::int32_t>> found;
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
        std::vector<std::int32_t> ring;
        for (const auto& [place, origin] : places[rank]) {
            if (place != size * static_cast<std::int64_t>(ring.size())) return std::nullopt;
            ring.push_back(origin);
        }
        if (std::find(ring.begin(), ring.end(), static_cast<std::int32_t>(rank)) == ring.end()) {
            return std::nullopt;
        }
        for (const std::int32_t member : ring) {
            if (places[static_cast<std::size_t>(member)] != places[rank]) return std::nullopt;
        }
        found.insert(std::move(ring));
    }
    return std::vector<std::vector<std::int32_t>>(found.begin(), found.end());
}

class Recogniser {
public:
    Recogniser(const Dataflow& flow, Site loop, const LoopExecution& run)
        : flow_(flow), loop_(loop), run_(run) {}

    std::vector<WindowedEinsum> recognise() {
        for (const std::int32_t element : run_.permuted) {
            if (!gathers_parallel(element)) gathers_contracted(element);
        }
        for (const std::int32_t element : run_.permuted_sums) scatters(element);
        return std::move(found_);
    }

    /// Why nothing was recognised.
    [[nodiscard]] std::string why() const {
        if (!why_.empty()) return why_;
        if (run_.trips == 0) return "it runs no step";
        const auto moved = [&](std::int32_t element) {
            return std::find(run_.permuted.begin(), run_.permuted.end(), element) != run_.permuted.end();
        };
        for (const LoopLoss& loss : run_.losses) {
            const bool writes = flow_.at(loss.site).opcode == "dynamic-update-slice";
            if (!loss.of_product || !writes) continue;
            const std::string by = named(flow_.at(loss.site));
            return loss.because == loss.site
                       ? fmt::format("{} puts a product at a place that is not known here", by)
                       : fmt::format("{} puts a product where {} says, whose value is not known here", by,
                                     named(flow_.at(loss.because)));
        }
        for (const LoopLoss& loss : run_.losses) {
            if (loss.of_product)
                return fmt::format("{} takes a product and neither adds it up nor writes it in a place",
                                   named(flow_.at(loss.site)));
        }
        for (const LoopLoss& loss : run_.losses) {
            const Instruction& by = flow_.at(loss.site);
            if (by.opcode.starts_with("collective-permute"))
                return fmt::format("{} passes on what {} makes, which is no shard that went into the loop",
                                   by.name, named(flow_.at(loss.because)));
        }
        for (const LoopLoss& loss : run_.losses) {
            if (moved(loss.element))
                return fmt::format("{} computes with what is passed on before a dot reads it",
                                   named(flow_.at(loss.site)));
        }
        return "no dot in it reads what is passed on";
    }

private:
    using Parts = std::vector<std::tuple<std::int32_t, std::vector<std::int64_t>, const Contribution*>>;

    [[nodiscard]] const Instruction* initial(std::int32_t element) const {
        const Instruction& tuple = flow_.at({loop_.computation, flow_.at(loop_).operands[0]});
        if (tuple.opcode != "tuple" || static_cast<std::size_t>(element) >= tuple.operands.size())
            return nullptr;
        return &flow_.at({loop_.computation, tuple.operands[static_cast<std::size_t>(element)]});
    }

    /// The rings that `parts` (rank that computed, place, product), all of one size, cover; else the reason is
    /// kept.
    bool cover(const Parts& parts, std::int64_t size, std::int64_t axis, WindowedEinsum& made) {
        Places places(static_cast<std::size_t>(run_.num_ranks));
        for (const auto& [rank, place, product] : parts) {
            const std::int64_t at = place[static_cast<std::size_t>(axis)];
            if (!places[static_cast<std::size_t>(rank)].emplace(at, product->origin).second)
                return no(fmt::format("rank {} has two products for place {} of axis {}", rank, at, axis));
        }
        auto groups = rings(places, size);
        if (!groups) return no(uncovered(places, size));
        if (groups->front().size() < 2) return no("each rank multiplies only what is its own");
        for (const auto& group : *groups) {
            if (group.size() != groups->front().size()) return no("its rings are not all of one size");
        }
        made.groups = *std::move(groups);
        return true;
    }

    /// Which shards a rank has seen after the loop, and where, if that is no ring.
    [[nodiscard]] std::string uncovered(const Places& places, std::int64_t size) const {
        std::string text = fmt::format("its {} steps are no whole ring of parts of {}", run_.trips, size);
        for (std::size_t rank = 0; rank < places.size() && rank < 2; ++rank) {
            text += fmt::format("; rank {} has", rank);
            std::size_t listed = 0;
            for (const auto& [place, origin] : places[rank]) {
                if (++listed > 8) break;
                text += fmt::format("{} that of rank {} at {}", listed == 1 ? "" : ",", origin, place);
            }
            if (listed == 0) text += " none";
            if (listed > 8) text += ", …";
        }
        return text;
    }

    void finish(WindowedEinsum made, std::int32_t element, const std::vector<Site>& dots) {
        made.trips = run_.trips;
        made.num_ranks = run_.num_ranks;
        made.permutes = run_.permutes;
        made.pairs = flow_.at(run_.permutes.front()).pairs;
        made.tensor = initial(element) == nullptr ? flow_.at(loop_).name : initial(element)->name;
        made.dot = dots.front();
        for (const Site dot : dots) made.dots += (made.dots.empty() ? "" : ", ") + flow_.at(dot).name;
        found_.push_back(std::move(made));
    }

    static void add_dot(std::vector<Site>& dots, Site dot) {
        if (std::find(dots.begin(), dots.end(), dot) == dots.end()) dots.push_back(dot);
    }

    /// out[at(q)] = dot(shard q, W).
    bool gathers_parallel(std::int32_t element) {
        std::map<std::int32_t, Parts> by_target;
        std::vector<Site> dots;
        for (const LoopWrite& write : run_.writes) {
            if (write.product.shard != element) continue;
            by_target[write.into].emplace_back(write.product.rank, write.at, &write.product);
            add_dot(dots, write.product.dot);
        }
        for (const auto& [into, parts] : by_target) {
            std::vector<const std::vector<std::int64_t>*> places;
            for (const auto& part : parts) places.push_back(&std::get<1>(part));
            const std::int64_t axis = varying_axis(places);
            if (axis < 0) {
                no("its products are all written to one place, or to places along several axes");
                continue;
            }
            const Contribution& product = *std::get<2>(parts.front());
            const bool rhs = product.shard_is_rhs;
            const std::int64_t side_axis =
                axis_of_side(flow_, product, rhs, before_reshapes(flow_, product, axis));
            if (side_axis < 0) {
                no(fmt::format("axis {} of what {} writes is not an axis of the shard that is passed on",
                               axis, named(flow_.at(product.dot))));
                continue;
            }
            const Shape& shard =
                flow_.at({product.dot.computation, flow_.at(product.dot).operands[rhs ? 1 : 0]}).shape;
            if (gather(element, shard, side_axis, rhs, parts, axis, dots)) return true;
        }
        return false;
    }

    /// out += dot(shard q, W[at(q)]): the slices of W tell which part of the contracted axis each shard is.
    bool gathers_contracted(std::int32_t element) {
        if (run_.results.empty()) return false;
        for (std::size_t into = 0; into < run_.results[0].size(); ++into) {
            Parts parts;
            std::vector<Site> dots;
            for (const LoopValues& result : run_.results) {
                if (into >= result.size() || result[into].kind != LoopValue::Kind::sum) break;
                for (const Contribution& product : result[into].contributions) {
                    if (product.shard != element || product.sliced < 0) continue;
                    parts.emplace_back(product.rank, product.slice_at, &product);
                    add_dot(dots, product.dot);
                }
            }
            if (parts.empty()) continue;
            std::vector<const std::vector<std::int64_t>*> places;
            for (const auto& part : parts) places.push_back(&std::get<1>(part));
            const std::int64_t axis = varying_axis(places);
            const Contribution& product = *std::get<2>(parts.front());
            const Instruction& dot = flow_.at(product.dot);
            const bool rhs = product.shard_is_rhs;
            const auto& sliced = rhs ? dot.dot->lhs_contracting : dot.dot->rhs_contracting;
            const auto& own = rhs ? dot.dot->rhs_contracting : dot.dot->lhs_contracting;
            const auto at = std::find(sliced.begin(), sliced.end(), axis) - sliced.begin();
            if (axis < 0 || static_cast<std::size_t>(at) >= own.size() || sliced.size() != own.size()) {
                no(fmt::format("the slices that {} multiplies with are not along the contracted axis",
                               named(dot)));
                continue;
            }
            const Shape& shard = flow_.at({product.dot.computation, dot.operands[rhs ? 1 : 0]}).shape;
            if (gather(element, shard, own[static_cast<std::size_t>(at)], rhs, parts, axis, dots))
                return true;
        }
        return false;
    }

    bool gather(std::int32_t element, const Shape& shard, std::int64_t side_axis, bool rhs,
                const Parts& parts, std::int64_t axis, const std::vector<Site>& dots) {
        WindowedEinsum made;
        made.shard = made.whole = shard;
        if (static_cast<std::size_t>(side_axis) >= shard.dims.size()) return false;
        std::int64_t& size = made.whole.dims[static_cast<std::size_t>(side_axis)];
        if (!cover(parts, size, axis, made)) return false;
        if (__builtin_mul_overflow(size, static_cast<std::int64_t>(made.groups[0].size()), &size))
            return false;
        made.axis = made.dot_axis = side_axis;
        made.side = rhs ? DotUse::Side::rhs : DotUse::Side::lhs;
        finish(std::move(made), element, dots);
        return true;
    }

    /// acc <- permute(acc) + dot(X[at(q)], W): in the end each rank has one place's products of its whole
    /// ring.
    void scatters(std::int32_t element) {
        const Instruction* const from = initial(element);
        if (from == nullptr || !is_zero(element)) {
            no("what goes round as a sum does not begin as zeros");
            return;
        }
        Parts parts;  // of the rank that computed: which place, and for whom
        std::vector<Contribution> owners;
        std::vector<Site> dots;
        owners.reserve(4096);
        for (std::size_t rank = 0; rank < run_.results.size(); ++rank) {
            if (static_cast<std::size_t>(element) >= run_.results[rank].size()) return;
            const LoopValue& result = run_.results[rank][static_cast<std::size_t>(element)];
            if (result.kind != LoopValue::Kind::sum) return;
            for (const Contribution& product : result.contributions) {
                // The weights may look like a shard; the slice is what is asked about, once for each product.
                const bool again = product.shard >= 0 && product.sliced < 0;
                if (again || product.sliced < 0 || owners.size() >= 4096) {
                    no(fmt::format("{} adds a product of no slice to the sum that goes round",
                                   named(flow_.at(product.dot))));
                    return;
                }
                Contribution& owned = owners.emplace_back(product);
                owned.origin = static_cast<std::int32_t>(rank);
                parts.emplace_back(product.rank, owned.slice_at, &owned);
                add_dot(dots, product.dot);
            }
        }
        if (parts.empty()) return;
        std::vector<const std::vector<std::int64_t>*> places;
        for (const auto& part : parts) places.push_back(&std::get<1>(part));
        const std::int64_t axis = varying_axis(places);
        if (axis < 0) {
            no("its slices are all of one place, or of places along several axes");
            return;
        }
        const Contribution& product = owners.front();
        const Instruction& dot = flow_.at(product.dot);
        const Shape& slice =
            flow_.at({product.dot.computation, dot.operands[product.slice_is_rhs ? 1 : 0]}).shape;
        if (static_cast<std::size_t>(axis) >= slice.dims.size()) return;
        WindowedEinsum made;
        made.reduces = true;
        if (!cover(parts, slice.dims[static_cast<std::size_t>(axis)], axis, made)) return;
        // The axis of the result that the sliced axis becomes.
        std::int64_t result_axis = -1;
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(dot.shape.dims.size()); ++i) {
            if (axis_of_side(flow_, product, product.slice_is_rhs, i) == axis) result_axis = i;
        }
        if (result_axis < 0 || !product.reshaped.empty()) {
            no(fmt::format("what {} adds is not cut along an axis of its slices", named(dot)));
            return;
        }
        made.shard = made.whole = dot.shape;
        std::int64_t& size = made.whole.dims[static_cast<std::size_t>(result_axis)];
        if (__builtin_mul_overflow(size, static_cast<std::int64_t>(made.groups[0].size()), &size)) return;
        made.axis = made.dot_axis = result_axis;
        made.side = DotUse::Side::result;
        finish(std::move(made), element, dots);
    }

    /// The accumulator begins as zeros.
    [[nodiscard]] bool is_zero(std::int32_t element) const {
        const Instruction& tuple = flow_.at({loop_.computation, flow_.at(loop_).operands[0]});
        if (initial(element) == nullptr) return false;
        Site site{loop_.computation, tuple.operands[static_cast<std::size_t>(element)]};
        constexpr std::array<std::string_view, 7> kSpreads{
            "broadcast", "broadcast-in-dim", "copy", "reshape", "convert", "bitcast", "transpose"};
        for (int steps = 0; steps < 64; ++steps) {
            const Instruction& from = flow_.at(site);
            if (from.opcode == "constant") {
                return from.literal_known && !from.literal.empty() &&
                       std::all_of(from.literal.begin(), from.literal.end(), [](auto v) { return v == 0; });
            }
            const bool spreads = std::find(kSpreads.begin(), kSpreads.end(), from.opcode) != kSpreads.end();
            if (is_wrapper(from)) {
                site = {from.called[0], flow_.root(from.called[0])};
            } else if (spreads && !from.operands.empty()) {
                site.instruction = from.operands[0];
            } else if (const auto outer = flow_.passed(site)) {
                site = *outer;
            } else {
                return false;
            }
        }
        return false;
    }

    /// The first reason is kept: it is that of the form that came furthest.
    bool no(std::string why) {
        if (why_.empty()) why_ = std::move(why);
        return false;
    }

    const Dataflow& flow_;
    Site loop_;
    const LoopExecution& run_;
    std::vector<WindowedEinsum> found_;
    std::string why_;
};

/// The collective-permutes of a computation and of those that it calls, but for inner loops.
std::vector<Site> permutes_in(const TensorProgram& program, std::int32_t computation) {
    std::vector<Site> found;
    std::set<std::int32_t> seen;
    for (std::vector<std::int32_t> open{computation}; !open.empty();) {
        const std::int32_t at = open.back();
        open.pop_back();
        if (!seen.insert(at).second) continue;
        const auto& instructions = program.computations[static_cast<std::size_t>(at)].instructions;
        for (std::size_t i = 0; i < instructions.size(); ++i) {
            const Instruction& by = instructions[i];
            if (by.opcode == "collective-permute" || by.opcode == "collective-permute-start")
                found.push_back({at, static_cast<std::int32_t>(i)});
            if (by.opcode != "while") open.insert(open.end(), by.called.begin(), by.called.end());
        }
    }
    return found;
}

}  // namespace

WindowedEinsums windowed_einsums(const TensorProgram& program, const Dataflow& flow, Site loop,
                                 std::int64_t& budget) {
    WindowedEinsums answer;
    answer.permutes = permutes_in(program, flow.at(loop).called[1]);
    if (answer.permutes.empty()) return answer;
    std::int32_t largest = -1;
    bool channel = false;
    for (const Site site : answer.permutes) {
        const Instruction& by = flow.at(site);
        channel = channel || by.channel > 0;
        for (const auto& [source, target] : by.pairs) largest = std::max({largest, source, target});
    }
    const auto none = [&](std::string why) {
        answer.why_none = std::move(why);
        return std::move(answer);
    };
    const std::int64_t said = channel ? program.partitions : program.replicas;
    const std::int64_t ranks = said > 0 ? said : std::int64_t{largest} + 1;
    if (largest < 0) return none("its permutes move nothing");
    if (largest >= ranks || ranks > plan::kMaxRanks)
        return none(fmt::format("its permutes name rank {} of {}", largest, ranks));
    if ((channel ? program.replicas : program.partitions) > 1)
        return none("replicas beside partitions would each run a ring of their own");
    const LoopExecution run =
        execute_loop(program, flow, loop, static_cast<std::int32_t>(ranks), channel, budget);
    if (!run.problem.empty()) return none("it " + run.problem);
    Recogniser recogniser(flow, loop, run);
    answer.found = recogniser.recognise();
    if (answer.found.empty()) answer.why_none = recogniser.why();
    return answer;
}

std::int64_t trip_count(const TensorProgram& program, const Dataflow& flow, Site loop, std::int64_t& budget) {
    const LoopExecution run = execute_loop(program, flow, loop, 1, true, budget);
    return run.problem.empty() ? run.trips : -1;
}

}  // namespace syncopate::ingest
