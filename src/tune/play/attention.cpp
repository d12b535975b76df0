#include "syncopate/tune/play/attention.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/deal.hpp"
#include "syncopate/ops/attention.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/try.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

// Rows at which is looked what they attend to: of a run, and of a tile.
constexpr std::int64_t kMostSamples = 32;
constexpr std::int64_t kOfTile = 2;

enum Tensor : std::int32_t { q_rows, k_rows, v_rows, o_rows, l_rows };  // as the template numbers them

/// Rows of a tensor, and since when a rank has them, by part of the heads.
struct Here {
    plan::Interval rows;
    std::vector<double> since_us;
};

struct Work {
    std::vector<Here> queries, keys;
};

struct Tile {
    std::int32_t part = 0;                        ///< of the heads
    std::vector<std::pair<double, double>> work;  ///< since when it can be done, and for how long, both in µs
    double whole_us = 0;                          ///< since when all can be done
    double took_us = 0;
};

/// How many pairs of `rows` and of each of `keys` (which rise) attention looks at, as sampled.
std::vector<double> pairs_of(const plan::Sequence& sequence, const plan::Interval& rows,
                             const std::vector<Here>& keys, std::int64_t most_samples) {
    const std::int64_t step = std::max<std::int64_t>(1, rows.size() / most_samples);
    std::vector<double> pairs(keys.size(), 0);
    std::int64_t samples = 0;
    const auto end_of = [](const Here& key) { return key.rows.end; };
    for (std::int64_t row = rows.begin + step / 2; row < rows.end; row += step, ++samples) {
        for (const plan::Interval& seen : plan::attended_by(sequence, {{row, row + 1}})) {
            for (auto key = std::ranges::upper_bound(keys, seen.begin, {}, end_of);
                 key != keys.end() && key->rows.begin < seen.end; ++key) {
                const std::int64_t both =
                    std::min(seen.end, key->rows.end) - std::max(seen.begin, key->rows.begin);
                pairs[static_cast<std::size_t>(key - keys.begin())] += static_cast<double>(both);
            }
        }
    }
    for (double& of_key : pairs)
        of_key = samples == 0 ? 0 : of_key * static_cast<double>(rows.size()) / static_cast<double>(samples);
    return pairs;
}

class Played {
public:
    /// `relays`: multiprocessors that the kernel leaves free.
    Played(const AttentionProblem& problem, const Machine& machine, const plan::AttentionOptions& options,
           std::int32_t relays)
        : problem_(problem),
          machine_(machine),
          ranks_(static_cast<std::int32_t>(problem.rows.size())),
          links_(links_for(machine, ranks_, {})),
          group_(options.ulysses),
          parts_(options.parts),
          sms_(machine.num_sms - relays),
          relays_(relays) {}

    Result<Estimate> run(const plan::Plan& plan) {
        SYNCOPATE_TAKE(auto simulated, plan::simulate(plan, links_));
        const std::vector<double> arrived = times_into(plan, simulated);
        Estimate made;
        made.communicate = *std::ranges::max_element(arrived);
        std::vector<double> ends;
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            const Work held = work_of_rank(plan, simulated, rank);
            const double work = us_of(pairs_of_rank(held));
            made.compute = std::max(made.compute, work);
            ends.push_back(work + late_by(held));
        }
        double end = *std::ranges::max_element(ends);
        if (group_ > 1) end = std::max(end, returned(plan, ends));
        made.fixed =
            machine_.rates.call_us + (ranks_ > 1 ? machine_.rates.fused_us : machine_.rates.kernel_us);
        end += copied_us();
        if (relays_ > 0) end *= kPassingOn;
        made.exposed = std::max(0.0, end - made.compute);
        made.us = made.fixed + made.compute + made.exposed;
        return made;
    }

    /// The library's all-gather of one tensor of K and V, which is copied from a rank's rows and into the order of the
    /// sequence; then the kernel.
    [[nodiscard]] Estimate unfused() const {
        const Rates& rates = machine_.rates;
        Estimate made;
        Work held;
        for (const plan::Rows& rows : problem_.rows) {
            for (const plan::Interval& run : rows) held.keys.push_back({run, {0.0}});
        }
        std::ranges::sort(held.keys, {}, [](const Here& key) { return key.rows.begin; });
        for (const plan::Rows& rows : problem_.rows) {
            held.queries.clear();
            for (const plan::Interval& run : rows) held.queries.push_back({run, {0.0}});
            made.compute = std::max(made.compute, us_of(pairs_of_rank(held)));
        }
        const double bytes = row_bytes(2.0 * static_cast<double>(problem_.shape.kv_heads)) *
                             static_cast<double>(problem_.shape.length);
        if (ranks_ > 1) {
            const double others = (ranks_ - 1.0) / ranks_;
            const double copied = 2 * bytes * (2 + 1.0 / ranks_) / (rates.memory_gbps * kBytesPerUs);
            made.communicate =
                library_collective_us(rates, OperatorRow::Kind::gathers, bytes * others / fuse::kMib) +
                copied;
        }
        made.exposed = made.communicate;
        constexpr int kKernels = 7;  // two that pack, NCCL's, three that put rows in order, and attention's
        made.fixed = rates.call_us + (ranks_ > 1 ? kKernels : 1) * rates.kernel_us;
        made.us = made.fixed + made.compute + made.exposed;
        return made;
    }

private:
    /// µs that a rank works on so many pairs, of all of its heads: two products.
    [[nodiscard]] double us_of(double pairs) const {
        const double heads = static_cast<double>(problem_.shape.batch * problem_.shape.heads) / group_;
        const double flops = 4.0 * pairs * heads * static_cast<double>(problem_.shape.head_dim);
        const Curve& rate = problem_.kernel.name == AttentionKernelName::gluon
                                ? machine_.rates.attention_gluon_tflops
                                : machine_.rates.attention_tflops;
        const auto head_dim = static_cast<double>(problem_.shape.head_dim);
        const double masked = problem_.sequence.causal ? machine_.rates.attention_causal.at(head_dim) : 1;
        return flops / (rate.at(head_dim) * masked * sms_ * 1e6);
    }

    /// µs in which a rank copies its rows into the heap before the call, and what is made out of it: of what exchanges heads all,
    /// of what is passed on K and V. A byte is read and written.
    [[nodiscard]] double copied_us() const {
        if (group_ == 1 && relays_ == 0) return 0;  // read and stored where they are
        const double gbps = machine_.topology.local_gbps;
        if (gbps <= 0) return 0;
        double heads = 2.0 * static_cast<double>(problem_.shape.kv_heads);
        if (group_ > 1) heads += 2.0 * static_cast<double>(problem_.shape.heads);
        const double most = heads * static_cast<double>(plan::most_rows(problem_.rows));
        return 2 * row_bytes(most) / (gbps * 1e3);
    }

    /// Of so many heads, each one's row.
    [[nodiscard]] double row_bytes(double heads) const {
        return static_cast<double>(problem_.shape.batch * problem_.shape.head_dim) *
               static_cast<double>(plan::size_of(problem_.shape.dtype)) * heads;
    }

    /// When each rank has got all of Q, K and V that it gets.
    [[nodiscard]] std::vector<double> times_into(const plan::Plan& plan,
                                                 const plan::Simulation& simulated) const {
        std::vector<double> times(static_cast<std::size_t>(ranks_), 0);
        each_arrival(plan, [&](std::int32_t to, const plan::Chunk& chunk, std::size_t rank, std::size_t op) {
            double& time = times[at(to)];
            if (chunk.tensor <= v_rows) time = std::max(time, simulated.ops[rank][op].end_us);
        });
        return times;
    }

    template <typename Visit>
    static void each_arrival(const plan::Plan& plan, Visit visit) {
        for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
            for (std::size_t i = 0; i < plan.ranks[rank].size(); ++i) {
                const plan::Op& op = plan.ranks[rank][i];
                visit(op.destination_rank(static_cast<std::int32_t>(rank)), op.dst, rank, i);
            }
        }
    }

    /// What a rank's tiles work on. Each part of the heads has alike many, which wait for its own rows.
    [[nodiscard]] Work work_of_rank(const plan::Plan& plan, const plan::Simulation& simulated,
                                    std::int32_t rank) const {
        std::map<std::pair<std::int64_t, std::int64_t>, std::vector<double>> queries,
            keys;  // by rows, by part
        const std::vector<double> there(at(parts_), 0.0);
        for (const plan::Interval& run : problem_.rows[at(rank)]) {
            queries[{run.begin, run.end}] = there;
            keys[{run.begin, run.end}] = there;
        }
        each_arrival(plan, [&](std::int32_t to, const plan::Chunk& chunk, std::size_t from, std::size_t op) {
            if (to != rank || chunk.tensor > v_rows) return;
            const plan::Interval heads = chunk.region[1], rows = chunk.region[2];
            auto& known = (chunk.tensor == q_rows ? queries : keys)[{rows.begin, rows.end}];
            known.resize(at(parts_), 0.0);
            double& since = known[at(heads.begin / heads.size() % parts_)];
            since = std::max(since, simulated.ops[from][op].end_us);
        });
        Work made;
        for (const auto& [rows, since] : queries) made.queries.push_back({{rows.first, rows.second}, since});
        for (const auto& [rows, since] : keys) made.keys.push_back({{rows.first, rows.second}, since});
        return made;
    }

    /// Of all that a rank's tiles look at.
    [[nodiscard]] double pairs_of_rank(const Work& work) const {
        double pairs = 0;
        for (const Here& q : work.queries)
            for (const double of_key : pairs_of(problem_.sequence, q.rows, work.keys, kMostSamples))
                pairs += of_key;
        return pairs;
    }

    /// So much later than the kernel alone a rank ends: its programs wait for what has not come, and heads that come in parts
    /// are not dealt out as evenly as all of them would be.
    [[nodiscard]] double late_by(const Work& work) const {
        const std::vector<Tile> in_parts = tiles_of(work);
        const bool all_there =
            std::ranges::all_of(in_parts, [](const Tile& tile) { return tile.whole_us <= 0; });
        if (all_there && parts_ == 1) return 0;
        std::vector<Tile> alone = in_parts;
        std::ranges::stable_sort(alone, std::greater<>(), &Tile::took_us);
        for (Tile& tile : alone) tile.work = {{0.0, tile.took_us}};
        return std::max(0.0, end_of(in_parts) - end_of(alone));
    }

    /// When the last program ends. Each takes tile after tile, as the compiler deals them out, and does what has come of a
    /// tile's rows while it waits for the others.
    [[nodiscard]] double end_of(const std::vector<Tile>& tiles) const {
        const std::size_t heads = at(problem_.shape.batch * problem_.shape.heads / (group_ * parts_));
        std::vector<double> times;
        times.reserve(tiles.size() * heads);
        for (const Tile& tile : tiles) times.insert(times.end(), heads, tile.took_us + one_block_us());
        std::vector<double> now(at(sms_), 0);
        // Of many tiles each program has alike much in any order.
        constexpr std::size_t kManyRounds = 32;
        std::vector<std::size_t> dealt;
        if (times.size() <= kManyRounds * now.size()) dealt = fuse::deal_tiles(times, now.size());
        for (std::size_t slot = 0; slot < times.size(); ++slot) {
            double& end = now[slot % now.size()];
            const std::size_t tile = dealt.empty() ? slot : dealt[slot];
            for (const auto& [since_us, work_us] : tiles[tile / heads].work)
                end = std::max(end, since_us) + work_us;
        }
        return *std::ranges::max_element(now);
    }

    /// How much longer than the whole GPU a multiprocessor takes for one head.
    [[nodiscard]] double slower() const {
        return static_cast<double>(sms_) * group_ /
               static_cast<double>(problem_.shape.batch * problem_.shape.heads);
    }
    /// A tile's work on one block of K.
    [[nodiscard]] double one_block_us() const {
        const ops::TileConfig& tile = problem_.kernel.tile;
        return slower() * us_of(static_cast<double>(tile.block_m) * tile.block_n);
    }

    /// One for the tiles of all heads of a part that have the same rows.
    [[nodiscard]] std::vector<Tile> tiles_of(const Work& work) const {
        const std::int64_t block = std::max(1, problem_.kernel.tile.block_m);
        std::vector<Tile> made;
        for (const Here& q : work.queries) {
            for (std::int64_t first = q.rows.begin; first < q.rows.end; first += block) {
                const plan::Interval rows{first, std::min(first + block, q.rows.end)};
                std::vector<double> took = pairs_of(problem_.sequence, rows, work.keys, kOfTile);
                for (double& of_key : took) of_key = slower() * us_of(of_key);
                for (std::int32_t part = 0; part < parts_; ++part) {
                    Tile tile{.part = part};
                    for (std::size_t i = 0; i < took.size(); ++i) {
                        if (took[i] == 0) continue;
                        const double since = std::max(q.since_us[at(part)], work.keys[i].since_us[at(part)]);
                        tile.work.emplace_back(since, took[i]);
                        tile.whole_us = std::max(tile.whole_us, since);
                        tile.took_us += took[i];
                    }
                    std::ranges::sort(tile.work);
                    made.push_back(std::move(tile));
                }
            }
        }
        if (made.empty()) return made;  // of a rank that holds no rows
        const auto [least, most] = std::ranges::minmax(made, {}, &Tile::took_us);
        const bool differ = most.took_us > 1.01 * least.took_us;
        std::ranges::stable_sort(made, {}, [&](const Tile& tile) {
            return differ ? std::pair(static_cast<double>(tile.part), -tile.took_us)
                          : std::pair(tile.whole_us, 0.0);
        });
        return made;
    }

    /// When all of O and L is back. Tiles of all heads of a part end together, and parts one after another.
    [[nodiscard]] double returned(const plan::Plan& plan, const std::vector<double>& ends) const {
        std::vector<std::vector<plan::OpTiming>> timings;
        for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
            std::vector<plan::OpTiming>& own = timings.emplace_back(plan.ranks[rank].size());
            for (std::size_t i = 0; i < own.size(); ++i) {
                const plan::Chunk& made = plan.ranks[rank][i].dst;
                if (made.tensor < o_rows) continue;
                const plan::Interval heads = made.region[1];
                const auto part = static_cast<double>(heads.begin / heads.size() % parts_);
                own[i].ready_us = ends[rank] * (part + 1) / parts_;
            }
        }
        const auto simulated = plan::simulate(plan, links_, {.posts = true, .timings = std::move(timings)});
        return simulated ? simulated->makespan_us : 0;
    }

    const AttentionProblem& problem_;
    const Machine& machine_;
    std::int32_t ranks_;
    plan::Topology links_;
    std::int32_t group_;
    std::int32_t parts_;
    std::int32_t sms_;  ///< on which the kernel runs
    std::int32_t relays_;
};

}  // namespace

Result<Estimate> play_attention(const AttentionProblem& problem, const Machine& machine,
                                const plan::Plan& plan, const plan::AttentionOptions& options,
                                std::int32_t relays) {
    return Played(problem, machine, options, relays).run(plan);
}

Estimate unfused_attention(const AttentionProblem& problem, const Machine& machine) {
    return Played(problem, machine, {}, 0).unfused();
}

}  // namespace syncopate::tune
