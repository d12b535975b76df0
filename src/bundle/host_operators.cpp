#include "bundle/host_operators.hpp"

#include <algorithm>
#include <iterator>

#include "bundle/host_mixture.hpp"

namespace syncopate::bundle {
namespace {

constexpr HostOperator kOperators[] = {{"moe", host_mixture}};

}  // namespace

const HostOperator* host_operator(std::string_view name) {
    const auto* const found = std::ranges::find(kOperators, name, &HostOperator::name);
    return found == std::end(kOperators) ? nullptr : found;
}

}  // namespace syncopate::bundle
