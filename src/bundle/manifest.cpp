// The manifest of a bundle as JSON.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/bundle/bundle.hpp"
#include "syncopate/json_table.hpp"
#include "syncopate/names.hpp"
#include "syncopate/ops/operators.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

constexpr std::string_view kSchema = "syncopate.bundle/1";
constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostBytes = std::int64_t{1} << 40;
constexpr std::int64_t kMostThreads = 32;  // warps of a block
constexpr std::int32_t kMostBlock = 1 << 16;

/// The members of a manifest. `Json`: JsonReader or JsonWriter.
template <typename Json>
class ManifestTable : public Json {
public:
    using Json::Json;

    bool bundle(JsonAt at, JsonOf<Bundle> auto& made) {
        const auto kernel = [this](JsonAt inner, auto& one) { return this->kernel(inner, one); };
        return this->object(
                   at, required("schema", this->schema(kSchema)), required("name", this->text(made.name)),
                   required("made_by", this->text(made.made_by)), required("arch", this->text(made.arch)),
                   required("kernels", this->lines(made.kernels, kernel)),
                   optional("operator", made.op.has_value(),
                            [&](JsonAt inner) { return op(inner, made.op); }),
                   optional("folder", made.folder.has_value(),
                            [&](JsonAt inner) { return folder(inner, made.folder); }),
                   optional("grouped", made.grouped.has_value(),
                            [&](JsonAt inner) { return grouped(inner, made.grouped); })) &&
               sensible(at, made);
    }

private:
    bool kernel(JsonAt at, JsonOf<CompiledKernel> auto& made) {
        const auto parameter = [this](JsonAt inner, auto& one) { return this->parameter(inner, one); };
        const auto word = [this](JsonAt inner, auto& text) { return this->text(text)(inner); };
        const auto value = [this](JsonAt inner, auto& scalar) { return this->scalar(inner, scalar); };
        auto& of = made.options;
        return this->object(
            at, required("code", this->text(made.section)), required("entry", this->text(made.entry)),
            required("warps", this->integer(of.num_warps, 1, kMostThreads)),
            optional("ctas", of.num_ctas != 1, this->integer(of.num_ctas, 1, 16)),
            required("shared", this->integer(of.shared_bytes, 0, kMost)),
            optional("cooperative", of.cooperative, this->flag(of.cooperative)),
            optional("programmatic", of.programmatic, this->flag(of.programmatic)),
            optional("scratch", of.global_scratch_size != 0, this->integer(of.global_scratch_size, 0, kMost)),
            optional("scratch_align", of.global_scratch_align != 1,
                     this->integer(of.global_scratch_align, 1, kMost)),
            optional("profile", of.profile_scratch_size != 0,
                     this->integer(of.profile_scratch_size, 0, kMost)),
            optional("profile_align", of.profile_scratch_align != 1,
                     this->integer(of.profile_scratch_align, 1, kMost)),
            required("parameters", this->lines(made.parameters, parameter)),
            required("constants", this->map(made.constants, value)),
            optional("multiples_of_16", !made.multiples_of_16.empty(),
                     this->list(made.multiples_of_16, word)),
            optional("workspace", made.workspace != 0,
                     this->integer(made.workspace, 0, static_cast<std::int64_t>(kMostBytes))));
    }

    bool parameter(JsonAt at, JsonOf<CompiledParameter> auto& made) {
        const auto extent = [this](JsonAt inner, auto& one) {
            return this->integer(one, 1, kMostBlock)(inner);
        };
        return this->object(
            at, required("name", this->text(made.name)), required("kind", this->text(made.kind)),
            optional("block", !made.block.empty(), this->list(made.block, extent)),
            optional("descriptor", !made.descriptor.empty(), this->list(made.descriptor, extent)),
            optional("element_bytes", made.element_bytes != 0, this->integer(made.element_bytes, 0, 16)),
            optional("element_type", made.element_type != 0, this->integer(made.element_type, 0, 64)),
            optional("swizzle", made.swizzle != 0, this->integer(made.swizzle, 0, 8)),
            optional("pad_with_nan", made.pad_with_nan, this->flag(made.pad_with_nan)),
            optional("map_alone", made.map_alone, this->flag(made.map_alone)));
    }

    bool scalar(JsonAt at, kernel::Scalar& made) {
        const auto type = this->document_.type(at.node);
        if (type == JsonDocument::Type::null) return true;
        if (type == JsonDocument::Type::boolean) return this->flag(made.emplace<bool>())(at);
        if (type == JsonDocument::Type::integer) return this->integer(made.emplace<std::int64_t>())(at);
        if (type == JsonDocument::Type::string) return this->text(made.emplace<std::string>())(at);
        constexpr double kLargest = std::numeric_limits<double>::max();
        return this->number(at.node, *at.path, -kLargest, kLargest, made.emplace<double>());
    }
    bool scalar(JsonAt at, const kernel::Scalar& made) {
        if (const auto* flag = std::get_if<bool>(&made)) return this->flag(*flag)(at);
        if (const auto* integer = std::get_if<std::int64_t>(&made)) return this->integer(*integer)(at);
        if (const auto* text = std::get_if<std::string>(&made)) return this->text(*text)(at);
        const auto* number = std::get_if<double>(&made);
        return this->put(number == nullptr ? "null" : json_number(*number));
    }

    bool kernels(JsonAt at, JsonOf<std::vector<std::int32_t>> auto& made) {
        const auto index = [this](JsonAt inner, auto& one) { return this->integer(one, 0, kMost)(inner); };
        return this->list(made, index)(at);
    }

    bool variant(JsonAt at, JsonOf<Variant> auto& made) {
        const auto traits = [this](JsonAt inner, auto& one) {
            return this->map(
                one, [this](JsonAt entry, auto& value) { return this->integer(value)(entry); })(inner);
        };
        return this->object(at, required("traits", this->list(made.traits, traits)),
                            required("kernels", [&](JsonAt inner) { return kernels(inner, made.kernels); }));
    }

    bool bucket(JsonAt at, JsonOf<Bucket> auto& made) {
        const auto variant = [this](JsonAt inner, auto& one) { return this->variant(inner, one); };
        return this->object(
            at, required("rows", this->integer(made.rows, 1, kMost)),
            required("strategy", [&](JsonAt inner) { return strategy(inner, made.strategy); }),
            required("variants", this->list(made.variants, variant)));
    }

    bool strategy(JsonAt at, ops::Strategy& made) {
        std::string text;
        if (!this->text(text)(at)) return false;
        return adopt(at, ops::strategy_from_json(text), made);
    }
    bool strategy(JsonAt at, const ops::Strategy& made) {
        const std::string text = ops::to_json(made);
        return this->text(text)(at);
    }

    bool problem(JsonAt at, ops::Problem& made) {
        std::string text;
        if (!this->text(text)(at) || !adopt(at, ops::parse_problem(text), made)) return false;
        if (made.num_sms < 1) return this->fail(at, "says no number of multiprocessors (sms)");
        const std::string why = ops::problem_objection(made);
        return why.empty() || this->fail(at, "is of no operator: " + why);
    }
    bool problem(JsonAt at, const ops::Problem& made) {
        const std::string text = made.key();
        return this->text(text)(at);
    }

    template <typename Part>
    bool adopt(JsonAt at, Result<Part> read, Part& part) {
        if (!read) return this->fail(at, "is not one that is known here: " + read.error().message);
        part = *std::move(read);
        return true;
    }

    template <typename Part>
    static auto& there(Part& part) {
        if constexpr (Json::kReads) part.emplace();
        return *part;
    }

    bool op(JsonAt at, auto& part) {
        auto& made = there(part);
        const auto bucket = [this](JsonAt inner, auto& one) { return this->bucket(inner, one); };
        return this->object(
            at, required("problem", [&](JsonAt inner) { return problem(inner, made.problem); }),
            optional("w_transposed", made.call.w_transposed, this->flag(made.call.w_transposed)),
            optional("bias", made.call.bias != 0, this->integer(made.call.bias, 0, 2)),
            optional("activation", !made.activation.empty(), this->text(made.activation)),
            optional("drops", made.drops, this->flag(made.drops)),
            optional("int32_ids", made.int32_ids, this->flag(made.int32_ids)),
            required("buckets", this->lines(made.buckets, bucket)));
    }

    bool folder(JsonAt at, auto& part) {
        auto& made = there(part);
        return this->object(at, required("ranks", this->integer(made.ranks, 1, plan::kMaxRanks)),
                            required("kernels", [&](JsonAt inner) { return kernels(inner, made.kernels); }));
    }

    bool grouped(JsonAt at, auto& part) {
        auto& made = there(part);
        const auto word = [this](JsonAt inner, auto& text) { return this->text(text)(inner); };
        const auto names = [this, word](JsonAt inner, auto& one) { return this->map(one, word)(inner); };
        return this->object(
            at, required("ranks", this->integer(made.ranks, 1, plan::kMaxRanks)),
            required("programs", this->integer(made.programs, 1, kMost)),
            optional("drops", made.drops, this->flag(made.drops)),
            required("strategy", [&](JsonAt inner) { return strategy(inner, made.strategy); }),
            required("names", this->lines(made.names, names)),
            required("kernels", [&](JsonAt inner) { return kernels(inner, made.kernels); }));
    }

    bool sensible(JsonAt, const Bundle&)
        requires(!Json::kReads)
    {
        return true;
    }
    /// What the parts say of each other.
    bool sensible(JsonAt at, const Bundle& made)
        requires(Json::kReads)
    {
        if (int{made.op.has_value()} + int{made.folder.has_value()} + int{made.grouped.has_value()} != 1)
            return this->fail(at, "has to have one of \"operator\", \"folder\" and \"grouped\"");
        if (made.arch != kHost && !made.arch.starts_with("sm_"))
            return this->fail(at, fmt::format("has arch \"{}\"; expected \"host\" or one such as \"sm_90\"",
                                              escaped(made.arch)));
        if (made.on_host() != made.kernels.empty())
            return this->fail(at, "has kernels on host, or none on a GPU");
        const auto known = [&](const std::vector<std::int32_t>& kernels) {
            for (const std::int32_t kernel : kernels) {
                if (static_cast<std::size_t>(kernel) >= made.kernels.size()) return false;
            }
            return true;
        };
        if (made.folder && (!known(made.folder->kernels) || made.folder->kernels.empty() != made.on_host()))
            return this->fail(at, "has a folder with kernels that are not there");
        if (made.grouped &&
            (!known(made.grouped->kernels) || made.grouped->kernels.empty() != made.on_host()))
            return this->fail(at, "has grouped kernels that are not there");
        return !made.op || sensible_operator(at, made, known);
    }

    bool sensible_operator(JsonAt at, const Bundle& made, const auto& known) {
        const OperatorPart& part = *made.op;
        if (part.buckets.empty()) return this->fail(at, "has no buckets of rows");
        if ((part.drops || part.int32_ids) && !part.takes_exact_rows())
            return this->fail(at, "drops rows, or has ids, which only mixtures of experts do");
        if (part.problem.extent(part.problem.calls_name()) != part.buckets.back().rows)
            return this->fail(at, "has a problem of other rows than its last bucket");
        const ops::OperatorRow& row = *ops::operator_row(part.problem.op);
        if (!part.activation.empty() &&
            std::ranges::find(row.activations, part.activation) == row.activations.end())
            return this->fail(
                at, fmt::format("has activation \"{}\", which {} does not: it has {}",
                                escaped(part.activation), row.name, fmt::join(row.activations, ", ")));
        if (row.parameters != nullptr && (part.call.w_transposed || part.call.bias != 0))
            return this->fail(at, fmt::format("has {}, which {} does not",
                                              part.call.bias != 0 ? "bias" : "w_transposed", row.name));
        std::int64_t before = 0;
        for (const Bucket& bucket : part.buckets) {
            if (row.parameters != nullptr) {
                const auto taken = row.parameters(part.problem, bucket.strategy, part.called());
                if (!taken) return this->fail(at, "is of no call: " + taken.error().message);
            }
            if (bucket.rows < before) return this->fail(at, "has buckets that fall");
            before = bucket.rows;
            if (bucket.variants.empty() != made.on_host())
                return this->fail(at, "has a bucket without kernels");
            for (const Variant& variant : bucket.variants) {
                if (!known(variant.kernels) || variant.kernels.size() != variant.traits.size())
                    return this->fail(at, "has a variant of kernels that are not there");
            }
        }
        return true;
    }
};

}  // namespace

std::string manifest_to_json(const Bundle& bundle) {
    ManifestTable<JsonWriter> table;
    (void)table.bundle({}, bundle);
    return table.take() + "\n";
}

Result<Bundle> manifest_from_json(std::string_view text, const std::string& file) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file));
    const JsonPath root;
    ManifestTable<JsonReader> table(document, text, file, "the manifest");
    Bundle made;
    if (!table.bundle({0, &root}, made)) return table.error();
    return made;
}

}  // namespace syncopate::bundle
