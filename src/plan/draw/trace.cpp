#include "syncopate/plan/draw/trace.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
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
        : plan_(plan), simulation_(simulation), origins_(plan) {
        find_slices();
        put("{{\"displayTimeUnit\": \"ns\", \"otherData\": {{\"topology\": {}, \"makespan_us\": {:.3f}}},\n"
            "\"traceEvents\": [",
            json_quoted(topology.name), simulation.makespan_us);
    }

    std::string write() {
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) names(rank);
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            const auto count = static_cast<std::int32_t>(plan_.ranks[at(rank)].size());
            for (std::int32_t index = 0; index < count; ++index) op({rank, index});
        }
        // An arrow binds to a slice that has been read before it, if both are of one moment.
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            const auto count = static_cast<std::int32_t>(plan_.ranks[at(rank)].size());
            for (std::int32_t index = 0; index < count; ++index) arrows({rank, index});
        }
        text_ += "\n]}\n";
        return std::move(text_);
    }

private:
    template <typename... Args>
    void put(fmt::format_string<Args...> format, Args&&... args) {
        fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    }

    void next_event() {
        text_ += first_ ? "\n" : ",\n";
        first_ = false;
    }

    const OpTime& time(OpRef ref) const { return simulation_.ops[at(ref.rank)][at(ref.index)]; }

    using Lane = std::pair<EngineKind, std::int32_t>;
    Lane lane(OpRef ref) const { return {time(ref).engine, time(ref).lane}; }

    /// Perfetto takes a thread whose number is 0 or its process's for the process's main thread, so that two
    /// would become one. Processes are numbered by rank; numbers of threads follow.
    std::int32_t thread(OpRef ref) const { return plan_.num_ranks() + threads_[at(ref.rank)].at(lane(ref)); }

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
    /// In µs, to the ns.
    static std::string us(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

    void names(std::int32_t rank) {
        next_event();
        // Perfetto lists processes of as many slices by name, others by how many; 02 comes before 10.
        put(R"({{"ph":"M","pid":{0},"name":"process_name","args":{{"name":"rank {0:0{1}}"}}}},)", rank,
            std::to_string(plan_.num_ranks() - 1).size());
        put("\n"
            R"({{"ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}}}})",
            rank);
        for (const auto& [known, id] : threads_[at(rank)]) {
            next_event();
            put(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}{}"}}}})", rank,
                plan_.num_ranks() + id, name_of(known.first),
                known.second == 0 ? "" : fmt::format(", lane {}", known.second));
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
        next_event();
        const Slice drawn = slice(ref);
        put(R"({{"ph":"X","cat":"op","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cname":"{}",)", ref.rank,
            thread(ref), us(drawn.begin), us(drawn.end - drawn.begin), json_quoted(what),
            kColours[static_cast<std::size_t>(origin) % kColours.size()]);
        put(R"("args":{{"op":{},"origin":{},"src":{},"dst":{},"bytes":{},"GB/s":{:.1f},"arrives_us":{:.3f}{}}}}})",
            ref.index, origin, json_quoted(to_string(plan_, op.src)), json_quoted(to_string(plan_, op.dst)),
            bytes, length > 0 ? static_cast<double>(bytes) / (length * 1e3) : 0.0, at.end_us,
            op.reduce == Reduce::none ? "" : fmt::format(",\"reduce\":\"{}\"", name_of(op.reduce)));
    }

    void arrows(OpRef ref) {
        for (const OpRef earlier : plan_.op(ref).after) {
            // Bound to the slices around these moments: just before the one's end, and the other's start.
            const Slice from = slice(earlier);
            next_event();
            put(R"({{"ph":"s","pid":{},"tid":{},"ts":{},"id":{},"name":"after","cat":"after"}},)",
                earlier.rank, thread(earlier), us(std::max(from.begin, from.end - 1)), flow_);
            put("\n"
                R"({{"ph":"f","bp":"e","pid":{},"tid":{},"ts":{},"id":{},"name":"after","cat":"after"}})",
                ref.rank, thread(ref), us(slice(ref).begin), flow_);
            ++flow_;
        }
    }

    const Plan& plan_;
    const Simulation& simulation_;
    Origins origins_;
    std::vector<std::vector<Slice>> slices_;             ///< by rank and op
    std::vector<std::map<Lane, std::int32_t>> threads_;  ///< by rank: its lanes, numbered
    std::string text_;
    bool first_ = true;
    std::int64_t flow_ = 0;
};

}  // namespace

std::string to_trace(const Plan& plan, const Topology& topology, const Simulation& simulation) {
    return Trace(plan, topology, simulation).write();
}

}  // namespace syncopate::plan
