#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "emit/steps.hpp"

namespace syncopate::emit {
namespace {

struct Sum {
    Span store;
    std::string line;
};
/// Statements of one block of the source, each with a store that is summed.
using Block = std::vector<Sum>;

Result<Sum> sum_after(const Rewriting& to, const SlotOfStore& slot, const kernel::AccessSite& site) {
    const std::string& param = *to.form.summed;
    const Span store = span_of(site.call);
    const Span value = to.text.argument_of(store, "value", 1);
    const List* where = to.text.find_list(to.text.argument_of(store, "offsets", 0));
    if (value.end <= value.begin || where == nullptr || where->items.size() != 2) {
        return to.text.error_at(site.call,
                                "this tile cannot be summed where it is stored: write the store as " + param +
                                    ".store([row, column], value)");
    }
    if (!to.text.begins_its_line(store.begin))
        return to.text.error_at(site.call, "a store whose tile is summed must begin a line of its own");
    if (Status status = to.text.check_ends_its_line(store.end, "a store whose tile is summed"); !status)
        return status.error();
    return Sum{store, to.text.indent_at(store.begin) + to.edits.use("sy_sum") + "(sy_schedule, sy_control, " +
                          slot.name + ", sy_out, sy_out_pitch, " + param + ", " + to.text.of(value) + ", " +
                          to.text.of(where->items[0]) + ", " + to.text.of(where->items[1]) +
                          ")  # and what other ranks sent for it, if it is there"};
}

/// A tile is posted once: where its stores are in branches, there is one block of them in each.
Status check_one_block_a_path(const Rewriting& to, std::size_t blocks) {
    const kernel::SourceRange& stored = to.sites().stored;
    const std::string_view source = to.text.all();
    const std::size_t indent = to.text.indent_at(stored.begin).size();
    std::size_t branches = source.substr(stored.begin).starts_with("if ") ? 1 : 0;
    for (std::uint32_t line = to.text.next_line(stored.begin); branches > 0 && line < stored.end;
         line = to.text.next_line(line)) {
        if (to.text.indent_at(line).size() != indent) continue;
        const std::string_view text = source.substr(line + indent);
        if (text.starts_with("else") || text.starts_with("elif")) ++branches;
    }
    if (blocks <= std::max<std::size_t>(branches, 1)) return Done{};
    return to.text.error_at(stored,
                            "tiles that are sent and then summed are stored in one block of statements, or "
                            "in one in each branch");
}

}  // namespace

Status add_sums(const Rewriting& to, const SlotOfStore& slot, bool later) {
    std::vector<Block> blocks;
    for (const kernel::AccessSite& site : to.sites().stores) {
        if (site.param != *to.form.summed) continue;
        Result<Sum> sum = sum_after(to, slot, site);
        if (!sum) return sum.error();
        if (blocks.empty() || !to.text.in_one_block(blocks.back().back().store, sum->store))
            blocks.emplace_back();
        blocks.back().push_back(std::move(*sum));
    }
    if (to.form.posts_first) {
        if (Status status = check_one_block_a_path(to, blocks.size()); !status) return status.error();
    }
    for (const Block& block : blocks) {
        const Span& last = block.back().store;
        if (to.form.posts_first) {
            to.edits.add_line_after(last.end,
                                    to.text.indent_at(last.begin) + post_after_stores(to.edits, slot, later));
        }
        for (const Sum& sum : block) to.edits.add_line_after(last.end, sum.line);
    }
    return Done{};
}

}  // namespace syncopate::emit
