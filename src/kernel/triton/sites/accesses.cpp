// What emit can do with a call that loads or stores: it adds to the coordinates or pointers of one that is
// written out in the kernel itself, and exchanges a descriptor that is a parameter.
#include <algorithm>

#include "kernel/triton/sites/sites.hpp"

namespace syncopate::kernel::triton {
namespace {

using By = ParamAccess::By;

bool lies_in(const SourceRange& inner, const SourceRange& outer) {
    return outer.begin <= inner.begin && inner.end <= outer.end;
}

/// Whether the call is spelled as one through a descriptor, or of pointers.
bool is_written_out(std::string_view callee, By by, const std::string& verb) {
    if (by == By::descriptor) return callee.ends_with("." + verb);
    return callee == "tl." + verb || callee == verb || callee == "triton.language." + verb;
}

std::string objection_to(const AccessSite& site, const Sites& sites, const std::vector<AccessSite>& alike,
                         std::string_view callee, bool stores) {
    const std::string verb = stores ? "store" : "load";
    const std::string line = " (line " + std::to_string(site.call.line) + ")";
    if (!lies_in(site.call, sites.body) || (site.made.end > 0 && !lies_in(site.made, sites.body)))
        return site.param + " is " + (stores ? "stored" : "loaded") + " in a helper" + line + "; write the " +
               verb + ", and what makes its descriptor, in the kernel";
    const std::string by_row = "DESCRIPTOR." + verb + "([…])";
    const std::string by_pointer = "tl." + verb + "(…)";
    const std::string call = "a " + verb + " of " + site.param + line + " is ";
    if (site.by == By::other)
        return call + "neither " + by_pointer + " nor " + by_row + " of the whole tensor";
    const bool shared = std::ranges::count(alike, site.call.begin,
                                           [](const AccessSite& other) { return other.call.begin; }) > 1;
    if (is_written_out(callee, site.by, verb) && !shared) return {};
    return call + "not of the form " + (site.by == By::descriptor ? by_row : by_pointer);
}

}  // namespace

std::vector<ParamAccess> accesses_of(const Sites& sites, std::string_view source) {
    std::vector<ParamAccess> accesses;
    for (const std::vector<AccessSite>* all : {&sites.loads, &sites.stores}) {
        const bool stores = all == &sites.stores;
        for (const AccessSite& site : *all) {
            // What lies in an imported file is beyond the source.
            const std::string_view text = source.substr(std::min<std::size_t>(site.call.begin, source.size()),
                                                        site.call.end - site.call.begin);
            const std::string_view callee = text.substr(0, text.find('('));
            accesses.push_back({.param = site.param,
                                .stores = stores,
                                .by = site.by,
                                .given = site.by == By::descriptor && site.made.end == 0 &&
                                         callee == site.param + (stores ? ".store" : ".load"),
                                .rows = site.rows,
                                .line = site.call.line,
                                .fixed = objection_to(site, sites, *all, callee, stores)});
        }
    }
    return accesses;
}

}  // namespace syncopate::kernel::triton
