#include "syncopate/emit/emit.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "emit/syntax.hpp"

namespace syncopate::emit {
namespace {

using kernel::SourceRange;
using kernel::TileIdSite;

constexpr std::array<std::string_view, 39> kNames{
    "sy_acquire",   "sy_acquire_2d",  "sy_acquire_3d",    "sy_acquire_phase",
    "sy_all_rows",  "sy_control",     "sy_copy",          "sy_finish",
    "sy_from",      "sy_hi",          "sy_linear_2d",     "sy_linear_3d",
    "sy_lo",        "sy_load_offset", "sy_load_row",      "sy_num_phases",
    "sy_offset",    "sy_own",         "sy_own_offset",    "sy_reads_own",
    "sy_phase",     "sy_post",        "sy_post_at_once",  "sy_out",
    "sy_out_pitch", "sy_sum",         "sy_post_last",     "sy_range",
    "sy_row",       "sy_schedule",    "sy_post_previous", "sy_slot",
    "sy_tile",      "sy_tile_2d",     "sy_tile_3d",       "sy_x",
    "sy_y",         "sy_z",           "SyncopateFault"};

/// Replacements and insertions, applied all at once. Those at one place come out in the order in which they
/// were added.
class Edits {
public:
    void insert(std::uint32_t at, std::string text) { edits_.push_back({at, at, std::move(text)}); }
    void replace(Span span, std::string text) { edits_.push_back({span.begin, span.end, std::move(text)}); }
    [[nodiscard]] std::string apply(std::string_view source) {
        std::stable_sort(edits_.begin(), edits_.end(),
                         [](const Edit& a, const Edit& b) { return a.begin < b.begin; });
        std::string result;
        std::uint32_t at = 0;
        for (const Edit& edit : edits_) {
            result += source.substr(at, edit.begin - at);
            result += edit.text;
            at = edit.end;
        }
        return result += source.substr(at);
    }

private:
    struct Edit {
        std::uint32_t begin;
        std::uint32_t end;
        std::string text;
    };
    std::vector<Edit> edits_;
};

// What the comments after a post say.
constexpr const char* kAtOnce = "  # this one, if its chunk is in a hurry";
constexpr const char* kStored = "  # this tile is stored: the last one of a chunk lets it leave";

/// Whether some tile waits for more than that another rank has begun the call, or ended the last one.
bool awaits_chunks(const fuse::Schedule& schedule, std::size_t stage) {
    using Kind = fuse::SignalMeaning::Kind;
    for (const fuse::RankSchedule& rank : schedule.ranks) {
        const auto of_op = [&](const fuse::Wait& wait) {
            const Kind kind = rank.signals[static_cast<std::size_t>(wait.signal)].kind;
            return kind != Kind::ready && kind != Kind::consumed;
        };
        for (const fuse::Slot& slot : schedule.slots_of(rank, stage)) {
            if (std::any_of(slot.waits.begin(), slot.waits.end(), of_op)) return true;
            for (const fuse::Phase& phase : slot.phases) {
                if (std::any_of(phase.waits.begin(), phase.waits.end(), of_op)) return true;
            }
        }
    }
    return false;
}

/// Whether some chunk can wait until its tiles' programs store their next ones.
bool some_can_wait(const fuse::Schedule& schedule) {
    return std::ranges::any_of(schedule.ranks, [](const fuse::RankSchedule& rank) {
        return std::ranges::any_of(rank.chunks, [](const fuse::MadeChunk& made) { return !made.at_once; });
    });
}

/// Whether some tile that does a sum makes a chunk that others than this sum wait for.
bool posts_before_sums(const fuse::Schedule& schedule) {
    for (const fuse::RankSchedule& rank : schedule.ranks) {
        for (const fuse::Transfer& sum : rank.transfers) {
            for (const fuse::TileSum& tile : sum.tiles) {
                const std::vector<std::int32_t>& made = rank.slots[static_cast<std::size_t>(tile.slot)].makes;
                if (std::any_of(made.begin(), made.end(), [&](std::int32_t chunk) {
                        return rank.chunks[static_cast<std::size_t>(chunk)].at_once;
                    }))
                    return true;
            }
        }
    }
    return false;
}

/// The kernel's sites; where some loads are of what transfers touch, only their sites wait: an epilogue that
/// takes the tile's id anew to load a bias has nothing more to wait for.
std::vector<TileIdSite> waiting_sites(const fuse::Program& program) {
    std::vector<TileIdSite> sites = program.kernel.sites.tile_ids;
    const auto loads_bound = [&](const TileIdSite& site) {
        return site.kind == TileIdSite::Kind::entry ||
               std::any_of(site.reads.begin(), site.reads.end(),
                           [&](const std::string& param) { return program.bindings.contains(param); });
    };
    if (std::any_of(sites.begin(), sites.end(), loads_bound)) {
        for (TileIdSite& site : sites) site.guards_reads = loads_bound(site);
    }
    return sites;
}

/// What is said of the elements that are added to the pointers of `tensor`: that they are multiples of 16, as
/// heaps and tensors begin at such, so that Triton goes on loading and storing as many bytes at once.
std::string multiple_of(const fuse::Schedule& schedule, std::int32_t tensor) {
    const std::vector<std::int64_t>& shape = schedule.tensors[static_cast<std::size_t>(tensor)].shape;
    const std::int64_t row =
        std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>());
    return row % 16 == 0 ? ", multiple=16" : "";
}

class Emitter {
public:
    Emitter(const fuse::Program& program, const fuse::Schedule& schedule, std::size_t stage)
        : kernel_(program.kernel),
          source_(kernel_.source),
          phased_(schedule.stage(stage).phased),
          produces_(schedule.produces(stage)),
          stores_(schedule.stores),
          loads_(schedule.loads),
          sums_(schedule.summed.has_value()),
          posts_first_(sums_ && posts_before_sums(schedule)),
          can_wait_(some_can_wait(schedule)),
          awaits_chunks_(awaits_chunks(schedule, stage)),
          sites_(waiting_sites(program)),
          facts_(facts_of(source_, {kernel_.sites.function.begin, kernel_.sites.function.end})) {
        const std::size_t newline = source_.find('\n');
        if (newline != std::string_view::npos && newline > 0 && source_[newline - 1] == '\r') eol_ = "\r\n";
        const auto param_of = [&](std::int32_t tensor, bool kernel::Param::* accessed) {
            for (const auto& [param, name] : program.bindings) {
                const kernel::Param* found = kernel_.find_param(param);
                if (found != nullptr && found->*accessed &&
                    name == schedule.tensors[static_cast<std::size_t>(tensor)].name)
                    return param;
            }
            return std::string();
        };
        if (stores_) {
            stored_param_ = param_of(stores_->tensor, &kernel::Param::written);
            store_multiple_ = multiple_of(schedule, stores_->tensor);
        }
        if (loads_) {
            loaded_param_ = param_of(loads_->tensor, &kernel::Param::read);
            load_multiple_ = multiple_of(schedule, loads_->tensor);
        }
        if (sums_) summed_param_ = param_of(*schedule.summed, &kernel::Param::written);
    }

    Result<std::string> run() {
        if (Status status = check_names(); !status) return status.error();
        add_parameters();
        for (const TileIdSite& site : sites_) {
            if (Status status = rewrite(site); !status) return status.error();
        }
        if (kernel_.sites.foreign_id.end > 0) {
            return error_at(kernel_.sites.foreign_id,
                            "a helper takes the program's id itself, so it cannot be given another tile: "
                            "take it in the kernel and pass it on");
        }
        if (!acquires_) {
            return error_at(kernel_.sites.name,
                            "kernel " + kernel_.name +
                                " has no place where a tile id is taken before its loads: mark one "
                                "with `# @sy.tile_id`");
        }
        if (phased_) {
            if (Status status = nest_reduction(); !status) return status.error();
        }
        posts_later_ = produces_ && can_post_later();
        if (sums_) {  // before the post that may follow on the next line
            if (Status status = add_sums(); !status) return status.error();
        }
        if (produces_) {
            if (Status status = add_posts(); !status) return status.error();
        }
        if (stores_) {
            if (Status status = redirect_stores(); !status) return status.error();
        }
        if (loads_) {
            if (Status status = redirect_loads(); !status) return status.error();
        }
        add_finish();
        add_import();
        return edits_.apply(source_);
    }

private:
    [[nodiscard]] Error error_at(const SourceRange& range, std::string message) const {
        return kernel::error_at(source_, kernel_.file, range, std::move(message));
    }
    [[nodiscard]] Error error_at(const Span& span, std::string message) const {
        const std::string_view before = source_.substr(0, span.begin);
        SourceRange range{span.begin, span.end};
        range.line = 1 + static_cast<std::int32_t>(std::count(before.begin(), before.end(), '\n'));
        return error_at(range, std::move(message));
    }

    [[nodiscard]] std::uint32_t line_begin(std::uint32_t offset) const {
        if (offset == 0) return 0;
        const std::size_t newline = source_.rfind('\n', offset - 1);
        return newline == std::string_view::npos ? 0 : static_cast<std::uint32_t>(newline + 1);
    }
    /// The white space that the line of `offset` begins with.
    [[nodiscard]] std::string indent_at(std::uint32_t offset) const {
        const std::uint32_t begin = line_begin(offset);
        std::size_t end = begin;
        while (end < source_.size() && (source_[end] == ' ' || source_[end] == '\t')) ++end;
        return std::string(source_.substr(begin, end - begin));
    }
    [[nodiscard]] bool begins_its_line(std::uint32_t offset) const {
        return line_begin(offset) + indent_at(offset).size() == offset;
    }
    /// Adds a line after the one that `offset` (the end of a statement) is on.
    void add_line_after(std::uint32_t offset, const std::string& line) {
        const std::size_t newline = source_.find('\n', offset);
        if (newline == std::string_view::npos) {
            edits_.insert(static_cast<std::uint32_t>(source_.size()), eol_ + line);
        } else {
            edits_.insert(static_cast<std::uint32_t>(newline + 1), line + eol_);
        }
    }
    /// Nothing but a comment may stand between a statement's end and the end of its line.
    [[nodiscard]] Status check_ends_its_line(std::uint32_t end, const std::string& what) const {
        std::size_t at = end;
        while (at < source_.size() && (source_[at] == ' ' || source_[at] == '\t' || source_[at] == '\r'))
            ++at;
        if (at >= source_.size() || source_[at] == '\n' || source_[at] == '#') return Done{};
        return error_at(Span{end, end},
                        what + " shares its line with what follows it: put that on a line of its own");
    }

    [[nodiscard]] Status check_names() const {
        for (const Identifier& identifier : facts_.identifiers) {
            if (std::find(kNames.begin(), kNames.end(), identifier.name) != kNames.end()) {
                return error_at(identifier.where,
                                identifier.name + " is a name that the fused kernel needs: rename it");
            }
        }
        return Done{};
    }

    void add_parameters() {
        const kernel::Param* last = nullptr;
        for (const kernel::Param& param : kernel_.params) {
            const std::string_view text =
                source_.substr(param.where.begin, param.where.end - param.where.begin);
            if (text.find('=') == std::string_view::npos) last = &param;
        }
        const std::string added = std::string("sy_schedule, sy_control") +
                                  (sums_ ? ", sy_out, sy_out_pitch" : "") +
                                  (loads_ && loads_->own ? ", sy_own" : "");
        if (last != nullptr) {
            edits_.insert(last->where.end, ", " + added);
        } else {
            edits_.insert(kernel_.sites.parameters.begin, kernel_.params.empty() ? added : added + ", ");
        }
    }

    /// `f(x, y)` of as many axes: sy_acquire, sy_acquire_2d, ….
    std::string of_axes(const std::string& helper, std::size_t axes) {
        used_.insert(helper + (axes == 1 ? "" : "_" + std::to_string(axes) + "d"));
        return helper + (axes == 1 ? "" : "_" + std::to_string(axes) + "d");
    }

    /// The tile is taken once, before all else; each tl.program_id becomes one of its coordinates.
    [[nodiscard]] Status rewrite_entry(const TileIdSite& site) {
        if (!begins_its_line(site.anchor.begin))
            return error_at(site.anchor, "the first statement of the kernel must begin a line of its own");
        const SourceRange& first = site.program_ids.front().call;
        const std::string_view call = source_.substr(first.begin, first.end - first.begin);
        const std::string callee(call.substr(0, call.find('(')));
        std::string variables;
        std::string ids;
        for (std::size_t axis = 0; axis < site.variables.size(); ++axis) {
            variables += (axis == 0 ? "" : ", ") + site.variables[axis];
            ids += (axis == 0 ? "" : ", ") + callee + "(" + std::to_string(axis) + ")";
        }
        const std::size_t axes = site.variables.size();
        const std::string indent = indent_at(site.anchor.begin);
        const std::uint32_t at = line_begin(site.anchor.begin);
        const bool posts = produces_ && site.guards_writes && slot_of_store_.empty();
        if (posts) slot_of_store_ = "sy_slot";
        if (phased_ || posts || loads_) {
            edits_.insert(
                at, indent + "sy_slot = " + (axes == 1 ? ids : of_axes("sy_linear", axes) + "(" + ids + ")") +
                        slot_comment() + eol_);
        }
        acquires_ = true;  // also for what only stores: it waits for nothing
        edits_.insert(at, indent + variables + " = " + of_axes("sy_acquire", axes) +
                              "(sy_schedule, sy_control, " + ids +
                              ")  # the tile of this slot, once its chunks have arrived" + eol_);
        if (loads_) edits_.insert(at, from_lines(indent) + eol_);
        for (const kernel::ProgramId& id : site.program_ids) {
            edits_.replace({id.call.begin, id.call.end}, site.variables[static_cast<std::size_t>(id.axis)]);
        }
        return Done{};
    }

    [[nodiscard]] Status rewrite(const TileIdSite& site) {
        if (site.kind == TileIdSite::Kind::entry) return rewrite_entry(site);
        if (site.kind == TileIdSite::Kind::use) {
            if (site.guards_writes) {
                slot_of_store_ = site.variables.front();
                slot_taken_ = site.anchor.end;
            }
            if (site.guards_reads && (phased_ || loads_)) {
                return error_at(site.anchor, "the tile id has no variable of its own here: assign " +
                                                 site.variables.front() +
                                                 " to one that all loads follow from");
            }
            const std::string helper = site.guards_reads ? "sy_acquire" : "sy_tile";
            acquires_ |= site.guards_reads;
            used_.insert(helper);
            edits_.replace({site.anchor.begin, site.anchor.end},
                           helper + (site.guards_reads ? "(sy_schedule, sy_control, " : "(sy_schedule, ") +
                               site.variables.front() + ")");
            return Done{};
        }
        if (Status status = check_ends_its_line(site.anchor.end, "the statement that takes the tile id");
            !status) {
            return status.error();
        }
        // Inside a loop or function whose header is the anchor, the line goes one level deeper than the
        // header.
        const std::string own = indent_at(site.anchor.begin);
        const std::string indent = static_cast<std::int32_t>(own.size()) >= site.indent
                                       ? own
                                       : own + std::string(static_cast<std::size_t>(site.indent) - own.size(),
                                                           own.find('\t') != std::string::npos ? '\t' : ' ');
        std::string variables;
        for (const std::string& variable : site.variables)
            variables += (variables.empty() ? "" : ", ") + variable;
        const std::size_t axes = site.variables.size();
        const std::string suffix = axes == 1 ? "" : "_" + std::to_string(axes) + "d";
        if (!site.guards_reads) {
            if (produces_ && site.guards_writes && slot_of_store_.empty()) {
                slot_of_store_ = "sy_slot";
                if (axes > 1) used_.insert("sy_linear" + suffix);
                add_line_after(site.anchor.end,
                               indent + "sy_slot = " +
                                   (axes == 1 ? variables : "sy_linear" + suffix + "(" + variables + ")") +
                                   "  # which is done after the last store");
            }
            used_.insert("sy_tile" + suffix);
            add_line_after(site.anchor.end, indent + variables + " = sy_tile" + suffix + "(sy_schedule, " +
                                                variables + ")  # the tile of this slot");
            return Done{};
        }
        const bool posts = produces_ && site.guards_writes && slot_of_store_.empty();
        if (posts) slot_of_store_ = "sy_slot";
        if (phased_ || posts || loads_) {
            if (axes > 1) used_.insert("sy_linear" + suffix);
            add_line_after(site.anchor.end,
                           indent + "sy_slot = " +
                               (axes == 1 ? variables : "sy_linear" + suffix + "(" + variables + ")") +
                               slot_comment());
        }
        acquires_ = true;
        used_.insert("sy_acquire" + suffix);
        add_line_after(site.anchor.end, indent + variables + " = sy_acquire" + suffix +
                                            "(sy_schedule, sy_control, " + variables +
                                            ")  # the tile of this slot, once its chunks have arrived");
        if (loads_) add_line_after(site.anchor.end, from_lines(indent));
        return Done{};
    }

    /// What the slot is kept for.
    [[nodiscard]] std::string slot_comment() const {
        if (phased_) return "  # whose phases the loop below takes";
        return produces_ ? "  # which is done after the last store" : "  # which knows where its tile reads";
    }

    /// Where the tile that has just been taken loads what is fetched inline.
    [[nodiscard]] std::string from_lines(const std::string& indent) {
        if (loads_->own) return own_lines(indent);
        const std::string name = loads_->by_row ? "sy_load_row" : "sy_load_offset";
        used_.insert(name);
        return indent + "sy_from = " + name + "(sy_schedule, sy_slot" +
               (loads_->by_row ? "" : load_multiple_) +
               ")  # from here to the rank that has what the tile reads of " + loaded_param_;
    }
    /// The same of what the rank itself was given.
    [[nodiscard]] std::string own_lines(const std::string& indent) {
        if (!loads_->by_row) {
            used_.insert("sy_own_offset");
            return indent + "sy_from = sy_own_offset(sy_schedule, sy_slot, sy_own" + load_multiple_ +
                   ")  # from the heap to what this rank was given, where the tile reads that";
        }
        used_.insert("sy_reads_own");
        const std::string deeper = indent + (indent.find('\t') != std::string::npos ? "\t" : "    ");
        return indent + "sy_from = " + loaded_param_ + eol_ + indent +
               "if sy_reads_own(sy_schedule, sy_slot):  # of what this rank was given, where that is" + eol_ +
               deeper + "sy_from = sy_own";
    }

    [[nodiscard]] Status nest_reduction() {
        if (!kernel_.sites.reduction || kernel_.sites.reduction->bound.empty()) {
            return error_at(kernel_.sites.name,
                            "the schedule has phases, but the kernel has no reduction loop over "
                            "range(n): fuse without phases");
        }
        const kernel::ReductionLoop& loop = *kernel_.sites.reduction;
        if (!begins_its_line(loop.statement.begin)) {
            return error_at(loop.statement, "the reduction loop must begin a line of its own: put it on one");
        }
        for (const std::uint32_t end : {loop.header.end, loop.statement.end}) {
            if (Status status = check_ends_its_line(end, "the reduction loop"); !status)
                return status.error();
        }
        // `range(n)` or `tl.range(n, num_stages=3)` becomes `range(sy_lo, sy_hi)`, `tl.range(sy_lo, sy_hi,
        // num_stages=3)`.
        const Call* iterable = find_call({loop.iterable.begin, loop.iterable.end});
        const std::string_view callee =
            iterable == nullptr
                ? ""
                : source_.substr(iterable->callee.begin, iterable->callee.end - iterable->callee.begin);
        if (iterable == nullptr || callee.ends_with("static_range")) {
            return error_at(
                loop.iterable,
                "a loop over anything but range(n) cannot be cut into phases: fuse without phases");
        }
        std::string bounds = std::string(callee) + "(sy_lo, sy_hi";
        for (const CallArgument& argument : iterable->arguments) {
            if (argument.keyword.empty()) continue;
            bounds += ", " + std::string(source_.substr(argument.whole.begin,
                                                        argument.whole.end - argument.whole.begin));
        }

        const std::string indent = indent_at(loop.statement.begin);
        const std::string deeper = indent.find('\t') != std::string::npos ? "\t" : "    ";
        const std::uint32_t begin = line_begin(loop.statement.begin);
        edits_.insert(begin, indent + "for sy_phase in range(sy_num_phases(sy_schedule, sy_slot)):" +
                                 "  # as many as sets of chunks to wait for" + eol_);
        edits_.insert(begin,
                      indent + deeper +
                          "sy_lo, sy_hi = sy_acquire_phase(sy_schedule, sy_control, sy_slot, sy_phase)" +
                          "  # these iterations may run" + eol_);
        for (std::uint32_t line = begin; line < loop.statement.end;) {
            const bool in_string =
                std::any_of(facts_.strings.begin(), facts_.strings.end(),
                            [line](const Span& string) { return string.begin < line && line < string.end; });
            const bool replaced = loop.iterable.begin < line && line < loop.iterable.end;
            const std::size_t newline = source_.find('\n', line);
            const std::uint32_t text = line + static_cast<std::uint32_t>(indent_at(line).size());
            const bool blank = text >= source_.size() || source_[text] == '\n' || source_[text] == '\r';
            if (!in_string && !replaced && !blank) edits_.insert(line, deeper);
            if (newline == std::string_view::npos) break;
            line = static_cast<std::uint32_t>(newline + 1);
        }
        edits_.replace({loop.iterable.begin, loop.iterable.end}, bounds + ")");
        used_.insert("sy_num_phases");
        used_.insert("sy_acquire_phase");

        if (kernel_.sites.persistent) {
            const SourceRange& header = kernel_.sites.tile_loop_header;
            for (const Call& call : facts_.calls) {
                if (call.callee.begin < header.begin || call.callee.end > header.end) continue;
                for (const CallArgument& argument : call.arguments) {
                    if (argument.keyword == "flatten") edits_.replace(argument.value, "False");
                }
            }
        }
        return Done{};
    }

    [[nodiscard]] const Call* find_call(Span whole) const {
        for (const Call& call : facts_.calls) {
            if (call.callee.begin == whole.begin && call.callee.end < whole.end) return &call;
        }
        return nullptr;
    }

    /// A post after the last store of a tile, and before each return on the way there.
    [[nodiscard]] Status add_posts() {
        const SourceRange& stored = kernel_.sites.stored;
        if (stored.end <= stored.begin) {
            return error_at(kernel_.sites.name,
                            "kernel " + kernel_.name + " makes chunks, but no store was found in its " +
                                (kernel_.sites.persistent ? "loop over tiles" : "body") + ": store there");
        }
        if (slot_of_store_.empty()) {
            return error_at(stored,
                            "the stores follow from no tile id that could be named in a post: mark it "
                            "with `# @sy.tile_id`");
        }
        if (Status status = check_ends_its_line(stored.end, "the last store"); !status) return status.error();
        if (!begins_its_line(stored.begin))
            return error_at(stored,
                            "the statement with the last store must begin a line of its own: put it on one");
        for (const Identifier& target : facts_.assigned) {
            if (slot_taken_ == 0 || target.name != slot_of_store_ || target.where.begin < slot_taken_ ||
                target.where.begin > stored.end)
                continue;
            return error_at(target.where,
                            target.name +
                                " says whose tile is stored below, so it may not change before that: "
                                "count in another variable, or after the store");
        }
        if (posts_later_) {
            used_.insert({"sy_post_previous", "sy_post_at_once", "sy_post_last"});
            const std::string arguments = "(sy_schedule, sy_control, " + slot_of_store_ + ")";
            edits_.insert(
                line_begin(stored.begin),
                indent_at(stored.begin) + "sy_post_previous" + arguments +
                    "  # the tile before this one is stored: the last one of a chunk lets it leave" + eol_);
            if (!posts_first_)
                add_line_after(stored.end, indent_at(stored.begin) + "sy_post_at_once" + arguments + kAtOnce);
            return Done{};
        }
        used_.insert("sy_post");
        const std::string call = "sy_post(sy_schedule, sy_control, " + slot_of_store_ + ")";
        for (const Span& statement : facts_.returns) {
            if (statement.begin < kernel_.sites.body.begin || statement.end > stored.end) continue;
            if (begins_its_line(statement.begin)) {
                edits_.insert(line_begin(statement.begin),
                              indent_at(statement.begin) + call + "  # this tile is done" + eol_);
            } else {
                edits_.insert(statement.begin, call + "; ");
            }
        }
        if (!posts_first_) add_line_after(stored.end, indent_at(stored.begin) + call + kStored);
        return Done{};
    }

    /// Whether a program may post for a tile when it comes to store the next one, so that it need not stand
    /// still until its stores are complete: slot s has to be the program's next one after s - (number of
    /// programs), no tile may be left early, and none may wait for what comes from what is not yet posted.
    [[nodiscard]] bool can_post_later() const {
        if (!can_wait_ || !kernel_.sites.persistent || kernel_.grid[1] * kernel_.grid[2] != 1 ||
            awaits_chunks_)
            return false;
        for (const Span& statement : facts_.returns) {
            if (statement.begin >= kernel_.sites.body.begin && statement.end <= kernel_.sites.stored.end)
                return false;
        }
        return std::all_of(kernel_.tiles.begin(), kernel_.tiles.end(), [&](const kernel::Tile& tile) {
            return tile.program == tile.id % kernel_.num_programs();
        });
    }

    /// Stores of what is sent inline go where the schedule says.
    [[nodiscard]] Status redirect_stores() {
        const std::string name = stores_->by_row ? "sy_row" : "sy_offset";
        used_.insert(name);
        const bool several = stores_->copies > 1;
        const std::string place = name + "(sy_schedule, " + slot_of_store_ + (several ? ", sy_copy" : "") +
                                  (stores_->by_row ? "" : store_multiple_) + ")";
        for (const kernel::AccessSite& site : kernel_.sites.stores) {
            if (site.param != stored_param_) continue;
            if (several) {
                if (!begins_its_line(site.call.begin))
                    return error_at(site.call,
                                    "a store that is sent to several ranks must begin a line of its own");
                used_.insert("sy_range");
                edits_.insert(site.call.begin,
                              "for sy_copy in sy_range(" + std::to_string(stores_->copies) + "): ");
            }
            if (Status status = redirect(site, stores_->by_row, place, "store"); !status) return status;
        }
        return Done{};
    }

    /// Loads of what is fetched inline come from where the schedule says.
    [[nodiscard]] Status redirect_loads() {
        for (const kernel::AccessSite& site : kernel_.sites.loads) {
            if (site.param != loaded_param_) continue;
            if (loads_->own && loads_->by_row) {
                edits_.replace(
                    {site.call.begin, site.call.begin + static_cast<std::uint32_t>(loaded_param_.size())},
                    "sy_from");
            } else if (Status status = redirect(site, loads_->by_row, "sy_from", "load"); !status) {
                return status;
            }
        }
        return Done{};
    }

    /// Adds `added` to the first coordinate, or to the pointers, of a load or store, and lets the descriptor
    /// that it goes through span the heaps of all ranks if the kernel makes it.
    [[nodiscard]] Status redirect(const kernel::AccessSite& site, bool by_row, const std::string& added,
                                  const std::string& verb) {
        Span place = argument_of(site.call, by_row ? "offsets" : "pointer", 0);
        if (by_row) place = first_item(place);
        if (place.end <= place.begin) {
            return error_at(site.call, "this " + verb + " cannot be sent elsewhere: write its " +
                                           std::string(by_row ? "coordinates as a list"
                                                              : "pointers as its first argument"));
        }
        const bool plain = std::all_of(source_.begin() + place.begin, source_.begin() + place.end,
                                       [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
        if (!plain) edits_.insert(place.begin, "(");
        edits_.insert(place.end, (plain ? " + " : ") + ") + added);
        if (site.made.end <= site.made.begin || !widened_.insert(site.made.begin).second) return Done{};
        const Span rows = first_item(argument_of(site.made, "shape", 1));
        if (rows.end <= rows.begin) {
            return error_at(site.made, "this descriptor cannot span other ranks: write its shape as a list");
        }
        used_.insert("sy_all_rows");
        edits_.replace(rows, "sy_all_rows");
        return Done{};
    }

    /// The argument that a call is given by keyword or at a position; empty where it is not.
    [[nodiscard]] Span argument_of(const SourceRange& range, std::string_view keyword,
                                   std::size_t position) const {
        const Call* call = find_call({range.begin, range.end});
        for (std::size_t at = 0; call != nullptr && at < call->arguments.size(); ++at) {
            const CallArgument& argument = call->arguments[at];
            if (argument.keyword.empty() ? at == position : argument.keyword == keyword)
                return argument.value;
        }
        return {};
    }

    /// The first item of a list that is written out; empty where it is not.
    [[nodiscard]] Span first_item(const Span& list) const {
        const auto found = std::ranges::find_if(facts_.lists, [&](const List& other) {
            return list.end > list.begin && other.whole.begin == list.begin;
        });
        return found == facts_.lists.end() ? Span{} : found->items.front();
    }

    /// After the stores of what tiles sum: the sums of these blocks.
    [[nodiscard]] Status add_sums() {
        struct Sum {
            Span store;
            std::string line;
        };
        std::vector<std::vector<Sum>> blocks;  // of statements, each with stores that follow each other
        for (const kernel::AccessSite& site : kernel_.sites.stores) {
            if (site.param != summed_param_) continue;
            const Span where = argument_of(site.call, "offsets", 0);
            const Span value = argument_of(site.call, "value", 1);
            const auto list = std::ranges::find_if(facts_.lists, [&](const List& l) {
                return where.end > where.begin && l.whole.begin == where.begin;
            });
            if (value.end <= value.begin || list == facts_.lists.end() || list->items.size() != 2) {
                return error_at(site.call,
                                "this tile cannot be summed where it is stored: write the store as " +
                                    summed_param_ + ".store([row, column], value)");
            }
            if (!begins_its_line(site.call.begin))
                return error_at(site.call, "a store whose tile is summed must begin a line of its own");
            if (Status status = check_ends_its_line(site.call.end, "a store whose tile is summed"); !status)
                return status.error();
            used_.insert("sy_sum");
            Sum sum{{site.call.begin, site.call.end},
                    indent_at(site.call.begin) + "sy_sum(sy_schedule, sy_control, " + slot_of_store_ +
                        ", sy_out, sy_out_pitch, " + summed_param_ + ", " + text_of(value) + ", " +
                        text_of(list->items[0]) + ", " + text_of(list->items[1]) +
                        ")  # and what other ranks sent for it, if it is there"};
            if (blocks.empty() || !in_one_block(blocks.back().back().store, sum.store)) blocks.emplace_back();
            blocks.back().push_back(std::move(sum));
        }
        if (posts_first_) {
            if (Status status = check_one_block_a_path(blocks.size()); !status) return status.error();
        }
        for (const std::vector<Sum>& block : blocks) {
            const std::uint32_t end = block.back().store.end;
            if (posts_first_) {
                const std::string call =
                    std::string(posts_later_ ? "sy_post_at_once" : "sy_post") + "(sy_schedule, sy_control, ";
                add_line_after(end, indent_at(block.back().store.begin) + call + slot_of_store_ + ")" +
                                        std::string(posts_later_ ? kAtOnce : kStored));
            }
            for (const Sum& sum : block) add_line_after(end, sum.line);
        }
        return Done{};
    }

    [[nodiscard]] std::string text_of(const Span& span) const {
        return std::string(source_.substr(span.begin, span.end - span.begin));
    }

    /// Whether two statements are indented alike, and no line between them less.
    [[nodiscard]] bool in_one_block(const Span& first, const Span& second) const {
        const std::size_t indent = indent_at(first.begin).size();
        if (indent_at(second.begin).size() != indent) return false;
        for (std::uint32_t at = first.end; at < second.begin; ++at) {
            if (source_[at] != '\n') continue;
            const std::uint32_t begin = at + 1 + static_cast<std::uint32_t>(indent_at(at + 1).size());
            if (begin < source_.size() && source_[begin] != '\n' && indent_at(at + 1).size() < indent)
                return false;
        }
        return true;
    }

    /// A tile is posted once: where its stores are in branches, there is one block of them in each.
    [[nodiscard]] Status check_one_block_a_path(std::size_t blocks) const {
        const SourceRange& stored = kernel_.sites.stored;
        const std::string indent = indent_at(stored.begin);
        std::size_t branches = source_.substr(stored.begin).starts_with("if ") ? 1 : 0;
        for (std::uint32_t at = stored.begin; branches > 0 && at < stored.end; ++at) {
            if (source_[at] != '\n' || indent_at(at + 1).size() != indent.size()) continue;
            const std::string_view line = source_.substr(at + 1 + indent.size());
            if (line.starts_with("else") || line.starts_with("elif")) ++branches;
        }
        if (blocks <= std::max<std::size_t>(branches, 1)) return Done{};
        return error_at(
            stored,
            "tiles that are sent and then summed are stored in one block of statements, or in one "
            "in each branch");
    }

    void add_finish() {
        used_.insert("sy_finish");
        const std::string call = std::string(posts_later_ ? "sy_post_last(sy_schedule, sy_control); " : "") +
                                 "sy_finish(sy_schedule, sy_control)";
        const std::string comment = "  # the last program to end tells the ranks that may now send again";
        bool ends_with_return = false;
        for (const Span& statement : facts_.returns) {
            if (statement.begin < kernel_.sites.body.begin || statement.end > kernel_.sites.body.end)
                continue;
            if (begins_its_line(statement.begin)) {
                const std::string indent = indent_at(statement.begin);
                edits_.insert(line_begin(statement.begin), indent + call + comment + eol_);
                ends_with_return |=
                    statement.end == kernel_.sites.body.end && indent == indent_at(kernel_.sites.body.begin);
            } else {
                edits_.insert(statement.begin, call + "; ");
            }
        }
        if (!ends_with_return) {
            add_line_after(kernel_.sites.body.end, indent_at(kernel_.sites.body.begin) + call + comment);
        }
    }

    void add_import() {
        std::string names;
        for (const std::string& name : used_) names += (names.empty() ? "" : ", ") + name;
        const std::uint32_t at = kernel_.sites.imports_end > 0 ? kernel_.sites.imports_end
                                                               : line_begin(kernel_.sites.function.begin);
        edits_.insert(at, "from syncopate.language import " + names +
                              "  # the schedule's tiles, waits and posts" + eol_);
    }

    const kernel::Kernel& kernel_;
    std::string_view source_;
    bool phased_;
    bool produces_;
    std::optional<fuse::StoreForm> stores_;
    std::optional<fuse::LoadForm> loads_;
    bool sums_;                 ///< tiles add what other ranks sent
    bool posts_first_;          ///< a tile that sums is itself sent: it is posted before it waits for others
    std::string summed_param_;  ///< the parameter of what they add to
    bool can_wait_;             ///< some chunk need not be posted at once
    bool awaits_chunks_;        ///< some tile waits for what an op brings
    std::string stored_param_;  ///< the parameter of what is sent inline
    std::string loaded_param_;  ///< the parameter of what is fetched inline
    std::string store_multiple_, load_multiple_;  ///< what is said of elements that are added to pointers
    std::set<std::uint32_t> widened_;             ///< where the calls begin whose descriptors span all ranks
    bool posts_later_ = false;       ///< a tile's post comes before the store of the program's next one
    std::string slot_of_store_;      ///< an expression for the slot whose tile the stores are of
    std::vector<TileIdSite> sites_;  ///< the kernel's; guards_reads says where to wait
    Facts facts_;
    std::string eol_ = "\n";
    Edits edits_;
    std::set<std::string> used_;
    bool acquires_ = false;
    std::uint32_t slot_taken_ = 0;  ///< where slot_of_store_ is read, if it is the user's own variable
};

}  // namespace

Result<std::string> emit(const fuse::Program& program, const fuse::Schedule& schedule) {
    return emit(program, schedule, 0);
}

Result<std::string> emit(const fuse::Program& program, const fuse::Schedule& schedule, std::size_t stage) {
    if (schedule.plain) return program.kernel.source;
    return Emitter(program, schedule, stage).run();
}

}  // namespace syncopate::emit
