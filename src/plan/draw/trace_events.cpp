#include "syncopate/plan/draw/trace_events.hpp"

#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "syncopate/json_text.hpp"

namespace syncopate::plan {
namespace {

/// In µs, to the ns.
std::string us(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

}  // namespace

TraceEvents::TraceEvents(std::int32_t num_ranks, std::string_view other)
    : num_ranks_(num_ranks),
      text_(fmt::format("{{\"displayTimeUnit\": \"ns\", \"otherData\": {},\n\"traceEvents\": [", other)) {}

std::string TraceEvents::text() const { return text_ + "\n]}\n"; }

void TraceEvents::event(std::string_view phase, Track track, Title title, std::string_view more) {
    fmt::format_to(std::back_inserter(text_), R"({}{{"ph":"{}","pid":{},"tid":{},"name":{})",
                   first_ ? "\n" : ",\n", phase, track.rank, number(track),
                   json_quoted(std::string(title.name)));
    if (!title.category.empty()) fmt::format_to(std::back_inserter(text_), R"(,"cat":"{}")", title.category);
    text_ += more;
    text_ += '}';
    first_ = false;
}

void TraceEvents::process(std::int32_t rank, std::string_view note) {
    // Perfetto lists processes of as many slices by name, others by how many; 02 comes before 10.
    const std::string name = fmt::format("rank {:0{}}{}", rank, std::to_string(num_ranks_ - 1).size(), note);
    event("M", {rank, 0}, {"", "process_name"}, fmt::format(R"(,"args":{{"name":{}}})", json_quoted(name)));
    event("M", {rank, 0}, {"", "process_sort_index"}, fmt::format(R"(,"args":{{"sort_index":{}}})", rank));
}

void TraceEvents::thread(Track track, std::string_view name) {
    event("M", track, {"", "thread_name"},
          fmt::format(R"(,"args":{{"name":{}}})", json_quoted(std::string(name))));
}

void TraceEvents::slice(Track track, Title title, std::int64_t begin, std::int64_t end,
                        std::string_view arguments, std::string_view colour) {
    std::string more = fmt::format(R"(,"ts":{},"dur":{},"args":{})", us(begin), us(end - begin), arguments);
    if (!colour.empty()) more += fmt::format(R"(,"cname":"{}")", colour);
    event("X", track, title, more);
}

void TraceEvents::mark(Track track, Title title, std::int64_t moment, std::string_view arguments) {
    event("i", track, title, fmt::format(R"(,"s":"t","ts":{},"args":{})", us(moment), arguments));
}

void TraceEvents::flight(Track track, Title title, std::string_view id, std::int64_t begin,
                         std::int64_t end) {
    // A global id would put it outside of all processes.
    for (const auto& [phase, moment] : {std::pair{"b", begin}, std::pair{"e", end}})
        event(phase, track, title,
              fmt::format(R"(,"id2":{{"local":{}}},"ts":{})", json_quoted(std::string(id)), us(moment)));
}

void TraceEvents::arrow(std::string_view name, Track from, std::int64_t left, Track to, std::int64_t came) {
    event("s", from, {name, name}, fmt::format(R"(,"ts":{},"id":{})", us(left), arrows_));
    event("f", to, {name, name}, fmt::format(R"(,"bp":"e","ts":{},"id":{})", us(came), arrows_));
    ++arrows_;
}

}  // namespace syncopate::plan
