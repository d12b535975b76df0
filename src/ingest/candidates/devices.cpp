#include "ingest/candidates/devices.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ingest {
namespace {

using Group = std::vector<std::int32_t>;

enum class Mode : std::uint8_t { replicas, partitions, replicas_and_partitions, ranks };

Result<Mode> mode_of(const std::string& kind, const Instruction& collective) {
    const bool channel = collective.channel > 0;
    if (collective.global_ids) {
        if (!channel) return Error{"has use_global_device_ids but no channel_id"};
        return Mode::ranks;
    }
    if (!channel) return Mode::replicas;
    const bool one_axis =
        kind == "all-to-all" || kind == "collective-permute" || kind == "collective-broadcast";
    return one_axis ? Mode::partitions : Mode::replicas_and_partitions;
}

/// How many ranks the shapes say take part; 0 if they do not.
std::int64_t ranks_by_shape(const std::string& kind, const Instruction& collective, const Shape* operand) {
    if (operand == nullptr || collective.dimensions.empty()) return 0;
    const Shape* result = &collective.shape;
    if (result->tuple && result->elements.size() == 2) result = &result->elements[1];  // (operand, result)
    const auto axis = static_cast<std::size_t>(collective.dimensions[0]);
    if (axis >= operand->dims.size() || axis >= result->dims.size()) return 0;
    std::int64_t large = result->dims[axis];
    std::int64_t small = operand->dims[axis];
    if (kind == "reduce-scatter") std::swap(large, small);
    if (kind == "all-to-all" || small < 1 || large < small || large % small != 0) return 0;
    return large / small;
}

struct Counts {
    std::int64_t replicas = 1;
    std::int64_t partitions = 1;
};

/// Ranks of one group of ids.
Group ranks_of(const Group& ids, Mode mode, const Counts& counts, std::int64_t other) {
    Group ranks;
    for (const std::int32_t id : ids) {
        switch (mode) {
            case Mode::ranks: ranks.push_back(id); break;
            case Mode::replicas:
                ranks.push_back(static_cast<std::int32_t>(id * counts.partitions + other));
                break;
            case Mode::partitions:
                ranks.push_back(static_cast<std::int32_t>(other * counts.partitions + id));
                break;
            case Mode::replicas_and_partitions:
                for (std::int64_t p = 0; p < counts.partitions; ++p) {
                    ranks.push_back(static_cast<std::int32_t>(id * counts.partitions + p));
                }
        }
    }
    return ranks;
}

std::string_view ids_name(Mode mode) {
    switch (mode) {
        case Mode::ranks: return "device";
        case Mode::partitions: return "partition";
        default: return "replica";
    }
}

}  // namespace

Result<Participants> participants(const TensorProgram& program, const std::string& kind,
                                  const Instruction& collective) {
    SYNCOPATE_TAKE(const Mode mode, mode_of(kind, collective));
    const bool permute = kind == "collective-permute";
    static const ReplicaGroups kEverybody;
    const ReplicaGroups& written = collective.groups ? *collective.groups : kEverybody;
    if (!written.problem.empty()) return Error{"has replica_groups of " + written.problem};

    std::int64_t largest = -1;
    for (const Group& group : written.groups) {
        for (const std::int32_t id : group) largest = std::max<std::int64_t>(largest, id);
    }
    for (const auto& [source, target] : collective.pairs) {
        largest = std::max<std::int64_t>(largest, std::max(source, target));
    }
    // Count what the numbers count.
    const bool said = program.replicas > 0 || program.partitions > 0;
    Counts counts{std::max<std::int64_t>(program.replicas, 1), std::max<std::int64_t>(program.partitions, 1)};
    if (!said) {
        std::int64_t by_shape = 0;
        if (largest < 0 && !collective.operands.empty()) {
            for (const Computation& computation : program.computations) {
                const Instruction* const first = computation.instructions.data();
                if (&collective < first || &collective >= first + computation.instructions.size()) continue;
                by_shape = ranks_by_shape(kind, collective,
                                          &computation.instructions[at(collective.operands[0])].shape);
            }
        }
        const std::int64_t count = program.devices > 0 ? program.devices
                                   : largest >= 0      ? largest + 1
                                   : permute           ? 1  // of no pairs
                                                       : by_shape;
        if (count < 1) {
            return Error{
                "is over all devices, and neither the module (replica_count, num_partitions) nor a "
                "shape says how many there are; say it with --ranks"};
        }
        (mode == Mode::partitions ? counts.partitions : counts.replicas) = count;
    }
    const std::int64_t ids = mode == Mode::ranks        ? counts.replicas * counts.partitions
                             : mode == Mode::partitions ? counts.partitions
                                                        : counts.replicas;
    const std::int64_t ranks = counts.replicas * counts.partitions;
    if (ranks > plan::kMaxRanks) {
        return Error{fmt::format("is over {} devices; a plan has at most {} ranks", ranks, plan::kMaxRanks)};
    }
    if (largest >= ids) {
        return Error{fmt::format("names {} {}, and the module has {} ({} replicas × {} partitions)",
                                 ids_name(mode), largest, ids, counts.replicas, counts.partitions)};
    }

    Participants found;
    found.num_ranks = static_cast<std::int32_t>(ranks);
    const std::int64_t others = mode == Mode::replicas     ? counts.partitions
                                : mode == Mode::partitions ? counts.replicas
                                                           : 1;
    if (permute) {
        std::vector<bool> sends(static_cast<std::size_t>(ids));
        std::vector<bool> receives(static_cast<std::size_t>(ids));
        for (const auto& [source, target] : collective.pairs) {
            if (sends[at(source)]) {
                return Error{fmt::format("names {} {} as a source twice", ids_name(mode), source)};
            }
            if (receives[at(target)]) {
                return Error{fmt::format("names {} {} as a target twice", ids_name(mode), target)};
            }
            sends[at(source)] = receives[at(target)] = true;
            for (std::int64_t other = 0; other < others; ++other) {
                const Group pair = ranks_of({source, target}, mode, counts, other);
                found.pairs.emplace_back(pair[0], pair[1]);
            }
        }
        return found;
    }
    std::vector<Group> groups = written.groups;
    if (groups.empty()) {
        Group& everybody = groups.emplace_back();
        for (std::int64_t id = 0; id < ids; ++id) everybody.push_back(static_cast<std::int32_t>(id));
    }
    std::vector<bool> seen(static_cast<std::size_t>(ids));
    for (const Group& group : groups) {
        for (const std::int32_t id : group) {
            if (seen[at(id)]) {
                return Error{fmt::format("has {} {} in replica_groups twice", ids_name(mode), id)};
            }
            seen[at(id)] = true;
        }
        if (group.size() != groups[0].size() && kind != "all-reduce" && kind != "collective-broadcast") {
            return Error{
                fmt::format("has replica_groups of {} and of {} members", groups[0].size(), group.size())};
        }
    }
    for (std::int64_t other = 0; other < others; ++other) {
        for (const Group& group : groups) found.groups.push_back(ranks_of(group, mode, counts, other));
    }
    return found;
}

std::optional<plan::DType> plan_dtype(const std::string& hlo) {
    using plan::DType;
    struct Row {
        std::string_view hlo;
        DType dtype;
    };
    // Unsigned integers wider than a byte have no dtype of their own: moved and added, their bits are those
    // of the signed ones.
    static constexpr std::array<Row, 16> kRows{{{"bf16", DType::bf16},
                                                {"f16", DType::fp16},
                                                {"f32", DType::fp32},
                                                {"f64", DType::fp64},
                                                {"f8e4m3fn", DType::fp8e4m3},
                                                {"f8e5m2", DType::fp8e5m2},
                                                {"s8", DType::int8},
                                                {"s16", DType::int16},
                                                {"s32", DType::int32},
                                                {"s64", DType::int64},
                                                {"u8", DType::uint8},
                                                {"u16", DType::int16},
                                                {"u32", DType::int32},
                                                {"u64", DType::int64},
                                                {"pred", DType::uint8},
                                                {"i1", DType::uint8}}};
    for (const Row& row : kRows) {
        if (row.hlo == hlo) return row.dtype;
    }
    return std::nullopt;
}

std::string dtype_problem(const std::string& hlo, plan::Reduce reduce) {
    if (!plan_dtype(hlo)) {
        const bool small = hlo == "s4" || hlo == "u4" || hlo == "s2" || hlo == "u2" || hlo == "s1" ||
                           hlo == "u1" || hlo.starts_with("f4");
        return fmt::format("moves {}, {}", hlo,
                           small ? "whose elements are smaller than a byte" : "which no dtype of a plan is");
    }
    const bool wide_unsigned = hlo == "u16" || hlo == "u32" || hlo == "u64";
    if (reduce != plan::Reduce::none && hlo == "pred")
        return "reduces pred, which is neither summed nor ordered";
    if (reduce == plan::Reduce::max && wide_unsigned) {
        return fmt::format("takes the maximum of {}, and a plan's integers of that width are signed", hlo);
    }
    return {};
}

}  // namespace syncopate::ingest
