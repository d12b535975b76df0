#include "kernel/triton/syntax/choose_kernel.hpp"
#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

#include <algorithm>
#include <charconv>
#include <deque>
#include <string_view>

namespace syncopate::kernel::triton {

Status parse_reachable(Module& module, std::int32_t function, std::set<std::int32_t>& seen) {
    std::deque<std::int32_t> pending{function};
    while (!pending.empty()) {
        const std::int32_t next = pending.front();
        pending.pop_front();
        if (!seen.insert(next).second) continue;
        SYNCOPATE_TRY(module.parse_function(next));
        for (const std::int32_t callee : module.functions[at(next)].calls) pending.push_back(callee);
    }
    return Done{};
}

namespace {

/// A name as it is asked for; the line is 0 where none is given.
struct Asked {
    std::string_view name;
    std::int32_t line = 0;
};

Asked asked_for(std::string_view text) {
    const std::size_t at = text.find('@');
    Asked made{text.substr(0, at)};
    if (at != std::string_view::npos)
        std::from_chars(text.data() + at + 1, text.data() + text.size(), made.line);
    return made;
}

/// The functions of the kernel's file with this name, in the order of the file.
std::vector<std::int32_t> named(const Module& module, std::string_view name) {
    std::vector<std::int32_t> found;
    for (std::size_t i = 0; i < module.functions.size(); ++i) {
        const Function& function = module.functions[i];
        if (function.file == 0 && function.name == name) found.push_back(static_cast<std::int32_t>(i));
    }
    return found;
}

const Function& function_of(const Module& module, std::int32_t index) { return module.functions[at(index)]; }

/// "k@5, k@9"
std::string listed(const Module& module, const std::vector<std::int32_t>& functions, bool lines) {
    std::string list;
    for (const std::int32_t index : functions) {
        const Function& function = function_of(module, index);
        list += (list.empty() ? "" : ", ") + function.name;
        if (lines) list += "@" + std::to_string(function.name_range.line);
    }
    return list;
}

/// The function that is asked for; -1 where the file has none of that name.
Result<std::int32_t> find(const Module& module, const Asked& asked) {
    const std::vector<std::int32_t> all = named(module, asked.name);
    if (all.empty()) return module.bound(asked.name);  // fast = triton.jit(k)
    if (all.size() == 1) return all[0];
    for (const std::int32_t index : all) {
        const Function& function = function_of(module, index);
        if (function.whole.line == asked.line || function.name_range.line == asked.line) return index;
    }
    const std::int32_t known = module.bound(asked.name);
    if (asked.line == 0 && known >= 0) return known;
    const Function& second = function_of(module, all[1]);
    const std::string of_line = asked.line == 0 ? "" : ", none of them on line " + std::to_string(asked.line);
    return module.error(second.name_range, "the file has several functions `" + second.name + "`" + of_line +
                                               "; name one of: " + listed(module, all, true));
}

}  // namespace

Result<std::vector<std::int32_t>> kernels_of(Module& module) {
    std::set<std::int32_t> called;
    for (std::size_t i = 0; i < module.functions.size(); ++i) {
        if (!module.functions[i].jit || module.functions[i].file != 0) continue;
        SYNCOPATE_TRY(module.parse_function(static_cast<std::int32_t>(i)));
        const Function& function = module.functions[i];
        for (const std::int32_t callee : function.calls) {
            if (callee != static_cast<std::int32_t>(i)) called.insert(callee);
        }
    }
    std::vector<std::int32_t> kernels;
    for (std::size_t i = 0; i < module.functions.size(); ++i) {
        const auto index = static_cast<std::int32_t>(i);
        const Function& function = module.functions[i];
        if (!function.jit || function.file != 0 || called.contains(index)) continue;
        // A later definition replaces an earlier one, as in Python.
        const std::int32_t last = module.bound(function.name);
        if (last < 0 || last == index || !module.functions[at(last)].jit) kernels.push_back(index);
    }
    return kernels;
}

Result<std::int32_t> choose_kernel(Module& module, const std::string& name) {
    Location file;
    file.file = module.file;
    if (!name.empty()) {
        const Asked asked = asked_for(name);
        const Result<std::int32_t> found = find(module, asked);
        if (!found) return found;
        if (*found >= 0 && function_of(module, *found).jit) return found;
        if (*found >= 0)
            return module.error(
                function_of(module, *found).name_range,
                "`" + std::string(asked.name) +
                    "` is not under @triton.jit: write @triton.jit above it, or name another function");
        std::string known;
        for (const Function& f : module.functions) {
            if (f.jit && f.file == 0) known += (known.empty() ? "" : ", ") + f.name;
        }
        return Error{"no function `" + std::string(asked.name) + "`" +
                         (known.empty() ? std::string(": the file has no @triton.jit function")
                                        : "; under @triton.jit are: " + known),
                     file};
    }
    SYNCOPATE_TAKE(const auto kernels, kernels_of(module));
    std::vector<std::int32_t> storing;
    for (const std::int32_t k : kernels) {
        std::set<std::int32_t> reachable;
        SYNCOPATE_TRY(parse_reachable(module, k, reachable));
        if (std::any_of(reachable.begin(), reachable.end(),
                        [&](std::int32_t f) { return module.functions[at(f)].has_stores; })) {
            storing.push_back(k);
        }
    }
    if (storing.size() == 1) return storing[0];
    if (!storing.empty()) {
        std::set<std::string_view> names;
        for (const std::int32_t k : storing) names.insert(function_of(module, k).name);
        const bool lines = names.size() < storing.size();
        return module.error(function_of(module, storing[1]).name_range,
                            "the file has several kernels; name one of: " + listed(module, storing, lines) +
                                ", as in FILE.py:" + listed(module, {storing[0]}, lines));
    }
    return Error{"the file has no @triton.jit kernel that stores anything: name one, as in FILE.py:NAME",
                 file};
}

}  // namespace syncopate::kernel::triton
