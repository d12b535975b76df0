// An SCCL algorithm speaks of addresses, numbers of chunks that are the same on every rank, and of sends of
// one address from a rank to another, in steps. So a chunk has one place in one tensor, and a send waits for
// what brought its chunk to its source; there are no buffers to reuse.
#include "syncopate/ingest/sccl/sccl_json.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ingest/steps/schedule.hpp"
#include "syncopate/at.hpp"
#include "syncopate/json_table.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::ingest {
namespace {

struct Send {
    std::int32_t address = 0;
    std::int32_t from = 0;
    std::int32_t to = 0;
    std::int64_t step = 0;
    std::int64_t time = 0;  ///< within the step; 0 where the file has none
    Origin origin;
};

struct Algorithm {
    std::string name;
    std::string collective;
    std::int32_t ranks = 0;
    std::vector<std::vector<std::int32_t>> held;    ///< by rank: addresses at the start, rising
    std::vector<std::vector<std::int32_t>> wanted;  ///< by rank: addresses at the end, rising
    std::vector<Send> sends;
};

class AlgorithmReader : public JsonReader {
public:
    using JsonReader::error;
    using JsonReader::JsonReader;

private:
    static constexpr auto kMost = static_cast<std::int32_t>(kMaxSteps);

    static bool ignored(JsonAt) { return true; }

    /// Whether the object lacks the key, or has null, false or 0 there.
    bool is_unset(Index object, std::string_view key) const {
        for (Index node = document_.first(object); node != document_.end(object);) {
            const Index value = document_.next(node);
            if (document_.text(node) == key) {
                const Type type = document_.type(value);
                return type == Type::null || (type == Type::boolean && !document_.boolean(value)) ||
                       (type == Type::integer && document_.integer(value) == 0);
            }
            node = document_.next(value);
        }
        return true;
    }

    // Walks come before their users, who need their types.
    auto type_is(std::string_view expected) {
        return [this, expected](JsonAt at) {
            std::string type;
            return text(type)(at) && (type == expected || fail(at, fmt::format("is \"{}\"; expected \"{}\"",
                                                                               escaped(type), expected)));
        };
    }
    auto label(std::string& out) {
        return [this, &out](JsonAt at) {
            if (!text(out)(at)) return false;
            out = escaped(out);
            return true;
        };
    }

    bool read_collective(JsonAt at, Algorithm& algorithm) {
        const auto triggers = [this](JsonAt inner) {
            const Type type = document_.type(inner.node);
            return (type != Type::object && type != Type::array) || document_.size(inner.node) == 0 ||
                   fail(inner, "names chunks to combine; algorithms that reduce are not taken");
        };
        return object(
            at, required("sccl_type", type_is("collective")), required("name", label(algorithm.collective)),
            required("nodes", integer(algorithm.ranks, 1, kMaxImportRanks)), optional("chunks", ignored),
            optional("ranks", ignored), optional("triggers", triggers));
    }

    /// {"0": [address, …], …}, every rank once.
    bool read_map(JsonAt whole, const Algorithm& algorithm, std::vector<std::vector<std::int32_t>>& out) {
        out.resize(static_cast<std::size_t>(algorithm.ranks));
        std::vector<bool> seen(out.size(), false);
        return entries(whole, [&](std::string_view name, JsonAt at) {
            const JsonAt key{at.node - 1, whole.path};
            const std::size_t rank = whole_number<std::size_t>(name).value_or(out.size());
            if (rank >= out.size())
                return fail(key, fmt::format("has the key \"{}\"; expected the ranks 0 to {}", escaped(name),
                                             out.size() - 1));
            if (seen[rank]) return fail(key, fmt::format("has rank {} twice", rank));
            seen[rank] = true;
            if (!integers("a list of addresses", static_cast<std::int32_t>(kMaxChunks), 0, kMaxChunks - 1,
                          out[rank])(at))
                return false;
            std::ranges::sort(out[rank]);
            return std::ranges::adjacent_find(out[rank]) == out[rank].end() ||
                   fail(at, "names an address twice");
        });
    }

    bool read_step(JsonAt at, Algorithm& algorithm) {
        const auto send = [&](JsonAt inner) { return read_send(inner, at.path->index, algorithm); };
        return object(at, required("sccl_type", type_is("step")), optional("rounds", ignored),
                      required("sends", elements("a list of sends", kMost, send)));
    }

    /// [address, from, to], and of TACCL [address, from, to, time, link].
    bool read_send(JsonAt at, std::int64_t step, Algorithm& algorithm) {
        if (!is(at.node, *at.path, Type::array, "[address, from, to]")) return false;
        const std::size_t size = document_.size(at.node);
        if (size != 3 && size != 5) return fail(at, fmt::format("has {} numbers; expected 3 or 5", size));
        if (static_cast<std::int64_t>(algorithm.sends.size()) >= kMaxMoves)
            return fail(at, fmt::format("is one of more than {} sends", kMaxMoves));
        Send& send = algorithm.sends.emplace_back();
        send.step = step;
        send.origin = {line_at(at.node), at.path->to_string()};
        std::int64_t link = 0;
        constexpr std::int64_t kAny = std::int64_t{1} << 62;
        const auto address = integer(send.address, 0, kMaxChunks - 1);
        const auto from = integer(send.from, 0, algorithm.ranks - 1);
        const auto to = integer(send.to, 0, algorithm.ranks - 1);
        const bool read = size == 3 ? row(at, "[address, from, to]", address, from, to)
                                    : row(at, "[address, from, to, time, link]", address, from, to,
                                          integer(send.time, 0, kAny), integer(link, 0, kAny));
        return read && (send.from != send.to || fail(at, "sends from a rank to itself"));
    }

    /// Lines are counted on from the last call; nodes come in order.
    std::int32_t line_at(Index node) {
        const std::size_t end = std::min(document_.end_offset(node), text_.size());
        const auto from = text_.begin() + static_cast<std::ptrdiff_t>(offset_);
        if (end > offset_) {
            line_ += static_cast<std::int32_t>(
                std::count(from, text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
            offset_ = end;
        }
        return line_;
    }

public:
    bool read(Algorithm& algorithm) {
        const JsonPath root;
        // The rest of instance, chunks, ranks, topology and rounds say how the algorithm was found, and repeat
        // what the maps say.
        const auto instance = [this](JsonAt at) {
            return document_.type(at.node) != Type::object || is_unset(at.node, "pipeline") ||
                   fail(at,
                        "is pipelined: its steps run for one part of the data after another, which is not "
                        "taken");
        };
        const auto map = [&](std::vector<std::vector<std::int32_t>>& out) {
            return [this, &algorithm, &out](JsonAt at) { return read_map(at, algorithm, out); };
        };
        const auto step = [&](JsonAt at) { return read_step(at, algorithm); };
        return object(
            {0, &root}, required("sccl_type", type_is("algorithm")), optional("name", label(algorithm.name)),
            optional("instance", instance),
            required("collective", [&](JsonAt at) { return read_collective(at, algorithm); }),
            required("input_map", map(algorithm.held)), required("output_map", map(algorithm.wanted)),
            required("steps", elements("a list of steps", kMost, step)), optional("topology", ignored));
    }

private:
    std::size_t offset_ = 0;
    std::int32_t line_ = 1;
};

/// Consecutive addresses of a rank as one holding each run.
void hold(const std::vector<std::int32_t>& addresses, std::int32_t rank, std::int64_t rows,
          const plan::Tensor& tensor, std::vector<plan::Holding>& out) {
    for (std::size_t first = 0; first < addresses.size();) {
        std::size_t end = first + 1;
        while (end < addresses.size() && addresses[end] == addresses[end - 1] + 1) ++end;
        plan::Holding holding{rank, {0, tensor.whole()}};
        holding.chunk.region.front() = {addresses[first] * rows,
                                        (addresses[end - 1] + std::int64_t{1}) * rows};
        out.push_back(std::move(holding));
        first = end;
    }
}

/// An op for each send, after the one that brought its chunk to its source, and after the one before it on
/// its link.
void write_ops(std::vector<Send> sends, std::int64_t rows, const Algorithm& algorithm, Import& import) {
    std::stable_sort(sends.begin(), sends.end(), [](const Send& a, const Send& b) {
        return std::tie(a.step, a.time) < std::tie(b.step, b.time);
    });
    struct Arrival {
        plan::OpRef op;
        std::int64_t step, time;
    };
    std::map<std::pair<std::int32_t, std::int32_t>, Arrival> arrived;      // by rank and address
    std::map<std::pair<std::int32_t, std::int32_t>, plan::OpRef> on_link;  // by source and destination
    std::size_t needless = 0;
    for (const Send& send : sends) {
        const auto& held = algorithm.held[at(send.to)];
        if (arrived.contains({send.to, send.address}) ||
            std::binary_search(held.begin(), held.end(), send.address)) {
            ++needless;
            continue;
        }
        plan::Op op;
        op.kind = plan::OpKind::push;
        op.peer = send.to;
        op.src = {0, import.plan.tensors[0].whole()};
        op.src.region.front() = {send.address * rows, (send.address + std::int64_t{1}) * rows};
        op.dst = op.src;
        // What arrives in the same step and at the same time arrives too late.
        const auto from = arrived.find({send.from, send.address});
        if (from != arrived.end() &&
            std::tie(from->second.step, from->second.time) < std::tie(send.step, send.time))
            op.after.push_back(from->second.op);
        auto& ops = import.plan.ranks[at(send.from)];
        const plan::OpRef ref{send.from, static_cast<std::int32_t>(ops.size())};
        const auto [link, is_first] = on_link.try_emplace({send.from, send.to}, ref);
        if (!is_first && std::find(op.after.begin(), op.after.end(), link->second) == op.after.end())
            op.after.push_back(link->second);
        link->second = ref;
        arrived[{send.to, send.address}] = {ref, send.step, send.time};
        ops.push_back(std::move(op));
        import.origins[at(send.from)].push_back(send.origin);
    }
    if (needless > 0)
        import.warnings.push_back(
            fmt::format("{} sends bring a chunk to where it is already, and are left out", needless));
}

}  // namespace

Result<Import> read_sccl_json(std::string_view text, const std::string& file_name,
                              const ImportOptions& options) {
    constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
    if (text.size() > kMaxBytes)
        return Error{fmt::format("larger than {} MiB", kMaxBytes >> 20), {file_name}};
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    AlgorithmReader reader(document, text, file_name);
    Algorithm algorithm;
    if (!reader.read(algorithm)) return reader.error();

    std::int64_t chunks = 1;
    for (const auto* map : {&algorithm.held, &algorithm.wanted}) {
        for (const auto& addresses : *map) {
            if (!addresses.empty()) chunks = std::max<std::int64_t>(chunks, addresses.back() + 1);
        }
    }
    for (const Send& send : algorithm.sends) chunks = std::max<std::int64_t>(chunks, send.address + 1);
    constexpr std::int64_t kDefaultRows = 1024;
    const plan::Tensor tensor = options.tensor.value_or(plan::Tensor{"data", {chunks * kDefaultRows}});
    if (tensor.shape.front() % chunks != 0) {
        return usage_error(
            fmt::format("the plan cuts axis 0 of {} into {} chunks; {} rows are no multiple of that",
                        tensor.name, chunks, tensor.shape.front()));
    }
    const std::int64_t rows = tensor.shape.front() / chunks;
    Import import;
    import.format = Format::sccl_json;
    import.name = algorithm.name;
    import.claims = {{"collective", algorithm.collective},
                     {"ranks", fmt::format("{}", algorithm.ranks)},
                     {"chunks", fmt::format("{}", chunks)}};
    import.plan.mesh = {{{"gpu", algorithm.ranks}}};
    import.plan.tensors = {tensor};
    import.plan.ranks.resize(static_cast<std::size_t>(algorithm.ranks));
    import.origins.resize(import.plan.ranks.size());
    for (std::int32_t rank = 0; rank < algorithm.ranks; ++rank) {
        hold(algorithm.held[at(rank)], rank, rows, tensor, import.plan.initial);
        hold(algorithm.wanted[at(rank)], rank, rows, tensor, import.plan.final);
    }
    write_ops(std::move(algorithm.sends), rows, algorithm, import);
    return import;
}

}  // namespace syncopate::ingest
