#include "ingest/stablehlo/mlir_text.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

class MlirReader {
public:
    MlirReader(std::string_view text, const std::string& file_name, MlirAliases& aliases)
        : at_(text, file_name), aliases_(aliases) {}

    Result<std::vector<MlirOp>> read() {
        MlirRegion top;
        if (at_.at_end()) {
            at_.fail("empty: expected MLIR text");
        } else if (ops(top, 0) && !at_.at_end()) {
            at_.fail("'}' closes nothing");
        }
        if (at_.failed()) return at_.error();
        return std::move(top.ops);
    }

private:
    /// Up to the '}' that ends the region, or the end of the text.
    bool ops(MlirRegion& out, int depth) {
        if (depth >= kMaxProgramNesting) {
            return at_.fail(fmt::format("regions nested more than {} deep", kMaxProgramNesting));
        }
        bool first_block = true;
        while (!at_.at_end() && at_.peek() != '}') {
            const char c = at_.peek();
            if (c == '^') {
                at_.advance();
                at_.name(true);
                std::vector<MlirArgument> arguments;
                if (at_.peek() == '(' && !block_arguments(arguments)) return false;
                if (!at_.expect(":", "after a block's label")) return false;
                if (first_block && out.arguments.empty()) {
                    out.arguments = std::move(arguments);
                } else if (!arguments.empty()) {
                    return at_.fail("a second block with arguments; branches between blocks are not taken");
                }
                first_block = false;
            } else if (c == '#' || c == '!') {  // an alias
                if (!alias()) return false;
            } else if (at_.looking_at("{-#")) {
                const std::size_t end = at_.text().find("#-}", at_.offset());
                if (end == std::string_view::npos) return at_.fail("\"{-#\" that is never closed");
                at_.seek(end + 3);
            } else {
                if (++count_ > kMaxInstructions) {
                    return at_.fail(fmt::format("more than {} operations", kMaxInstructions));
                }
                MlirOp made;
                if (!op(made, depth)) return false;
                out.ops.push_back(std::move(made));
            }
        }
        return true;
    }

    bool region(MlirOp& owner, int depth) {
        const std::size_t start = (at_.skip_blanks(), at_.offset());
        at_.advance();  // {
        MlirRegion made;
        made.arguments = std::move(pending_arguments_);
        pending_arguments_.clear();
        if (!ops(made, depth + 1)) return false;
        if (at_.at_end()) return at_.fail_at(start, "a region that is never closed");
        at_.advance();
        owner.regions.push_back(std::move(made));
        return true;
    }

    /// (%a: tensor<4xf32>, %b: … {attributes} loc(…))
    bool block_arguments(std::vector<MlirArgument>& out) {
        at_.advance();  // (
        if (at_.take(")")) return true;
        do {
            MlirArgument made;
            made.name = value_name();
            if (made.name.empty()) return at_.fail("expected an argument, found " + at_.found());
            if (!at_.expect(":", "after an argument's name") || !parse_mlir_type(at_, made.type))
                return false;
            if (at_.peek() == '{' && !at_.skip_balanced(false)) return false;
            if (at_.take("loc") && (at_.peek() != '(' || !at_.skip_balanced(false))) return false;
            if (++count_ > kMaxInstructions) return at_.fail("too many arguments");
            out.push_back(std::move(made));
        } while (at_.take(","));
        return at_.expect(")", "after the arguments");
    }

    /// "%arg0", "%12"; empty if there is none.
    std::string_view value_name() {
        if (at_.peek() != '%') return {};
        const std::size_t start = at_.offset();
        at_.advance();
        at_.name(true);
        return at_.since(start);
    }

    bool alias() {
        at_.advance();
        const std::string_view name = at_.name(true);
        if (name.empty() || !at_.take("=")) return at_.fail("expected an alias, found " + at_.found());
        const std::string_view text = at_.text();
        const std::size_t begin = (at_.skip_blanks(), at_.offset());
        // To the end of the line, brackets and all.
        while (at_.offset() < text.size() && text[at_.offset()] != '\n') {
            const char c = text[at_.offset()];
            if (c == '<' || c == '(' || c == '[' || c == '{') {
                if (!at_.skip_balanced(true)) return false;
            } else if (c == '"') {
                if (!at_.skip_string()) return false;
            } else {
                at_.advance();
            }
        }
        // Modules side by side may use one name for two things: then it names nothing.
        if (!at_.since(begin).starts_with("loc(")) return true;
        if (const auto [known, fresh] = aliases_.emplace(name, at_.since(begin)); !fresh) known->second = {};
        return true;
    }

    bool op(MlirOp& made, int depth) {
        at_.skip_blanks();
        made.offset = at_.offset();
        if (at_.peek() == '%') {
            do {
                const std::string_view name = value_name();
                if (name.size() < 2) return at_.fail("expected a result's name, found " + at_.found());
                std::int64_t count = 1;
                if (at_.peek_raw() == ':') {
                    at_.advance();
                    const auto said = at_.integer();
                    if (!said || *said < 1 || *said > 65536)
                        return at_.fail("expected how many results there are");
                    count = *said;
                }
                made.results.emplace_back(name, count);
            } while (at_.take(","));
            if (!at_.expect("=", "after the results")) return false;
            at_.skip_blanks();
        }
        if (!read_name(made.name)) return false;
        if (made.name.empty()) return at_.fail("expected an operation, found " + at_.found());
        const std::string_view last = made.name.substr(made.name.rfind('.') + 1);
        is_function_ = last == "func" && made.results.empty();
        return rest(made, depth);
    }

    /// Everything after the operation's name, up to where the next one begins.
    bool rest(MlirOp& made, int depth) {
        const bool function = is_function_;
        while (!at_.at_end() && at_.peek() != '}' && at_.peek() != '^' && !begins_op()) {
            const char c = at_.peek();
            if (c == '(') {
                if (!parenthesis(made, depth, function)) return false;
            } else if (c == '{') {
                const bool ok = is_dictionary() ? dictionary(made) : region(made, depth);
                if (!ok) return false;
            } else if (c == '<') {
                const std::size_t start = at_.offset();
                at_.advance();
                if (at_.peek() == '{') {
                    if (!dictionary(made) || !at_.expect(">", "after properties")) return false;
                } else {
                    at_.seek(start);
                    if (!at_.skip_balanced(true)) return false;
                }
            } else if (c == '%') {
                if (!use(made)) return false;
            } else if (c == '@') {
                at_.advance();
                std::string_view symbol;
                if (at_.peek_raw() == '"') {
                    const std::size_t start = at_.offset() + 1;
                    if (!at_.skip_string()) return false;
                    symbol = at_.text().substr(start, at_.offset() - 1 - start);
                } else {
                    symbol = at_.name(true);
                }
                if (made.symbol.empty()) made.symbol = symbol;
            } else if (c == ':' && !function) {
                at_.advance();
                if (at_.peek() == ':') {
                    at_.advance();
                } else if (!types(made)) {
                    return false;
                }
            } else if (!function && results_follow()) {
                if (!results(made)) return false;
            } else if (!word(made)) {
                return false;
            }
        }
        return true;
    }

    /// Types after ':': those of the results; those of the operands, "->" and those of the results; or, in a
    /// row, those of the operands and then that of the one result.
    bool types(MlirOp& made) {
        if (at_.peek() == '(') {
            if (!at_.skip_balanced(true)) return false;
            return !at_.take("->") || results(made);
        }
        return results(made) && (!at_.take("->") || results(made));
    }

    /// T, T, … or (T, T, …); kept where there are as many as results.
    bool results(MlirOp& made) {
        std::vector<Shape> listed;
        const bool enclosed = at_.take("(");
        if (enclosed && at_.take(")")) return true;
        do {
            if (++count_ > kMaxInstructions) return at_.fail("too many types");
            if (!parse_mlir_type(at_, listed.emplace_back())) return false;
        } while (at_.take(","));
        if (enclosed && !at_.expect(")", "after the result types")) return false;
        const auto results = static_cast<std::size_t>(made.num_results());
        if (listed.size() != results && results == 1) listed.erase(listed.begin(), listed.end() - 1);
        if (listed.size() == results) made.result_types = std::move(listed);
        return true;
    }

    /// Takes "->" where arrays' types come behind it, as after `scf.if %p`.
    bool results_follow() {
        const std::size_t start = at_.offset();
        if (at_.take("->")) {
            const std::size_t types = at_.offset();
            at_.take("(");
            const bool is = at_.looking_at("tensor<");
            at_.seek(is ? types : start);
            return is;
        }
        return false;
    }

    bool use(MlirOp& made) {
        MlirUse used;
        used.offset = at_.offset();
        used.name = value_name();
        if (used.name.size() < 2) return at_.fail("expected a value's name, found " + at_.found());
        if (at_.peek_raw() == '#') {
            at_.advance();
            const auto result = at_.integer();
            if (!result || *result < 0) return at_.fail("expected a result's number after '#'");
            used.result = *result;
        }
        if (++count_ > kMaxInstructions) return at_.fail("too many operands");
        made.operands.push_back(used);
        if (at_.peek_raw() == '[') {  // get_tuple_element %0[1]
            const std::size_t start = at_.offset() + 1;
            if (!at_.skip_balanced(true)) return false;
            made.attributes.push_back({"index", at_.text().substr(start, at_.offset() - 1 - start), start});
        }
        return true;
    }

    /// Regions, operands, a function's or block's arguments, or something of a custom form.
    bool parenthesis(MlirOp& made, int depth, bool function) {
        const std::size_t start = at_.offset();
        at_.advance();
        if (at_.peek() == '{') {
            do {
                if (at_.peek() != '{') return at_.fail("expected a region, found " + at_.found());
                if (!region(made, depth)) return false;
            } while (at_.take(","));
            return at_.expect(")", "after the regions");
        }
        if (at_.peek() == '%') {
            const std::string_view name = value_name();
            const char next = at_.peek();
            at_.seek(start);
            if (next == ':' && !name.empty()) return block_arguments(pending_arguments_);
            if (next == '=') return bindings(made);
            at_.advance();
            return operands(made);
        }
        at_.seek(start);
        if (!function) return at_.skip_balanced(true);
        if (!at_.skip_balanced(true)) return false;  // a function without arguments, or its results
        return true;
    }

    /// (%iterArg = %0, …) of a while: arguments of both regions, and operands.
    bool bindings(MlirOp& made) {
        at_.advance();
        do {
            MlirArgument argument;
            argument.name = value_name();
            if (argument.name.empty() || !at_.expect("=", "after a loop's argument")) {
                return at_.fail("expected a loop's argument, found " + at_.found());
            }
            if (at_.peek() != '%') return at_.fail("expected a value, found " + at_.found());
            if (!use(made)) return false;
            pending_arguments_.push_back(std::move(argument));
        } while (at_.take(","));
        bound_ = pending_arguments_;
        return at_.expect(")", "after a loop's arguments");
    }

    bool operands(MlirOp& made) {
        for (;;) {
            const char c = at_.peek();
            if (c == '%') {
                if (!use(made)) return false;
            } else if (c == ')') {
                at_.advance();
                return true;
            } else if (c == '(' || c == '[' || c == '{' || c == '<') {
                if (!at_.skip_balanced(true)) return false;
            } else if (c == '"') {
                if (!at_.skip_string()) return false;
            } else if (c == '\0' || c == '}' || c == ']') {
                return at_.fail("operands that are never closed");
            } else {
                at_.advance();
            }
        }
    }

    /// A keyword, number or sign of a custom form.
    bool word(MlirOp& made) {
        const std::size_t start = at_.offset();
        const std::string_view name = at_.name();
        if (!name.empty()) {
            if (at_.peek() == '<' && name == "dense") {
                if (!at_.skip_balanced(true)) return false;
                std::string_view value = at_.since(start);
                made.attributes.push_back({"value", value, start});
            } else if (at_.peek() == '=') {
                at_.advance();
                at_.skip_blanks();
                const std::size_t begin = at_.offset();
                if (!custom_value()) return false;
                made.attributes.push_back({name, at_.since(begin), begin});
            } else if (name == "loc" && at_.peek() == '(') {
                const std::size_t begin = at_.offset() + 1;
                if (!at_.skip_balanced(false)) return false;
                made.location = at_.text().substr(begin, at_.offset() - 1 - begin);
            } else if (name == "do" && made.regions.size() == 1) {
                pending_arguments_ = bound_;  // the loop's second region has the same arguments
            } else {
                made.words.push_back(name);
            }
            return true;
        }
        if (at_.peek() == '"') return at_.skip_string();
        if (at_.peek() == '#' || at_.peek() == '!') {
            at_.advance();
            at_.name();
            return at_.peek_raw() != '<' || at_.skip_balanced(true);
        }
        if (at_.peek() == '[') return at_.skip_balanced(true);
        if (at_.peek() == '/') return at_.fail("expected an operation, found " + at_.found());
        at_.take("->");
        if (at_.offset() == start) at_.advance();
        return true;
    }

    /// [1] x [0], 0, <…>, dense<…> : TYPE: what follows KEYWORD = in a custom form.
    bool custom_value() {
        for (;;) {
            const char c = at_.peek();
            if (c == '[' || c == '<' || c == '(' || c == '{') {
                if (!at_.skip_balanced(true)) return false;
            } else if (c == '"') {
                if (!at_.skip_string()) return false;
            } else if (at_.name(true).empty()) {
                return true;
            } else if (at_.peek_raw() == '<') {  // dense<…>, which has a type of its own
                Shape ignored;
                if (!at_.skip_balanced(true)) return false;
                return !at_.take(":") || parse_mlir_type(at_, ignored);
            }
            const std::size_t end = at_.offset();
            const std::string_view joiner = at_.name();
            if (joiner != "x") {
                at_.seek(end);
                return true;
            }
        }
    }

    /// At a '{': whether it holds attributes rather than operations.
    bool is_dictionary() {
        const std::size_t start = at_.offset();
        at_.advance();
        bool is = at_.take("}");
        if (!is) {
            if (at_.peek() == '"') {
                is = at_.skip_string();
            } else {
                const std::string_view name = at_.name();
                // A body may do nothing but return.
                is = !name.empty() && name != "return" && !name.ends_with(".return");
            }
            const char next = at_.peek();
            is = is && (next == '=' || next == ',' || next == '}');
        }
        at_.seek(start);
        return is;
    }

    /// Of an operation or an attribute: a word, or a string.
    bool read_name(std::string_view& out) {
        const bool quoted = at_.peek() == '"';
        const std::size_t start = at_.offset() + 1;
        if (quoted && !at_.skip_string()) return false;
        out = quoted ? at_.text().substr(start, at_.offset() - 1 - start) : at_.name();
        return true;
    }

    /// {a = 1 : i64, b, "c.d" = …}
    bool dictionary(MlirOp& made) {
        at_.advance();
        if (at_.take("}")) return true;
        do {
            MlirAttribute attribute;
            if (!read_name(attribute.name)) return false;
            if (attribute.name.empty()) return at_.fail("expected an attribute's name, found " + at_.found());
            if (at_.take("=")) {
                at_.skip_blanks();
                attribute.offset = at_.offset();
                while (at_.peek() != ',' && at_.peek() != '}') {
                    const char c = at_.peek();
                    if (c == '\0') return at_.fail("attributes that are never closed");
                    if (c == '(' || c == '[' || c == '{' || c == '<') {
                        if (!at_.skip_balanced(true)) return false;
                    } else if (c == '"') {
                        if (!at_.skip_string()) return false;
                    } else {
                        at_.advance();
                    }
                }
                attribute.value = at_.since(attribute.offset);
            }
            if (++count_ > kMaxInstructions) return at_.fail("too many attributes");
            made.attributes.push_back(attribute);
        } while (at_.take(","));
        return at_.expect("}", "after the attributes");
    }

    /// Whether the next operation begins here: results and "=", or an operation's name at the start of a
    /// line.
    bool begins_op() {
        const std::size_t start = at_.offset();
        bool is = false;
        if (at_.peek() == '%') {
            do {
                value_name();
                if (at_.peek_raw() == ':') {
                    at_.advance();
                    at_.integer();
                }
            } while (at_.take(",") && at_.peek() == '%');
            is = at_.peek() == '=';
        } else if (first_on_line(start)) {
            if (at_.peek() == '"') {
                is = skip_quietly() && at_.peek() == '(';
            } else if (at_.peek() == '#' || at_.peek() == '!') {
                at_.advance();
                is = !at_.name(true).empty() && at_.peek() == '=';
            } else {
                static constexpr std::array<std::string_view, 5> kBare{"return", "call", "func", "module",
                                                                       "unrealized"};
                const std::string_view name = at_.name();
                const bool dotted = name.find('.') != name.npos;
                is = (dotted || std::find(kBare.begin(), kBare.end(), name) != kBare.end()) &&
                     at_.peek() != '=';
            }
        }
        at_.seek(start);
        return is;
    }

    bool skip_quietly() {
        const std::string_view text = at_.text();
        const std::size_t end = text.find('"', at_.offset() + 1);
        at_.seek(end == text.npos ? text.size() : end + 1);
        return end != text.npos;
    }

    [[nodiscard]] bool first_on_line(std::size_t offset) const {
        const std::string_view text = at_.text();
        while (offset > 0 && (text[offset - 1] == ' ' || text[offset - 1] == '\t')) --offset;
        return offset == 0 || text[offset - 1] == '\n';
    }

    TextCursor at_;
    MlirAliases& aliases_;
    std::size_t count_ = 0;
    bool is_function_ = false;
    std::vector<MlirArgument> pending_arguments_;  // for the next region
    std::vector<MlirArgument> bound_;              // of the loop being read
};

}  // namespace

Result<std::vector<MlirOp>> parse_mlir(std::string_view text, const std::string& file_name,
                                       MlirAliases& aliases) {
    if (text.size() > kMaxProgramBytes) {
        return Error{fmt::format("larger than {} MiB", kMaxProgramBytes >> 20), {file_name}};
    }
    return MlirReader(text, file_name, aliases).read();
}

}  // namespace syncopate::ingest
