// A budget for what may grow faster than its input.
#pragma once

#include <cstddef>
#include <cstdint>

namespace syncopate::plan {

/// Counts steps: boxes looked at, edges walked. Plans that people and compilers write need a few for each op;
/// one made to be hard could need the square. Whoever spends stops once the budget is gone, and check() says
/// so.
class Work {
public:
    explicit Work(std::int64_t steps) : left_(steps) {}

    void spend(std::int64_t steps = 1) { left_ -= steps; }
    [[nodiscard]] bool exhausted() const { return left_ < 0; }

private:
    std::int64_t left_;
};

/// Of one check(): plans as they are written need 50 to 200 steps for each op. About half a minute for a
/// million ops at worst.
[[nodiscard]] constexpr std::int64_t steps_to_check(std::size_t ops) {
    return (std::int64_t{1} << 27) + 1024 * static_cast<std::int64_t>(ops);
}

}  // namespace syncopate::plan
