#include "syncopate/plan/draw/svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/check/check_passes.hpp"
#include "plan/draw/origin.hpp"
#include "plan/simulate/start_order.hpp"
#include "syncopate/at.hpp"
#include "syncopate/names.hpp"
#include "syncopate/plan/draw/svg_text.hpp"
#include "syncopate/plan/model/notation.hpp"

namespace syncopate::plan {
namespace {

// All in pixels.
constexpr double kLeft = 150;    // names of ranks and engines
constexpr double kWidth = 1050;  // of the time axis
constexpr double kRight = 30;
constexpr double kTop = 98;  // title, legend, and below it the name of the bound
constexpr double kNarrowest = 0.6;
constexpr std::int32_t kMaxLegend = 16;
constexpr std::int32_t kMaxRanks = 64;   // drawn, from rank 0
constexpr std::size_t kMaxArrows = 600;  // with more `after` edges none is drawn
constexpr std::size_t kMaxBars = 400;    // of one row

constexpr std::string_view kInk = "#1f2933";
constexpr std::string_view kFaint = "#7b8794";

/// "#rrggbb" of a hue in [0, 1), for renderers that know no hsl().
std::string hex_of(double hue, double saturation, double lightness) {
    const auto channel = [&](double n) {
        const double at = std::fmod(n + hue * 12, 12);
        const double chroma = saturation * std::min(lightness, 1 - lightness);
        const double value = lightness - chroma * std::max(-1.0, std::min({at - 3, 9 - at, 1.0}));
        return static_cast<int>(std::lround(255 * value));
    };
    return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(8), channel(4));
}

/// Up to ten origins have colours that are told apart easily; more go round the circle of hues.
std::string colour_of(std::int32_t origin, std::int32_t count) {
    static constexpr std::array<std::string_view, 10> kFew{"#4e79a7", "#f28e2b", "#59a14f", "#e15759",
                                                           "#76b7b2", "#edc948", "#b07aa1", "#ff9da7",
                                                           "#9c755f", "#86bcb6"};
    if (count <= static_cast<std::int32_t>(kFew.size())) return std::string(kFew[at(origin)]);
    return hex_of(static_cast<double>(origin) / count, origin % 2 == 0 ? 0.6 : 0.45,
                  origin % 2 == 0 ? 0.55 : 0.7);
}

/// A round step that cuts `span` into about `pieces`.
double round_step(double span, double pieces) {
    const double rough = span / pieces;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    for (const double step : {1.0, 2.0, 5.0}) {
        if (step * power >= rough) return step * power;
    }
    return 10 * power;
}

/// A figure with as many digits as `step` needs, in the unit that suits it.
std::string time_text(double us, double scale_us) {
    if (scale_us >= 1e6) return fmt::format("{:.4g} s", us / 1e6);
    if (scale_us >= 10e3) return fmt::format("{:.4g} ms", us / 1e3);
    return fmt::format("{:.4g} µs", us);
}

/// One lane of an engine of a rank.
struct Row {
    std::int32_t rank = 0;
    EngineKind engine = EngineKind::copy_engine;
    std::int32_t peer = -1;         ///< where each peer has lanes of its own
    std::vector<std::int32_t> ops;  ///< by start
    double top = 0;
};

class Picture {
public:
    Picture(const Plan& plan, const Topology& topology, const Simulation& simulation)
        : plan_(plan),
          topology_(topology),
          simulation_(simulation),
          origins_(plan),
          ranks_(std::min(plan.num_ranks(), kMaxRanks)),
          span_(std::max(simulation.makespan_us, 1e-3)) {}

    std::string draw() {
        lay_out();
        const double height = bottom_ + 64;
        put(R"(<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">)"
            R"(<path d="M0,1 L7,4 L0,7 z" fill="{0}"/></marker></defs>)"
            "\n",
            kInk);
        title();
        axis();
        for (const Row& row : rows_) draw_row(row);
        rank_names();
        arrows();
        bound();
        notes();
        return svg_document(kLeft + kWidth + kRight, height, 12, text_);
    }

private:
    template <typename... Args>
    void put(fmt::format_string<Args...> format, Args&&... args) {
        fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    }

    void label(double x, double y, std::string_view text, std::string_view extra = "",
               std::string_view fill = kInk) {
        put("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\" {}>{}</text>\n", x, y, fill, extra,
            svg_escaped(text));
    }

    const OpTime& time(OpRef ref) const { return simulation_.ops[at(ref.rank)][at(ref.index)]; }

    double x_of(double us) const { return kLeft + us / span_ * kWidth; }

    /// Gives every lane that is used a row.
    void lay_out() {
        for (std::int32_t rank = 0; rank < ranks_; ++rank) {
            std::map<std::tuple<EngineKind, std::int32_t, std::int32_t>, Row> rows;
            const auto count = static_cast<std::int32_t>(plan_.ranks[at(rank)].size());
            for (std::int32_t index = 0; index < count; ++index) {
                const OpTime& at = time({rank, index});
                const Op& op = plan_.op({rank, index});
                const bool own_lanes = (op.kind == OpKind::push || op.kind == OpKind::pull) &&
                                       engine_figures(topology_, at.engine).per_peer;
                const std::int32_t peer = own_lanes ? op.peer : -1;
                Row& row = rows.try_emplace({at.engine, peer, at.lane}, Row{rank, at.engine, peer, {}, 0})
                               .first->second;
                row.ops.push_back(index);
            }
            if (rows.empty())
                rows.try_emplace({EngineKind::copy_engine, -1, 0},
                                 Row{rank, EngineKind::copy_engine, -1, {}, 0});
            for (auto& [key, row] : rows) {
                std::stable_sort(row.ops.begin(), row.ops.end(), [&](std::int32_t a, std::int32_t b) {
                    return time({rank, a}).start_us < time({rank, b}).start_us;
                });
                rows_.push_back(std::move(row));
            }
        }
        row_height_ =
            std::clamp(1400.0 / static_cast<double>(std::max<std::size_t>(1, rows_.size())), 4.0, 24.0);
        gap_ = row_height_ >= 12 ? 8 : 2;
        bottom_ = kTop;
        std::int32_t last = -1;
        for (Row& row : rows_) {
            if (row.rank != last) bottom_ += gap_;
            last = row.rank;
            row.top = bottom_;
            for (const std::int32_t index : row.ops) top_of_[{row.rank, index}] = bottom_;
            bottom_ += row_height_;
        }
        bottom_ += gap_;
    }

    void title() {
        std::size_t ops = 0;
        for (const auto& list : plan_.ranks) ops += list.size();
        label(16, 26,
              fmt::format("{} ranks, {} ops on {}: {}", plan_.num_ranks(), ops, topology_.name,
                          time_text(simulation_.makespan_us, span_)),
              "font-size=\"17\" font-weight=\"bold\"");
        std::string facts;
        if (simulation_.bound.us > 0) {
            facts = fmt::format("no schedule is faster than {} ({})", time_text(simulation_.bound.us, span_),
                                simulation_.bound.reason);
        }
        if (simulation_.busiest_link >= 0) {
            const auto link = static_cast<std::size_t>(simulation_.busiest_link);
            facts += fmt::format("{}busiest link {}: {:.0f} %", facts.empty() ? "" : "  ·  ",
                                 topology_.link_name(link), 100 * simulation_.links[link].utilisation);
        }
        label(16, 46, facts, "", kFaint);
        // Legend: only origins that occur.
        std::vector<char> occurs(plan_.ranks.size(), 0);
        for (const Row& row : rows_) {
            for (const std::int32_t index : row.ops) occurs[at(origins_.of({row.rank, index}))] = 1;
        }
        double x = 16;
        std::int32_t shown = 0;
        label(x, 70, "chunks of rank", "", kFaint);
        x += 96;
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            if (occurs[at(rank)] == 0) continue;
            if (++shown > kMaxLegend) {
                label(x, 70, "…", "", kFaint);
                break;
            }
            put("<rect x=\"{:.1f}\" y=\"60\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>\n", x,
                colour_of(rank, plan_.num_ranks()));
            label(x + 16, 70, std::to_string(rank));
            x += 28 + 8 * static_cast<double>(std::to_string(rank).size());
        }
    }

    void axis() {
        const double step = round_step(span_, 10);
        for (double at = 0; at <= span_ * 1.0001; at += step) {
            const double x = x_of(at);
            put("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#e4e7eb\"/>\n", x,
                kTop, bottom_ + 4);
            label(x, bottom_ + 20, at == 0 ? "0" : time_text(at, span_), "text-anchor=\"middle\"", kFaint);
        }
    }

    void rank_names() {
        const bool each_row = row_height_ >= 12;
        double next_free = 0;
        for (std::size_t i = 0; i < rows_.size();) {
            std::size_t end = i;
            while (end < rows_.size() && rows_[end].rank == rows_[i].rank) ++end;
            const double top = rows_[i].top;
            const double middle = (top + rows_[end - 1].top + row_height_) / 2 + 4;
            if (middle - 9 >= next_free) {
                label(16, middle, fmt::format("rank {}", rows_[i].rank), "font-weight=\"bold\"");
                next_free = middle + 3;
            }
            if (each_row) {
                for (std::size_t row = i; row < end; ++row) {
                    if (row > i && rows_[row].engine == rows_[row - 1].engine && rows_[row].peer < 0)
                        continue;
                    const std::string lane =
                        rows_[row].peer < 0 ? std::string() : fmt::format(", {}", rows_[row].peer);
                    label(kLeft - 8, rows_[row].top + row_height_ / 2 + 4,
                          std::string(name_of(rows_[row].engine)) + lane,
                          "text-anchor=\"end\" font-size=\"10\"", kFaint);
                }
            }
            i = end;
        }
    }

    void draw_row(const Row& row) {
        put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#f5f7fa\"/>\n", kLeft,
            row.top, kWidth, row_height_);
        if (row.ops.size() > kMaxBars) {
            summary(row);
            return;
        }
        for (std::size_t i = 0; i < row.ops.size(); ++i) {
            // The next op of the lane may start while this one's last bytes are still on the way.
            const double next =
                i + 1 < row.ops.size() ? time({row.rank, row.ops[i + 1]}).start_us : kUnlimited;
            bar(row, row.ops[i], next);
        }
    }

    void bar(const Row& row, std::int32_t index, double next_us) {
        const OpRef ref{row.rank, index};
        const Op& op = plan_.op(ref);
        const OpTime& at = time(ref);
        const double x = x_of(at.start_us);
        const double width = std::max(kNarrowest, x_of(std::min(at.end_us, next_us)) - x - 0.5);
        const std::int32_t origin = origins_.of(ref);
        const bool reduces = op.reduce != Reduce::none;
        put("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" rx=\"{}\" fill=\"{}\"{}>", x,
            row.top + 1, width, row_height_ - 2, row_height_ >= 12 ? 3 : 0,
            colour_of(origin, plan_.num_ranks()),
            reduces ? fmt::format(" stroke=\"{}\" stroke-width=\"1.2\" stroke-dasharray=\"3 2\"", kInk)
                    : std::string());
        put("<title>{}</title></rect>\n", svg_escaped(told(ref, op, at, origin)));
        const std::string name = row_height_ >= 12 ? name_in_bar(op, width) : std::string();
        if (!name.empty()) {
            label(x + width / 2, row.top + row_height_ / 2 + 4, name,
                  "text-anchor=\"middle\" font-size=\"11\" pointer-events=\"none\"");
        }
    }

    static std::string name_in_bar(const Op& op, double width) {
        std::string name;
        switch (op.kind) {
            case OpKind::push: name = fmt::format("→ {}", op.peer); break;
            case OpKind::pull: name = fmt::format("← {}", op.peer); break;
            case OpKind::local: name = "local"; break;
            case OpKind::collective: name = name_of(op.collective); break;
        }
        if (op.reduce != Reduce::none) name += op.reduce == Reduce::sum ? " +" : " max";
        return static_cast<double>(name.size()) * 6 + 4 <= width ? name : std::string();
    }

    std::string told(OpRef ref, const Op& op, const OpTime& at, std::int32_t origin) const {
        std::string text = fmt::format(
            "rank {} op {}: {}{}\n{}{}\n{} of rank {}, {}\n{:.2f} to {:.2f} µs ({:.4g} µs, {:.0f} GB/s)",
            ref.rank, ref.index, op.kind == OpKind::collective ? name_of(op.collective) : name_of(op.kind),
            op.kind == OpKind::push   ? fmt::format(" to {}", op.peer)
            : op.kind == OpKind::pull ? fmt::format(" from {}", op.peer)
                                      : std::string(),
            to_string(plan_, op.src), op.src == op.dst ? std::string() : " -> " + to_string(plan_, op.dst),
            op.reduce == Reduce::none ? "chunk" : "sum", origin, human_bytes(plan_.bytes(op.dst)),
            at.start_us, at.end_us, at.end_us - at.start_us,
            at.end_us > at.start_us
                ? static_cast<double>(plan_.bytes(op.dst)) / ((at.end_us - at.start_us) * 1e3)
                : 0.0);
        for (std::size_t i = 0; i < op.after.size() && i < 8; ++i)
            text += fmt::format("{}{}:{}", i == 0 ? "\nafter " : ", ", op.after[i].rank, op.after[i].index);
        return text;
    }

    /// A row of very many ops: for each stretch of three pixels, what share of it each origin has.
    void summary(const Row& row) {
        constexpr double kStretch = 3;
        const auto stretches = static_cast<std::size_t>(kWidth / kStretch);
        std::vector<std::map<std::int32_t, double>> shares(stretches);
        for (const std::int32_t index : row.ops) {
            const OpTime& at = time({row.rank, index});
            const std::int32_t origin = origins_.of({row.rank, index});
            const double scale = static_cast<double>(stretches) / span_;
            const double begin = at.start_us * scale;
            const double end = std::min(at.end_us * scale, static_cast<double>(stretches));
            for (auto i = static_cast<std::size_t>(begin); i < stretches && static_cast<double>(i) < end;
                 ++i) {
                shares[i][origin] +=
                    std::min(end, static_cast<double>(i + 1)) - std::max(begin, static_cast<double>(i));
            }
        }
        for (std::size_t i = 0; i < stretches; ++i) {
            double top = row.top + 1;
            for (const auto& [origin, share] : shares[i]) {
                const double height = (row_height_ - 2) * std::min(1.0, share);
                if (height < 0.2) continue;
                put("<rect x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.1f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
                    kLeft + static_cast<double>(i) * kStretch, top, kStretch, height,
                    colour_of(origin, plan_.num_ranks()));
                top += height;
            }
        }
        summarised_ = true;
    }

    /// From the end of each op to the start of those after it.
    void arrows() {
        std::vector<std::pair<OpRef, OpRef>> edges;
        for (const Row& row : rows_) {
            for (const std::int32_t index : row.ops) {
                for (const OpRef earlier : plan_.op({row.rank, index}).after) {
                    if (top_of_.contains({earlier.rank, earlier.index}))
                        edges.push_back({earlier, {row.rank, index}});
                }
            }
        }
        num_arrows_ = edges.size();
        if (edges.size() > kMaxArrows || summarised_) return;
        const double opacity = edges.size() > 150 ? 0.35 : 0.7;
        put("<g fill=\"none\" stroke=\"{}\" stroke-width=\"1\" opacity=\"{}\">\n", kInk, opacity);
        for (const auto& [from, to] : edges) {
            const double x1 = x_of(time(from).end_us);
            const double x2 = x_of(time(to).start_us);
            const double y1 = top_of_[{from.rank, from.index}] + row_height_ / 2;
            const double y2 = top_of_[{to.rank, to.index}] + row_height_ / 2;
            const double bend = std::max(10.0, (x2 - x1) / 2);
            put("<path d=\"M{:.1f},{:.1f} C{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}\" "
                "marker-end=\"url(#tip)\"/>\n",
                x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2);
        }
        put("</g>\n");
        drawn_arrows_ = true;
    }

    void bound() {
        if (simulation_.bound.us <= 0 || simulation_.bound.us > span_) return;
        const double x = x_of(simulation_.bound.us);
        put("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#c81e1e\" "
            "stroke-dasharray=\"5 3\"/>\n",
            x, kTop - 4, bottom_ + 4);
        label(std::min(x, kLeft + kWidth - 30), kTop - 8, "lower bound",
              "text-anchor=\"middle\" font-size=\"11\"", "#c81e1e");
    }

    void notes() {
        std::vector<std::string> notes;
        if (ranks_ < plan_.num_ranks())
            notes.push_back(fmt::format("{} more ranks are not drawn", plan_.num_ranks() - ranks_));
        if (summarised_) notes.emplace_back("rows of very many ops show the share of time of each origin");
        if (num_arrows_ > 0) {
            notes.push_back(drawn_arrows_ ? "arrows: an op starts after another one"
                                          : fmt::format("{} dependences are not drawn", num_arrows_));
        }
        bool reduces = false;
        for (const Row& row : rows_) {
            for (const std::int32_t index : row.ops)
                reduces |= plan_.op({row.rank, index}).reduce != Reduce::none;
        }
        if (reduces)
            notes.emplace_back(
                "dashed outline: adds into its destination, in the colour of who wants the sum");
        label(16, bottom_ + 46, fmt::format("{}", fmt::join(notes, "  ·  ")), "font-size=\"11\"", kFaint);
    }

    const Plan& plan_;
    const Topology& topology_;
    const Simulation& simulation_;
    Origins origins_;
    std::int32_t ranks_;
    double span_;  ///< µs
    std::vector<Row> rows_;
    std::map<OpRef, double> top_of_;
    double row_height_ = 0;
    double gap_ = 0;
    double bottom_ = 0;
    bool summarised_ = false;
    bool drawn_arrows_ = false;
    std::size_t num_arrows_ = 0;
    std::string text_;
};

}  // namespace

std::string to_svg(const Plan& plan, const Topology& topology, const Simulation& simulation) {
    return Picture(plan, topology, simulation).draw();
}

}  // namespace syncopate::plan
