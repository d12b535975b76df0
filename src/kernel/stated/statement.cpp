// The JSON of a statement.
#include "syncopate/kernel/stated/statement.hpp"

#include <algorithm>
#include <filesystem>

#include "syncopate/io.hpp"
#include "syncopate/json_table.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::stated {
namespace {

constexpr std::string_view kSchema = "syncopate.kernel/1";
constexpr std::int32_t kMostParameters = 1024;
constexpr std::int32_t kMostAxes = 16;

class StatementReader : public JsonReader {
public:
    using JsonReader::JsonReader;

private:
    /// Whether `any_order` names loops.
    bool are_loops(JsonAt at) {
        for (const std::string& name : made_.any_order) {
            if (std::ranges::find(made_.loops, name, &Count::first) == made_.loops.end())
                return fail(at, "has \"" + name + "\", which is no loop of " + made_.kernel);
        }
        return true;
    }

    bool is_parameter(JsonAt at, const std::string& name) {
        return std::ranges::find(made_.parameters, name) != made_.parameters.end() ||
               fail(at, "is \"" + name + "\", which is no parameter of " + made_.kernel);
    }

    // Walks come before their users, who need their types.
    auto parameter(std::string& out) {
        return [this, &out](JsonAt at) { return text(out)(at) && (out.empty() || is_parameter(at, out)); };
    }

    /// Distinct names, `known` ones if they have to be parameters.
    auto names(std::vector<std::string>& out, bool known) {
        return elements("a list of names", kMostParameters, [this, &out, known](JsonAt at) {
            std::string name;
            if (!text(name)(at)) return false;
            if (std::ranges::find(out, name) != out.end())
                return fail(at, "is \"" + name + "\", which is there already");
            if (known && !is_parameter(at, name)) return false;
            out.push_back(std::move(name));
            return true;
        });
    }

    auto counts(std::vector<Count>& out) {
        return [this, &out](JsonAt whole) {
            return entries(whole, [&](std::string_view key, JsonAt at) {
                if (out.size() == std::size_t{kMostAxes})
                    return fail(whole, "has more than " + std::to_string(kMostAxes) + " entries");
                if (std::ranges::find(made_.tiles, key, &Count::first) != made_.tiles.end() ||
                    std::ranges::find(out, key, &Count::first) != out.end())
                    return fail(key_of(at), "is there already");
                if (std::ranges::find(made_.parameters, key) != made_.parameters.end())
                    return fail(key_of(at), "is also the name of a parameter: take another one");
                Count& count = out.emplace_back(key, "");
                return text(count.second)(at);
            });
        };
    }

    bool ranges(JsonAt at, Access& access) {
        return elements("a list of ranges, one for each axis", kMostAxes,
                        [&](JsonAt range) { return text(access.ranges.emplace_back())(range); })(at);
    }
    auto accesses(std::vector<Access>& out) {
        return [this, &out](JsonAt whole) {
            return entries(whole, [&](std::string_view key, JsonAt at) {
                const std::string name(key);
                const auto access = [&](JsonAt one) {
                    return ranges(one, out.emplace_back(Access{name, {}}));
                };
                if (!is_parameter(key_of(at), name)) return false;
                const bool several = document_.type(at.node) == Type::array && document_.size(at.node) > 0 &&
                                     document_.type(document_.first(at.node)) == Type::array;
                return several ? elements("a list of boxes, each of ranges", kMostParameters, access)(at)
                               : access(at);
            });
        };
    }

public:
    Result<Statement> statement() {
        const JsonPath root;
        const auto loops = [this](JsonAt at) { return names(made_.any_order, false)(at) && are_loops(at); };
        if (!object({0, &root}, required("schema", schema(kSchema)), required("kernel", text(made_.kernel)),
                    required("file", text(made_.file)), optional("source", text(made_.source)),
                    required("parameters", names(made_.parameters, false)),
                    optional("constants", names(made_.constants, true)),
                    required("tiles", counts(made_.tiles)), optional("loops", counts(made_.loops)),
                    required("reads", accesses(made_.reads)), required("writes", accesses(made_.writes)),
                    optional("placed", names(made_.placed, true)), optional("split", text(made_.split)),
                    optional("order", names(made_.order, false)), optional("any_order", loops),
                    optional("sums", parameter(made_.sums)),
                    optional("head_start", parameter(made_.head_start)),
                    optional("sends", names(made_.sends, true)), optional("ragged", text(made_.ragged)),
                    optional("operations", text(made_.operations))))
            return error();
        return std::move(made_);
    }

private:
    Statement made_;
};

}  // namespace

Result<Statement> statement_from_json(std::string_view text, const std::string& file) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file));
    Result<Statement> statement = StatementReader(document, text, file, "the statement").statement();
    if (!statement || !statement->source.empty()) return statement;
    const std::filesystem::path beside = std::filesystem::path(file).parent_path() / statement->file;
    SYNCOPATE_TAKE(std::string source, read_file(beside.string()));
    statement->source = std::move(source);
    return statement;
}

}  // namespace syncopate::kernel::stated
