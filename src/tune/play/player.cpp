#include "tune/play/player.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/plan/simulate/simulate.hpp"
#include "syncopate/runtime/cuda/engine/engine_format.hpp"
#include "tune/play/memory.hpp"
#include "tune/play/tiles_play.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using fuse::Carrier;
using fuse::Edge;
using fuse::Node;
using fuse::NodeId;
using plan::Backend;

constexpr double kUnknown = 1e12;  // µs: of what cannot be simulated
constexpr double kSettled = 0.1;   // µs
constexpr int kMostTurns = 6;

/// When each node of the graph is complete, µs from the call's begin.
class Call {
public:
    Call(const fuse::StagedProgram& program, const fuse::Decisions& work,
         const std::vector<StageTiles>& stages, double fixed_us, const Machine& machine,
         const Strategy& strategy, bool alike)
        : half_(fixed_us / 2),
          alike_(alike),
          program_(program),
          work_(work),
          graph_(work.graph),
          stages_(stages),
          machine_(machine),
          rates_(machine.rates),
          strategy_(strategy),
          plan_(fuse::transfers_of(work.lowered, work.backends)),
          done_(graph_.nodes.size(), 0),
          bytes_(static_cast<std::size_t>(graph_.num_ops()), 0),
          stored_by_sum_(static_cast<std::size_t>(graph_.num_ops()), 0),
          sent_on_(static_cast<std::size_t>(graph_.num_ops()), false),
          stored_(static_cast<std::size_t>(graph_.num_ops()), 0),
          out_bytes_(plan_.ranks.size(), 0) {
        for (std::size_t stage = 0; stage < program.stages.size(); ++stage)
            blocks_.push_back(stages[stage].column_bytes > 0 ? row_blocks(program.stages[stage].kernel, stages[stage].columns)
                                                             : blocks_of(program.stages[stage].kernel));
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            const plan::Op& of = op_of(op);
            bytes_[at(op)] = static_cast<double>(plan_.bytes(of.dst));
            const bool remote = of.kind != plan::OpKind::local;
            if (graph_.carrier(op) == Carrier::tile_stores && remote)
                out_bytes_[at(graph_[op].rank)] += bytes_[at(op)];
            for (const Edge& edge : graph_.in[at(op)]) {
                if (edge.lag != 0) continue;
                if (!graph_.is_op(edge.from)) {
                    follows_tiles_ = true;
                } else if (graph_[edge.from].kind == Node::Kind::sum) {
                    sent_on_[at(edge.from)] = true;
                    if (graph_.carrier(op) == Carrier::sum_stores)
                        stored_by_sum_[at(edge.from)] += bytes_[at(op)];
                }
            }
        }
        for (std::size_t stage = 0; stage < graph_.stages.size(); ++stage) {
            const auto& nodes = graph_.stages[stage];
            for (const NodeId first : nodes.first) {
                for (std::int32_t c = 0; c < nodes.num_classes; ++c) {
                    for (const Edge& edge : graph_.in[at(first + c)])
                        precedes_tiles_ |= edge.lag == 0 && graph_.is_op(edge.from);
                }
            }
        }
        set_links();
    }

    Estimate run() {
        Estimate made;
        made.fixed = 2 * half_;
        made.compute = tiles_end(false) - half_;
        made.communicate = communicate();
        const double compute = std::max(made.compute, 1e-3);
        slower_ = 1 + (rates_.beside_copies - 1) * std::min(1.0, made.communicate / compute) +
                  stolen_us() / compute;
        if (sends_sums()) slower_ *= rates_.beside_sums;
        const double end = settled() + ends_us();
        made.exposed = std::max(0.0, end - half_ - made.compute);
        made.us = made.fixed + made.compute + made.exposed;
        return made;
    }

private:
    static std::size_t at(NodeId node) { return static_cast<std::size_t>(node); }
    [[nodiscard]] const plan::Op& op_of(NodeId op) const { return plan_.op(graph_.ref(op)); }
    [[nodiscard]] Backend backend_of(NodeId op) const {
        const plan::OpRef ref = graph_.ref(op);
        return work_.backends[at(ref.rank)][at(ref.index)];
    }

    /// The links, with engines as fast as they are for what this call sends.
    void set_links() {
        links_ = links_for(machine_, static_cast<std::int32_t>(plan_.ranks.size()), strategy_);
        std::size_t sent = 0;
        double largest = 0;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            if (graph_.carrier(op) != Carrier::own || op_of(op).kind == plan::OpKind::local) continue;
            if (graph_[op].rank == 0) ++sent;
            largest = std::max(largest, bytes_[at(op)]);
        }
        if (sent > 0 && out_bytes_.front() > 0) {
            links_.sm.push_us = links_.sm.post_us = 0;  // with the tiles
            for (plan::Link& link : links_.links) link.contended = rates_.stored_contended;
        }
        if (follows_tiles_ && !precedes_tiles_) links_.start_us = 0;
        if (!precedes_tiles_) return;
        if (!fuse::is_engine(strategy_.backend)) {
            links_.start_us += rates_.copies_us;
            return;
        }
        const auto blocks = static_cast<std::uint64_t>(strategy_.engine_blocks.value_or(1));
        at_once_ = strategy_.backend == Backend::ldst_dedicated && sent > 0 &&
                   largest <= static_cast<double>(runtime::device::bytes_at_once(blocks, sent));
        if (at_once_) {
            // All chunks side by side, each by blocks of its own, which load their share before they store any.
            const double rate = static_cast<double>(blocks) * links_.sm.gbps_per_block;
            const double link = links_.links.empty() ? links_.sm.gbps : links_.links.front().gbps;
            if (rate > 0) links_.sm.gbps = link * rate / (link + rate);
            links_.sm.lanes = static_cast<std::int32_t>(sent);
            links_.sm.gbps /= static_cast<double>(sent);
            return;
        }
        links_.start_us += rates_.engine_walk_us;
        if (strategy_.backend == Backend::ldst_dedicated && plan_.ranks.front().size() > 1)
            links_.sm.gbps /= kEngineLanes;
    }

    /// µs from what is copied of the tiles' results until the call may end: each further copy to a peer, and
    /// what nobody sums is awaited by itself.
    [[nodiscard]] double ends_us() const {
        std::map<std::int32_t, std::int32_t> copies;  // by peer
        bool summed = false;
        for (NodeId op = graph_.first_op[0]; op < graph_.first_op[1]; ++op) {
            summed |= graph_[op].kind == Node::Kind::sum;
            if (graph_.carrier(op) != Carrier::own || op_of(op).kind != plan::OpKind::push) continue;
            const bool made = std::ranges::any_of(graph_.in[at(op)], [&](const Edge& edge) {
                return edge.lag == 0 && !graph_.is_op(edge.from);
            });
            if (made) ++copies[op_of(op).peer];
        }
        for (NodeId op = graph_.first_op[0]; op < graph_.first_op[1]; ++op) {
            if (graph_[op].kind == Node::Kind::sum && fuse::is_engine(backend_of(op))) return rates_.last_us;
        }
        std::int32_t most = 0;
        for (const auto& [peer, count] : copies) most = std::max(most, count);
        if (most == 0) return 0;
        return rates_.copied_part_us * (most - 1) + (summed ? 0 : rates_.sent_us);
    }

    [[nodiscard]] double latest() const {
        double last = 0;
        for (const double time : done_) last = std::max(last, time);
        return last;
    }

    /// All in turns, until nothing moves any more.
    double settled() {
        std::ranges::fill(done_, 0);
        std::ranges::fill(stored_, 0);
        const bool both = follows_tiles_ && precedes_tiles_;
        const int turns = both ? kMostTurns : 1;
        for (int turn = 0; turn < turns; ++turn) {
            const std::vector<double> before = done_;
            if (precedes_tiles_ && !move()) return kUnknown;
            tiles_end(true);
            if (follows_tiles_ && !move()) return kUnknown;
            if (follows_tiles_ && note_begun() && !move()) return kUnknown;
            double change = 0;
            for (std::size_t i = 0; i < done_.size(); ++i)
                change = std::max(change, std::abs(done_[i] - before[i]));
            if (change < kSettled) break;
        }
        return latest();
    }

    /// When what each sum adds up is there; whether there are some that this matters to.
    bool note_begun() {
        begun_.assign(static_cast<std::size_t>(graph_.num_ops()), 0);
        bool some = false;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            if (graph_[op].kind != Node::Kind::sum || !sums_wait(op)) continue;
            some = true;
            for (const Edge& edge : graph_.in[at(op)]) {
                if (edge.lag == 0) begun_[at(op)] = std::max(begun_[at(op)], done_[at(edge.from)]);
            }
        }
        return some;
    }

    /// Whether the tiles' programs sum, too.
    [[nodiscard]] bool sums_itself() const {
        return std::ranges::find(graph_.carriers, Carrier::programs) != graph_.carriers.end();
    }
    /// Whether a sum is for other ranks, too.
    [[nodiscard]] bool sent_on(NodeId sum) const { return sent_on_[at(sum)]; }
    /// Whether kernels beside the tiles sum what is sent on, while others are still made.
    [[nodiscard]] bool sends_sums() const {
        if (plan_.ranks.size() < 3) return false;
        for (NodeId op = graph_.first_op[0]; op < graph_.first_op[1]; ++op) {
            if (graph_[op].kind == Node::Kind::sum && sent_on(op) && graph_.carrier(op) == Carrier::own &&
                !fuse::is_engine(backend_of(op)) && !sums_wait(op) && read_by_sum(op) == 0)
                return true;
        }
        return false;
    }

    /// µs for which sums beside the tiles take multiprocessors: for what they store and read at peers. Nothing
    /// is beside the last one.
    [[nodiscard]] double stolen_us() const {
        if (out_bytes_.front() > 0) return 0;
        double us = 0, last = 0;
        for (NodeId op = graph_.first_op[0]; op < graph_.first_op[1]; ++op) {
            if (graph_[op].kind != Node::Kind::sum || fuse::is_engine(backend_of(op)) ||
                graph_.carrier(op) == Carrier::programs)
                continue;
            last = over(stored_by_sum_[at(op)], rates_.store_gbps) +
                   over(read_by_sum(op), rates_.pulled_slow_gbps);
            us += last;
        }
        return us - last;
    }

    [[nodiscard]] double read_by_sum(NodeId op) const {
        double reads = 0;
        for (const Edge& edge : graph_.in[at(op)]) {
            if (edge.lag == 0 && graph_.is_op(edge.from) && graph_.carrier(edge.from) == Carrier::sum_loads)
                reads += bytes_[at(op)];
        }
        if (const auto direct = work_.lowered.direct.find(graph_.ref(op));
            direct != work_.lowered.direct.end())
            reads = bytes_[at(op)] * static_cast<double>(direct->second.size());
        return reads;
    }

    /// The transfers alone, all that they send being there.
    double communicate() {
        std::ranges::fill(done_, 0);
        std::ranges::fill(stored_, 0);
        if (!move()) return kUnknown;
        double last = 0;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) last = std::max(last, done_[at(op)]);
        for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
            if (out_bytes_[rank] > 0) last = std::max(last, over(out_bytes_[rank], store_gbps(rank)));
        }
        return last;
    }

    [[nodiscard]] double store_gbps(std::size_t rank) const {
        return rates_.tile_store_gbps.at(out_bytes_[rank] / fuse::kMib);
    }

    /// How long a sum takes, with what it reads and stores elsewhere.
    [[nodiscard]] double sum_us(NodeId op) const {
        const double stores = stored_by_sum_[at(op)];
        const double reads = read_by_sum(op);
        double summands = 1;
        for (const Edge& edge : graph_.in[at(op)])
            summands += edge.lag == 0 && graph_.is_op(edge.from) ? 1 : 0;
        if (const auto direct = work_.lowered.direct.find(graph_.ref(op));
            direct != work_.lowered.direct.end()) {
            summands = std::max(summands, static_cast<double>(direct->second.size()) + 1);
        }
        const double all = (summands + 1) * bytes_[at(op)];
        const Backend by = backend_of(op);
        if (fuse::is_engine(by)) {
            return rates_.part_us + over(reads > 0 ? reads + stores : all + stores,
                                         rates_.engine_sums(by, strategy_.engine_blocks.value_or(0)));
        }
        if (graph_.carrier(op) == Carrier::programs) return over(all, rates_.kernel_sums_gbps);
        if (const auto direct = work_.lowered.direct.find(graph_.ref(op));
            direct != work_.lowered.direct.end() && direct->second.size() + 1 >= plan_.ranks.size())
            return rates_.pulled_us + over(reads + stores, rates_.read_gbps);
        double us = rates_.sum_us + over(all, rates_.sum_gbps);
        if (reads > 0) us += rates_.read_us + over(reads, rates_.pulled_last_gbps);
        if (stores > 0) us += rates_.store_us + over(stores, rates_.store_gbps);
        return us;
    }

    /// Whether a sum is left little of each multiprocessor while tiles are made.
    [[nodiscard]] bool sums_wait(NodeId op) const {
        return graph_.carrier(op) == Carrier::own && !fuse::is_engine(backend_of(op)) &&
               std::ranges::any_of(stages_, &StageTiles::sums_wait);
    }

    /// µs that such a sum, once all are made, has saved by what it has done before, as was played last.
    [[nodiscard]] double summed_before(NodeId op) const {
        if (!sums_wait(op) || begun_.empty()) return 0;
        const double end = done_[at(graph_.kernel[at(graph_[op].rank)])];
        const double us = sum_us(op) - rates_.sum_us;
        if (sent_on(op)) return 0;
        const double done = std::max(0.0, end - begun_[at(op)]) * rates_.gluon_sum_gbps / rates_.sum_gbps;
        return std::min(done, us * (1 - 1.0 / strategy_.sum_parts));
    }

    /// All ops with what the nodes before them are known to take. False where the plan cannot be simulated.
    bool move() {
        std::vector<std::vector<plan::OpTiming>> timings;
        for (const std::vector<plan::Op>& list : plan_.ranks) timings.emplace_back(list.size());
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            const plan::OpRef ref = graph_.ref(op);
            plan::OpTiming& timing = timings[at(ref.rank)][at(ref.index)];
            for (const Edge& edge : graph_.in[at(op)]) {
                if (edge.lag != 0) continue;
                if (!graph_.is_op(edge.from))
                    timing.ready_us = std::max(timing.ready_us, done_[at(edge.from)]);
            }
            const Carrier carrier = graph_.carrier(op);
            timing.line = line_of(op);
            if (carrier == Carrier::programs) timing.ready_us = done_[at(graph_.kernel[at(graph_[op].rank)])];
            if (graph_[op].kind == Node::Kind::sum) {
                timing.lasts_us = sum_us(op) - summed_before(op);
                if (sums_wait(op)) timing.ready_us = done_[at(graph_.kernel[at(graph_[op].rank)])];
            } else if (carrier == Carrier::tile_stores) {
                timing.ready_us = std::max(timing.ready_us, stored_[at(op)]);
                timing.lasts_us = rates_.poll_us;
            } else if (carrier != Carrier::own) {
                timing.lasts_us = 0;
            } else if (crosses(op)) {
                timing.lasts_us = links_.copy_engine.push_us + over(bytes_[at(op)], rates_.crossing_gbps);
            }
        }
        const Result<plan::Simulation> simulation =
            plan::simulate(plan_, links_, {.posts = true, .timings = std::move(timings), .times_only = true});
        if (!simulation) return false;
        double last = 0;
        for (NodeId op = 0; op < graph_.num_ops(); ++op) {
            const plan::OpRef ref = graph_.ref(op);
            done_[at(op)] = simulation->ops[at(ref.rank)][at(ref.index)].end_us;
            last = std::max(last, done_[at(op)]);
        }
        if (at_once_) {
            for (NodeId op = 0; op < graph_.num_ops(); ++op) done_[at(op)] = last;
        }
        return true;
    }

    /// The line of its rank in which an op waits: its lane's, or, of what somebody carries out who is busy
    /// anyway, one of its own; negative: the engine's.
    [[nodiscard]] std::int32_t line_of(NodeId op) const {
        constexpr std::int32_t kSums = 64;
        const fuse::Lane& lane = work_.placement.lanes[at(op)];
        if (graph_.carrier(op) != Carrier::own) return kSums + 1 + graph_.ref(op).index;
        if (graph_[op].kind == Node::Kind::sum) return kSums;
        if (lane.kind != fuse::LaneKind::copies) return -1;
        return crosses(op) ? 2 : lane.stream;
    }

    /// A copy of what a rank has summed, on three and more ranks: they meet each other.
    [[nodiscard]] bool crosses(NodeId op) const {
        if (plan_.ranks.size() < 3 || fuse::is_engine(backend_of(op))) return false;
        return std::ranges::any_of(graph_.in[at(op)], [&](const Edge& edge) {
            return edge.lag == 0 && graph_.is_op(edge.from) && graph_[edge.from].kind == Node::Kind::sum;
        });
    }

    /// When the tiles of all ranks have ended, stage after stage. `moving`: with transfers; without, all that
    /// tiles read is there.
    double tiles_end(bool moving) {
        double last = 0;
        for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
            double begin = half_;
            for (std::size_t stage = 0; stage < program_.stages.size(); ++stage) {
                const bool overlaps = stage < graph_.overlapping.size() && graph_.overlapping[stage];
                const double begins = overlaps ? half_ : begin;
                begin = std::max(tiles_end(rank, stage, begins, moving), begin) +
                        (stage + 1 < program_.stages.size() ? rates_.kernel_us : 0);
            }
            done_[at(graph_.kernel[rank])] = begin;
            last = std::max(last, begin);
        }
        return last;
    }

    double tiles_end(std::size_t rank, std::size_t stage, double begin, bool moving) {
        const fuse::StageOrder& order = work_.orders[stage];
        const StageTiles& of = stages_[stage];
        if (!moving && of.alone_us > 0) return begin + of.alone_us;
        const std::vector<std::int64_t>& tiles = order.tiles[rank];
        if (alike_ && rank > 0) return as_first(rank, stage, begin);
        const std::vector<double> stores = stored_bytes(rank, stage, moving);
        const std::vector<std::int64_t> groups = groups_of(rank, stage);
        std::vector<Slot> slots;
        slots.reserve(tiles.size());
        for (const std::int64_t id : tiles) {
            const auto tile = static_cast<std::size_t>(id);
            const NodeId node = graph_.tiles(stage, static_cast<std::int32_t>(rank), id);
            Slot& slot = slots.emplace_back();
            slot.us = of.us[tile] * (moving ? slower_ : 1);
            slot.narrow_us = of.narrow_us * (moving ? slower_ : 1);
            if (!of.runs.empty()) slot.run = of.runs[tile];
            if (!groups.empty()) slot.group = groups[tile];
            slot.reads = blocks_[stage].of_tile[tile];
            slot.phases = moving ? phases_of(node, stage, order) : std::vector<Phase>(1);
            slot.loads = moving ? loaded_bytes(node, stage, tile) : 0;
            slot.stores = stores.empty() ? 0 : stores[tile];
        }
        const StagePrograms programs{.count = of.programs,
                                     .begin = begin,
                                     .poll_us = moving && precedes_tiles_ ? rates_.poll_us : 0,
                                     .phase_us = of.phase_us,
                                     .read_us = rates_.read_us,
                                     .read_gbps = rates_.read_gbps,
                                     .store_gbps = store_gbps(rank),
                                     .stall_gbps = sums_itself() ? 2 * store_gbps(rank) : rates_.store_stall_gbps,
                                     .reads = of.memory_gbps > 0,
                                     .column_bytes = of.column_bytes,
                                     .rows_together = of.rows_together};
        Memory memory(blocks_[stage].count, of.again_gbps, rates_.cache_mib * fuse::kMib, order.phased);
        played_ = play_tiles(slots, programs, memory);
        wait_for_memory(memory, rank, stage, begin);
        return as_first(rank, stage, begin);
    }

    /// No product takes less than what it reads. One that makes chunks is slowed down alike all along.
    void wait_for_memory(const Memory& memory, std::size_t rank, std::size_t stage, double begin) {
        if (stages_[stage].memory_gbps <= 0) return;
        constexpr double kBounds = 8;
        const StageTiles& of = stages_[stage];
        double end = begin;
        for (const double time : played_.ends) end = std::max(end, time);
        const double once = over(memory.once(), of.memory_gbps);
        const double read = once + over(memory.bytes() - memory.once(), of.again_gbps);
        const bool makes = std::ranges::any_of(graph_.made[rank], [&](const fuse::Made& chunk) {
            return chunk.stage == static_cast<std::int32_t>(stage);
        });
        if (!makes) {
            const double least = std::max(played_.begun, begin) + read;
            if (least > end) *std::ranges::max_element(played_.ends) = least;
            return;
        }
        const double alone = of.alone_us > 0 ? of.alone_us : end - begin;
        const auto both = [alone](double us) {
            return std::pow(std::pow(alone, kBounds) + std::pow(us, kBounds), 1 / kBounds);
        };
        const double factor = both(read) / both(once);
        for (double& time : played_.ends) time = begin + (time - begin) * factor;
    }

    /// Notes what was played of the first rank: the n-th tile ends when its n-th one does.
    double as_first(std::size_t rank, std::size_t stage, double begin) {
        const std::vector<std::int64_t>& tiles = work_.orders[stage].tiles[rank];
        const std::size_t count = stages_[stage].us.size();
        std::vector<double> ends(count, begin), stored(count, 0);
        for (std::size_t slot = 0; slot < std::min(tiles.size(), played_.ends.size()); ++slot) {
            ends[at(tiles[slot])] = played_.ends[slot];
            stored[at(tiles[slot])] = played_.stored[slot];
        }
        note_ends(rank, stage, begin, ends, stored);
        return std::max(begin, *std::ranges::max_element(ends));
    }

    /// By tile: the first chunk that it makes, of those in the order in which they are; empty where tiles are
    /// of one length, and none need be told apart.
    [[nodiscard]] std::vector<std::int64_t> groups_of(std::size_t rank, std::size_t stage) const {
        if (stages_[stage].runs.empty() || work_.orders[stage].in_turns) return {};
        std::vector<std::int64_t> groups(stages_[stage].us.size(), 0);
        std::int64_t number = 0;
        for (const fuse::Made& chunk : graph_.made[rank]) {
            ++number;
            if (chunk.stage != static_cast<std::int32_t>(stage)) continue;
            for (const std::int64_t tile : chunk.makers) {
                if (groups[at(tile)] == 0) groups[at(tile)] = number;
            }
        }
        return groups;
    }

    /// Blocks of a run's rows; those of columns come before them.
    static Blocks row_blocks(const kernel::Kernel& kernel, std::int32_t columns) {
        Blocks made{.of_tile = {}, .count = columns};
        std::map<std::int64_t, std::int32_t> rows;  // by the first one: the number
        for (const kernel::Tile& tile : kernel.tiles) {
            const auto box = tile.reads.find("a_desc");
            const std::int64_t first = box == tile.reads.end() ? 0 : box->second[0].begin;
            const auto [known, is_new] = rows.try_emplace(first, made.count);
            if (is_new) ++made.count;
            const double bytes = box == tile.reads.end() ? 0 : bytes_of(kernel, "a_desc", box->second);
            made.of_tile.push_back({{known->second, bytes}});
        }
        return made;
    }

    /// When the chunks of a stage are made, and when what its tiles store at peers is there, by tile.
    void note_ends(std::size_t rank, std::size_t stage, double begin, const std::vector<double>& ends,
                   const std::vector<double>& stored) {
        const auto last = [](const fuse::Made& chunk, const std::vector<double>& times, double first) {
            for (const std::int64_t tile : chunk.makers) first = std::max(first, times[at(tile)]);
            return first;
        };
        for (const fuse::Made& chunk : graph_.made[rank]) {
            if (chunk.stage == static_cast<std::int32_t>(stage))
                done_[at(chunk.node)] = last(chunk, ends, begin);
        }
        each_store(rank, stage, [&](NodeId op, const fuse::Made& chunk) {
            stored_[at(op)] = last(chunk, stored, stored_[at(op)]);
        });
    }

    /// Bytes that tiles store at peers, as the ops say that they carry out; empty: none do.
    [[nodiscard]] std::vector<double> stored_bytes(std::size_t rank, std::size_t stage, bool moving) const {
        if (!moving || out_bytes_[rank] <= 0) return {};
        std::vector<double> stored(stages_[stage].us.size(), 0);
        each_store(rank, stage, [&](NodeId op, const fuse::Made& chunk) {
            const auto makers = static_cast<double>(std::max<std::size_t>(1, chunk.makers.size()));
            for (const std::int64_t tile : chunk.makers) stored[at(tile)] += bytes_[at(op)] / makers;
        });
        return stored;
    }
    template <typename Visit>
    void each_store(std::size_t rank, std::size_t stage, Visit visit) const {
        for (NodeId op = graph_.first_op[rank]; op < graph_.first_op[rank + 1]; ++op) {
            if (graph_.carrier(op) != Carrier::tile_stores || op_of(op).kind == plan::OpKind::local) continue;
            for (const Edge& edge : graph_.in[at(op)]) {
                if (edge.lag != 0 || graph_.is_op(edge.from)) continue;
                const fuse::Made& chunk = graph_.made_at(edge.from);
                if (chunk.stage == static_cast<std::int32_t>(stage)) visit(op, chunk);
            }
        }
    }

    /// Bytes that a tile loads at peers.
    [[nodiscard]] double loaded_bytes(NodeId node, std::size_t stage, std::size_t tile) const {
        double bytes = 0;
        const kernel::Kernel& kernel = program_.stages[stage].kernel;
        for (const NodeId op : graph_.loads_of(stage, node)) {
            if (op_of(op).kind == plan::OpKind::local) continue;
            const std::string& tensor = plan_.tensors[at(op_of(op).dst.tensor)].name;
            for (const auto& [param, bound] : program_.stages[stage].bindings) {
                if (bound != tensor) continue;
                const auto box = kernel.tiles[tile].reads.find(param);
                if (box == kernel.tiles[tile].reads.end()) continue;
                bytes += bytes_of(kernel, param, box->second);
            }
            break;
        }
        return bytes;
    }

    /// What a tile waits for, phase by phase of its loop.
    [[nodiscard]] std::vector<Phase> phases_of(NodeId tiles, std::size_t stage,
                                               const fuse::StageOrder& order) const {
        if (graph_.stages[stage].ranged) return ranges_of(tiles, stage);
        std::vector<Phase> phases(1);
        for (const Edge& edge : graph_.in[at(tiles)]) {  // sorted by iteration
            if (edge.lag != 0) continue;
            if (graph_.is_op(edge.from) && graph_.carrier(edge.from) == Carrier::tile_loads) continue;
            const bool whole = !order.phased || order.trips == 0;
            const double from =
                whole ? 0 : static_cast<double>(edge.iteration) / static_cast<double>(order.trips);
            if (from > phases.back().part.from) {
                phases.back().part.share = from - phases.back().part.from;
                phases.push_back({0, {from, 1 - from}});
            }
            phases.back().ready = std::max(phases.back().ready, done_[at(edge.from)]);
        }
        if (!graph_.stages[stage].awaits.empty()) {
            for (const NodeId chunk : graph_.awaited_by(stage, tiles))
                phases.front().ready = std::max(phases.front().ready, done_[at(chunk)]);
        }
        return phases;
    }

    /// The same of a tile whose loops run range by range: those that nothing has to bring first, the others
    /// as they come.
    [[nodiscard]] std::vector<Phase> ranges_of(NodeId tiles, std::size_t stage) const {
        const fuse::Graph::StageNodes& of = graph_.stages[stage];
        double start = 0;
        for (const Edge& edge : graph_.in[at(tiles)]) {
            if (edge.lag == 0 && edge.iteration == 0) start = std::max(start, done_[at(edge.from)]);
        }
        double all = 0, left = 1;
        for (const std::int64_t count : of.trips[at(graph_[tiles].index)]) all += static_cast<double>(count);
        std::vector<Phase> phases;
        if (all > 0) {
            for (const fuse::Use& use : graph_.uses_of(stage, tiles)) {
                const double share = static_cast<double>(use.end - use.begin) / all;
                phases.push_back({done_[at(use.op)], {static_cast<double>(use.begin) / all, share}});
                left -= share;
            }
        }
        std::ranges::sort(phases, {}, &Phase::ready);
        if (left > 0 || phases.empty()) phases.insert(phases.begin(), {start, {0, std::max(0.0, left)}});
        return phases;
    }

    double half_;  ///< of the fixed costs: when the first tile may begin
    bool alike_;
    const fuse::StagedProgram& program_;
    const fuse::Decisions& work_;
    const fuse::Graph& graph_;
    const std::vector<StageTiles>& stages_;
    const Machine& machine_;
    const Rates& rates_;
    const Strategy& strategy_;
    plan::Plan plan_;
    plan::Topology links_;
    std::vector<double> done_;           ///< by node: µs from the call's begin
    std::vector<double> bytes_;          ///< by op
    std::vector<double> stored_by_sum_;  ///< by sum: bytes at peers
    std::vector<bool> sent_on_;          ///< by sum: some op moves it on
    std::vector<double> begun_;          ///< by sum: when what it adds up is there
    std::vector<double> stored_;         ///< by op that tiles carry out: when all is stored
    std::vector<double> out_bytes_;      ///< by rank: that tiles store at peers
    std::vector<Blocks> blocks_;
    TilesPlayed played_;  ///< of the rank that was played last
    double slower_ = 1;  ///< tiles beside transfers: times what they take alone
    bool follows_tiles_ = false;
    bool precedes_tiles_ = false;
    bool at_once_ = false;
};

}  // namespace

Estimate play(const fuse::StagedProgram& program, const fuse::Decisions& work,
              const std::vector<StageTiles>& stages, double fixed_us, const Machine& machine,
              const Strategy& strategy, bool alike) {
    return Call(program, work, stages, fixed_us, machine, strategy, alike).run();
}

}  // namespace syncopate::tune
