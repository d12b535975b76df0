// A user's program: a template's plan, checked and drawn.
#include <iostream>

#include "syncopate/plan/check/check.hpp"
#include "syncopate/plan/templates/templates.hpp"

int main() {
    using namespace syncopate::plan;
    const auto plan = all_gather({{{"gpu", 4}}}, {"A", {64, 32}, DType::bf16}, {.axis = 0, .split = 2});
    if (!plan || !check(*plan).empty()) return 1;
    std::cout << plan->ranks.size() << " ranks\n";
    const auto refused = all_gather({{{"gpu", 4}}}, {"A", {64, 32}, DType::bf16}, {.axis = 7});
    if (!refused && refused.error().error_class == syncopate::ErrorClass::usage)
        std::cout << "an error is caught as its own\n";
}
