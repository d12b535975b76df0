// Which files of its own folder a file imports: read from every import statement, wherever it stands, since
// all of them are carried out when the file is imported.
#include "syncopate/at.hpp"
#include "syncopate/kernel/triton/analyse/analyse.hpp"
#include "syncopate/try.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "kernel/triton/syntax/function_parser.hpp"
#include "kernel/triton/syntax/known_modules.hpp"
#include "kernel/triton/syntax/module_tree.hpp"
#include "kernel/triton/syntax/parse_tree.hpp"

namespace syncopate::kernel::triton {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const std::string& file) {
    std::error_code failed;
    return fs::absolute(file, failed).parent_path().lexically_normal();
}

/// `try: from .fast import f; except ImportError: …` may lead nowhere.
bool may_fail(TSNode node) {
    for (TSNode around = ts_node_parent(node); present(around); around = ts_node_parent(around)) {
        if (type(around) == "try_statement") return true;
    }
    return false;
}

struct Import {
    SourceRange where;
    std::string module;                ///< dots of a relative one included
    std::vector<std::string> members;  ///< from … import: these
    bool may_fail = false;
};

std::vector<Import> imports_of(TSNode root, const SourceFile& file) {
    std::vector<Import> found;
    const auto text = [&](TSNode node) {
        const SourceRange range = FunctionParser::range_of(node);
        return file.text.substr(range.begin, range.end - range.begin);
    };
    walk(root, [&](TSNode node) {
        const bool from = type(node) == "import_from_statement";
        if (!from && type(node) != "import_statement") return true;
        Import made;
        made.where = FunctionParser::range_of(node);
        made.where.begin += file.begin;
        made.where.end += file.begin;
        made.may_fail = may_fail(node);
        if (from) made.module = text(field(node, "module_name"));
        for (std::uint32_t i = 0; i < ts_node_child_count(node); ++i) {
            const char* role = ts_node_field_name_for_child(node, i);
            if (role == nullptr || std::string_view(role) != "name") continue;
            TSNode name = ts_node_child(node, i);
            if (type(name) == "aliased_import") name = field(name, "name");
            if (from) {
                made.members.push_back(text(name));
                continue;
            }
            Import one = made;
            one.module = text(name);
            found.push_back(std::move(one));
        }
        if (from) found.push_back(std::move(made));
        return false;
    });
    return found;
}

}  // namespace

Result<std::vector<std::int32_t>> Module::imports() {
    const fs::path folder = folder_of(file);
    std::vector<std::int32_t> found{0};
    const auto inside = [&](std::int32_t index) {
        const fs::path path = fs::path(folder_of(files[at(index)].path));
        const fs::path from = path.lexically_relative(folder);
        return !from.empty() && *from.begin() != "..";
    };
    const auto add = [&](std::int32_t index) {
        if (std::find(found.begin(), found.end(), index) == found.end()) found.push_back(index);
    };
    for (std::size_t next = 0; next < found.size(); ++next) {
        const auto here = static_cast<std::size_t>(found[next]);
        // Of a package it is the folders' __init__.py too that are run.
        const fs::path place = folder_of(files[here].path).lexically_relative(folder);
        const std::size_t depth =
            place == "." ? 0 : static_cast<std::size_t>(std::distance(place.begin(), place.end()));
        for (std::size_t up = 0; up < depth; ++up) {
            if (const std::int32_t init = imported(found[next], std::string(up + 1, '.')); init >= 0)
                add(init);
        }
        for (const Import& import : imports_of(ts_tree_root_node(trees_[here]->tree.get()), files[here])) {
            const bool relative = !import.module.empty() && import.module.front() == '.';
            const std::size_t dots = std::min(import.module.find_first_not_of('.'), import.module.size());
            bool any = false, outside = relative && dots > depth + 1;
            const auto look = [&](const std::string& module) {
                const std::int32_t index = imported(found[next], module);
                if (index < 0 || is_known_module(files[at(index)].path)) return;
                any = true;
                if (inside(index))
                    add(index);
                else
                    outside = true;
            };
            look(import.module);
            const bool ends_in_dot = import.module.empty() || import.module.back() == '.';
            for (const std::string& member : import.members)
                look(import.module + (ends_in_dot ? "" : ".") + member);
            if (!relative || import.may_fail) continue;
            const std::string statement = "`" + std::string(text(import.where)) + "`";
            if (outside) {
                fs::path from = folder_of(files[here].path);
                for (std::size_t up = 1; up < dots; ++up) from = from.parent_path();
                const std::string rest = dots < import.module.size() ? "." + import.module.substr(dots) : "";
                return error(
                    import.where,
                    statement +
                        " leads above the folder of the kernel, which the fused kernel leaves: write "
                        "it from a folder on the path, as in `from " +
                        from.filename().string() + rest +
                        " import …`, or move that file beside "
                        "the kernel's");
            }
            if (!any)
                return error(import.where, statement +
                                               " finds no file beside the kernel's to take along: write the "
                                               "import of a package that is on the path");
        }
    }
    found.erase(found.begin());
    return found;
}

Result<std::vector<ImportedFile>> imported_files(const std::string& source, const std::string& file) {
    SYNCOPATE_TAKE(std::unique_ptr<Module> parsed, Module::parse(source, file));
    Module& module = *parsed;
    SYNCOPATE_TAKE(const std::vector<std::int32_t> found, module.imports());
    std::vector<ImportedFile> made;
    for (const std::int32_t index : found) {
        const SourceFile& one = module.files[at(index)];
        std::error_code failed;
        const fs::path path = fs::absolute(one.path, failed).lexically_normal();
        made.push_back({path.lexically_relative(folder_of(file)).generic_string(), one.text});
    }
    return made;
}

}  // namespace syncopate::kernel::triton
