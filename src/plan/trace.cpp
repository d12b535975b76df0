#include "syncopate/plan/trace.hpp"

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "check_passes.hpp"
#include "origin.hpp"
#include "syncopate/plan/notation.hpp"

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
constexpr std::int32_t kMaxLanes = 1024;

class Trace {
public:
    Trace(const Plan& plan, const Topology& topology, const Simulation& simulation)
        : plan_(plan), simulation_(simulation), origins_(plan) {
        put("{{\"displayTimeUnit\": \"ns\", \"otherData\": {{\"topology\": {}, \"makespan_us\": {:.3f}}},\n"
            "\"traceEvents\": [",
            quoted(topology.name), simulation.makespan_us);
    }

    std::string write() {
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) names(rank);
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            const auto count = static_cast<std::int32_t>(plan_.ranks[static_cast<std::size_t>(rank)].size());
            for (std::int32_t index = 0; index < count; ++index) op({rank, index});
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

    static std::string quoted(const std::string& text) {
        return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }

    const OpTime& time(OpRef ref) const {
        return simulation_.ops[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
    }

    std::int32_t thread(OpRef ref) const {
        return static_cast<std::int32_t>(time(ref).engine) * kMaxLanes + time(ref).lane;
    }

    void names(std::int32_t rank) {
        next_event();
        put(R"({{"ph":"M","pid":{0},"name":"process_name","args":{{"name":"rank {0}"}}}},)", rank);
        put("\n"
            R"({{"ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}}}})",
            rank);
        std::map<std::int32_t, OpRef> threads;
        const auto count = static_cast<std::int32_t>(plan_.ranks[static_cast<std::size_t>(rank)].size());
        for (std::int32_t index = 0; index < count; ++index)
            threads.emplace(thread({rank, index}), OpRef{rank, index});
        for (const auto& [id, ref] : threads) {
            const OpTime& known = time(ref);
            next_event();
            put(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}{}"}}}})", rank, id,
                name_of(known.engine), known.lane == 0 ? "" : fmt::format(", lane {}", known.lane));
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
                : fmt::format("{} {} chunk of {}", name_of(op.kind),
                              op.kind == OpKind::local
                                  ? ""
                                  : fmt::format("{} {}", op.kind == OpKind::push ? "to" : "from", op.peer),
                              origin);
        next_event();
        put(R"({{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":{},"cname":"{}",)", ref.rank,
            thread(ref), at.start_us, length, quoted(what),
            kColours[static_cast<std::size_t>(origin) % kColours.size()]);
        put(R"("args":{{"op":{},"src":{},"dst":{},"bytes":{},"GB/s":{:.1f}{}}}}})", ref.index,
            quoted(to_string(plan_, op.src)), quoted(to_string(plan_, op.dst)), bytes,
            length > 0 ? static_cast<double>(bytes) / (length * 1e3) : 0.0,
            op.reduce == Reduce::none ? "" : fmt::format(",\"reduce\":\"{}\"", name_of(op.reduce)));
        for (const OpRef earlier : op.after) {
            // Bound to the slices around these moments: just before the one's end, and the other's start.
            const OpTime& from = time(earlier);
            next_event();
            put(R"({{"ph":"s","pid":{},"tid":{},"ts":{:.3f},"id":{},"name":"after","cat":"after"}},)",
                earlier.rank, thread(earlier), from.start_us + 0.999 * (from.end_us - from.start_us), flow_);
            put("\n"
                R"({{"ph":"f","bp":"e","pid":{},"tid":{},"ts":{:.3f},"id":{},"name":"after","cat":"after"}})",
                ref.rank, thread(ref), at.start_us, flow_);
            ++flow_;
        }
    }

    const Plan& plan_;
    const Simulation& simulation_;
    Origins origins_;
    std::string text_;
    bool first_ = true;
    std::int64_t flow_ = 0;
};

}  // namespace

std::string to_trace(const Plan& plan, const Topology& topology, const Simulation& simulation) {
    return Trace(plan, topology, simulation).write();
}

}  // namespace syncopate::plan
