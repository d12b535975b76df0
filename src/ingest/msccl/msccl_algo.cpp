#include "ingest/msccl/msccl_algo.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "ingest/msccl/xml_element.hpp"
#include "syncopate/at.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ingest {
namespace {

constexpr std::array<std::string_view, 9> kTypes{"s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"};
constexpr std::array<std::string_view, 3> kProtocols{"Simple", "LL", "LL128"};
// Labels of the solvers and of a test, which say nothing about the plan: maxcount, nthreadblocks, algostep.
constexpr std::array<std::string_view, 13> kAlgoAttributes{
    "name",       "proto",    "nchannels", "nchunksperloop", "ngpus",    "coll",         "inplace",
    "outofplace", "minBytes", "maxBytes",  "redop",          "maxcount", "nthreadblocks"};
constexpr std::array<std::string_view, 4> kGpuAttributes{"id", "i_chunks", "o_chunks", "s_chunks"};
constexpr std::array<std::string_view, 4> kTbAttributes{"id", "send", "recv", "chan"};
constexpr std::array<std::string_view, 2> kCopyAttributes{"i_off", "o_off"};
constexpr std::array<std::string_view, 11> kStepAttributes{
    "s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep", "algostep"};
constexpr std::int64_t kMaxThreadblocks = 4096;  // of a gpu; the runtimes take 64 and 216
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 62;

class AlgoReader : XmlReader {
public:
    using XmlReader::error;

    AlgoReader(const XmlDocument& document, const std::string& file_name) : XmlReader(document, file_name) {}

    bool read(MscclAlgo& algo) {
        constexpr std::array<std::string_view, 1> kRoot{"algo"};
        constexpr std::array<std::string_view, 1> kInside{"gpu"};
        const pugi::xml_node root = document_.root();
        if (!children(root, kRoot)) return false;
        const pugi::xml_node node = root.child("algo");
        if (!node) return fail(root, "has no <algo>");
        if (const pugi::xml_node second = node.next_sibling("algo"))
            return fail(second, "a second <algo>; expected one");
        algo.line = document_.line_of(node);
        if (!attributes(node, kAlgoAttributes) || !read_claims(node, algo) || !children(node, kInside))
            return false;
        for (const pugi::xml_node gpu : node.children("gpu")) {
            if (!read_gpu(gpu, algo)) return false;
        }
        place_.clear();
        if (algo.gpus.size() != static_cast<std::size_t>(ranks_))
            return fail(node, fmt::format("ngpus=\"{}\", and there are {} <gpu>", ranks_, algo.gpus.size()));
        algo.warnings = std::move(warnings_);
        return true;
    }

private:
    bool read_claims(pugi::xml_node node, MscclAlgo& algo) {
        if (!text(node, "proto", algo.protocol) || !integer(node, "ngpus", 1, kMaxImportRanks, ranks_) ||
            !integer(node, "nchannels", 1, 1 << 16, algo.channels) ||
            !integer(node, "nchunksperloop", 1, kMaxChunks, algo.chunks))
            return false;
        if (std::find(kProtocols.begin(), kProtocols.end(), algo.protocol) == kProtocols.end())
            return fail(node,
                        fmt::format("proto=\"{}\" is none of Simple, LL, LL128", escaped(algo.protocol)));
        algo.name = escaped(node.attribute("name").value());
        algo.collective = node.attribute("coll").value();
        std::int32_t in_place = 0;
        std::int32_t out_of_place = 0;
        if (node.attribute("inplace") && !integer(node, "inplace", 0, 1, in_place)) return false;
        if (node.attribute("outofplace") && !integer(node, "outofplace", 0, 1, out_of_place)) return false;
        if (!node.attribute("inplace"))
            warnings_.emplace_back("<algo> does not say whether it works in place; taken as out of place");
        algo.in_place = in_place == 1;
        if (node.attribute("outofplace") && node.attribute("inplace") && in_place == 0 && out_of_place == 0)
            return fail(node, "inplace=\"0\" and outofplace=\"0\": it works neither in place nor out of it");
        if (!read_reduction(node, algo)) return false;
        return (!node.attribute("minBytes") || integer(node, "minBytes", 0, kMaxBytes, algo.min_bytes)) &&
               (!node.attribute("maxBytes") || integer(node, "maxBytes", 0, kMaxBytes, algo.max_bytes));
    }

    /// Without redop the caller says how to reduce; the plan is then that of a sum.
    bool read_reduction(pugi::xml_node node, MscclAlgo& algo) {
        constexpr std::array<std::string_view, 6> kOthers{"nop", "prod", "min", "avg", "mulsum", "premulsum"};
        if (!node.attribute("redop")) return true;
        redop_ = node.attribute("redop").value();
        std::transform(redop_.begin(), redop_.end(), redop_.begin(),
                       [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
        algo.reduce = redop_ == "sum"   ? plan::Reduce::sum
                      : redop_ == "max" ? plan::Reduce::max
                                        : plan::Reduce::none;
        return algo.reduce != plan::Reduce::none ||
               std::find(kOthers.begin(), kOthers.end(), redop_) != kOthers.end() ||
               fail(node,
                    fmt::format("redop=\"{}\" is no reduction of MSCCL's; it knows sum, max, min, prod, "
                                "avg and nop",
                                escaped(node.attribute("redop").value())));
    }

    bool read_gpu(pugi::xml_node node, MscclAlgo& algo) {
        constexpr std::array<std::string_view, 2> kInside{"copy", "tb"};
        const auto rank = static_cast<std::int32_t>(algo.gpus.size());
        place_ = fmt::format("rank {}", rank);
        std::int32_t id = 0;
        MscclGpu gpu;
        if (!attributes(node, kGpuAttributes) || !integer(node, "id", 0, kMaxImportRanks, id) ||
            !integer(node, "i_chunks", 0, kMaxChunks, gpu.input_chunks) ||
            !integer(node, "o_chunks", 0, kMaxChunks, gpu.output_chunks) ||
            !integer(node, "s_chunks", 0, kMaxChunks, gpu.scratch_chunks) || !children(node, kInside))
            return false;
        if (id != rank || rank >= ranks_)
            return fail(node,
                        fmt::format("<gpu id=\"{}\">; expected the ids 0 to {} in order", id, ranks_ - 1));
        for (const pugi::xml_node child : node.children("copy")) {
            MscclCopy copy;
            copy.line = document_.line_of(child);
            if (!attributes(child, kCopyAttributes) || !children(child, {}) ||
                !integer(child, "i_off", 0, kMaxChunks, copy.input) ||
                !integer(child, "o_off", 0, kMaxChunks, copy.output))
                return false;
            if (++steps_ > kMaxSteps) return fail(child, fmt::format("more than {} steps", kMaxSteps));
            gpu.copies.push_back(copy);
        }
        for (const pugi::xml_node child : node.children("tb")) {
            if (!read_threadblock(child, algo, rank, gpu)) return false;
        }
        algo.gpus.push_back(std::move(gpu));
        return true;
    }

    bool read_threadblock(pugi::xml_node node, const MscclAlgo& algo, std::int32_t rank, MscclGpu& gpu) {
        constexpr std::array<std::string_view, 1> kInside{"step"};
        const auto index = static_cast<std::int32_t>(gpu.threadblocks.size());
        place_ = fmt::format("rank {} tb {}", rank, index);
        std::int32_t id = 0;
        MscclThreadblock tb;
        tb.line = document_.line_of(node);
        if (!attributes(node, kTbAttributes) || !integer(node, "id", 0, kMaxThreadblocks - 1, id) ||
            !integer(node, "send", -1, ranks_ - 1, tb.send) ||
            !integer(node, "recv", -1, ranks_ - 1, tb.receive) ||
            !integer(node, "chan", 0, algo.channels - 1, tb.channel) || !children(node, kInside))
            return false;
        if (id != index)
            return fail(node, fmt::format("<tb id=\"{}\">; expected {}: ids count from 0", id, index));
        if (tb.send == rank || tb.receive == rank) return fail(node, "its peer is its own rank");
        for (const pugi::xml_node child : node.children("step")) {
            if (!read_step(child, algo, rank, index, tb)) return false;
        }
        gpu.threadblocks.push_back(std::move(tb));
        return true;
    }

    bool read_step(pugi::xml_node node, const MscclAlgo& algo, std::int32_t rank, std::int32_t tb_index,
                   MscclThreadblock& tb) {
        const auto index = static_cast<std::int32_t>(tb.steps.size());
        place_ = fmt::format("rank {} tb {} step {}", rank, tb_index, index);
        if (++steps_ > kMaxSteps) return fail(node, fmt::format("more than {} steps", kMaxSteps));
        std::int32_t number = 0;
        std::string type;
        MscclStep step;
        step.line = document_.line_of(node);
        if (!attributes(node, kStepAttributes) || !children(node, {}) ||
            !integer(node, "s", 0, kMaxSteps, number) || !text(node, "type", type))
            return false;
        if (number != index)
            return fail(node, fmt::format("s=\"{}\"; expected {}: steps count from 0", number, index));
        const auto found = std::find(kTypes.begin(), kTypes.end(), type);
        if (found == kTypes.end()) {
            return fail(node, fmt::format("type=\"{}\" is none of s, r, rcs, rrs, rrc, rrcs, cpy, re, nop{}",
                                          escaped(type), did_you_mean(type, kTypes)));
        }
        step.type = static_cast<MscclType>(found - kTypes.begin());
        const MscclEffect effect = effect_of(step.type);
        const bool moves = step.type != MscclType::nop;
        if ((effect.reads_src && !read_operand(node, "srcbuf", "srcoff", step.src)) ||
            (effect.uses_dst && !read_operand(node, "dstbuf", "dstoff", step.dst)) ||
            (moves && !integer(node, "cnt", 1, kMaxChunks, step.count)) ||
            !integer(node, "depid", -1, kMaxThreadblocks, step.dependence_tb) ||
            !integer(node, "deps", -1, kMaxSteps, step.dependence_step) ||
            !integer(node, "hasdep", 0, 1, step.has_dependent))
            return false;
        if ((step.dependence_tb < 0) != (step.dependence_step < 0))
            return fail(node, "depid and deps must both name something or both be -1");
        if (reduces(step.type) && algo.reduce == plan::Reduce::none)
            return fail(node,
                        redop_ == "nop"
                            ? fmt::format("{} reduces, and <algo> has redop=\"nop\"", type)
                            : fmt::format("{} reduces, and <algo> has redop=\"{}\"; a plan reduces by sum "
                                          "or max",
                                          type, redop_));
        if (effect.sends && tb.send < 0)
            return fail(node, fmt::format("{} sends, and its tb has send=\"-1\"", type));
        if (effect.receives && tb.receive < 0)
            return fail(node, fmt::format("{} receives, and its tb has recv=\"-1\"", type));
        tb.steps.push_back(step);
        return true;
    }

    bool read_operand(pugi::xml_node node, const char* buffer_name, const char* offset_name,
                      MscclOperand& operand) {
        std::string buffer;
        if (!text(node, buffer_name, buffer)) return false;
        const std::optional<Buffer> known = buffer_from(buffer);
        if (!known)
            return fail(node, fmt::format("{}=\"{}\" is none of i, o, s", buffer_name, escaped(buffer)));
        operand.buffer = *known;
        return integer(node, offset_name, 0, kMaxChunks, operand.index);
    }

    std::int32_t ranks_ = 0;
    std::int64_t steps_ = 0;
    std::string redop_;  ///< in lower case
};

}  // namespace

std::string_view name_of(MscclType type) { return kTypes[at(type)]; }

MscclEffect effect_of(MscclType type) {
    switch (type) {
        case MscclType::s: return {true, false, true, false};
        case MscclType::r: return {false, true, false, true};
        case MscclType::rcs: return {true, true, false, true};
        case MscclType::rrs: return {true, true, true, false};
        case MscclType::rrc: return {false, true, true, true};
        case MscclType::rrcs: return {true, true, true, true};
        case MscclType::cpy:
        case MscclType::re: return {false, false, true, true};
        case MscclType::nop: return {false, false, false, false};
    }
    return {};
}

bool reduces(MscclType type) {
    return type == MscclType::rrs || type == MscclType::rrc || type == MscclType::rrcs ||
           type == MscclType::re;
}

Result<MscclAlgo> read_msccl_algo(std::string_view text, const std::string& file_name) {
    if (text.find_first_not_of(" \t\r\n") == text.npos)
        return Error{"empty: expected an <algo>", {file_name}};
    SYNCOPATE_TAKE(const XmlDocument document, XmlDocument::parse(text, file_name));
    AlgoReader reader(document, file_name);
    MscclAlgo algo;
    if (!reader.read(algo)) return reader.error();
    return algo;
}

}  // namespace syncopate::ingest
