// The JSON of a statement.
#include "syncopate/kernel/stated/statement.hpp"

#include <algorithm>
#include <array>
#include <filesystem>

#include "syncopate/io.hpp"
#include "syncopate/json_decoder.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::stated {
namespace {

constexpr std::string_view kSchema = "syncopate.kernel/1";
constexpr std::int32_t kMostParameters = 1024;
constexpr std::int32_t kMostAxes = 16;

class StatementDecoder : JsonDecoder {
public:
    StatementDecoder(const JsonDocument& document, std::string_view text, const std::string& file)
        : JsonDecoder(document, text, file, "the statement") {}

    Result<Statement> decode() {
        if (!whole()) return error();
        return std::move(made_);
    }

private:
    bool whole() {
        static constexpr std::array<JsonField, 19> kKeys{{{"schema", true},
                                                          {"kernel", true},
                                                          {"file", true},
                                                          {"source", false},
                                                          {"parameters", true},
                                                          {"constants", false},
                                                          {"tiles", true},
                                                          {"loops", false},
                                                          {"reads", true},
                                                          {"writes", true},
                                                          {"placed", false},
                                                          {"split", false},
                                                          {"order", false},
                                                          {"any_order", false},
                                                          {"sums", false},
                                                          {"head_start", false},
                                                          {"sends", false},
                                                          {"ragged", false},
                                                          {"operations", false}}};
        std::array<Index, kKeys.size()> at{};
        const JsonPath root;
        if (!fields(0, root, kKeys, at)) return false;
        std::string_view schema;
        const JsonPath schema_path{&root, "schema"};
        if (!string(at[0], schema_path, schema)) return false;
        if (schema != kSchema)
            return fail(at[0], schema_path,
                        "is \"" + std::string(schema) + "\"; expected \"" + std::string(kSchema) + "\"");
        return text(at[1], {&root, "kernel"}, made_.kernel) && text(at[2], {&root, "file"}, made_.file) &&
               text(at[3], {&root, "source"}, made_.source) &&
               names(at[4], {&root, "parameters"}, made_.parameters, false) &&
               names(at[5], {&root, "constants"}, made_.constants, true) &&
               counts(at[6], {&root, "tiles"}, made_.tiles) && counts(at[7], {&root, "loops"}, made_.loops) &&
               accesses(at[8], {&root, "reads"}, made_.reads) &&
               accesses(at[9], {&root, "writes"}, made_.writes) &&
               names(at[10], {&root, "placed"}, made_.placed, true) &&
               text(at[11], {&root, "split"}, made_.split) &&
               names(at[12], {&root, "order"}, made_.order, false) &&
               names(at[13], {&root, "any_order"}, made_.any_order, false) &&
               are_loops(at[13], {&root, "any_order"}) && text(at[14], {&root, "sums"}, made_.sums) &&
               (made_.sums.empty() || is_parameter(at[14], {&root, "sums"}, made_.sums)) &&
               text(at[15], {&root, "head_start"}, made_.head_start) &&
               (made_.head_start.empty() || is_parameter(at[15], {&root, "head_start"}, made_.head_start)) &&
               names(at[16], {&root, "sends"}, made_.sends, true) &&
               text(at[17], {&root, "ragged"}, made_.ragged) &&
               text(at[18], {&root, "operations"}, made_.operations);
    }

    /// Whether `any_order` names loops.
    bool are_loops(Index node, const JsonPath& path) {
        for (const std::string& name : made_.any_order) {
            const auto same = [&](const Count& count) { return count.first == name; };
            if (std::ranges::none_of(made_.loops, same))
                return fail(node, path, "has \"" + name + "\", which is no loop of " + made_.kernel);
        }
        return true;
    }

    bool text(Index node, const JsonPath& path, std::string& out) {
        if (!has(node)) return true;
        std::string_view value;
        if (!string(node, path, value)) return false;
        out = value;
        return true;
    }

    /// Distinct names, `known` ones if they have to be parameters.
    bool names(Index node, const JsonPath& path, std::vector<std::string>& out, bool known) {
        if (!has(node)) return true;
        return list(node, path, "a list of names", kMostParameters, [&](Index one, const JsonPath& at) {
            std::string name;
            if (!text(one, at, name)) return false;
            if (std::ranges::find(out, name) != out.end())
                return fail(one, at, "is \"" + name + "\", which is there already");
            if (known && !is_parameter(one, at, name)) return false;
            out.push_back(std::move(name));
            return true;
        });
    }

    bool is_parameter(Index node, const JsonPath& path, const std::string& name) {
        return std::ranges::find(made_.parameters, name) != made_.parameters.end() ||
               fail(node, path, "is \"" + name + "\", which is no parameter of " + made_.kernel);
    }

    /// Calls member(name, key, value, path) for each member of an object.
    template <typename Member>
    bool members(Index node, const JsonPath& path, Member member) {
        return !has(node) ||
               (is(node, path, Type::object, "an object") &&
                JsonDecoder::members(node, path, [&](Index key, Index value, const JsonPath& inner) {
                    return member(std::string(inner.key), key, value, inner);
                }));
    }

    bool counts(Index node, const JsonPath& path, std::vector<Count>& out) {
        if (has(node) && document_.type(node) == Type::object &&
            document_.size(node) > static_cast<std::size_t>(kMostAxes))
            return fail(node, path, "has more than " + std::to_string(kMostAxes) + " entries");
        return members(node, path, [&](std::string name, Index key, Index value, const JsonPath& at) {
            const auto same = [&](const Count& count) { return count.first == name; };
            if (std::ranges::any_of(made_.tiles, same) || std::ranges::any_of(out, same))
                return fail(key, at, "is there already");
            if (std::ranges::find(made_.parameters, name) != made_.parameters.end())
                return fail(key, at, "is also the name of a parameter: take another one");
            std::string expression;
            if (!text(value, at, expression)) return false;
            out.emplace_back(std::move(name), std::move(expression));
            return true;
        });
    }

    bool accesses(Index node, const JsonPath& path, std::vector<Access>& out) {
        return members(node, path, [&](const std::string& name, Index key, Index value, const JsonPath& at) {
            if (!is_parameter(key, at, name)) return false;
            if (!list(value, at, "a list of ranges, one for each axis", kMostParameters)) return false;
            const Index first = document_.first(value);
            const bool several = first != document_.end(value) && document_.type(first) == Type::array;
            if (!several) return ranges(value, at, name, out);
            return each(value, at,
                        [&](Index one, const JsonPath& inner) { return ranges(one, inner, name, out); });
        });
    }

    bool ranges(Index node, const JsonPath& path, const std::string& name, std::vector<Access>& out) {
        if (!list(node, path, "a list of ranges, one for each axis", kMostAxes)) return false;
        Access access{name, {}};
        const bool read = each(node, path, [&](Index one, const JsonPath& at) {
            return text(one, at, access.ranges.emplace_back());
        });
        out.push_back(std::move(access));
        return read;
    }

    Statement made_;
};

}  // namespace

Result<Statement> statement_from_json(std::string_view text, const std::string& file) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file));
    Result<Statement> statement = StatementDecoder(document, text, file).decode();
    if (!statement || !statement->source.empty()) return statement;
    const std::filesystem::path beside = std::filesystem::path(file).parent_path() / statement->file;
    SYNCOPATE_TAKE(std::string source, read_file(beside.string()));
    statement->source = std::move(source);
    return statement;
}

}  // namespace syncopate::kernel::stated
