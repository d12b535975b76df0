#include "syncopate/plan/draw/trace.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan/check/check_passes.hpp"
#include "plan/draw/origin.hpp"
#include "syncopate/at.hpp"
#include "syncopate/json_text.hpp"
#include "syncopate/plan/draw/trace_events.hpp"
#include "syncopate/plan/model/notation.hpp"

namespace syncopate::plan {
namespace {

/// Names of colours that trace viewers know; an origin has the one at its rank, modulo their number.
constexpr std::array<std::string_view, 12> kColours{"thread_state_running",
                                                    "rail_response",
                                                    "rail_animation",
                                                    "thread_state_iowait",
                                                    "cq_build_passed",
                                                    "rail_load",
                                                    "rail_idle",
                                                    "thread_state_runnable",
                                                    "good",
                                                    "bad",
                                                    "startup",
                                                    "heap_dump_child_node_arrow"};
/// Perfetto colours slices by name, ASCII digits left out. In small digits a chunk's origin counts.
std::string subscript(std::int32_t number) {
    std::string text;
    for (const char digit : std::to_string(number)) {
        text += "\xE2\x82";  // U+2080 and up
        text += static_cast<char>(0x80 + (digit - '0'));
    }
    return text;
}

class Trace {
public:
    Trace(const Plan& plan, const Topology& topology, const Simulation& simulation)
        : plan_(plan),
          simulation_(simulation),
          origins_(plan),
          events_(plan.num_ranks(), fmt::format("{{\"topology\": {}, \"makespan_us\": {:.3f}}}",
                                                json_quoted(topology.name), simulation.makespan_us)) {
        find_slices();
    }

    std::string write() {
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) names(rank);
        each_op([this](OpRef ref) { op(ref); });
        // An arrow binds to a slice that has been read before it, if both are of one moment.
        each_op([this](OpRef ref) { arrows(ref); });
        return events_.text();
    }

private:
    template <typename Visit>
    void each_op(Visit visit) const {
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            const auto count = static_cast<std::int32_t>(plan_.ranks[at(rank)].size());
            for (std::int32_t index = 0; index < count; ++index) visit(OpRef{rank, index});
        }
    }

    const OpTime& time(OpRef ref) const { return simulation_.ops[at(ref.rank)][at(ref.index)]; }

    using Lane = std::pair<EngineKind, std::int32_t>;
    Lane lane(OpRef ref) const { return {time(ref).engine, time(ref).lane}; }
    TraceEvents::Track track(OpRef ref) const { return {ref.rank, threads_[at(ref.rank)].at(lane(ref))}; }

    /// What is drawn of an op, in ns: a chunk that has left its lane may still be on its way when the next
    /// one starts there, but slices of one track must not overlap. So it is drawn until then, and its arrival
    /// told beside it.
    struct Slice {
        std::int64_t begin = 0;
        std::int64_t end = 0;
    };

    void find_slices() {
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            const auto count = static_cast<std::int32_t>(plan_.ranks[at(rank)].size());
            std::vector<Slice>& slices = slices_.emplace_back();
            std::map<Lane, std::vector<std::pair<std::int64_t, std::int32_t>>> tracks;  // begin, index
            for (std::int32_t index = 0; index < count; ++index) {
                const OpTime& at = time({rank, index});
                slices.push_back({std::llround(at.start_us * 1e3), std::llround(at.end_us * 1e3)});
                tracks[lane({rank, index})].emplace_back(slices.back().begin, index);
            }
            auto& threads = threads_.emplace_back();
            for (auto& [id, track] : tracks) {
                threads.emplace(id, static_cast<std::int32_t>(threads.size()));
                std::sort(track.begin(), track.end());
                for (std::size_t i = 0; i + 1 < track.size(); ++i) {
                    std::int64_t& end = slices[at(track[i].second)].end;
                    end = std::min(end, track[i + 1].first);
                }
            }
        }
    }

    Slice slice(OpRef ref) const { return slices_[at(ref.rank)][at(ref.index)]; }

    void names(std::int32_t rank) {
        events_.process(rank);
        for (const auto& [known, id] : threads_[at(rank)]) {
            events_.thread({rank, id},
                           fmt::format("{}{}", name_of(known.first),
                                       known.second == 0 ? "" : fmt::format(", lane {}", known.second)));
        }
    }

    void op(OpRef ref) {
        const Op& op = plan_.op(ref);
        const OpTime& at = time(ref);
        const std::int32_t origin = origins_.of(ref);
        const std::int64_t bytes = plan_.bytes(op.dst);
        const double length = at.end_us - at.start_us;
        const bool collective = op.kind == OpKind::collective;
        const std::string what =
            collective
                ? std::string(name_of(op.collective))
                : fmt::format("{}{}, chunk of {}", name_of(op.kind),
                              op.kind == OpKind::local
                                  ? ""
                                  : fmt::format(" {} {}", op.kind == OpKind::push ? "to" : "from", op.peer),
                              subscript(origin));
        const Slice drawn = slice(ref);
        const std::string arguments = fmt::format(
            R"({{"op":{},"origin":{},"src":{},"dst":{},"bytes":{},"GB/s":{:.1f},"arrives_us":{:.3f}{}}})",
            ref.index, origin, json_quoted(to_string(plan_, op.src)), json_quoted(to_string(plan_, op.dst)),
            bytes, length > 0 ? static_cast<double>(bytes) / (length * 1e3) : 0.0, at.end_us,
            op.reduce == Reduce::none ? "" : fmt::format(",\"reduce\":\"{}\"", name_of(op.reduce)));
        events_.slice(track(ref), {"op", what}, drawn.begin, drawn.end, arguments,
                      kColours[static_cast<std::size_t>(origin) % kColours.size()]);
    }

    void arrows(OpRef ref) {
        for (const OpRef earlier : plan_.op(ref).after) {
            // Bound to the slices around these moments: just before the one's end, and the other's start.
            const Slice from = slice(earlier);
            events_.arrow("after", track(earlier), std::max(from.begin, from.end - 1), track(ref),
                          slice(ref).begin);
        }
    }

    const Plan& plan_;
    const Simulation& simulation_;
    Origins origins_;
    TraceEvents events_;
    std::vector<std::vector<Slice>> slices_;             ///< by rank and op
    std::vector<std::map<Lane, std::int32_t>> threads_;  ///< by rank: its lanes, numbered
};

}  // namespace

std::string to_trace(const Plan& plan, const Topology& topology, const Simulation& simulation) {
    return Trace(plan, topology, simulation).write();
}

}  // namespace syncopate::plan
