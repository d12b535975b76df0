// Calls: which builtin or helper a name is, and what a call says of the function around it (that it stores,
// that a parameter is a tensor descriptor, that tiles are counted).
#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "kernel/triton/syntax/function_parser.hpp"
#include "kernel/triton/syntax/parse_tree.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

bool is_store(const Expr& call) {
    return call.builtin == Builtin::store || call.builtin == Builtin::atomic ||
           call.builtin == Builtin::descriptor_store;
}

}  // namespace

Builtin FunctionParser::builtin_named(std::string_view name) {
    static const std::unordered_map<std::string_view, Builtin> table{
        {"program_id", Builtin::program_id},
        {"num_programs", Builtin::num_programs},
        {"load", Builtin::load},
        {"store", Builtin::store},
        {"atomic_add", Builtin::atomic},
        {"atomic_max", Builtin::atomic},
        {"atomic_min", Builtin::atomic},
        {"atomic_and", Builtin::atomic},
        {"atomic_or", Builtin::atomic},
        {"atomic_xor", Builtin::atomic},
        {"atomic_xchg", Builtin::atomic},
        {"atomic_cas", Builtin::atomic},
        {"make_tensor_descriptor", Builtin::make_descriptor},
        {"_experimental_make_tensor_descriptor", Builtin::make_descriptor},
        {"load_tensor_descriptor", Builtin::descriptor_load},
        {"_experimental_descriptor_load", Builtin::descriptor_load},
        {"store_tensor_descriptor", Builtin::descriptor_store},
        {"_experimental_descriptor_store", Builtin::descriptor_store},
        {"make_block_ptr", Builtin::make_block_ptr},
        {"advance", Builtin::advance},
        {"arange", Builtin::arange},
        {"zeros", Builtin::zeros},
        {"full", Builtin::full},
        {"zeros_like", Builtin::zeros_like},
        {"cdiv", Builtin::cdiv},
        {"next_power_of_2", Builtin::next_power},
        {"min", Builtin::minimum},
        {"minimum", Builtin::minimum},
        {"max", Builtin::maximum},
        {"maximum", Builtin::maximum},
        {"where", Builtin::where},
        {"multiple_of", Builtin::same},
        {"max_contiguous", Builtin::same},
        {"max_constancy", Builtin::same},
        {"constexpr", Builtin::same},
        {"assume", Builtin::ignore},
        {"static_assert", Builtin::static_assertion},
        {"device_assert", Builtin::ignore},
        {"static_print", Builtin::ignore},
        {"device_print", Builtin::ignore},
        {"print", Builtin::ignore},
        {"debug_barrier", Builtin::ignore},
        {"cast", Builtin::cast},
        {"to", Builtin::cast},
        {"trans", Builtin::transpose},
        {"permute", Builtin::transpose},
        {"expand_dims", Builtin::expand_dims},
        {"broadcast_to", Builtin::broadcast_to},
        {"swizzle2d", Builtin::swizzle2d},
        {"range", Builtin::range},
        {"static_range", Builtin::static_range},
        {"abs", Builtin::absolute},
        {"len", Builtin::length},
        {"pointer_type", Builtin::pointer_type},
        {"int", Builtin::to_int},
        {"float", Builtin::to_float}};
    const auto found = table.find(name);
    return found == table.end() ? Builtin::other : found->second;
}

/// Whether a name that is called, and is no function that is followed, is one of Triton's or Python's.
bool FunctionParser::is_known(const Resolved& found, const std::vector<std::string_view>& path) {
    static constexpr std::array<std::string_view, 11> kOfPython{
        "abs", "float", "getattr", "hasattr", "int", "isinstance", "len", "max", "min", "print", "range"};
    if (found.kind != Resolved::Kind::none) return found.of_triton;
    if (module_.may_be_of_triton(function().file)) return true;
    if (path.size() > 1) return path[0] == "tl" || path[0] == "triton";
    return std::ranges::find(kOfPython, path[0]) != kOfPython.end();
}

/// object.name(…): memory is a descriptor's, of a parameter maybe.
void FunctionParser::method(Expr* made, TSNode callee) {
    made->text = text(field(callee, "attribute"));
    made->builtin = builtin_named(made->text);
    made->kind = ExprKind::method;
    made->kids.push_back(expression(field(callee, "object")));
    const Expr* receiver = made->kids[0];
    const std::string& m = made->text;
    const bool transfers =
        m == "load" || m == "store" || m == "gather" || m == "scatter" || made->builtin == Builtin::atomic;
    if (transfers && m != "load" && m != "gather") function().has_stores = true;
    if (transfers && receiver->kind == ExprKind::name && receiver->slot >= 0 &&
        static_cast<std::size_t>(receiver->slot) < function().parameters.size()) {
        function().parameters[at(receiver->slot)].descriptor = true;
    }
}

Expr* FunctionParser::call(TSNode node) {
    const TSNode callee = field(node, "function");
    const TSNode arguments = field(node, "arguments");
    Expr* made = make(ExprKind::call, node);
    const std::vector<std::string_view> path = global_path(callee);
    if (!path.empty()) {
        const Resolved found = module_.resolve(viewer(), path);
        const bool elsewhere = found.kind == Resolved::Kind::external || found.of_triton;
        made->text = elsewhere ? found.last : std::string(path.back());
        if (found.kind == Resolved::Kind::function) {
            made->function = found.function;
            made->builtin = Builtin::helper;
            function().calls.insert(found.function);
        } else if (found.kind != Resolved::Kind::value || path.size() == 1) {
            if (is_known(found, path))
                made->builtin = builtin_named(made->text);
            else
                made->callee = found.is_type                         ? Callee::type
                               : found.kind == Resolved::Kind::value ? Callee::undecided
                                                                     : Callee::foreign;
        } else {
            method(made, callee);  // of a module-level value
        }
    } else if (type(callee) == "attribute") {
        method(made, callee);
    } else {
        made->text = text(callee);
        made->slot = type(callee) == "identifier" ? slot_of(made->text, false) : -1;
        made->callee = Callee::given;
    }
    if (made->kind == ExprKind::call && is_store(*made)) function().has_stores = true;
    if (type(arguments) != "argument_list") {
        made->kind = ExprKind::unsupported;
        return made;
    }
    for (const TSNode argument : children(arguments)) {
        if (type(argument) == "keyword_argument") {
            made->keywords.emplace_back(text(field(argument, "name")), expression(field(argument, "value")));
        } else {
            made->kids.push_back(expression(argument));
        }
    }
    if ((made->builtin == Builtin::descriptor_load || made->builtin == Builtin::descriptor_store) &&
        !made->kids.empty() && made->kids[0]->kind == ExprKind::name && made->kids[0]->slot >= 0 &&
        static_cast<std::size_t>(made->kids[0]->slot) < function().parameters.size()) {
        function().parameters[at(made->kids[0]->slot)].descriptor = true;
    }
    // a.logical_and(b) is what Triton makes of `a and b`.
    const bool both = made->text == "logical_and";
    if (made->kind == ExprKind::method && (both || made->text == "logical_or") && made->kids.size() == 2)
        made->kind = both ? ExprKind::both : ExprKind::either;
    if (made->builtin == Builtin::cdiv && made->kids.size() == 2) {
        made->is_count = true;
        made->count_of = made->kids[0];
        made->count_by = made->kids[1];
    }
    return made;
}

}  // namespace syncopate::kernel::triton
