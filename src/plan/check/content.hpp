// What a box of memory holds, symbolically: which values or contributions of which elements, and how reduced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "plan/check/contributors.hpp"
#include "plan/model/budget.hpp"
#include "syncopate/at.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

/// How the terms of a content have become one.
enum class Form : std::uint8_t { one, sum, max, mixed };  ///< one: a single term; mixed: sum and max both

/// The terms that come from one place: the value of a tensor's elements, or some ranks' contributions to it.
/// A box at position p has the terms of the elements at p - shift.
struct Origin {
    std::int32_t tensor = 0;
    std::int32_t shift = 0;  ///< an index into ContentPool's shifts; 0: none
    bool value = false;      ///< else `ranks` contribute
    Contributors ranks;
    bool operator==(const Origin&) const = default;
};

struct Terms {
    Form form = Form::one;
    std::vector<Origin> origins;      ///< rising by tensor, shift and value; each once
    mutable std::int64_t number = 0;  ///< in the order in which the pool made them

    bool operator==(const Terms& other) const { return form == other.form && origins == other.origins; }
};

/// Equal contents are equal pointers, into the pool that made them.
using Content = const Terms*;

/// For coalesce: an order that does not depend on addresses, so that findings come out the same on every run.
[[nodiscard]] inline std::int64_t order_of(Content content) { return content->number; }

/// Makes contents, each kept once, so that they compare and copy as pointers: a plan has few different ones.
/// Each word of a new contributor set costs `budget` some steps, so that it bounds the memory too.
class ContentPool {
public:
    explicit ContentPool(Budget& budget) : budget_(budget), shifts_{{}} {}

    [[nodiscard]] Content value(std::int32_t tensor);
    [[nodiscard]] Content contribution(std::int32_t tensor, std::int32_t rank);

    /// The content, having moved by `displacement` elements along each axis, into any tensor.
    [[nodiscard]] Content moved(Content content, const std::vector<std::int64_t>& displacement);

    /// The reduction of two contents. Free of order: any order and grouping of the same reductions of one
    /// kind gives the same content.
    [[nodiscard]] Content joined(Content a, Content b, Reduce reduce);

    [[nodiscard]] const std::vector<std::int64_t>& shift(const Origin& origin) const {
        return shifts_[at(origin.shift)];
    }

private:
    struct Hash {
        std::size_t operator()(const Terms& terms) const;
        std::size_t operator()(const std::vector<std::int64_t>& numbers) const;
    };
    Content keep(Terms terms);
    std::int32_t shift_by(std::int32_t shift, const std::vector<std::int64_t>& displacement);

    Budget& budget_;
    std::unordered_set<Terms, Hash> terms_;  // nodes stay where they are
    std::vector<std::vector<std::int64_t>> shifts_;
    std::unordered_map<std::vector<std::int64_t>, std::int32_t, Hash> shift_index_;
};

/// What a sum of two contents would count twice.
struct Duplicate {
    const Origin* value = nullptr;    ///< one side has the value itself
    std::vector<std::int32_t> ranks;  ///< else: of these the same contribution is on both sides
};
[[nodiscard]] std::optional<Duplicate> duplicate_in_sum(Content a, Content b);

}  // namespace syncopate::plan
