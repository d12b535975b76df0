#include "syncopate/tune/play/attention_backward.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/try.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

constexpr std::array<std::string_view, 4> kKinds{"all_gather", "ring", "double_ring", "ulysses"};

/// How many pairs of rows and of what these attend to there are, as sampled.
double pairs_of(const plan::Sequence& sequence, const plan::Rows& rows) {
    constexpr std::int64_t kMostSamples = 32;
    double pairs = 0;
    for (const plan::Interval& run : rows) {
        const std::int64_t step = std::max<std::int64_t>(1, run.size() / kMostSamples);
        for (std::int64_t row = run.begin + step / 2; row < run.end; row += step) {
            for (const plan::Interval& seen : plan::attended_by(sequence, {{row, row + 1}}))
                pairs += static_cast<double>(seen.size() * step);
        }
    }
    return pairs;
}

class Played {
public:
    Played(const ops::AttentionBackwardTask& task, const Machine& machine) : task_(task), machine_(machine) {}

    [[nodiscard]] Result<Estimate> run() const {
        SYNCOPATE_TAKE(const ops::AttentionBackwardOutline outline, ops::attention_backward_outline(task_));
        const auto ranks = static_cast<std::int32_t>(task_.forward.rows.size());
        SYNCOPATE_TAKE(const plan::Simulation moved,
                       plan::simulate(outline.plan, links_for(machine_, ranks, {}, task_.forward.nodes)));
        Estimate made;
        made.compute = compute(outline.exchanges ? ranks : 1);
        made.communicate = ranks > 1 ? moved.makespan_us : 0;
        made.exposed = outline.exchanges
                           ? made.communicate * share_exposed(outline, ranks) + own_copies(ranks)
                           : behind(made, outline.together > 0);
        if (ops::relays_of(task_.forward.kind, ranks) > 0)
            made.exposed += (kPassingOn - 1) * (made.compute + made.exposed);
        made.fixed = machine_.rates.call_us + machine_.rates.fused_us;
        made.us = made.fixed + made.compute + made.exposed;
        return made;
    }

private:
    [[nodiscard]] bool alike() const {
        const plan::Sequence& sequence = task_.forward.sequence;
        return !sequence.causal && sequence.window == 0 && sequence.documents.empty();
    }

    /// µs of what goes around. On two H200s, 32 heads, causal: of 4,096 rows a rank 293 of 512 us stay, in parts of heads, of 8,192
    /// rows 533 of 983.
    [[nodiscard]] double behind(const Estimate& of, bool in_parts) const {
        constexpr double kOfTilesThatDiffer = 0.8, kInParts = 0.6, kHides = 0.5, kLastChunks = 1.0 / 16;
        if (!alike()) return of.communicate * (in_parts ? kInParts : kOfTilesThatDiffer);
        return std::max(of.communicate - kHides * of.compute, of.communicate * kLastChunks);
    }

    /// Of all bytes where heads are exchanged: Q, dO, dQ and K, V, dK, dV.
    [[nodiscard]] double share_exposed(const ops::AttentionBackwardOutline& outline,
                                       std::int32_t ranks) const {
        const plan::AttentionShape& shape = task_.forward.shape;
        const double group = static_cast<double>(shape.heads) / static_cast<double>(shape.kv_heads);
        const double part = outline.together == 0 ? 1.0
                                                  : static_cast<double>(outline.together * ranks) /
                                                        static_cast<double>(shape.kv_heads);
        return ((2 * group + 4) * part + group) / (3 * group + 4);
    }

    /// µs of copies of a rank's own rows of its own heads: Q, dO, K, V before the kernel, which the driver copies, dQ, dK, dV behind it.
    [[nodiscard]] double own_copies(std::int32_t ranks) const {
        constexpr double kDriverGbps = 1600;  // read and written, on an H200
        const plan::AttentionShape& shape = task_.forward.shape;
        const auto heads = static_cast<double>(3 * shape.heads + 4 * shape.kv_heads) / ranks;
        const auto rows = static_cast<double>(shape.batch * shape.length) / ranks;
        const auto row =
            static_cast<double>(shape.head_dim) * static_cast<double>(plan::size_of(shape.dtype));
        return 2 * heads * rows * row / (kDriverGbps * 1e3);
    }

    /// µs of the busiest rank, of which `sharing` ones have a share of the heads each and all rows: five products a pair, and
    /// no tile is cut.
    [[nodiscard]] double compute(std::int32_t sharing) const {
        const plan::AttentionShape& shape = task_.forward.shape;
        const plan::Sequence& sequence = task_.forward.sequence;
        double most = 0;  // pairs of a rank, of one head
        std::int64_t queries = 0;
        for (const plan::Rows& rows : task_.forward.rows) {
            most = std::max(most, pairs_of(sequence, rows));
            queries = std::max(queries, plan::num_rows(rows));
        }
        if (sharing > 1) {
            most = pairs_of(sequence, {{0, shape.length}});
            queries = shape.length;
        }
        const double work =
            most * static_cast<double>(shape.batch * shape.heads) / sharing / machine_.num_sms;
        const std::int64_t group = shape.heads / shape.kv_heads;
        const bool known = sequence.window == 0 && sequence.documents.empty();
        const double longest =
            known ? static_cast<double>(queries * task_.forward.tile.block_n * group) : 0.0;
        const Curve& rate =
            task_.gluon ? machine_.rates.attention_gluon_tflops : machine_.rates.attention_tflops;
        const auto head_dim = static_cast<double>(shape.head_dim);
        return 10 * head_dim * std::max(work, longest) / (rate.at(head_dim) * 1e6);
    }

    const ops::AttentionBackwardTask& task_;
    const Machine& machine_;
};

std::string objection(const ops::AttentionBackwardTask& task, std::int32_t ranks) {
    const ops::AttentionTask& forward = task.forward;
    const std::string why = ops::attention_objection(forward.kind, ranks, forward.shape.heads, forward.inner);
    if (!why.empty()) return why;
    if (forward.kind == "double_ring" && forward.inner == 0 && (ranks % 2 != 0 || ranks < 4))
        return "so many ranks make no two rings of more than one";
    if (forward.kind == "ulysses" && task.deterministic && task.gluon)
        return "in a fixed order dQ of exchanged heads is made by a plain kernel";
    return {};
}

}  // namespace

std::vector<Candidate> rank_attention_backward(const ops::AttentionBackwardTask& task,
                                               const Machine& machine) {
    std::vector<Candidate> all;
    const auto ranks = static_cast<std::int32_t>(task.forward.rows.size());
    for (const std::string_view kind : kKinds) {
        ops::AttentionBackwardTask asked = task;
        asked.forward.kind = kind;
        if (kind != "double_ring") asked.forward.inner = 0;
        if (kind == "ulysses") asked.forward.split = 1;
        Candidate& candidate =
            all.emplace_back(candidate_of({.kind = std::string(kind), .inner = asked.forward.inner}));
        candidate.pruned = objection(asked, ranks);
        if (candidate.pruned.empty()) candidate.take(Played(asked, machine).run());
    }
    best_first(all);
    return all;
}

}  // namespace syncopate::tune
