#include "syncopate/plan/simulate/simulate.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "plan/check/check_passes.hpp"
#include "plan/check/event_graph.hpp"
#include "plan/simulate/flow_network.hpp"
#include "plan/simulate/start_order.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/check/collectives.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

/// The n-th of evenly spread figures in [0, 1): n's bits read backwards (van der Corput).
double spread(std::uint32_t n) {
    double value = 0;
    for (double digit = 0.5; n != 0; n >>= 1, digit /= 2) value += (n & 1) != 0 ? digit : 0;
    return value;
}

/// One run of the machine. Events are those of EventGraph: an op, or all participants of a collective.
class Run {
public:
    Run(const Plan& plan, const Topology& topology, const SimulateOptions& options, const EventGraph& graph,
        const StartOrder& order)
        : plan_(plan),
          topology_(topology),
          options_(options),
          graph_(graph),
          order_(order),
          followers_(followers_of(graph)),
          routes_(topology),
          network_(topology) {}

    Result<Simulation> run() {
        prepare();
        for (std::size_t line = 0; line < lines_.size(); ++line)
            schedule(rank_starts(lines_[line].rank), Kind::start_of_rank, static_cast<std::int32_t>(line));
        if (error_) return *error_;
        while (!queue_.empty()) {
            const auto [time, serial, kind, event, version] = queue_.top();
            queue_.pop();
            now_ = time;
            switch (kind) {
                case Kind::start_of_rank: advance(static_cast<std::size_t>(event)); break;
                case Kind::data: begin_flow(event); break;
                case Kind::last_byte:
                    if (version == network_.version(event)) end_flow(event);
                    break;
                case Kind::posted: posted(event); break;
                case Kind::end: finish(event); break;
            }
            if (error_) return *error_;
        }
        return std::move(result_);
    }

private:
    enum class Kind : std::uint8_t { start_of_rank, data, last_byte, posted, end };
    using Entry = std::tuple<double, std::uint64_t, Kind, std::int32_t, std::uint32_t>;

    /// One engine of one rank: its ops in order, and when its lanes are free.
    struct Line {
        std::vector<OpRef> ops;
        std::int32_t rank = 0;
        std::size_t next = 0;
        std::int32_t last_peer = -1;  ///< of the push that started last; -1: none
        std::vector<std::int32_t> free_lanes;
    };

    std::size_t line_of(OpRef ref) const {
        return static_cast<std::size_t>(line_of_[at(ref.rank)][at(ref.index)]);
    }

    OpTime& time_of(OpRef ref) { return result_.ops[at(ref.rank)][at(ref.index)]; }

    double rank_starts(std::int32_t rank) const {
        return topology_.start_us + topology_.skew_us * spread(static_cast<std::uint32_t>(rank));
    }

    void prepare() {
        const std::size_t events = static_cast<std::size_t>(graph_.num_events());
        result_.links.resize(topology_.links.size());
        result_.ops.resize(plan_.ranks.size());
        line_of_.resize(plan_.ranks.size());
        for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
            result_.ops[rank].resize(plan_.ranks[rank].size());
            line_of_[rank].resize(plan_.ranks[rank].size());
            std::map<std::int64_t, std::size_t> known;
            for (const OpRef ref : order_.ranks[rank]) {
                const OpTiming* timing = timing_of(ref);
                const bool given = timing != nullptr && timing->line >= 0;
                const auto [line, first] =
                    known.emplace(given ? -1 - timing->line : line_key(plan_, topology_, ref), lines_.size());
                const EngineKind kind = engine_of(plan_, topology_, ref);
                if (first) {
                    const std::int32_t lanes =
                        given || kind == EngineKind::library ? 1 : engine_figures(topology_, kind).lanes;
                    Line& made = lines_.emplace_back();
                    made.rank = ref.rank;
                    for (std::int32_t lane = lanes; lane-- > 0;) made.free_lanes.push_back(lane);
                }
                lines_[line->second].ops.push_back(ref);
                line_of_[rank][at(ref.index)] = static_cast<std::int32_t>(line->second);
                time_of(ref).engine = kind;
            }
        }
        open_ = followers_.num_before();
        arrived_.assign(events, 0);
        latency_.assign(events, 0);
        network_.reserve(events);
    }

    const Engine& engine_at(OpRef ref) { return engine_figures(topology_, time_of(ref).engine); }

    void schedule(double time, Kind kind, std::int32_t event, std::uint32_t version = 0) {
        queue_.emplace(time, serial_++, kind, event, version);
    }

    /// Starts what can start at the head of a line.
    void advance(std::size_t at) {
        Line& line = lines_[at];
        while (line.next < line.ops.size() && !line.free_lanes.empty() && !error_) {
            const OpRef ref = line.ops[line.next];
            const std::int32_t event = graph_.event(ref);
            if (now_ < rank_starts(line.rank) || open_[static_cast<std::size_t>(event)] > 0) return;
            if (const OpTiming* known = timing_of(ref); known != nullptr && known->ready_us > now_) {
                schedule(known->ready_us, Kind::start_of_rank, static_cast<std::int32_t>(at));
                return;
            }
            ++line.next;
            OpTime& time = time_of(ref);
            time.start_us = now_;
            time.lane = line.free_lanes.back();
            line.free_lanes.pop_back();
            start(ref, event);
        }
    }

    void leave_lane(OpRef ref) {
        const std::size_t line = line_of(ref);
        lines_[line].free_lanes.push_back(time_of(ref).lane);
        advance(line);
    }

    /// nullptr: nothing is known.
    const OpTiming* timing_of(OpRef ref) const {
        if (options_.timings.empty()) return nullptr;
        return &options_.timings[at(ref.rank)][at(ref.index)];
    }

    void start(OpRef ref, std::int32_t event) {
        const Op& op = plan_.op(ref);
        const OpTiming* known = timing_of(ref);
        if (known != nullptr && known->lasts_us >= 0 && op.kind != OpKind::collective) {
            schedule(now_ + known->lasts_us, op.kind == OpKind::local ? Kind::end : Kind::posted, event);
            return;
        }
        if (op.kind == OpKind::collective) {
            const auto members = graph_.members(event);
            if (++arrived_[at(event)] < static_cast<std::int32_t>(members.size())) return;
            schedule(now_ + collective_us(event), Kind::end, event);
            return;
        }
        if (op.kind == OpKind::local) {
            schedule(now_ + topology_.local_us +
                         static_cast<double>(plan_.bytes(op.dst)) / (topology_.local_gbps * kBytesPerUs),
                     Kind::end, event);
            return;
        }
        const Engine& from = engine_at(ref);
        path_.clear();
        const std::int32_t source = op.source_rank(ref.rank);
        const std::int32_t target = op.destination_rank(ref.rank);
        if (!routes_.append_path(source, target, path_)) {
            error_ = Error{
                fmt::format("there is no way from device {} to device {} in topology {}{}", source, target,
                            topology_.name, topology_.forwarding ? "" : ", whose devices do not forward"),
                {"", 0, 0, ref.rank, ref.index}};
            return;
        }
        double start_up = op.kind == OpKind::pull ? from.pull_us : from.push_us;
        std::int32_t& last_peer = lines_[line_of(ref)].last_peer;
        if (op.kind == OpKind::push && last_peer == op.peer) start_up = from.repeat_us.value_or(start_up);
        last_peer = op.kind == OpKind::push ? op.peer : -1;
        for (const std::int32_t link : path_) {
            latency_[at(event)] += static_cast<float>(topology_.links[at(link)].latency_us);
            result_.links[at(link)].bytes += plan_.bytes(op.dst);
        }
        for (const OpRef other : op.after) {
            if (other.rank != ref.rank) {
                start_up += from.wait_us;
                break;
            }
        }
        network_.set_path(event, source, target, path_);
        schedule(now_ + start_up, Kind::data, event);
    }

    void begin_flow(std::int32_t event) {
        const OpRef ref = graph_.members(event).front();
        const double bytes = static_cast<double>(plan_.bytes(plan_.op(ref).dst));
        const double rate = engine_at(ref).rate() * kBytesPerUs;
        network_.begin(event, now_, bytes, rate);
        take_changes();
    }

    void end_flow(std::int32_t event) {
        network_.end(event, now_);
        take_changes();
        const Engine& from = engine_at(graph_.members(event).front());
        schedule(now_ + (options_.posts ? from.post_us : 0), Kind::posted, event);
    }

    /// The lane is free again; the chunk has still to travel.
    void posted(std::int32_t event) {
        schedule(now_ + static_cast<double>(latency_[at(event)]), Kind::end, event);
        leave_lane(graph_.members(event).front());
    }

    /// New ends of the flows whose rate has changed.
    void take_changes() {
        for (const FlowNetwork::Change& change : network_.changes())
            schedule(change.end, Kind::last_byte, change.flow, change.version);
        network_.clear_changes();
    }

    void finish(std::int32_t event) {
        result_.makespan_us = std::max(result_.makespan_us, now_);
        for (const OpRef ref : graph_.members(event)) time_of(ref).end_us = now_;
        for (const std::int32_t follower : followers_(event)) {
            if (--open_[at(follower)] > 0) continue;
            for (const OpRef ref : graph_.members(follower)) advance(line_of(ref));
        }
        const OpKind kind = plan_.op(graph_.members(event).front()).kind;
        if (kind == OpKind::push || kind == OpKind::pull) return;  // has left its lane before
        for (const OpRef ref : graph_.members(event)) leave_lane(ref);
    }

    /// A library's time for a collective whose participants have all come.
    double collective_us(std::int32_t event) const {
        const auto members = graph_.members(event);
        const Op& first = plan_.op(members.front());
        double most = 0;  // bytes of the whole that each participant ends up with, or starts from
        for (const OpRef ref : members) {
            const Op& op = plan_.op(ref);
            most = std::max(most, static_cast<double>(std::max(plan_.bytes(op.src), plan_.bytes(op.dst))));
        }
        const double count = static_cast<double>(members.size());
        double bytes = most * (count - 1) / count;  // of a ring; NCCL's "bus bandwidth" counts the same
        if (first.collective == CollectiveKind::all_reduce) bytes *= 2;
        if (first.collective == CollectiveKind::broadcast) bytes = most;
        double gbps = topology_.library_gbps;
        for (const OpRef ref : members) gbps = std::min(gbps, network_.capacity_of_device(ref.rank));
        return topology_.library_us + (count > 1 ? bytes / (gbps * kBytesPerUs) : 0);
    }

    const Plan& plan_;
    const Topology& topology_;
    const SimulateOptions& options_;
    const EventGraph& graph_;
    const StartOrder& order_;
    const Followers followers_;
    Routes routes_;
    FlowNetwork network_;
    Simulation result_;
    std::vector<Line> lines_;
    std::vector<std::vector<std::int32_t>> line_of_;  ///< by rank and index
    std::vector<float> latency_;                      ///< by event, µs: of its route
    std::vector<std::int32_t> open_;                  ///< by event: waits that have not ended
    std::vector<std::int32_t> arrived_;               ///< by event: participants that have come
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
    std::vector<std::int32_t> path_;
    std::uint64_t serial_ = 0;
    double now_ = 0;
    std::optional<Error> error_;
};

}  // namespace

std::string_view name_of(EngineKind engine) {
    switch (engine) {
        case EngineKind::copy_engine: return "copy engine";
        case EngineKind::sm: return "SMs";
        case EngineKind::network: return "network";
        case EngineKind::library: return "library";
    }
    return "?";
}

Result<Simulation> simulate(const Plan& plan, const Topology& topology, const SimulateOptions& options) {
    std::vector<Finding> findings = options.times_only ? std::vector<Finding>{} : check_outline(plan);
    if (findings.empty() && plan.num_ranks() > topology.num_devices()) {
        return Error{fmt::format("the plan has {} ranks, but topology {} has {} devices", plan.num_ranks(),
                                 topology.name, topology.num_devices()),
                     {.of_plan = true}};
    }
    CollectiveMatch collectives;
    if (findings.empty()) {
        collectives = match_collectives(plan);
        if (!options.times_only) {
            Budget budget(steps_to_check(entries_of(plan)));
            findings = check_malformed(plan, collectives, budget);
        }
    }
    if (!findings.empty()) {
        const Finding& first = findings.front();
        return Error{std::string(name_of(first.kind)) + ": " + first.message,
                     {"", 0, 0, first.rank, first.op}};
    }
    for (const Tensor& tensor : plan.tensors) {
        if (tensor.ragged)
            return Error{fmt::format("tensor {} has a ragged axis: how many rows of it move only a call "
                                     "knows, so there is nothing to simulate",
                                     tensor.name),
                         {.of_plan = true}};
    }
    if (!options.timings.empty()) {
        bool fits = options.timings.size() == plan.ranks.size();
        for (std::size_t rank = 0; fits && rank < plan.ranks.size(); ++rank)
            fits = options.timings[rank].size() == plan.ranks[rank].size();
        if (!fits) return Error{"the timings are not those of the plan's ops: there is one for each"};
    }
    const EventGraph graph(plan, collectives.groups);
    SYNCOPATE_TAKE(StartOrder order, start_order(plan, topology, graph));
    SYNCOPATE_TAKE(Simulation result, Run(plan, topology, options, graph, order).run());
    Simulation simulation = std::move(result);
    for (std::size_t link = 0; link < simulation.links.size(); ++link) {
        LinkLoad& load = simulation.links[link];
        if (simulation.makespan_us > 0) {
            load.utilisation = static_cast<double>(load.bytes) /
                               (topology.links[link].gbps * kBytesPerUs * simulation.makespan_us);
        }
        const bool busier = simulation.busiest_link < 0 ||
                            load.utilisation > simulation.links[at(simulation.busiest_link)].utilisation;
        if (load.bytes > 0 && busier) simulation.busiest_link = static_cast<std::int32_t>(link);
    }
    if (!options.times_only) simulation.bound = lower_bound(plan, topology);
    return simulation;
}

}  // namespace syncopate::plan
