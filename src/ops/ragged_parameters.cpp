// What kernels/ragged.py's kernels and a user's take in a launch.
#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/ops/ragged.hpp"

namespace syncopate::ops {
namespace {

using Of = Parameter::Of;

constexpr std::int64_t kSlots = 32;           // that a program of the layout writes at once
constexpr std::int64_t kSentBytes = 8192;     // of rows at once: senders leave registers to a neighbour
constexpr std::int64_t kCopiedBytes = 16384;  // of rows that are copied at home

class ParametersOf {
public:
    ParametersOf(const RaggedProgram& program, bool beside,
                 std::span<const std::map<std::string, std::string>> names)
        : program_(program), of_(program.of), first_(program.users.front()), beside_(beside), names_(names) {}

    std::vector<Parameters> make() const {
        Parameters all = of_all();
        std::vector<Parameters> made(kRaggedStages, all);
        made[0]["given_ptr"] = operand(of_.counts, plan::DType::int32, {of_.experts});
        made[0]["stride"] = {.of = Of::stride, .name = of_.counts};
        made[2].merge(sent());
        made[2]["given_ptr"] = operand(of_.rows.name, of_.rows.dtype, {of_.rows.rows, of_.rows.columns});
        made[2]["x_ptr"] = tensor(of_.rows.name);
        made[2]["stride"] = {.of = Of::stride, .name = of_.rows.name};
        made[2]["STARTS_NEXT"] = constant(beside_ ? 1 : 0);
        made[2].merge(more());
        for (std::size_t user = 0; user < program_.users.size(); ++user) made.push_back(of_user(user));
        if (!of_.back) return made;
        Parameters back = all, take = all;
        back.merge(moved(*of_.back, kSentBytes));
        back["made_ptr"] = tensor(program_.made);
        back["stride"] = {.of = Of::stride, .name = of_.back->name};
        take.merge(moved(*of_.back, kCopiedBytes));
        take["out_ptr"] = operand(of_.back->name, of_.back->dtype, {of_.rows.rows, of_.back->columns});
        take["out_ptr"].written = true;
        take["taken_ptr"] = tensor(program_.taken);
        take["PROGRAMS"] = constant(
            program_.program.plan.tensors[at(*program_.program.plan.find_tensor(program_.taken))].shape[1]);
        for (Parameters* one : {&back, &take}) (*one)["y_ptr"] = tensor(of_.back->name);
        made.push_back(std::move(back));
        made.push_back(std::move(take));
        return made;
    }

private:
    [[nodiscard]] Parameters of_all() const {
        const RaggedOrder& order = first_.order;
        const auto behind = static_cast<std::int32_t>(kRaggedStages + program_.users.size());
        return {
            {"counts_ptr", tensor(of_.counts)},
            {"sent_ptr", numbers("sent", {2, of_.experts})},
            {"group_ptr", numbers("group", {of_.experts})},
            {"offsets_ptr", told(RaggedForm::offsets)},
            {"ends_ptr", told(RaggedForm::ends)},
            {"sizes_ptr", told(RaggedForm::sizes)},
            {"experts_ptr", told(RaggedForm::experts)},
            {"places_ptr", told(RaggedForm::rows)},
            {"padded_ptr", told(RaggedForm::padded)},
            {"status_ptr", numbers("status", {2})},
            {"seen_ptr", numbers(kSeen, {std::int64_t{kSeenWords}})},
            {"from_ptr", numbers("from", {of_.experts})},  // by group of this rank's experts
            {"to_ptr", numbers("to", {of_.experts})},
            {"expert_ptr", known(kRaggedExperts)},
            {"row_ptr", known(kRaggedFirstRows)},
            {"rows_ptr", {.of = Of::table, .stage = kRaggedStages - 1}},
            {"user_ptr", {.of = Of::table, .stage = kRaggedStages}},
            {"back_ptr", of_.back ? Parameter{.of = Of::table, .stage = behind} : numbers("status", {2})},
            {"rank", {.of = Of::rank}},
            {"ROWS", constant(of_.rows.rows)},
            {"E", constant(of_.experts)},
            {"R", constant(of_.ranks)},
            {"EXPERTS", constant(of_.own)},
            {"BOUND", constant(of_.bound)},
            {"TILE", constant(kRaggedTile)},
            {"SENT", constant(program_.sending.rows)},
            {"TILES", constant(first_.tiles)},
            {"SLOTS", constant(kSlots)},
            {"USERS", constant(first_.groups)},
            {"BE", power(of_.own)},
            {"BR", power(of_.ranks)},
            {"BALL", power(of_.experts)},
            {"ORDER_ROWS", constant(order.rows)},
            {"ORDER_COLUMNS", constant(order.columns)},
            {"ORDER_APART", constant(order.apart)},
            {"ORDER_COUNT", constant(order.count)},
            {"COUNTS", constant(first_.kernel.persistent ? 1 : 0)},
            {"READS_ON", constant(first_.reads_on)},
            {"TOLD", constant(program_.block)},
            {"BLOCKS", constant(program_.blocks)},
            {"BACK", constant(of_.back ? 1 : 0)},
        };
    }

    /// Of the second tensor that comes, or of none: then nobody looks at what stands for it.
    [[nodiscard]] Parameters more() const {
        if (!of_.more)
            return {{"given_more_ptr", numbers("status", {2})},
                    {"more_ptr", numbers("status", {2})},
                    {"stride_more", constant(0)},
                    {"MORE", constant(0)}};
        return {
            {"given_more_ptr", operand(of_.more->name, of_.more->dtype, {of_.rows.rows, of_.more->columns})},
            {"more_ptr", tensor(of_.more->name)},
            {"stride_more", {.of = Of::stride, .name = of_.more->name}},
            {"MORE", constant(of_.more->columns)}};
    }

    /// The tensors of a user's kernel, but those that the schedule has in the heap.
    [[nodiscard]] Parameters of_user(std::size_t number) const {
        const RaggedKernel& user = program_.users[number];
        const bool goes_back = of_.back && number + 1 == program_.users.size();
        Parameters made;
        for (const RaggedTold& one : user.told) made[one.param] = told(one.form);
        for (const auto& [param, tensor] : user.kernel.arguments.tensors) {
            if (made.contains(param) || !user.tensor_read(param).empty() ||
                (goes_back && param == user.makes))
                continue;
            const kernel::Param* const known = user.kernel.find_param(param);
            const bool has_shape = param != user.makes;
            made[param] =
                operand(name_of(number, param), tensor.dtype, has_shape ? tensor.shape : user.made_shape);
            made[param].written = known != nullptr && known->written;
        }
        return made;
    }

    [[nodiscard]] std::string name_of(std::size_t user, const std::string& param) const {
        if (user >= names_.size()) return param;
        const auto named = names_[user].find(param);
        return named == names_[user].end() ? param : named->second;
    }

    static Parameter constant(std::int64_t value) { return {.of = Of::constant, .value = value}; }
    static Parameter power(std::int64_t value) {
        return constant(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(value))));
    }
    static Parameter tensor(const std::string& name) { return {.of = Of::tensor, .name = name}; }
    static Parameter operand(std::string name, plan::DType dtype, std::vector<std::int64_t> shape) {
        return {.of = Of::operand, .name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
    }
    static Parameter numbers(const char* name, std::vector<std::int64_t> shape) {
        return {.of = Of::scratch, .name = name, .shape = std::move(shape)};
    }
    /// By tile, of the user's first kernel.
    [[nodiscard]] Parameter known(const char* name) const {
        const auto tiles = static_cast<std::int64_t>(first_.expert_of.size());
        return numbers(name, {std::max<std::int64_t>(1, tiles)});
    }

    /// What a kernel is told where rows lie by. Begins are all offsets but the last.
    [[nodiscard]] Parameter told(RaggedForm form) const {
        const std::int64_t blocks = std::max<std::int64_t>(1, program_.blocks);
        const std::int64_t places = std::max<std::int64_t>(1, program_.blocks * program_.block);
        switch (form) {
            case RaggedForm::ends: return numbers("ends", {of_.own});
            case RaggedForm::sizes: return numbers("sizes", {of_.own});
            case RaggedForm::experts: return numbers("experts", {blocks});
            case RaggedForm::rows: return numbers("places", {places});
            case RaggedForm::padded: return numbers("padded", {1});
            default: return numbers("offsets", {of_.own + 1});
        }
    }

    /// Of what sends rows: how many of them, and of their columns, at once.
    [[nodiscard]] Parameters sent() const {
        constexpr std::int64_t kLanes = 16,
                               kBytes = 65536;  // of a program that has a multiprocessor of its own
        const auto item = static_cast<std::int64_t>(plan::size_of(of_.rows.dtype));
        const bool apart = program_.sending.apart;
        const std::int64_t lanes = std::min(program_.sending.rows, apart ? kLanes : program_.sending.rows);
        const std::int64_t bytes = apart ? kBytes : kSentBytes;
        const std::int64_t most = std::max<std::int64_t>(128, std::min(bytes / 2, bytes / item) / lanes);
        return {{"H", constant(of_.rows.columns)},
                {"LANES", constant(lanes)},
                {"COLUMNS", constant(std::min(power(of_.rows.columns).value, most))}};
    }

    /// Of what moves rows of a tensor: how many columns at once, about `bytes` of a tile's rows.
    [[nodiscard]] Parameters moved(const RaggedTensor& of, std::int64_t bytes) const {
        const auto item = static_cast<std::int64_t>(plan::size_of(of_.rows.dtype));
        const std::int64_t most = std::max<std::int64_t>(16, bytes / kRaggedTile / item);
        return {{"H", constant(of.columns)}, {"COLUMNS", constant(std::min(power(of.columns).value, most))}};
    }

    const RaggedProgram& program_;
    const RaggedRows& of_;
    const RaggedKernel& first_;
    bool beside_;
    std::span<const std::map<std::string, std::string>> names_;
};

}  // namespace

std::vector<Parameters> ragged_parameters(const RaggedProgram& program, bool beside,
                                          std::span<const std::map<std::string, std::string>> names) {
    return ParametersOf(program, beside, names).make();
}

std::string ragged_verdict(const std::string& counts, std::int64_t bound,
                           std::span<const std::uint32_t> before, std::span<const std::uint32_t> now,
                           bool drops) {
    std::string said;
    if (now[kCallsBad] != before[kCallsBad]) {
        constexpr std::uint32_t kMost = 0x7fffffff;  // the sum over calls has run over
        const std::uint32_t sum = now[kBad] - before[kBad];
        said = fmt::format("{}: counts below 0, or of more rows than were given: {} in all", counts,
                           sum == 0 || sum > kMost ? kMost : sum);
    }
    if (drops || now[kCallsOver] == before[kCallsOver]) return said;
    const std::int64_t over = now[kOver];
    return fmt::format(
        "{}{}bound: as many as {} rows more than {} come to a rank: give the plan a bound of {}, or "
        "over=\"drop\"",
        said, said.empty() ? "" : "; ", over, bound, bound + over);
}

}  // namespace syncopate::ops
