#include "syncopate/kernel/model/kernel.hpp"

#include <algorithm>
#include <utility>

namespace syncopate::kernel {

const Param* Kernel::find_param(const std::string& wanted) const {
    const auto found = std::ranges::find(params, wanted, &Param::name);
    return found == params.end() ? nullptr : &*found;
}

Error error_at(const Param& param, std::string message) {
    return {std::move(message), param.where, ErrorClass::input, param.excerpt};
}

}  // namespace syncopate::kernel
