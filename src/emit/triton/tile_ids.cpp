#include <algorithm>
#include <vector>

#include "emit/triton/steps.hpp"

#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::emit::triton {
namespace {

using kernel::triton::AccessSite;
using kernel::triton::TileIdSite;

/// The kernel's sites; where some loads are of what transfers touch, only their sites wait: an epilogue that
/// takes the tile's id anew to load a bias has nothing more to wait for.
std::vector<TileIdSite> waiting_sites(const Rewriting& to) {
    std::vector<TileIdSite> sites = to.sites().tile_ids;
    const auto loads_bound = [&](const TileIdSite& site) {
        return site.kind == TileIdSite::Kind::entry ||
               std::ranges::any_of(
                   site.reads, [&](const std::string& param) { return to.program.bindings.contains(param); });
    };
    if (std::ranges::any_of(sites, loads_bound)) {
        for (TileIdSite& site : sites) site.guards_reads = loads_bound(site);
    }
    return sites;
}

/// Whether anything of the tensor is brought or made by a kernel: then it may not be there yet. A plan that
/// moves nothing is a chain's, and does not say what the other stages make.
bool is_made(const plan::Plan& plan, const std::string& tensor) {
    const std::optional<std::int32_t> index = plan.find_tensor(tensor);
    const auto is_it = [&](const plan::Chunk& chunk) { return index && chunk.tensor == *index; };
    const auto brings = [&](const std::vector<plan::Op>& ops) {
        return std::ranges::any_of(ops, [&](const plan::Op& op) { return is_it(op.dst); });
    };
    const auto is_idle = [](const std::vector<plan::Op>& ops) { return ops.empty(); };
    return std::ranges::all_of(plan.ranks, is_idle) || std::ranges::any_of(plan.ranks, brings) ||
           std::ranges::any_of(plan.produced, [&](const auto& holding) { return is_it(holding.chunk); });
}

std::string joined(const std::vector<std::string>& names) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    return all;
}

class TileIds {
public:
    explicit TileIds(const Rewriting& to) : form_(to.form), text_(to.text), edits_(to.edits) {}

    [[nodiscard]] Status rewrite(const TileIdSite& site) {
        switch (site.kind) {
            case TileIdSite::Kind::entry: return rewrite_entry(site);
            case TileIdSite::Kind::use: return rewrite_use(site);
            case TileIdSite::Kind::rebind:
            case TileIdSite::Kind::rebind_grid: break;
        }
        return rebind(site);
    }

    [[nodiscard]] const SlotOfStore& slot() const { return slot_; }
    [[nodiscard]] bool acquires() const { return acquires_; }

private:
    /// The tile is taken once, before all else; each tl.program_id becomes one of its coordinates.
    [[nodiscard]] Status rewrite_entry(const TileIdSite& site) {
        if (!text_.begins_its_line(site.anchor.begin)) {
            return text_.error_at(site.anchor,
                                  "the first statement of the kernel must begin a line of its own");
        }
        std::vector<std::string> ids;
        if (site.program_ids.empty()) {
            ids.emplace_back("0");  // of the one program that there is
        } else {
            const std::string call = text_.of(span_of(site.program_ids.front().call));
            const std::string callee = call.substr(0, call.find('('));
            for (std::size_t axis = 0; axis < site.variables.size(); ++axis)
                ids.push_back(callee + "(" + std::to_string(axis) + ")");
        }
        for (const std::string& line : lines(site, ids, text_.indent_at(site.anchor.begin)))
            edits_.add_line_before(site.anchor.begin, line);
        for (const kernel::triton::ProgramId& id : site.program_ids)
            edits_.replace(span_of(id.call), site.variables[at(id.axis)]);
        return Done{};
    }

    [[nodiscard]] Status rewrite_use(const TileIdSite& site) {
        const std::string& variable = site.variables.front();
        if (site.guards_writes)
            slot_ = {.name = variable, .taken_until = site.anchor.end, .taken_at = site.anchor.begin};
        if (site.guards_reads && (form_.phased || form_.loads)) {
            return text_.error_at(site.anchor, "the tile id has no variable of its own here: assign " +
                                                   variable + " to one that all loads follow from");
        }
        acquires_ |= site.guards_reads;
        edits_.replace(span_of(site.anchor),
                       (site.guards_reads ? edits_.use("sy_acquire") + "(sy_schedule, sy_control, "
                                          : edits_.use("sy_tile") + "(sy_schedule, ") +
                           variable + ")");
        return Done{};
    }

    [[nodiscard]] Status rebind(const TileIdSite& site) {
        SYNCOPATE_TRY(text_.check_ends_its_line(site.anchor.end, "the statement that takes the tile id"));
        // Inside a loop or function whose header is the anchor, the lines go one level deeper than the
        // header.
        std::string indent = text_.indent_at(site.anchor.begin);
        const auto columns = static_cast<std::size_t>(site.indent);
        if (indent.size() < columns)
            indent.append(columns - indent.size(), indent.find('\t') != std::string::npos ? '\t' : ' ');
        for (const std::string& line : lines(site, site.variables, indent))
            edits_.add_line_after(site.anchor.end, line);
        return Done{};
    }

    /// The lines that give the site's variables the tile of the slot that `ids`, of one axis each, are of.
    [[nodiscard]] std::vector<std::string> lines(const TileIdSite& site, const std::vector<std::string>& ids,
                                                 const std::string& indent) {
        const std::size_t axes = site.variables.size();
        const bool split = form_.program_a_slot && axes > 1;  // programs are along x only
        const std::string given = split ? ids.front() : joined(ids);
        const std::string tile = indent + joined(site.variables) + " = " +
                                 (split ? edits_.use("sy_split", axes) + "(sy_schedule, " : "");
        const std::string close = split ? ")" : "";
        const std::size_t named = split ? 1 : axes;
        // Entry sites take the tile for all that follows, though it wait for nothing.
        const bool acquires = site.guards_reads || site.kind == TileIdSite::Kind::entry;
        const bool stores = form_.produces && site.guards_writes && slot_.name.empty();
        std::vector<std::string> added;
        if (stores) slot_ = {.name = "sy_slot", .taken_at = site.anchor.begin};
        if (stores || (acquires && (form_.phased || form_.loads))) {
            added.push_back(indent + "sy_slot = " +
                            (named == 1 ? given : edits_.use("sy_linear", axes) + "(" + given + ")") +
                            (acquires ? slot_comment() : kDone));
        }
        if (!acquires) {
            added.push_back(tile + edits_.use("sy_tile", named) + "(sy_schedule, " + given + ")" + close +
                            "  # the tile of this slot");
            return added;
        }
        acquires_ = true;
        added.push_back(tile + edits_.use("sy_acquire", named) + "(sy_schedule, sy_control, " + given + ")" +
                        close + "  # the tile of this slot, once its chunks have arrived");
        if (form_.loads) added.push_back(from_lines(indent));
        return added;
    }

    /// What the slot is kept for.
    [[nodiscard]] const char* slot_comment() const {
        if (form_.phased) return "  # whose phases the loop below takes";
        return form_.produces ? kDone : "  # which knows where its tile reads";
    }

    /// Where the tile that has just been taken loads what is fetched inline.
    [[nodiscard]] std::string from_lines(const std::string& indent) {
        const InlineForm& loads = *form_.loads;
        if (loads.own) return own_lines(indent);
        const std::string from =
            loads.by_row ? edits_.use("sy_load_row") + "(sy_schedule, sy_slot"
                         : edits_.use("sy_load_offset") + "(sy_schedule, sy_slot" + multiple_of(loads);
        return indent + "sy_from = " + from + ")  # from here to the rank that has what the tile reads of " +
               loads.param;
    }

    /// The same of what the rank itself was given.
    [[nodiscard]] std::string own_lines(const std::string& indent) {
        const InlineForm& loads = *form_.loads;
        if (!loads.by_row) {
            return indent + "sy_from = " + edits_.use("sy_own_offset") + "(sy_schedule, sy_slot, sy_own" +
                   multiple_of(loads) +
                   ")  # from the heap to what this rank was given, where the tile reads that";
        }
        return indent + "sy_from = " + loads.param + text_.eol() + indent + "if " +
               edits_.use("sy_reads_own") +
               "(sy_schedule, sy_slot):  # of what this rank was given, where that is" + text_.eol() +
               indent + level_like(indent) + "sy_from = sy_own";
    }

    static constexpr const char* kDone = "  # which is done after the last store";

    const Form& form_;
    const SourceText& text_;
    Edits& edits_;
    SlotOfStore slot_;
    bool acquires_ = false;
};

}  // namespace

Result<SlotOfStore> take_tiles(const Rewriting& to) {
    TileIds ids(to);
    std::uint64_t waits = 0;
    for (const TileIdSite& site : waiting_sites(to)) {
        SYNCOPATE_TRY(ids.rewrite(site));
        if (site.guards_reads) waits |= site.bit;
    }
    if (to.sites().foreign_id.end > 0) {
        return to.text.error_at(to.sites().foreign_id,
                                "a helper takes the program's id itself, so it cannot be given another tile: "
                                "take it in the kernel and pass it on");
    }
    const auto may_be_missing = [&](const AccessSite& load) {
        const auto tensor = to.program.bindings.find(load.param);
        return tensor != to.program.bindings.end() && is_made(to.program.plan, tensor->second);
    };
    for (const AccessSite& load : to.sites().early_loads) {
        if (!may_be_missing(load)) continue;
        return to.text.error_at(load.call,
                                "this loads " + load.param +
                                    " before the loop over tiles, where nothing waits for it: load it "
                                    "in the loop");
    }
    for (const AccessSite& load : to.sites().loads) {
        if ((load.taken & waits) != 0 || waits == 0 || !may_be_missing(load)) continue;
        return to.text.error_at(load.call,
                                "this loads " + load.param +
                                    " before the round of the loop over tiles takes its tile's id, where "
                                    "nothing waits for it: take the id before it");
    }
    if (!ids.acquires()) {
        return to.text.error_at(to.sites().name,
                                "kernel " + to.program.kernel.name +
                                    " has no place where a tile id is taken before its loads: mark one "
                                    "with `# @sy.tile_id`");
    }
    return ids.slot();
}

}  // namespace syncopate::emit::triton
