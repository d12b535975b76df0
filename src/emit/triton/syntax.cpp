#include "emit/triton/syntax.hpp"

#include <tree_sitter/api.h>

#include <cstring>
#include <memory>

extern "C" const TSLanguage* tree_sitter_python();

namespace syncopate::emit::triton {
namespace {

Span span_of(TSNode node) { return {ts_node_start_byte(node), ts_node_end_byte(node)}; }

Call call_of(std::string_view source, TSNode node) {
    Call call;
    call.callee = span_of(ts_node_child_by_field_name(node, "function", 8));
    const TSNode arguments = ts_node_child_by_field_name(node, "arguments", 9);
    for (std::uint32_t at = 0; at < ts_node_named_child_count(arguments); ++at) {
        const TSNode argument = ts_node_named_child(arguments, at);
        const std::string_view type = ts_node_type(argument);
        if (type == "comment") continue;
        CallArgument& out = call.arguments.emplace_back();
        out.whole = out.value = span_of(argument);
        if (type == "keyword_argument") {
            const Span name = span_of(ts_node_child_by_field_name(argument, "name", 4));
            out.keyword = source.substr(name.begin, name.end - name.begin);
            out.value = span_of(ts_node_child_by_field_name(argument, "value", 5));
        }
    }
    return call;
}

/// The names that an assignment to `left` binds: `x`, `x, y`, `(x, y)`; not those of `x[i]` or `x.y`.
void add_targets(std::string_view source, TSNode left, std::vector<Identifier>& targets) {
    const std::string_view type = ts_node_type(left);
    if (type == "identifier") {
        const Span where = span_of(left);
        targets.push_back({std::string(source.substr(where.begin, where.end - where.begin)), where});
    } else if (type == "pattern_list" || type == "tuple_pattern" || type == "list_pattern") {
        for (std::uint32_t at = 0; at < ts_node_named_child_count(left); ++at)
            add_targets(source, ts_node_named_child(left, at), targets);
    }
}

}  // namespace

Facts facts_of(std::string_view source, Span span) {
    const std::unique_ptr<TSParser, decltype(&ts_parser_delete)> parser(ts_parser_new(), ts_parser_delete);
    ts_parser_set_language(parser.get(), tree_sitter_python());
    const std::unique_ptr<TSTree, decltype(&ts_tree_delete)> tree(
        ts_parser_parse_string(parser.get(), nullptr, source.data(),
                               static_cast<std::uint32_t>(source.size())),
        ts_tree_delete);
    Facts facts;
    facts.has_error = ts_node_has_error(ts_tree_root_node(tree.get()));
    std::vector<TSNode> open{ts_tree_root_node(tree.get())};
    while (!open.empty()) {
        const TSNode node = open.back();
        open.pop_back();
        const Span where = span_of(node);
        if (where.end <= span.begin || where.begin >= span.end) continue;
        const std::string_view type = ts_node_type(node);
        if (where.begin >= span.begin && where.end <= span.end) {
            if (type == "return_statement") facts.returns.push_back(where);
            if (type == "string") facts.strings.push_back(where);
            if ((type == "list" || type == "tuple") && ts_node_named_child_count(node) > 0) {
                List& list = facts.lists.emplace_back(List{where, {}});
                for (std::uint32_t at = 0; at < ts_node_named_child_count(node); ++at)
                    list.items.push_back(span_of(ts_node_named_child(node, at)));
            }
            if (type == "call") facts.calls.push_back(call_of(source, node));
            if (type == "assignment" || type == "augmented_assignment" || type == "for_statement")
                add_targets(source, ts_node_child_by_field_name(node, "left", 4), facts.assigned);
            if (type == "identifier") {
                facts.identifiers.push_back(
                    {std::string(source.substr(where.begin, where.end - where.begin)), where});
            }
        }
        for (std::uint32_t at = ts_node_child_count(node); at-- > 0;) open.push_back(ts_node_child(node, at));
    }
    return facts;
}

}  // namespace syncopate::emit::triton
