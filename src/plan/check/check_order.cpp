// What must be ordered and is not: early_read, write_race, overwrite.
//
// For each rank's memory, a shadow: disjoint boxes, each with the accesses to it that later ones must come
// after. Events are taken in topological order, so that whatever comes before an event has been seen. An
// access needs to be ordered after the last conflicting ones only: these are ordered after those before them.
// (The idea is that of race detectors for threads: Flanagan and Freund, "FastTrack", PLDI 2009.) Where memory
// is even (cells.hpp) the shadow is an array.
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan/check/arrivals.hpp"
#include "plan/check/cells.hpp"
#include "plan/check/event_sets.hpp"
#include "plan/model/coalesce.hpp"
#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

// In place of the event that wrote a box last.
constexpr std::int32_t kProduced = -2;   ///< the kernel, at some time; whoever reads waits for that
constexpr std::int32_t kNothing = -3;    ///< nobody: a reduction has come where nothing was
constexpr std::int32_t kUntouched = -4;  ///< nobody, and nothing has come (cells only)

/// What has happened to a box since its last plain write, `base`. A run of reductions of one kind, any order
/// among themselves, follows `before`; reads follow the reductions; once there are reads, the next reduction
/// begins a new run that follows them.
struct History {
    std::int32_t base = kAtStart;
    EventSets::Set before = EventSets::kEmpty;  ///< reads, or reductions of the other kind
    EventSets::Set reductions = EventSets::kEmpty;
    EventSets::Set reads = EventSets::kEmpty;
    Reduce kind = Reduce::none;    ///< of `reductions`
    bool before_are_reads = true;  ///< else reductions
};

using Shadow = BoxIndex<History>;

/// A box that a collective fills; all alike to coalesce.
struct Filled {
    Region box;
    struct Any {
        bool operator==(const Any&) const = default;
    } value;
};
[[maybe_unused]] int order_of(Filled::Any) { return 0; }

/// Takes `hole` out of every box; false once nothing is left.
bool remove(std::vector<Region>& boxes, const Region& hole) {
    take(boxes, hole);
    return !boxes.empty();
}

/// One box that an event reads or writes.
struct Access {
    std::int32_t event;
    OpRef op;
    std::int32_t rank;   ///< whose memory
    const Chunk& chunk;  ///< outlives the access
    Cells::Cell cell = Cells::kNone;
};

class OrderCheck {
public:
    OrderCheck(const Plan& plan, const EventGraph& graph, const Followers& followers,
               std::span<const std::int32_t> topological, const std::vector<std::size_t>& axes,
               const Cells& cells, Budget& budget)
        : plan_(plan),
          graph_(graph),
          topological_(topological),
          budget_(budget),
          axes_(axes),
          cells_(cells),
          happens_before_(graph, followers, topological, budget),
          sets_(graph, happens_before_),
          histories_(cells.size(), History{.base = kUntouched}) {}

    std::vector<Finding> find() {
        for (const auto& [holdings, base] :
             {std::pair(&plan_.initial, kAtStart), std::pair(&plan_.produced, kProduced)}) {
            for (const Holding& holding : *holdings) start(holding, base);
        }
        for (const std::int32_t event : topological_) {
            if (budget_.exhausted() || reported_.size() >= kMaxReported) break;
            happens_before_.look_at(event);
            if (cells_.transfer(event).is_collective) {
                run_collective(event);
            } else {
                run_transfer(event);
            }
        }
        std::vector<Finding> findings;
        if (reported_.size() >= kMaxReported) {
            findings.push_back(
                {std::get<0>(reported_.begin()->first), -1, -1,
                 fmt::format("more than {} ops are out of order; the rest is not looked at", kMaxReported)});
        }
        for (auto& [key, reported] : reported_) {
            if (reported.more > 0)
                reported.finding.message += fmt::format(" (and {} more like this)", reported.more);
            findings.push_back(std::move(reported.finding));
        }
        return findings;
    }

private:
    static constexpr std::size_t kMaxReported = 10000;  ///< what nobody reads to the end
    static constexpr std::int64_t kExplainSteps = std::int64_t{1} << 26;

    // ---- what each event does -----------------------------------------------------------------------------

    void start(const Holding& holding, std::int32_t base) {
        const Region& region = holding.chunk.region;
        History history;
        history.base = base;
        const Cells::Range all = cells_.of(holding.rank, holding.chunk.tensor);
        if (all.empty()) {
            replace(memory(holding.rank, holding.chunk.tensor), region, history,
                    [](const Region&, const History&) {});
            return;
        }
        const Cells::Range cells = cells_.near(all, holding.chunk.tensor, region);
        for (Cells::Cell cell = cells.first; cell < cells.last && !budget_.exhausted(); ++cell) {
            budget_.spend();
            if (overlaps(cells_.box(cell), region)) histories_[at(cell)] = history;
        }
    }

    void run_transfer(std::int32_t event) {
        const Cells::Transfer& transfer = cells_.transfer(event);
        const OpRef ref = graph_.members(event).front();
        const Op& op = plan_.op(ref);
        read({event, ref, transfer.source_rank, op.src, transfer.source});
        const Access target{event, ref, transfer.destination_rank, op.dst, transfer.destination};
        if (transfer.reduce == Reduce::none) {
            write(target);
        } else {
            reduce(target, transfer.reduce);
        }
    }

    /// A collective reads all its sources before it writes: the executor stages what would be overwritten.
    void run_collective(std::int32_t event) {
        const auto members = graph_.members(event);
        const Result<CollectiveLayout> layout = layout_of(plan_, {members.begin(), members.end()});
        if (!layout) return;  // check_malformed has said so
        std::vector<Filled> filled;
        for (std::size_t i = 0; i < layout->sources.size(); ++i) {
            const CollectivePart& part = layout->sources[i];
            filled.push_back({part.at, {}});
            if (i > 0 && layout->sources[i - 1].op == part.op) continue;  // another part of the same source
            read({event, part.op, part.op.rank, plan_.op(part.op).src});
        }
        budget_.spend(static_cast<std::int64_t>(filled.size()));
        coalesce(filled);
        for (const CollectivePart& part : layout->targets) {
            budget_.spend(static_cast<std::int64_t>(filled.size()));
            if (budget_.exhausted()) return;
            for (const Filled& from : filled) {
                std::optional<Region> box = intersect(from.box, part.at);
                if (!box) continue;
                for (std::size_t axis = 0; axis < box->size(); ++axis) {
                    const std::int64_t shift = part.chunk.region[axis].begin - part.at[axis].begin;
                    (*box)[axis].begin += shift;
                    (*box)[axis].end += shift;
                }
                const Chunk chunk{part.chunk.tensor, std::move(*box)};
                write({event, part.op, part.op.rank, chunk});
            }
        }
    }

    // ---- accesses -----------------------------------------------------------------------------------------

    void read(const Access& access) {
        const std::int32_t event = access.event;
        std::vector<std::pair<Region, std::int32_t>> unordered;  // parts, and who writes them at any time
        const bool covered = touch(access, [&](const Region& part, History& history) {
            if (history.reductions != EventSets::kEmpty) {
                const std::int32_t other = sets_.unordered(history.reductions, event);
                if (other != EventSets::kNone) report_read_of_reduction(access, part, other);
            } else if (history.base >= 0 && !happens_before_.before(history.base, event)) {
                unordered.emplace_back(part, history.base);
            }
            history.reads = sets_.with(history.reads, event);
        });
        if (covered && unordered.empty()) return;
        std::vector<Region> missing = gaps(access);
        for (const auto& [part, writer] : unordered) {
            for (Region& box : not_surely_held(access, part)) missing.push_back(std::move(box));
        }
        if (!missing.empty()) report_early(access, "reads", missing);
        for (auto& [part, writer] : unordered) {
            std::vector<Region> held{std::move(part)};
            for (const Region& hole : missing) remove(held, hole);
            if (!held.empty()) report_overwrite(access, held.front(), writer);
        }
    }

    void reduce(const Access& access, Reduce kind) {
        const std::int32_t event = access.event;
        const bool covered = touch(access, [&](const Region& part, History& history) {
            if (history.reads != EventSets::kEmpty) {
                follow(access, part, history.reads, true);
                history.before = history.reads;
                history.before_are_reads = true;
                history.reductions = EventSets::kEmpty;
                history.reads = EventSets::kEmpty;
            } else if (history.reductions != EventSets::kEmpty && history.kind != kind) {
                follow(access, part, history.reductions, false);
                history.before = history.reductions;
                history.before_are_reads = false;
                history.reductions = EventSets::kEmpty;
            } else if (history.before != EventSets::kEmpty) {
                follow(access, part, history.before, history.before_are_reads);
            } else if (history.base >= 0 && !happens_before_.before(history.base, event)) {
                report_race(access, part, history.base);
            }
            history.kind = kind;
            history.reductions = sets_.with(history.reductions, event);
        });
        if (covered) return;
        std::vector<Region> gap = gaps(access);
        // A plain write that is not ordered with this will be found as a race.
        std::vector<Region> missing = gap;
        arrivals().visit(access.rank, access.chunk, [&](const Region& box, Arrivals::Writer writer) {
            const bool race = writer.event >= 0 && writer.event != event && writer.reduce == Reduce::none &&
                              !happens_before_.before(event, writer.event);
            return !race || remove(missing, box);
        });
        if (!missing.empty()) report_early(access, "reduces into", missing);
        for (Region& box : gap) {
            History history;
            history.base = kNothing;
            history.kind = kind;
            history.reductions = sets_.with(EventSets::kEmpty, event);
            if (History* const own = own_history(access)) {
                *own = history;
            } else {
                memory(access.rank, access.chunk.tensor).insert(std::move(box), history);
            }
        }
    }

    /// A reduction needs what it follows to come before it.
    void follow(const Access& access, const Region& part, EventSets::Set set, bool reads) {
        const std::int32_t other = sets_.unordered(set, access.event);
        if (other == EventSets::kNone) return;
        if (reads) {
            report_read_of_reduction(access_of(other, access.rank), part, access.event);
        } else {
            report_race(access, part, other);
        }
    }

    void write(const Access& access) {
        const std::int32_t event = access.event;
        History written;
        written.base = event;
        const auto follow_all = [&](const Region& part, const History& history) {
            if (history.reads != EventSets::kEmpty) {
                const std::int32_t reader = sets_.unordered(history.reads, event);
                if (reader != EventSets::kNone) report_overwrite(access_of(reader, access.rank), part, event);
            } else if (history.reductions != EventSets::kEmpty) {
                const std::int32_t other = sets_.unordered(history.reductions, event);
                if (other != EventSets::kNone) report_race(access, part, other);
            } else if (history.base == kProduced) {
                report_overwrite_of_produced(access, part);
            } else if (history.base >= 0 && history.base != event &&
                       !happens_before_.before(history.base, event)) {
                report_race(access, part, history.base);
            }
        };
        if (History* const own = own_history(access)) {
            budget_.spend();
            follow_all(access.chunk.region, *own);
            *own = written;
        } else {
            replace(memory(access.rank, access.chunk.tensor), access.chunk.region, written, follow_all);
        }
    }

    // ---- shadow memory ------------------------------------------------------------------------------------

    Shadow& memory(std::int32_t rank, std::int32_t tensor) {
        const std::int64_t key = rank * static_cast<std::int64_t>(plan_.tensors.size()) + tensor;
        return shadows_.try_emplace(key, axes_[at(tensor)], budget_).first->second;
    }

    /// Of an access to even memory, that of its cell; null elsewhere.
    History* own_history(const Access& access) {
        return access.cell == Cells::kNone ? nullptr : &histories_[at(access.cell)];
    }

    /// Calls visit(part, history) for each part of the access that something has been written to, having
    /// split boxes that reach beyond it; visit may change the history. Returns whether these parts are all.
    template <typename Visit>
    bool touch(const Access& access, Visit visit) {
        const Region& region = access.chunk.region;
        if (History* const own = own_history(access)) {
            budget_.spend();
            if (own->base == kUntouched) return false;
            visit(region, *own);
            return true;
        }
        Shadow& shadow = memory(access.rank, access.chunk.tensor);
        std::int64_t covered = 0;
        bool whole = true;
        shadow.update_overlapping(region, [&](Shadow::Entry& entry) {
            if (!contains(region, entry.box)) {
                whole = false;
            } else {
                covered += num_elements(entry.box);
                visit(entry.box, entry.value);
            }
            return true;
        });
        if (whole) return covered == num_elements(region);
        const auto reaches_beyond = [&](const Shadow::Entry& entry) { return !contains(region, entry.box); };
        for (Shadow::Entry& entry : shadow.extract_overlapping(region, reaches_beyond)) {
            for (Region& rest : subtract(entry.box, region)) shadow.insert(std::move(rest), entry.value);
            Region part = *intersect(entry.box, region);
            covered += num_elements(part);
            visit(part, entry.value);
            shadow.insert(std::move(part), entry.value);
        }
        return covered == num_elements(region);
    }

    /// The parts of the access that nothing has been written to.
    std::vector<Region> gaps(const Access& access) {
        std::vector<Region> gap{access.chunk.region};
        if (const History* const own = own_history(access)) {
            if (own->base != kUntouched) gap.clear();
            return gap;
        }
        memory(access.rank, access.chunk.tensor)
            .visit_overlapping(access.chunk.region, [&](const Shadow::Entry& entry) {
                budget_.spend(static_cast<std::int64_t>(gap.size()));
                return !budget_.exhausted() && remove(gap, entry.box);
            });
        return gap;
    }

    /// Gives the region one history, after visit(part, history) of those that it had.
    template <typename Visit>
    static void replace(Shadow& shadow, const Region& region, const History& history, Visit visit) {
        if (Shadow::Entry* const same = shadow.find(region)) {  // the usual case, with no allocation
            visit(same->box, same->value);
            same->value = history;
            return;
        }
        for (Shadow::Entry& entry : shadow.extract_overlapping(region)) {
            visit(*intersect(entry.box, region), entry.value);
            for (Region& rest : subtract(entry.box, region)) shadow.insert(std::move(rest), entry.value);
        }
        shadow.insert(region, history);
    }

    // ---- findings -----------------------------------------------------------------------------------------

    /// The op of `event` that works on the rank's memory, with what it reads there.
    Access access_of(std::int32_t event, std::int32_t rank) const {
        for (const OpRef ref : graph_.members(event)) {
            const Op& op = plan_.op(ref);
            if (op.kind != OpKind::collective || ref.rank == rank) return {event, ref, rank, op.src};
        }
        const OpRef first = graph_.members(event).front();
        return {event, first, rank, plan_.op(first).src};
    }

    std::string part_name(const Access& access, const Region& part) const {
        return fmt::format("{} on rank {}", to_string(plan_, {access.chunk.tensor, part}), access.rank);
    }

    /// One finding for each op, kind and phrase; others like it are counted.
    void report(Finding::Kind kind, OpRef op, std::string_view phrase, std::string message) {
        const auto [at, first] = reported_.try_emplace({kind, op, phrase});
        if (first) {
            at->second.finding = {kind, op.rank, op.index, std::move(message)};
        } else {
            ++at->second.more;
        }
    }

    const Arrivals& arrivals() {
        if (!arrivals_) arrivals_.emplace(plan_, graph_, axes_, explain_);
        return *arrivals_;
    }

    /// What of `part` of a source neither the start nor a write that comes before has filled.
    std::vector<Region> not_surely_held(const Access& access, const Region& part) {
        std::vector<Region> missing{part};
        arrivals().visit(
            access.rank, {access.chunk.tensor, part}, [&](const Region& box, Arrivals::Writer writer) {
                budget_.spend(static_cast<std::int64_t>(missing.size()));
                const bool before =
                    writer.event == kAtStart || happens_before_.before(writer.event, access.event);
                return !before || remove(missing, box);
            });
        return missing;
    }

    void report_early(const Access& access, std::string_view verb, const std::vector<Region>& missing) {
        const Chunk first{access.chunk.tensor, missing.front()};
        std::string why = "nothing writes it there before";
        arrivals().visit(access.rank, first, [&](const Region&, Arrivals::Writer writer) {
            if (writer.event == access.event || writer.event == kAtStart) return true;
            const OpRef by = access_of(writer.event, access.rank).op;
            why = happens_before_.before(access.event, writer.event)
                      ? fmt::format("op {}:{} writes it, but waits for this op", by.rank, by.index)
                      : fmt::format("op {}:{} writes it, but this op does not wait for that one", by.rank,
                                    by.index);
            return false;
        });
        report(Finding::Kind::early_read, access.op, verb,
               fmt::format("{} {}, where {}{} has not surely arrived: {}", verb,
                           part_name(access, access.chunk.region), to_string(first.region),
                           missing.size() > 1 ? fmt::format(" (and {} more)", missing.size() - 1) : "", why));
    }

    void report_read_of_reduction(const Access& reader, const Region& part, std::int32_t reduction) {
        const OpRef by = access_of(reduction, reader.rank).op;
        report(
            Finding::Kind::early_read, reader.op, "reduction",
            fmt::format("reads {}, where {} has not surely arrived: op {}:{} reduces into it, and neither op "
                        "waits for the other",
                        part_name(reader, reader.chunk.region), to_string(part), by.rank, by.index));
    }

    void report_overwrite(const Access& reader, const Region& part, std::int32_t writer) {
        const OpRef by = access_of(writer, reader.rank).op;
        report(Finding::Kind::overwrite, by, "read",
               fmt::format("writes {}, which op {}:{} may still read: neither op waits for the other",
                           part_name(reader, part), reader.op.rank, reader.op.index));
    }

    void report_overwrite_of_produced(const Access& access, const Region& part) {
        report(Finding::Kind::overwrite, access.op, "produced",
               fmt::format("writes {}, which the kernel produces and may write later; wait for an op that "
                           "reads it there",
                           part_name(access, part)));
    }

    void report_race(const Access& access, const Region& part, std::int32_t other) {
        OpRef mine = access.op;
        OpRef theirs = access_of(other, access.rank).op;
        if (mine < theirs) std::swap(mine, theirs);
        const auto reduce_of = [&](OpRef ref) {
            const Op& op = plan_.op(ref);
            return op.kind == OpKind::collective ? Reduce::none : op.reduce;
        };
        const auto verb = [&](OpRef ref, std::string_view write) {
            const Reduce reduce = reduce_of(ref);
            return reduce == Reduce::none ? std::string(write)
                                          : fmt::format("reduces ({}) into", name_of(reduce));
        };
        report(Finding::Kind::write_race, mine, "",
               fmt::format("{} {}, which op {}:{} {}: neither op waits for the other", verb(mine, "writes"),
                           part_name(access, part), theirs.rank, theirs.index, verb(theirs, "writes too")));
    }

    struct Reported {
        Finding finding;
        std::int64_t more = 0;
    };

    const Plan& plan_;
    const EventGraph& graph_;
    std::span<const std::int32_t> topological_;
    Budget& budget_;
    Budget explain_{kExplainSteps};  ///< to say why; once gone, what is unordered counts as not arrived
    const std::vector<std::size_t>& axes_;
    const Cells& cells_;
    HappensBefore happens_before_;
    EventSets sets_;
    std::vector<History> histories_;                    ///< by cell
    std::unordered_map<std::int64_t, Shadow> shadows_;  ///< by rank and tensor, of memory that is not even
    std::optional<Arrivals> arrivals_;                  ///< made when there is something to explain
    std::map<std::tuple<Finding::Kind, OpRef, std::string_view>, Reported> reported_;
};

}  // namespace

std::vector<Finding> check_order(const Plan& plan, const EventGraph& graph, const Followers& followers,
                                 std::span<const std::int32_t> topological,
                                 const std::vector<std::size_t>& axes, const Cells& cells, Budget& budget) {
    return OrderCheck(plan, graph, followers, topological, axes, cells, budget).find();
}

}  // namespace syncopate::plan
