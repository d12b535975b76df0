#include "syncopate/kernel/model/kernel.hpp"

#include <algorithm>
#include <utility>

namespace syncopate::kernel {

const Param* Kernel::find_param(const std::string& wanted) const {
    const auto found = std::ranges::find(params, wanted, &Param::name);
    return found == params.end() ? nullptr : &*found;
}

std::int64_t Kernel::trips_of(const Tile& tile, std::size_t loop) const {
    if (!tiles_differ) return loops[loop].trips;
    return tile.trips == nullptr ? 0 : (*tile.trips)[loop];
}

Error error_at(const Param& param, std::string message) {
    return {std::move(message), param.where, ErrorClass::input, param.excerpt};
}

}  // namespace syncopate::kernel
