// Expressions of a block's coordinates x, y and z.
#pragma once

#include <array>
#include <cstdint>

#include "syncopate/affine.hpp"
#include "syncopate/result.hpp"

namespace syncopate::sync {

using Block = std::array<std::int64_t, 3>;

/// An expression at many blocks. Affine ones are bound once; others (y // 2) are evaluated block by block.
class BlockExpression {
public:
    explicit BlockExpression(const affine::Expression& expression) : expression_(&expression) {
        if (Result<affine::Form> form = expression.bind(coordinates())) {
            form_ = *std::move(form);
            affine_ = true;
        }
    }

    [[nodiscard]] Result<std::int64_t> at(const Block& block) const {
        if (affine_) return form_.at(block);
        return expression_->number(numbers(block));
    }

private:
    static affine::Names coordinates() {
        return {{"x", affine::Form::coordinate(0)},
                {"y", affine::Form::coordinate(1)},
                {"z", affine::Form::coordinate(2)}};
    }
    static affine::Names numbers(const Block& block) {
        return {{"x", affine::Form::number(block[0])},
                {"y", affine::Form::number(block[1])},
                {"z", affine::Form::number(block[2])}};
    }

    const affine::Expression* expression_;
    affine::Form form_;
    bool affine_ = false;
};

}  // namespace syncopate::sync
