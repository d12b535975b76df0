// Affine expressions and ranges over named integers, as statements of kernels (kernel/stated/) and files of
// chains write them:
//
//      128*y : 128*y + 128        (m+1)*BLOCK_M        cdiv(K, BLOCK_K)        :        m
//
//      range   ::= [sum] ":" [sum] | sum              one sum i is the range i : i + 1
//      sum     ::= product {("+" | "-") product}
//      product ::= factor {("*" | "//" | "%") factor}
//      factor  ::= number | name | "-" factor | "(" sum ")" | function "(" sum {"," sum} ")" | name "[" sum
//      "]"
//
// Functions are cdiv(a, b), min and max. `//` and `%` round down, cdiv rounds up. name[i] is the i-th of a
// list of known numbers (the elements of an integer tensor, in row-major order). Reading a text needs no
// values. Binding it gives each name a number or makes it a coordinate, and the result is one affine form:
// what is multiplied, divided or compared must come to numbers there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/result.hpp"

namespace syncopate::affine {

/// constant + the sum of coefficients[i] * coordinate i.
struct Form {
    std::int64_t constant = 0;
    std::vector<std::int64_t> coefficients{};  ///< the last one is not 0

    [[nodiscard]] static Form number(std::int64_t value) { return {value, {}}; }
    [[nodiscard]] static Form coordinate(std::size_t index);

    [[nodiscard]] bool is_number() const { return coefficients.empty(); }
    /// Of coordinate `index`; 0 past the last one that counts.
    [[nodiscard]] std::int64_t coefficient(std::size_t index) const {
        return index < coefficients.size() ? coefficients[index] : 0;
    }
    /// The value at these coordinates, of which there are enough. Past 2^61 it stays there.
    [[nodiscard]] std::int64_t at(std::span<const std::int64_t> coordinates) const;
    bool operator==(const Form&) const = default;
};

/// What the names of an expression stand for.
using Names = std::map<std::string, Form, std::less<>>;

/// Lists of known numbers, by name.
using Lists = std::map<std::string, std::vector<std::int64_t>, std::less<>>;

/// A text that has been read.
class Expression {
public:
    /// `subject` says in messages what the text is: "the count of axis m". Fails with the column of what is
    /// wrong and an excerpt.
    [[nodiscard]] static Result<Expression> parse(std::string_view text, std::string subject);

    /// Fails with the column where a name is not among `names`, where the result is not affine, where a
    /// divisor is not above 0, where a list is not among `lists` or has no such element, and where a number
    /// passes 2^61.
    [[nodiscard]] Result<Form> bind(const Names& names, const Lists& lists = {}) const;
    /// The same where all names must be numbers.
    [[nodiscard]] Result<std::int64_t> number(const Names& names, const Lists& lists = {}) const;

    [[nodiscard]] const std::string& text() const { return text_; }
    /// Whether `name` stands in it, not as a list.
    [[nodiscard]] bool mentions(std::string_view name) const;
    /// Whether nothing was read into it.
    [[nodiscard]] bool is_empty() const { return nodes_.empty(); }

private:
    friend class Reader;

    enum class Kind : std::uint8_t {
        number,
        name,
        negate,
        add,
        subtract,
        multiply,
        divide,
        modulo,
        cdiv,
        min,
        max,
        element
    };
    struct Node {
        Kind kind = Kind::number;
        std::size_t begin = 0, end = 0;   ///< bytes of the text
        std::int64_t value = 0;           ///< of a number; of an element, bytes of the list's name
        std::size_t left = 0, right = 0;  ///< operands, by index; they come before the node
    };

    [[nodiscard]] Error error(const Node& node, const std::string& problem) const;
    [[nodiscard]] std::string text_of(const Node& node) const {
        return text_.substr(node.begin, node.end - node.begin);
    }
    [[nodiscard]] Result<Form> combine(const Node& node, const Form& left, const Form& right) const;
    [[nodiscard]] Result<Form> element(const Node& node, const Form& index, const Lists& lists) const;

    std::string text_;
    std::string subject_;
    std::vector<Node> nodes_;  ///< the last one is the whole
};

/// A range of which both ends are forms.
struct BoundRange {
    Form begin;
    Form end;
};

/// A half-open range along one axis of a tensor: from `begin`, or the axis' own begin, up to `end`, or the
/// axis' own end.
struct Range {
    std::optional<Expression> begin;
    std::optional<Expression> end;
    bool single = false;  ///< one element, `begin`; there is no `end`

    [[nodiscard]] static Result<Range> parse(std::string_view text, const std::string& subject);
    /// `extent`: of the axis, where the range leaves an end open.
    [[nodiscard]] Result<BoundRange> bind(const Names& names, std::int64_t extent,
                                          const Lists& lists = {}) const;
};

}  // namespace syncopate::affine
