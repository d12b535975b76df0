#include "kernel/triton/syntax/choose_kernel.hpp"

#include <algorithm>
#include <deque>

namespace syncopate::kernel::triton {

Status parse_reachable(Module& module, std::int32_t function, std::set<std::int32_t>& seen) {
    std::deque<std::int32_t> pending{function};
    while (!pending.empty()) {
        const std::int32_t next = pending.front();
        pending.pop_front();
        if (!seen.insert(next).second) continue;
        if (const Status status = module.parse_function(next); !status) return status;
        for (const std::int32_t callee : module.functions[static_cast<std::size_t>(next)].calls)
            pending.push_back(callee);
    }
    return Done{};
}

Result<std::vector<std::int32_t>> kernels_of(Module& module) {
    std::set<std::int32_t> called;
    for (std::size_t i = 0; i < module.functions.size(); ++i) {
        if (!module.functions[i].jit || module.functions[i].file != 0) continue;
        if (const Status status = module.parse_function(static_cast<std::int32_t>(i)); !status)
            return status.error();
        const Function& function = module.functions[i];
        for (const std::int32_t callee : function.calls) {
            if (callee != static_cast<std::int32_t>(i)) called.insert(callee);
        }
    }
    std::vector<std::int32_t> kernels;
    for (std::size_t i = 0; i < module.functions.size(); ++i) {
        const auto index = static_cast<std::int32_t>(i);
        const Function& function = module.functions[i];
        // A later definition replaces an earlier one, as in Python.
        if (function.jit && function.file == 0 && !called.contains(index) &&
            module.find(function.name) == index)
            kernels.push_back(index);
    }
    return kernels;
}

Result<std::int32_t> choose_kernel(Module& module, const std::string& name) {
    Location file;
    file.file = module.file;
    if (!name.empty()) {
        const std::int32_t found = module.find(name);
        if (found >= 0 && module.functions[static_cast<std::size_t>(found)].jit) return found;
        if (found >= 0)
            return module.error(
                module.functions[static_cast<std::size_t>(found)].name_range,
                "`" + name +
                    "` is not under @triton.jit: write @triton.jit above it, or name another function");
        std::string known;
        for (const Function& f : module.functions) {
            if (f.jit && f.file == 0) known += (known.empty() ? "" : ", ") + f.name;
        }
        return Error{"no function `" + name + "`" +
                         (known.empty() ? std::string(": the file has no @triton.jit function")
                                        : "; under @triton.jit are: " + known),
                     file};
    }
    const auto kernels = kernels_of(module);
    if (!kernels) return kernels.error();
    std::vector<std::int32_t> storing;
    for (const std::int32_t k : *kernels) {
        std::set<std::int32_t> reachable;
        if (const Status status = parse_reachable(module, k, reachable); !status) return status.error();
        if (std::any_of(reachable.begin(), reachable.end(), [&](std::int32_t f) {
                return module.functions[static_cast<std::size_t>(f)].has_stores;
            })) {
            storing.push_back(k);
        }
    }
    if (storing.size() == 1) return storing[0];
    std::string names;
    for (const std::int32_t k : storing)
        names += (names.empty() ? "" : ", ") + module.functions[static_cast<std::size_t>(k)].name;
    if (!storing.empty())
        return module.error(module.functions[static_cast<std::size_t>(storing[1])].name_range,
                            "the file has several kernels; name one of: " + names + ", as in FILE.py:" +
                                module.functions[static_cast<std::size_t>(storing[0])].name);
    return Error{"the file has no @triton.jit kernel that stores anything: name one, as in FILE.py:NAME",
                 file};
}

}  // namespace syncopate::kernel::triton
