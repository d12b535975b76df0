#include "syncopate/affine.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <utility>

#include "syncopate/excerpt.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::affine {
namespace {

constexpr std::int64_t kLimit = std::int64_t{1} << 61;  ///< so that differences fit 64 bits
constexpr std::size_t kDeepest = 64;                    ///< parentheses and signs inside each other

std::optional<std::int64_t> within(std::int64_t value, bool overflowed) {
    if (overflowed || value > kLimit || value < -kLimit) return std::nullopt;
    return value;
}

std::optional<std::int64_t> sum_of(std::int64_t a, std::int64_t b) {
    std::int64_t value = 0;
    const bool overflowed = __builtin_add_overflow(a, b, &value);
    return within(value, overflowed);
}

std::optional<std::int64_t> product_of(std::int64_t a, std::int64_t b) {
    std::int64_t value = 0;
    const bool overflowed = __builtin_mul_overflow(a, b, &value);
    return within(value, overflowed);
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && (a < 0) ? 1 : 0); }

/// a + by * b, or nothing where a number gets too large.
std::optional<Form> combined(const Form& a, const Form& b, std::int64_t by) {
    Form made = a;
    made.coefficients.resize(std::max(a.coefficients.size(), b.coefficients.size()), 0);
    const auto add = [&](std::int64_t& to, std::int64_t from) {
        const auto scaled = product_of(from, by);
        const auto value = scaled ? sum_of(to, *scaled) : std::nullopt;
        to = value.value_or(0);
        return value.has_value();
    };
    if (!add(made.constant, b.constant)) return std::nullopt;
    for (std::size_t i = 0; i < b.coefficients.size(); ++i) {
        if (!add(made.coefficients[i], b.coefficients[i])) return std::nullopt;
    }
    while (!made.coefficients.empty() && made.coefficients.back() == 0) made.coefficients.pop_back();
    return made;
}

}  // namespace

Form Form::coordinate(std::size_t index) {
    Form made;
    made.coefficients.assign(index + 1, 0);
    made.coefficients.back() = 1;
    return made;
}

std::int64_t Form::at(std::span<const std::int64_t> coordinates) const {
    std::int64_t value = constant;
    for (std::size_t i = 0; i < coefficients.size(); ++i) {
        const bool negative = (coefficients[i] < 0) != (coordinates[i] < 0);
        const auto term = product_of(coefficients[i], coordinates[i]);
        const auto sum = sum_of(value, term.value_or(negative ? -kLimit : kLimit));
        value = sum.value_or(value < 0 ? -kLimit : kLimit);
    }
    return value;
}

/// Reads one text from front to back.
class Reader {
public:
    using Kind = Expression::Kind;
    using Node = Expression::Node;

    Reader(std::string_view text, std::string subject) : text_(text), subject_(std::move(subject)) { skip(); }

    [[nodiscard]] bool ended() const { return at_ >= text_.size(); }
    bool take(std::string_view token) {
        if (text_.substr(at_, token.size()) != token) return false;
        at_ += token.size();
        skip();
        return true;
    }

    /// The sum that begins here.
    Result<Expression> sum() {
        Expression made;
        made.text_ = text_;
        made.subject_ = subject_;
        if (Result<std::size_t> whole = sum(made.nodes_, 0); !whole) return whole.error();
        return made;
    }

    /// About what stands here.
    [[nodiscard]] Error unexpected(const std::string& expected) const {
        const std::string found = ended() ? "the end" : "`" + escaped(text_.substr(at_, 1)) + "`";
        return error(at_, std::min(at_ + 1, text_.size()), "expected " + expected + ", found " + found);
    }

    [[nodiscard]] Error error(std::size_t begin, std::size_t end, const std::string& problem) const {
        return {subject_ + ", column " + std::to_string(column_of(text_, begin)) + ": " + problem,
                {},
                ErrorClass::input,
                excerpt(text_, begin, end)};
    }

private:
    struct Operator {
        std::string_view token;
        Kind kind;
    };
    static constexpr std::array<Operator, 2> kSums{{{"+", Kind::add}, {"-", Kind::subtract}}};
    static constexpr std::array<Operator, 3> kProducts{
        {{"//", Kind::divide}, {"*", Kind::multiply}, {"%", Kind::modulo}}};
    static constexpr std::array<Operator, 3> kFunctions{
        {{"cdiv", Kind::cdiv}, {"min", Kind::min}, {"max", Kind::max}}};

    void skip() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    }

    template <std::size_t N>
    std::optional<Kind> take_any(const std::array<Operator, N>& operators) {
        if (text_.substr(at_, 2) == "**") return std::nullopt;
        for (const Operator& one : operators) {
            if (take(one.token)) return one.kind;
        }
        return std::nullopt;
    }

    Result<std::size_t> sum(std::vector<Node>& nodes, std::size_t depth) {
        return chain(nodes, kSums,
                     [&] { return chain(nodes, kProducts, [&] { return factor(nodes, depth); }); });
    }

    /// Operands with operators between them, from left to right.
    template <std::size_t N, typename Operand>
    Result<std::size_t> chain(std::vector<Node>& nodes, const std::array<Operator, N>& operators,
                              const Operand& operand) {
        Result<std::size_t> left = operand();
        while (left) {
            const std::optional<Kind> kind = take_any(operators);
            if (!kind) return left;
            const Result<std::size_t> right = operand();
            if (!right) return right;
            left = add(nodes, *kind, *left, *right);
        }
        return left;
    }

    static std::size_t add(std::vector<Node>& nodes, Kind kind, std::size_t left, std::size_t right) {
        nodes.push_back({kind, nodes[left].begin, nodes[right].end, 0, left, right});
        return nodes.size() - 1;
    }

    Result<std::size_t> factor(std::vector<Node>& nodes, std::size_t depth) {
        if (depth > kDeepest)
            return error(at_, at_ + 1, "nested more than " + std::to_string(kDeepest) + " deep");
        const std::size_t begin = at_;
        if (take("-")) {
            const Result<std::size_t> operand = factor(nodes, depth + 1);
            if (!operand) return operand;
            nodes.push_back({Kind::negate, begin, nodes[*operand].end, 0, *operand, *operand});
            return nodes.size() - 1;
        }
        if (take("(")) {
            const Result<std::size_t> inner = sum(nodes, depth + 1);
            if (!inner) return inner;
            if (!take(")")) return unexpected("`)`");
            nodes[*inner].begin = begin;
            nodes[*inner].end = end_of_token();
            return inner;
        }
        if (ended()) return unexpected("a number, a name or `(`");
        const auto first = static_cast<unsigned char>(text_[at_]);
        if (std::isdigit(first) != 0) return number(nodes);
        if (std::isalpha(first) != 0 || first == '_') return name(nodes, depth);
        return unexpected("a number, a name or `(`");
    }

    Result<std::size_t> number(std::vector<Node>& nodes) {
        const std::size_t begin = at_;
        std::int64_t value = 0;
        while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
            const auto scaled = product_of(value, 10);
            const auto next = scaled ? sum_of(*scaled, text_[at_] - '0') : std::nullopt;
            if (!next) return error(begin, at_ + 1, "the number is too large");
            value = *next;
            ++at_;
        }
        nodes.push_back({Kind::number, begin, at_, value});
        skip();
        return nodes.size() - 1;
    }

    Result<std::size_t> name(std::vector<Node>& nodes, std::size_t depth) {
        const std::size_t begin = at_;
        while (at_ < text_.size() &&
               (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_'))
            ++at_;
        const std::size_t end = at_;
        const std::string_view name = text_.substr(begin, end - begin);
        skip();
        if (take("[")) {
            const Result<std::size_t> index = sum(nodes, depth + 1);
            if (!index) return index;
            if (!take("]")) return unexpected("`]`");
            nodes.push_back({Kind::element, begin, end_of_token(), static_cast<std::int64_t>(end - begin),
                             *index, *index});
            return nodes.size() - 1;
        }
        if (!take("(")) {
            nodes.push_back({Kind::name, begin, end});
            return nodes.size() - 1;
        }
        const auto function = std::ranges::find(kFunctions, name, &Operator::token);
        if (function == kFunctions.end()) {
            return error(begin, end,
                         "there is no function " + escaped(name) + "; there are cdiv, min and max");
        }
        Result<std::size_t> all = sum(nodes, depth + 1);
        std::size_t operands = 1;
        while (all && take(",")) {
            const Result<std::size_t> next = sum(nodes, depth + 1);
            if (!next) return next;
            all = add(nodes, function->kind, *all, *next);
            ++operands;
        }
        if (!all) return all;
        if (!take(")")) return unexpected("`,` or `)`");
        if (operands < 2 || (function->kind == Kind::cdiv && operands > 2)) {
            return error(
                begin, end_of_token(),
                std::string(name) + " takes two values" + (function->kind == Kind::cdiv ? "" : " or more"));
        }
        nodes[*all].begin = begin;
        nodes[*all].end = end_of_token();
        return all;
    }

    /// Past the last character before the place, without the white space.
    [[nodiscard]] std::size_t end_of_token() const {
        std::size_t end = at_;
        while (end > 0 && (text_[end - 1] == ' ' || text_[end - 1] == '\t')) --end;
        return end;
    }

    std::string_view text_;
    std::string subject_;
    std::size_t at_ = 0;
};

Result<Expression> Expression::parse(std::string_view text, std::string subject) {
    Reader reader(text, std::move(subject));
    Result<Expression> made = reader.sum();
    if (made && !reader.ended()) return reader.unexpected("an operator or the end");
    return made;
}

Error Expression::error(const Node& node, const std::string& problem) const {
    return {subject_ + ", column " + std::to_string(column_of(text_, node.begin)) + ": " + problem,
            {},
            ErrorClass::input,
            excerpt(text_, node.begin, node.end)};
}

Result<Form> Expression::combine(const Node& node, const Form& left, const Form& right) const {
    const auto exact = [&](const std::optional<Form>& form) -> Result<Form> {
        if (!form) return error(node, "`" + text_of(node) + "` is too large");
        return *form;
    };
    switch (node.kind) {
        case Kind::negate: return exact(combined({}, left, -1));
        case Kind::add: return exact(combined(left, right, 1));
        case Kind::subtract: return exact(combined(left, right, -1));
        case Kind::multiply:
            if (!left.is_number() && !right.is_number())
                return error(node, "`" + text_of(node) + "` is not affine: it multiplies coordinates");
            return left.is_number() ? exact(combined({}, right, left.constant))
                                    : exact(combined({}, left, right.constant));
        default: break;
    }
    if (node.kind == Kind::min || node.kind == Kind::max) {
        const std::optional<Form> difference = combined(left, right, -1);
        if (!difference || !difference->is_number())
            return error(node,
                         "`" + text_of(node) + "` is not affine: which one it is follows from coordinates");
        return (difference->constant < 0) == (node.kind == Kind::min) ? left : right;
    }
    if (!right.is_number() || right.constant <= 0)
        return error(node, "`" + text_of(nodes_[node.right]) + "` must be a number above 0 to divide by");
    const std::int64_t by = right.constant;
    const bool whole = std::ranges::all_of(left.coefficients, [&](std::int64_t c) { return c % by == 0; });
    if (!whole || (node.kind == Kind::modulo && !left.is_number())) {
        return error(node, "`" + text_of(node) + "` is not affine: it divides coordinates");
    }
    if (node.kind == Kind::modulo) return Form::number(left.constant - floor_div(left.constant, by) * by);
    Form made = left;
    for (std::int64_t& coefficient : made.coefficients) coefficient /= by;
    made.constant = node.kind == Kind::cdiv ? -floor_div(-left.constant, by) : floor_div(left.constant, by);
    return made;
}

Result<Form> Expression::element(const Node& node, const Form& index, const Lists& lists) const {
    const std::string name = text_.substr(node.begin, static_cast<std::size_t>(node.value));
    const auto list = lists.find(name);
    if (list == lists.end() || list->second.empty())
        return error(node, "the elements of `" + name + "` are not known here");
    if (!index.is_number())
        return error(node,
                     "`" + text_of(node) + "` is not affine: which element it is follows from coordinates");
    const auto size = static_cast<std::int64_t>(list->second.size());
    if (index.constant < 0 || index.constant >= size)
        return error(node, "`" + text_of(node) + "` is element " + std::to_string(index.constant) + " of " +
                               std::to_string(size));
    return Form::number(list->second[static_cast<std::size_t>(index.constant)]);
}

Result<Form> Expression::bind(const Names& names, const Lists& lists) const {
    std::vector<Form> forms;
    forms.reserve(nodes_.size());
    for (const Node& node : nodes_) {
        if (node.kind == Kind::number) {
            forms.push_back(Form::number(node.value));
        } else if (node.kind == Kind::name) {
            const auto found = names.find(text_of(node));
            if (found == names.end()) {
                std::vector<std::string_view> known;
                for (const auto& [name, form] : names) known.emplace_back(name);
                return error(
                    node, "`" + text_of(node) + "` has no value here" + did_you_mean(text_of(node), known));
            }
            forms.push_back(found->second);
        } else {
            Result<Form> made = node.kind == Kind::element
                                    ? element(node, forms[node.left], lists)
                                    : combine(node, forms[node.left], forms[node.right]);
            if (!made) return made;
            forms.push_back(*std::move(made));
        }
    }
    return std::move(forms.back());
}

bool Expression::mentions(std::string_view name) const {
    return std::ranges::any_of(nodes_, [&](const Node& node) {
        return node.kind == Kind::name &&
               std::string_view(text_).substr(node.begin, node.end - node.begin) == name;
    });
}

Result<std::int64_t> Expression::number(const Names& names, const Lists& lists) const {
    SYNCOPATE_TAKE(const Form form, bind(names, lists));
    if (form.is_number()) return form.constant;
    return error(nodes_.back(),
                 "`" + text_of(nodes_.back()) + "` follows from coordinates; a number is needed here");
}

Result<Range> Range::parse(std::string_view text, const std::string& subject) {
    Reader reader(text, subject);
    Range range;
    if (!reader.take(":")) {
        SYNCOPATE_TAKE(Expression begin, reader.sum());
        range.begin = std::move(begin);
        if (reader.ended()) {
            range.single = true;
            return range;
        }
        if (!reader.take(":")) return reader.unexpected("an operator, `:` or the end");
    }
    if (reader.ended()) return range;
    SYNCOPATE_TAKE(Expression end, reader.sum());
    range.end = std::move(end);
    if (!reader.ended()) return reader.unexpected("an operator or the end");
    return range;
}

Result<BoundRange> Range::bind(const Names& names, std::int64_t extent, const Lists& lists) const {
    BoundRange bound{Form::number(0), Form::number(extent)};
    if (begin) {
        SYNCOPATE_TAKE(Form first, begin->bind(names, lists));
        bound.begin = std::move(first);
    }
    if (single) {
        bound.end = bound.begin;
        ++bound.end.constant;
    } else if (end) {
        SYNCOPATE_TAKE(Form last, end->bind(names, lists));
        bound.end = std::move(last);
    }
    return bound;
}

}  // namespace syncopate::affine
