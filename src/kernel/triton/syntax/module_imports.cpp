// Names across files: which file of the same project an import means, and what a dotted path stands for. A
// file is looked for as Python would from the folder of the one that imports it, or from a folder above; what
// is not found there (triton, torch, …) is external, and known by the last name of its path.
#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "kernel/triton/evaluate/value.hpp"
#include "kernel/triton/syntax/function_parser.hpp"
#include "kernel/triton/syntax/known_modules.hpp"
#include "kernel/triton/syntax/module_tree.hpp"
#include "kernel/triton/syntax/parse_tree.hpp"
#include "syncopate/at.hpp"
#include "syncopate/io.hpp"

namespace syncopate::kernel::triton {
namespace {

constexpr std::size_t kMostFiles = 64;
constexpr int kMostFoldersUp = 8;
constexpr int kMostAliases = 16;  // a name for a name for a name …

std::vector<std::string> parts_of(std::string_view dotted) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin <= dotted.size();) {
        const std::size_t end = std::min(dotted.find('.', begin), dotted.size());
        if (end > begin) parts.emplace_back(dotted.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

bool is_name(std::string_view part) {
    return std::all_of(part.begin(), part.end(), [](char c) {
        return c == '_' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
               (c & 0x80) != 0;
    });
}

}  // namespace

/// The file that `path` (dots at its front are levels) means in file `from`; -1 when it is external.
std::int32_t Module::imported(std::int32_t from, const std::string& path) {
    namespace fs = std::filesystem;
    const std::vector<std::string> parts = parts_of(path);
    if (const std::string_view known = known_module(path); !known.empty()) {
        const std::string shown = "<" + path + ">";
        for (std::size_t i = 0; i < files.size(); ++i)
            if (files[i].path == shown) return static_cast<std::int32_t>(i);
        const Result<std::int32_t> added = add_file(shown, std::string(known));
        return added ? *added : -1;
    }
    static constexpr std::array<std::string_view, 4> kExternal{"triton", "torch", "numpy", "math"};
    const std::size_t levels = std::min(path.find_first_not_of('.'), path.size());
    if (levels == 0 &&
        (parts.empty() || std::find(kExternal.begin(), kExternal.end(), parts[0]) != kExternal.end()))
        return -1;
    if (!std::all_of(parts.begin(), parts.end(), is_name)) return -1;
    const std::string& own = files[at(from)].path;
    if (own.empty() || own == "-" || own.front() == '<') return -1;
    std::error_code failed;
    fs::path folder = fs::absolute(own, failed).parent_path();
    if (failed) return -1;
    for (std::size_t up = 1; up < levels && folder.has_relative_path(); ++up) folder = folder.parent_path();
    for (int up = 0; up < (levels > 0 ? 1 : kMostFoldersUp); ++up) {
        fs::path base = folder;
        for (const std::string& part : parts) base /= part;
        fs::path named = base;
        named += ".py";
        for (const fs::path& candidate : {named, base / "__init__.py"}) {
            if (parts.empty() && candidate == named) continue;
            const auto [known, is_new] = paths_.try_emplace(candidate.lexically_normal().string(), -1);
            if (!is_new) {
                if (known->second >= 0) return known->second;
                continue;
            }
            if (files.size() >= kMostFiles || !fs::is_regular_file(candidate, failed)) continue;
            Result<std::string> text = read_file(candidate.string());
            if (!text) continue;
            // Shown as its path from where the kernel's file was named.
            fs::path shown = candidate.lexically_normal();
            if (!fs::path(file).is_absolute()) shown = shown.lexically_relative(fs::current_path(failed));
            const Result<std::int32_t> added = add_file(shown.string(), std::move(*text));
            if (added) return known->second = *added;
        }
        if (!folder.has_relative_path()) break;
        folder = folder.parent_path();
    }
    return -1;
}

Module::Bound Module::lookup(const Viewer& viewer, std::string_view name, int depth) {
    SourceFile& here = files[at(viewer.file)];
    Bound own;
    for (std::int32_t s = viewer.scope; s >= 0; s = here.scopes[at(s)].parent) {
        auto& names = here.scopes[at(s)].names;
        const auto found = names.find(name);
        if (found == names.end()) continue;
        own = {&found->second, {viewer.file, s, true}};
        if (s > 0) return own;
        break;
    }
    // The last one counts, and imports no name of a file's own.
    const std::size_t before = own.binding == nullptr ? 0 : own.binding->stars;
    if (depth > kMostAliases || name.starts_with('_')) return own;
    for (std::size_t star = here.stars.size(); star > before; --star) {
        const std::int32_t other = imported(viewer.file, here.stars[star - 1]);
        if (other < 0 || other == viewer.file) continue;
        if (const Bound bound = lookup({other}, name, depth + 1); bound.binding != nullptr) return bound;
    }
    return own;
}

/// The expression that a name is assigned; null while it is being parsed.
Expr* Module::global(const Viewer& owner, Binding& binding) {
    if (binding.value != nullptr || binding.busy) return binding.value;
    binding.busy = true;
    const auto index = static_cast<std::size_t>(owner.file);
    FunctionParser parser(*this, files[index].scopes[at(owner.scope)].scratch);
    const Result<Expr*> parsed = parser.parse_value(trees_[index]->values[binding.node]);
    if (parsed) {
        Expr* e = *parsed;
        const bool wrapped = e->kind == ExprKind::call && e->text == "constexpr" && e->kids.size() == 1;
        if (wrapped) e = e->kids[0];
        if (e->kind == ExprKind::unary && e->op == Operator::negative &&
            e->kids[0]->kind == ExprKind::literal) {
            if (const auto* whole = std::get_if<std::int64_t>(&e->kids[0]->literal))
                e->kind = ExprKind::literal, e->literal = wrap_multiply(*whole, -1);
            else if (const auto* real = std::get_if<double>(&e->kids[0]->literal))
                e->kind = ExprKind::literal, e->literal = -*real;
        }
        binding.value = e;
    } else {
        binding.kind = Binding::Kind::unknown;
    }
    binding.busy = false;
    return binding.value;
}

/// tl = triton.language, act = silu, helper = triton.jit(_helper): the path on the right.
std::optional<std::vector<std::string>> Module::alias_of(std::int32_t index, const Binding& binding) const {
    TSNode node = trees_[at(index)]->values[binding.node];
    const auto text_of = [&](TSNode n) {
        const SourceRange range = FunctionParser::range_of(n);
        return files[at(index)].text.substr(range.begin, range.end - range.begin);
    };
    if (triton::type(node) == "call") {
        const TSNode callee = field(node, "function");
        const bool jit =
            (triton::type(callee) == "attribute" && text_of(field(callee, "attribute")) == "jit") ||
            (triton::type(callee) == "identifier" && text_of(callee) == "jit");
        const std::vector<TSNode> arguments = children(field(node, "arguments"));
        if (!jit || arguments.empty()) return std::nullopt;
        node = arguments[0];
    }
    std::vector<std::string> names;
    while (triton::type(node) == "attribute") {
        names.insert(names.begin(), text_of(field(node, "attribute")));
        node = field(node, "object");
    }
    if (triton::type(node) != "identifier") return std::nullopt;
    names.insert(names.begin(), text_of(node));
    return names;
}

Resolved Module::resolve(const Viewer& viewer, const std::vector<std::string_view>& names) {
    return resolve(viewer, names, 0);
}

Resolved Module::resolve(const Viewer& viewer, const std::vector<std::string_view>& names, int depth) {
    Resolved result;
    if (names.empty() || depth > kMostAliases) return result;
    const auto [binding, owner] = lookup(viewer, names[0], 0);
    if (binding == nullptr) return result;
    // A compiled kernel sees a name of the function that it was made by; an interpreted one, the file's.
    const SourceFile& here = files[at(owner.file)];
    const bool hides = owner.scope > 0 && here.scopes.front().names.contains(names[0]);
    if (hides || (viewer.early && binding->again)) {
        result.kind = Resolved::Kind::value;
        result.consumed = 1;
        return result;
    }
    const auto followed = [&](std::int32_t other, std::string_view first) {
        std::vector<std::string_view> rest{first};
        rest.insert(rest.end(), names.begin() + 1, names.end());
        return resolve({other}, rest, depth + 1);
    };
    const auto inside = [&](std::int32_t other, std::size_t from) {
        Resolved found =
            resolve({other}, {names.begin() + static_cast<std::ptrdiff_t>(from), names.end()}, depth + 1);
        found.consumed += from;
        return found;
    };
    switch (binding->kind) {
        case Binding::Kind::function:
            if (names.size() > 1) break;
            result.kind = Resolved::Kind::function;
            result.function = binding->function;
            return result;
        case Binding::Kind::value: {
            Resolved through;
            if (const auto alias = alias_of(owner.file, *binding); alias && !binding->busy) {
                std::vector<std::string_view> path(alias->begin(), alias->end());
                path.insert(path.end(), names.begin() + 1, names.end());
                binding->busy = true;
                through = resolve(owner, path, depth + 1);
                binding->busy = false;
                if (through.kind == Resolved::Kind::function ||
                    (through.kind == Resolved::Kind::external && names.size() > 1))
                    return through;
            }
            result.kind = Resolved::Kind::value;
            result.last = through.last;
            result.of_triton = through.of_triton;
            result.value = global(owner, *binding);
            result.scratch = files[at(owner.file)].scopes[at(owner.scope)].scratch;
            result.consumed = 1;
            return result;
        }
        case Binding::Kind::type:
        case Binding::Kind::unknown:
            result.kind = Resolved::Kind::value;
            result.is_type = binding->kind == Binding::Kind::type;
            result.consumed = 1;
            return result;
        case Binding::Kind::member: {
            const std::string path = binding->path, member = binding->member;
            const std::int32_t other = imported(owner.file, path);
            if (other >= 0 && lookup({other}, member, 0).binding != nullptr) return followed(other, member);
            const bool ends_in_dot = path.empty() || path.back() == '.';
            const std::int32_t inner = imported(owner.file, path + (ends_in_dot ? "" : ".") + member);
            if (inner >= 0 && names.size() > 1) {
                return inside(inner, 1);
            }
            result.kind = Resolved::Kind::external;
            result.last = names.size() > 1 ? std::string(names.back()) : member;
            // Packages hand Triton on under its usual names, in case it is not there.
            result.of_triton = is_of_triton(path) || member == "triton" || member == "tl";
            return result;
        }
        case Binding::Kind::module: {
            std::string path = binding->path;
            for (std::size_t i = 1; i < names.size(); ++i) {
                const std::int32_t other = imported(owner.file, path);
                if (other >= 0 && lookup({other}, names[i], 0).binding != nullptr) return inside(other, i);
                path += "." + std::string(names[i]);
            }
            break;
        }
    }
    result.kind = Resolved::Kind::external;
    result.last = names.back();
    result.of_triton = is_of_triton(binding->path);
    return result;
}

bool Module::may_be_of_triton(std::int32_t index) {
    const std::vector<std::string> stars = files[at(index)].stars;
    const auto is_tritons = [](const std::string& star) { return is_of_triton(star); };
    return std::ranges::any_of(stars, is_tritons) && std::ranges::all_of(stars, [&](const std::string& star) {
               return is_tritons(star) || imported(index, star) >= 0;
           });
}

}  // namespace syncopate::kernel::triton
