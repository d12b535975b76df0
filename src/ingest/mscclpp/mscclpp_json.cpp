#include "syncopate/ingest/mscclpp/mscclpp_json.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "ingest/mscclpp/mscclpp_plan.hpp"
#include "ingest/mscclpp/mscclpp_schedule.hpp"
#include "ingest/steps/buffers.hpp"
#include "ingest/steps/placement.hpp"
#include "ingest/steps/weave.hpp"
#include "syncopate/json_decoder.hpp"
#include "syncopate/json_document.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ingest {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

/// Tells the versions apart, for the file has no number of its own, and finds dialects.
class Examiner : JsonDecoder {
public:
    using JsonDecoder::error;
    using JsonDecoder::JsonDecoder;

    /// 1 or 2; 0 once an error is recorded.
    std::int32_t version() {
        if (document_.type(0) != Type::object) {
            fail(0, {}, "is " + document_.describe(0) + "; expected an object with \"gpus\"");
            return 0;
        }
        const Index gpus = member(0, "gpus");
        const JsonPath path{nullptr, "gpus"};
        if (!has(gpus)) {
            fail(0, {}, "lacks \"gpus\": no execution plan of MSCCL++");
            return 0;
        }
        if (!is(gpus, path, Type::array, "a list of gpus")) return 0;
        const JsonPath first{&path, {}, 0};
        if (document_.size(gpus) == 0 || document_.type(document_.first(gpus)) != Type::object) {
            fail(gpus, path, "has no gpu");
            return 0;
        }
        const Index gpu = document_.first(gpus);
        if (has(member(gpu, "inputChunks"))) return 1;
        if (!has(member(gpu, "input_chunks"))) {
            fail(gpu, first,
                 "has neither inputChunks (version 1) nor input_chunks (version 2): a dialect between the "
                 "versions");
            return 0;
        }
        return find_dialect(0, {}) ? 2 : 0;
    }

private:
    Index member(Index object, std::string_view key) const {
        for (Index node = document_.first(object); node != document_.end(object);) {
            const Index value = document_.next(node);
            if (document_.text(node) == key) return value;
            node = document_.next(value);
        }
        return JsonDocument::kNone;
    }

    /// False, with an error, at a key or placeholder of the dialects between the versions. Nesting is bounded
    /// by the document.
    bool find_dialect(Index node, const JsonPath& path) {
        static constexpr std::array<std::string_view, 20> kForeign{"remoteBuffers",
                                                                   "accessChannelTypes",
                                                                   "remoteBuffersIds",
                                                                   "buff_id",
                                                                   "offset",
                                                                   "cids",
                                                                   "ctype",
                                                                   "rank_group",
                                                                   "output_channel_ids",
                                                                   "input_channel_ids",
                                                                   "input_buffer_size",
                                                                   "output_buffers_size",
                                                                   "template",
                                                                   "operation_template",
                                                                   "operations",
                                                                   "dynamic_threadblock_count",
                                                                   "dynamic_parameters",
                                                                   "threadblock_count",
                                                                   "info_location",
                                                                   "inputChunks"};
        if (document_.type(node) == Type::array) {
            return each(node, path,
                        [&](Index element, const JsonPath& at) { return find_dialect(element, at); });
        }
        if (document_.type(node) == Type::string && document_.text(node).starts_with("${"))
            return fail(node, path,
                        "is " + document_.describe(node) + ", a placeholder: a template is no plan");
        if (document_.type(node) != Type::object) return true;
        return members(node, path, [&](Index key, Index value, const JsonPath& inner) {
            if (std::find(kForeign.begin(), kForeign.end(), inner.key) != kForeign.end())
                return fail(
                    key, path,
                    fmt::format("has \"{}\", of a dialect beside version 2 that its readers do not take",
                                inner.key));
            return find_dialect(value, inner);
        });
    }
};

class Translator {
public:
    Translator(const MscclppPlan& plan, const JsonDocument& document, std::string_view text,
               const std::string& file_name, const ImportOptions& options)
        : plan_(plan), document_(document), text_(text), file_name_(file_name), options_(options) {}

    Result<Import> run() {
        Import import;
        import.format = Format::mscclpp_json;
        import.name = plan_.name;
        import.warnings = plan_.warnings;
        claim(import);
        BufferSizes sizes;
        SYNCOPATE_TRY(measure(sizes, import));
        SYNCOPATE_TAKE(Buffers buffers, Buffers::make(sizes, options_.tensor, import.plan));
        SYNCOPATE_TAKE(Schedule schedule, mscclpp_schedule(plan_, buffers, file_name_, import.warnings));
        SYNCOPATE_TRY(weave(std::move(schedule), file_name_, buffers.name(), import));
        check_placement(buffers, import);
        return import;
    }

private:
    void claim(Import& import) const {
        const MscclppGpu& first = plan_.gpus.front();
        import.claims.emplace_back("version", fmt::format("{}", plan_.version));
        import.claims.emplace_back("collective", plan_.collective);
        import.claims.emplace_back("ranks", fmt::format("{}", plan_.gpus.size()));
        import.claims.emplace_back("chunks", fmt::format("{} in, {} out", first.input, first.output));
        import.claims.emplace_back("in place", plan_.in_place ? "yes" : "no");
        import.claims.emplace_back("protocol", plan_.protocol);
        if (!plan_.bytes.empty()) import.claims.emplace_back("bytes", plan_.bytes);
    }

    Error wrong(std::size_t rank, std::string message) const {
        return Error{fmt::format("gpus[{}] {}", rank, message),
                     document_.locate(plan_.gpus[rank].node, text_, file_name_)};
    }

    Status measure(BufferSizes& sizes, Import& import) const {
        constexpr std::array<std::pair<std::string_view, Collective>, 5> kCollectives{
            {{"allgather", Collective::all_gather},
             {"allreduce", Collective::all_reduce},
             {"alltoall", Collective::all_to_all},
             {"reduce_scatter", Collective::reduce_scatter},
             {"reducescatter", Collective::reduce_scatter}}};
        const auto found = std::find_if(kCollectives.begin(), kCollectives.end(),
                                        [&](const auto& row) { return row.first == plan_.collective; });
        sizes.ranks = static_cast<std::int32_t>(plan_.gpus.size());
        sizes.in_place = plan_.in_place;
        if (found != kCollectives.end()) sizes.collective = found->second;
        if (found == kCollectives.end())
            import.warnings.push_back(fmt::format(
                "what the collective \"{}\" must end with is not known; nothing is asked of the end",
                plan_.collective));
        for (const MscclppGpu& gpu : plan_.gpus) {
            sizes.input = std::max(sizes.input, gpu.input);
            sizes.output = std::max(sizes.output, gpu.output);
            sizes.scratch = std::max(sizes.scratch, gpu.scratch);
        }
        if (sizes.collective == Collective::all_reduce && sizes.in_place && sizes.output == 0)
            sizes.output = sizes.input;
        // Of plans that work in place, files may leave one of the two out.
        if (sizes.collective == Collective::all_gather && sizes.in_place && sizes.input == 0)
            sizes.input = sizes.output / sizes.ranks;
        if (sizes.collective == Collective::reduce_scatter && sizes.in_place && sizes.output == 0)
            sizes.output = sizes.input / sizes.ranks;
        SYNCOPATE_TRY(judge_sizes(sizes));
        for (const MscclppGpu& gpu : plan_.gpus) {
            for (const auto& ops : gpu.threadblocks) {
                for (const MscclppOp& op : ops) {
                    const std::int64_t all =
                        std::lcm(sizes.granularity, static_cast<std::int64_t>(op.slice.count));
                    // Beyond this, slices differ by a row: no harm, only uneven.
                    constexpr std::int64_t kMost = 1 << 12;
                    if (all <= kMost) sizes.granularity = all;
                }
            }
        }
        return Done{};
    }

    [[nodiscard]] Status judge_sizes(const BufferSizes& sizes) const {
        const std::int64_t ranks = sizes.ranks;
        if (sizes.input == 0 && sizes.output == 0) return wrong(0, "has neither input nor output chunks");
        for (std::size_t rank = 0; rank < plan_.gpus.size() && sizes.collective != Collective::other;
             ++rank) {
            const MscclppGpu& gpu = plan_.gpus[rank];
            if ((gpu.input != sizes.input && gpu.input != 0) ||
                (gpu.output != sizes.output && gpu.output != 0))
                return wrong(rank, fmt::format("has {} chunks in and {} out, and other gpus have {} and {}",
                                               gpu.input, gpu.output, sizes.input, sizes.output));
        }
        const auto mismatch = [&](std::string_view expected) {
            return wrong(0, fmt::format("has {} chunks in and {} out, and {} over {} ranks needs {}",
                                        sizes.input, sizes.output, plan_.collective, ranks, expected));
        };
        switch (sizes.collective) {
            case Collective::other: break;
            case Collective::all_reduce:
                if (sizes.input != sizes.output) return mismatch("as many out as in");
                break;
            case Collective::all_gather:
                if (sizes.input * ranks != sizes.output) return mismatch("that many times as many out as in");
                break;
            case Collective::reduce_scatter:
                if (sizes.output * ranks != sizes.input) return mismatch("that many times as many in as out");
                break;
            case Collective::all_to_all:
                if (sizes.input != sizes.output || sizes.input % ranks != 0)
                    return mismatch("as many out as in, a multiple of the ranks");
                break;
        }
        return Done{};
    }

    const MscclppPlan& plan_;
    const JsonDocument& document_;
    std::string_view text_;
    const std::string& file_name_;
    const ImportOptions& options_;
};

}  // namespace

Result<Import> read_mscclpp_json(std::string_view text, const std::string& file_name,
                                 const ImportOptions& options) {
    if (text.size() > kMaxBytes)
        return Error{fmt::format("larger than {} MiB", kMaxBytes >> 20), {file_name}};
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    Examiner examiner(document, text, file_name);
    const std::int32_t version = examiner.version();
    if (version == 0) return examiner.error();
    SYNCOPATE_TAKE(const MscclppPlan plan, version == 1 ? read_mscclpp_v1(document, text, file_name)
                                                        : read_mscclpp_v2(document, text, file_name));
    return Translator(plan, document, text, file_name, options).run();
}

}  // namespace syncopate::ingest
