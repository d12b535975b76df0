// Loads and stores that go to other ranks' heaps, or to what a rank was given.
#include <algorithm>
#include <cctype>
#include <set>

#include "emit/triton/steps.hpp"
#include "syncopate/try.hpp"

namespace syncopate::emit::triton {
namespace {

/// The first item of a list that is written out; empty where it is not.
Span first_item(const SourceText& text, const Span& whole) {
    const List* list = text.find_list(whole);
    return list == nullptr ? Span{} : list->items.front();
}

/// Adds to coordinates and pointers, once a descriptor that the kernel makes.
class Redirection {
public:
    explicit Redirection(const Rewriting& to) : text_(to.text), edits_(to.edits) {}

    /// Adds `added` to the first coordinate, or to the pointers, of a load or store, and lets the descriptor
    /// that it goes through span the heaps of all ranks if the kernel makes it.
    [[nodiscard]] Status redirect(const kernel::triton::AccessSite& site, bool by_row,
                                  const std::string& added, const std::string& verb) {
        Span place = text_.argument_of(span_of(site.call), by_row ? "offsets" : "pointer", 0);
        if (by_row) place = first_item(text_, place);
        if (place.end <= place.begin) {
            return text_.error_at(site.call, "this " + verb + " cannot be sent elsewhere: write its " +
                                                 std::string(by_row ? "coordinates as a list"
                                                                    : "pointers as its first argument"));
        }
        const bool plain = std::ranges::all_of(
            text_.of(place), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
        if (!plain) edits_.insert(place.begin, "(");
        edits_.insert(place.end, (plain ? " + " : ") + ") + added);
        if (site.made.end <= site.made.begin || !widened_.insert(site.made.begin).second) return Done{};
        const Span rows = first_item(text_, text_.argument_of(span_of(site.made), "shape", 1));
        if (rows.end <= rows.begin) {
            return text_.error_at(site.made,
                                  "this descriptor cannot span other ranks: write its shape as a list");
        }
        edits_.replace(rows, edits_.use("sy_all_rows"));
        return Done{};
    }

private:
    const SourceText& text_;
    Edits& edits_;
    std::set<std::uint32_t> widened_;  ///< where the calls begin whose descriptors span all ranks
};

}  // namespace

Status redirect_stores(const Rewriting& to, const SlotOfStore& slot) {
    const InlineForm& stores = *to.form.stores;
    const bool several = stores.copies > 1;
    const std::string place = to.edits.use(stores.by_row ? "sy_row" : "sy_offset") + "(sy_schedule, " +
                              slot.name + (several ? ", sy_copy" : "") +
                              (stores.by_row ? "" : multiple_of(stores)) + ")";
    Redirection redirection(to);
    for (const kernel::triton::AccessSite& site : to.sites().stores) {
        if (site.param != stores.param) continue;
        if (several) {
            if (!to.text.begins_its_line(site.call.begin)) {
                return to.text.error_at(site.call,
                                        "a store that is sent to several ranks must begin a line of its own");
            }
            SYNCOPATE_TRY(
                to.text.check_ends_its_line(site.call.end, "a store that is sent to several ranks"));
            to.edits.insert(site.call.begin, "for sy_copy in " + to.edits.use("sy_range") + "(" +
                                                 std::to_string(stores.copies) + "): ");
        }
        SYNCOPATE_TRY(redirection.redirect(site, stores.by_row, place, "store"));
    }
    return Done{};
}

Status redirect_loads(const Rewriting& to) {
    const InlineForm& loads = *to.form.loads;
    Redirection redirection(to);
    for (const kernel::triton::AccessSite& site : to.sites().loads) {
        if (site.param != loads.param) continue;
        if (loads.own && loads.by_row) {
            const auto name = static_cast<std::uint32_t>(loads.param.size());
            to.edits.replace({site.call.begin, site.call.begin + name}, "sy_from");
        } else if (Status status = redirection.redirect(site, loads.by_row, "sy_from", "load"); !status) {
            return status;
        }
    }
    return Done{};
}

}  // namespace syncopate::emit::triton
