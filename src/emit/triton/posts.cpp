#include <algorithm>

#include "emit/triton/steps.hpp"
#include "syncopate/try.hpp"

namespace syncopate::emit::triton {
namespace {

constexpr const char* kArguments = "(sy_schedule, sy_control, ";

/// Why no post can follow the kernel's stores.
Status check_can_post(const Rewriting& to, const SlotOfStore& slot) {
    const kernel::triton::SourceRange& stored = to.sites().stored;
    if (stored.end <= stored.begin) {
        return to.text.error_at(
            to.sites().name,
            "kernel " + to.program.kernel.name + " makes chunks, but no store was found in its " +
                (to.program.kernel.persistent ? "loop over tiles" : "body") + ": store there");
    }
    if (slot.name.empty()) {
        return to.text.error_at(stored,
                                "the stores follow from no tile id that could be named in a post: mark it "
                                "with `# @sy.tile_id`");
    }
    SYNCOPATE_TRY(to.text.check_ends_its_line(stored.end, "the last store"));
    if (!to.text.begins_its_line(stored.begin)) {
        return to.text.error_at(
            stored, "the statement with the last store must begin a line of its own: put it on one");
    }
    for (const Span& statement : to.text.facts().returns) {
        if (statement.begin < to.sites().body.begin || statement.begin >= slot.taken_at) continue;
        return to.text.error_at(
            statement,
            "this return stands above the place where the tile's id is taken, so nobody would say "
            "that the tile is done: take the id before it");
    }
    for (const Identifier& target : to.text.facts().assigned) {
        if (slot.taken_until == 0 || target.name != slot.name || target.where.begin < slot.taken_until ||
            target.where.begin > stored.end)
            continue;
        return to.text.error_at(target.where,
                                target.name +
                                    " says whose tile is stored below, so it may not change before that: "
                                    "count in another variable, or after the store");
    }
    return Done{};
}

/// Before a return: on a line of its own where the return has one, with `comment`; else in the same line.
void add_before_return(const Rewriting& to, const Span& statement, const std::string& call,
                       const std::string& comment) {
    if (to.text.begins_its_line(statement.begin)) {
        to.edits.add_line_before(statement.begin, to.text.indent_at(statement.begin) + call + comment);
    } else {
        to.edits.insert(statement.begin, call + "; ");
    }
}

/// What the post after a tile's stores is, with its comment.
std::string post_after_stores(Edits& edits, const SlotOfStore& slot, bool later) {
    if (later) {
        return edits.use("sy_post_at_once") + kArguments + slot.name +
               ")  # this one, if its chunk is in a hurry";
    }
    return edits.use("sy_post") + kArguments + slot.name +
           ")  # this tile is stored: the last one of a chunk lets it leave";
}

}  // namespace

bool can_post_later(const Rewriting& to) {
    const kernel::Kernel& kernel = to.program.kernel;
    if (!to.form.can_wait || !to.program.kernel.persistent || kernel.grid[1] * kernel.grid[2] != 1 ||
        to.form.awaits_chunks)  // which could come from what is not yet posted
        return false;
    const bool left_early = std::ranges::any_of(to.text.facts().returns, [&](const Span& statement) {
        return statement.begin >= to.sites().body.begin && statement.end <= to.sites().stored.end;
    });
    // Slot s has to be the program's next one after s - (number of programs).
    return !left_early && std::ranges::all_of(kernel.tiles, [&](const kernel::Tile& tile) {
        return tile.program == tile.id % kernel.num_programs();
    });
}

Status add_posts(const Rewriting& to, const SlotOfStore& slot, bool later) {
    SYNCOPATE_TRY(check_can_post(to, slot));
    const kernel::triton::SourceRange& stored = to.sites().stored;
    const std::string indent = to.text.indent_at(stored.begin);
    if (later) {
        to.edits.add_line_before(
            stored.begin,
            indent + to.edits.use("sy_post_previous") + kArguments + slot.name +
                ")  # the tile before this one is stored: the last one of a chunk lets it leave");
    } else {
        const std::string call = to.edits.use("sy_post") + kArguments + slot.name + ")";
        for (const Span& statement : to.text.facts().returns) {
            if (statement.begin >= to.sites().body.begin && statement.end <= stored.end)
                add_before_return(to, statement, call, "  # this tile is done");
        }
    }
    to.edits.add_line_after(stored.end, indent + post_after_stores(to.edits, slot, later));
    return Done{};
}

void add_finish(const Rewriting& to, bool later) {
    const kernel::triton::SourceRange& body = to.sites().body;
    const std::string call =
        (later ? to.edits.use("sy_post_last") + "(sy_schedule, sy_control); " : std::string()) +
        to.edits.use("sy_finish") + "(sy_schedule, sy_control)";
    const std::string comment = "  # the last program to end tells the ranks that may now send again";
    bool ends_with_return = false;
    for (const Span& statement : to.text.facts().returns) {
        if (statement.begin < body.begin || statement.end > body.end) continue;
        add_before_return(to, statement, call, comment);
        ends_with_return |= to.text.begins_its_line(statement.begin) && statement.end == body.end &&
                            to.text.indent_at(statement.begin) == to.text.indent_at(body.begin);
    }
    if (!ends_with_return) to.edits.add_line_after(body.end, to.text.indent_at(body.begin) + call + comment);
}

}  // namespace syncopate::emit::triton
