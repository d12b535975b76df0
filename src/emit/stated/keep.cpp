#include <string>

#include "emit/stated/stated.hpp"

namespace syncopate::emit::stated {

const std::string& original(const kernel::Kernel& kernel) {
    return static_cast<const kernel::stated::Text&>(*kernel.origin).source;
}

namespace {

Error lacks(const kernel::Kernel& kernel, const std::string& name, const std::string& why) {
    Location where;
    where.file = kernel.file;
    where.line = kernel.line;
    return Error{"stated kernel " + kernel.name + " has no parameter " + name + ": " + why, where};
}

}  // namespace

Result<std::string> keep(const fuse::BoundKernel& program, const fuse::Schedule& schedule,
                         std::size_t stage) {
    const kernel::Kernel& kernel = program.kernel;
    for (const std::string name : {"sy_schedule", "sy_control"}) {
        if (kernel.find_param(name) != nullptr) continue;
        return lacks(
            kernel, name,
            "a kernel that follows a schedule takes sy_schedule and sy_control, both int64 addresses");
    }
    const std::int32_t copies = schedule.most_stores(stage);
    if (copies > 1 && kernel.find_param("COPIES") == nullptr) {
        return lacks(kernel, "COPIES",
                     "some of its tiles are to be stored in " + std::to_string(copies) + " places");
    }
    return original(kernel);
}

}  // namespace syncopate::emit::stated
