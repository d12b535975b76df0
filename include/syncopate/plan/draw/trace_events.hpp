// Trace events of ranks, for Perfetto (ui.perfetto.dev) and chrome://tracing: simulated runs and recorded ones. A process
// a rank, in it tracks numbered from 0; slices of one track must not overlap.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace syncopate::plan {

/// Times are ns; `arguments` are JSON objects, as text.
class TraceEvents {
public:
    struct Track {
        std::int32_t rank = 0;
        std::int32_t index = 0;
    };
    struct Title {
        std::string_view category;
        std::string_view name;
    };

    /// `other`: what stands beside the events, a JSON object.
    TraceEvents(std::int32_t num_ranks, std::string_view other);

    /// `note` stands behind the rank's number.
    void process(std::int32_t rank, std::string_view note = {});
    void thread(Track track, std::string_view name);
    /// `colour`: one of those that trace viewers know by name; "": theirs.
    void slice(Track track, Title title, std::int64_t begin, std::int64_t end, std::string_view arguments,
               std::string_view colour = {});
    void mark(Track track, Title title, std::int64_t moment, std::string_view arguments);
    /// A span beside the slices: these may overlap. `id` is its own within the process.
    void flight(Track track, Title title, std::string_view id, std::int64_t begin, std::int64_t end);
    /// From the slice around a moment to another one's; both have been told.
    void arrow(std::string_view name, Track from, std::int64_t left, Track to, std::int64_t came);

    /// The file.
    [[nodiscard]] std::string text() const;

private:
    void event(std::string_view phase, Track track, Title title, std::string_view more);
    /// Perfetto takes a thread whose number is 0 or its process's for the process's main thread, so that two would
    /// become one. Processes are numbered by rank; numbers of threads follow.
    [[nodiscard]] std::int32_t number(Track track) const { return num_ranks_ + track.index; }

    std::int32_t num_ranks_;
    std::string text_;
    bool first_ = true;
    std::int64_t arrows_ = 0;
};

}  // namespace syncopate::plan
