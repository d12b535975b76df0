#include "bundle/host_mixture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/bundle/host_kernel.hpp"
#include "syncopate/emit/layout.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/plan/model/ragged.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/runtime/host/table_player.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

namespace table = emit::table;
using runtime::TableSlot;

constexpr std::string_view kKernels[] = {"moe_count", "moe_layout", "moe_dispatch",
                                         "moe_up",    "moe_down",   "moe_combine"};

/// Where a stage's groups lie: of each where its rows begin, and how many it has.
struct Groups {
    std::vector<std::int64_t> begin;
    std::vector<std::int64_t> rows;
};

/// The slots of a stage, from the records of its groups: those of group `begins`, of the next ones, and at last of those before
/// it. The groups' own numbers begin with `first`. A slot's tile is its first row times `columns`, plus its column.
void make_slots(std::int32_t* words, std::int64_t first, const Groups& groups, std::int64_t tile,
                std::int64_t columns, std::int64_t begins) {
    const auto count = static_cast<std::int64_t>(groups.rows.size());
    const std::int32_t* const records = words + words[table::groups] + 4;
    const auto tiles_of = [&](std::int64_t group) {
        return std::max<std::int64_t>(ceil_div(groups.rows[at(group)], tile) * columns, 1);
    };
    std::vector<const std::int32_t*> by_group(at(count));
    for (std::int64_t record = 0; record < count; ++record) {
        const std::int32_t* const one = records + table::slot_words * record;
        by_group[at((one[table::slot_tile] - first) % count)] = one;
    }
    std::int32_t slot = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t group = (begins + i) % count;
        const std::int64_t down = std::max<std::int64_t>(ceil_div(groups.rows[at(group)], tile), 1);
        for (std::int64_t n = 0; n < tiles_of(group); ++n, ++slot) {
            std::int32_t* const made = words + table::first_slot + table::slot_words * slot;
            std::copy_n(by_group[at(group)], table::slot_words, made);
            const std::int64_t row = n % down * tile;
            made[table::slot_tile] =
                static_cast<std::int32_t>((groups.begin[at(group)] + row) * columns + n / down);
            made[table::slot_group] = static_cast<std::int32_t>(group);
            made[table::slot_rows] =
                static_cast<std::int32_t>(std::clamp<std::int64_t>(groups.rows[at(group)] - row, 0, tile));
        }
    }
    words[table::num_slots] = slot;
    for (std::int64_t group = 0; group < count; ++group) {
        const std::int32_t* const record = by_group[at(group)];
        for (std::int32_t chunk = record[table::slot_makes];
             chunk < (record[table::slot_makes + 1] & ~table::at_once); chunk += table::made_words) {
            std::int32_t* const made = words + chunk;
            made[table::made_tiles] =
                made[table::made_groups] == 1 ? static_cast<std::int32_t>(tiles_of(group)) : slot;
        }
    }
}

/// Of one executable.
class HostMixture {
public:
    HostMixture(std::shared_ptr<const Planned> planned, std::vector<runtime::Operand> operands,
                runtime::FusedOp& op, std::uint64_t scratch)
        : planned_(std::move(planned)),
          operands_(std::move(operands)),
          op_(op),
          scratch_(scratch_of(*planned_)),
          scratch_at_(scratch),
          ranks_(planned_->problem.ranks),
          tokens_(planned_->problem.extent("T")),
          experts_(planned_->problem.extent("E")),
          topk_(planned_->problem.extent("topk")),
          hidden_(planned_->problem.extent("H")),
          inner_(planned_->problem.extent("F")),
          own_(experts_ / ranks_),
          routes_(tokens_ * topk_),
          bound_(planned_->problem.extent("bound")),
          dtype_(planned_->problem.dtype),
          tile_(planned_->strategy.tiles.front()) {
        const auto ids = std::ranges::find(operands_, "topk_ids", &runtime::Operand::name);
        int32_ids_ = ids != operands_.end() && ids->dtype == plan::DType::int32;
        const std::int64_t most = ranks_ * routes_;
        if (bound_ == 0 || bound_ > most) bound_ = most;
    }

    [[nodiscard]] Status run(std::span<const runtime::CallTensor> tensors) const {
        for (std::size_t stage = 0; stage < planned_->launch.stages.size(); ++stage) {
            const std::string& kernel = planned_->launch.stages[stage].kernel;
            const auto make = [&](const TableSlot& slot) -> Status {
                if (kernel == "moe_count") return count(slot, tensors);
                if (kernel == "moe_dispatch") return dispatch(slot, tensors);
                if (kernel == "moe_up") return up(slot, tensors);
                if (kernel == "moe_down") return down(slot, tensors);
                if (kernel == "moe_combine") return combine(slot, tensors);
                return Done{};  // of the layout a slot only waits
            };
            SYNCOPATE_TRY(runtime::play_made_table(op_, stage, make));
            if (!op_.poll()) return Done{};  // what a stage would read has not come: end_call says which
            if (kernel == "moe_layout") {
                SYNCOPATE_TRY(lay_out(tensors));
            }
        }
        return Done{};
    }

private:
    // Where things are.

    [[nodiscard]] std::int32_t rank() const { return op_.rank(); }

    [[nodiscard]] std::uint64_t given(std::span<const runtime::CallTensor> tensors,
                                      std::string_view name) const {
        const auto operand = std::ranges::find(operands_, name, &runtime::Operand::name);
        return tensors[static_cast<std::size_t>(operand - operands_.begin())].address;
    }
    template <typename T>
    [[nodiscard]] T* scratch(const char* name) const {
        return reinterpret_cast<T*>(scratch_at_ + scratch_.places.find(name)->second.offset);
    }
    [[nodiscard]] Result<std::uint64_t> heap(const char* tensor, std::int64_t of_rank) const {
        return op_.tensor_address(tensor, static_cast<int>(of_rank));
    }

    [[nodiscard]] std::int64_t id_of(std::span<const runtime::CallTensor> tensors, std::int64_t route) const {
        const std::uint64_t ids = given(tensors, "topk_ids");
        return int32_ids_ ? reinterpret_cast<const std::int32_t*>(ids)[route]
                          : reinterpret_cast<const std::int64_t*>(ids)[route];
    }
    /// The number of a route's expert; experts_: it names none.
    [[nodiscard]] std::int64_t expert_of(std::span<const runtime::CallTensor> tensors,
                                         std::int64_t route) const {
        const std::int64_t id = id_of(tensors, route);
        return id < 0 || id >= experts_ ? experts_ : id;
    }

    // The kernels.

    [[nodiscard]] Status count(const TableSlot& slot, std::span<const runtime::CallTensor> tensors) const {
        const std::int64_t expert = slot.tile % (experts_ + 1);
        std::int32_t so_far = 0;
        for (std::int64_t route = 0; route < routes_; ++route) {
            if (id_of(tensors, route) != ops::kNoRoute && expert_of(tensors, route) == expert)
                scratch<std::int32_t>("position")[route] = so_far++;
        }
        for (std::int64_t peer = 0; peer < ranks_; ++peer) {
            SYNCOPATE_TAKE(const std::uint64_t there, heap("counts", peer));
            reinterpret_cast<std::int32_t*>(there)[rank() * (experts_ + 1) + expert] = so_far;
        }
        return Done{};
    }

    /// Of the groups of rank `peer`, expert by expert and of each rank by rank.
    struct Laid {
        std::vector<plan::Interval> places;
        Groups runs;  ///< of an expert
        std::int64_t over = 0;
    };
    [[nodiscard]] Laid laid_at(const std::int32_t* counts, std::int64_t peer) const {
        std::vector<std::int64_t> of_groups;
        std::int64_t all = 0;
        for (std::int64_t expert = peer * own_; expert < (peer + 1) * own_; ++expert) {
            for (std::int64_t source = 0; source < ranks_; ++source) {
                of_groups.push_back(counts[source * (experts_ + 1) + expert]);
                all += of_groups.back();
            }
        }
        Laid made{.places =
                      plan::lay_groups(of_groups, {.run = ranks_, .align = tile_.block_m, .bound = bound_})};
        for (std::int64_t expert = 0; expert < own_; ++expert) {
            const std::int64_t begin = made.places[at(expert * ranks_)].begin;
            made.runs.begin.push_back(begin);
            made.runs.rows.push_back(made.places[at((expert + 1) * ranks_ - 1)].end - begin);
            all -= made.runs.rows.back();
        }
        made.over = all;
        return made;
    }

    [[nodiscard]] Status lay_out(std::span<const runtime::CallTensor> tensors) const {
        SYNCOPATE_TAKE(const std::uint64_t place, heap("counts", rank()));
        const auto* const counts = reinterpret_cast<const std::int32_t*>(place);
        const std::int32_t* const mine = counts + rank() * (experts_ + 1);
        auto* const group = scratch<std::int32_t>("group");
        auto* const sent = scratch<std::int32_t>("sent");
        std::int32_t before = 0;
        for (std::int64_t expert = 0; expert < experts_; ++expert) {
            group[expert] = before;
            before += mine[expert];
        }
        std::int64_t over = 0;
        std::uint32_t bad = 0;
        Groups going;
        for (std::int64_t peer = 0; peer < ranks_; ++peer) {
            const Laid laid = laid_at(counts, peer);
            over = std::max(over, laid.over);
            bad += static_cast<std::uint32_t>(counts[peer * (experts_ + 1) + experts_]);
            for (std::int64_t expert = 0; expert < own_; ++expert) {
                const plan::Interval& there = laid.places[at(expert * ranks_ + rank())];
                const std::int64_t of_all = peer * own_ + expert;
                sent[of_all] = static_cast<std::int32_t>(there.begin);
                sent[experts_ + of_all] = static_cast<std::int32_t>(there.size());
                going.begin.push_back(group[of_all]);
                going.rows.push_back(there.size());
            }
        }
        auto* const seen = scratch<std::uint32_t>(ops::kSeen);
        seen[ops::kOver] = std::max(seen[ops::kOver], static_cast<std::uint32_t>(over));
        seen[ops::kBad] += bad;
        seen[ops::kCallsOver] += over > 0 ? 1 : 0;
        seen[ops::kCallsBad] += bad > 0 ? 1 : 0;
        for (std::int64_t route = 0; route < routes_; ++route) {
            const std::int64_t expert = expert_of(tensors, route);
            if (expert == experts_) continue;
            scratch<std::int32_t>("order")[group[expert] + scratch<std::int32_t>("position")[route]] =
                static_cast<std::int32_t>(route);
        }
        // The next rank's experts first: all ranks sending to one would leave the links to the others idle.
        make_slots(words_of("moe_dispatch"), 0, going, tile_.block_m, 1, (rank() + 1) % ranks_ * own_);
        const Laid own = laid_at(counts, rank());
        make_slots(words_of("moe_up"), rank() * own_, own.runs, tile_.block_m,
                   ceil_div(inner_, tile_.block_n), 0);
        make_slots(words_of("moe_down"), rank() * own_, own.runs, tile_.block_m,
                   ceil_div(hidden_, tile_.block_n), 0);
        return Done{};
    }

    [[nodiscard]] std::int32_t* words_of(std::string_view kernel) const {
        const auto& stages = planned_->launch.stages;
        const auto stage =
            std::ranges::find(stages, kernel, &emit::KernelLaunch::kernel);  // host_mixture saw it
        return reinterpret_cast<std::int32_t*>(
            op_.table_address(static_cast<std::size_t>(stage - stages.begin())));
    }

    [[nodiscard]] Status dispatch(const TableSlot& slot, std::span<const runtime::CallTensor> tensors) const {
        const std::int64_t item = static_cast<std::int64_t>(plan::size_of(dtype_));
        const std::int64_t peer = slot.group / own_;
        SYNCOPATE_TAKE(const std::uint64_t x, heap("X", peer));
        SYNCOPATE_TAKE(const std::uint64_t origin, heap("origin", peer));
        for (std::int64_t i = 0; i < slot.rows; ++i) {
            const std::int64_t route = scratch<std::int32_t>("order")[slot.tile + i];
            const std::int64_t row = scratch<std::int32_t>("sent")[slot.group] + slot.tile + i -
                                     scratch<std::int32_t>("group")[slot.group];
            reinterpret_cast<std::int32_t*>(origin)[row] =
                static_cast<std::int32_t>(rank() * routes_ + route);
            const auto* const from =
                reinterpret_cast<const char*>(given(tensors, "x")) + route / topk_ * hidden_ * item;
            std::copy_n(from, hidden_ * item, reinterpret_cast<char*>(x) + row * hidden_ * item);
        }
        return Done{};
    }

    /// One element of rows @ w of an expert; w has `columns`, K is `depth`.
    [[nodiscard]] float product(std::uint64_t rows, std::int64_t row, std::int64_t depth, std::uint64_t w,
                                std::int64_t expert, std::int64_t columns, std::int64_t column) const {
        float sum = 0;
        for (std::int64_t k = 0; k < depth; ++k)
            sum += element(dtype_, rows, row * depth + k) *
                   element(dtype_, w, (expert * depth + k) * columns + column);
        return sum;
    }

    [[nodiscard]] Status up(const TableSlot& slot, std::span<const runtime::CallTensor> tensors) const {
        SYNCOPATE_TAKE(const std::uint64_t x, heap("X", rank()));
        SYNCOPATE_TAKE(const std::uint64_t a, heap("A", rank()));
        const std::uint64_t w = given(tensors, "w1");
        each(slot, inner_, [&](std::int64_t row, std::int64_t column) {
            const float gate = product(x, row, hidden_, w, slot.group, 2 * inner_, column);
            const float value = product(x, row, hidden_, w, slot.group, 2 * inner_, inner_ + column);
            set_element(dtype_, a, row * inner_ + column, activated(planned_->activation, gate) * value);
        });
        return Done{};
    }

    [[nodiscard]] Status down(const TableSlot& slot, std::span<const runtime::CallTensor> tensors) const {
        SYNCOPATE_TAKE(const std::uint64_t a, heap("A", rank()));
        SYNCOPATE_TAKE(const std::uint64_t origin, heap("origin", rank()));
        std::vector<std::uint64_t> y;
        for (std::int64_t peer = 0; peer < ranks_; ++peer) {
            SYNCOPATE_TAKE(const std::uint64_t there, heap("Y", peer));
            y.push_back(there);
        }
        const std::uint64_t w = given(tensors, "w2");
        each(slot, hidden_, [&](std::int64_t row, std::int64_t column) {
            const std::int64_t from = reinterpret_cast<const std::int32_t*>(origin)[row];
            set_element(planned_->problem.out, y[at(from / routes_)], from % routes_ * hidden_ + column,
                        product(a, row, inner_, w, slot.group, hidden_, column));
        });
        return Done{};
    }

    /// The rows and columns of a slot's tile, of `columns` in all.
    template <typename Each>
    void each(const TableSlot& slot, std::int64_t columns, const Each& one) const {
        const std::int64_t across = ceil_div(columns, tile_.block_n);
        const std::int64_t first = slot.tile % across * tile_.block_n;
        for (std::int64_t row = slot.tile / across; row < slot.tile / across + slot.rows; ++row) {
            for (std::int64_t column = first; column < std::min<std::int64_t>(first + tile_.block_n, columns);
                 ++column)
                one(row, column);
        }
    }

    [[nodiscard]] Status combine(const TableSlot& slot, std::span<const runtime::CallTensor> tensors) const {
        SYNCOPATE_TAKE(const std::uint64_t y, heap("Y", rank()));
        SYNCOPATE_TAKE(const std::uint64_t done, heap("done", rank()));
        const std::vector<plan::Tensor>& all = op_.schedule().tensors;
        const std::int64_t each =
            std::ranges::find(all, std::string_view("done"), &plan::Tensor::name)->shape[1];
        const std::int64_t block = slot.tile % each;
        const auto* const weights = reinterpret_cast<const float*>(given(tensors, "topk_weights"));
        for (std::int64_t token = block; token < tokens_; token += each) {
            for (std::int64_t column = 0; column < hidden_; ++column) {
                float total = 0;
                for (std::int64_t route = token * topk_; route < (token + 1) * topk_; ++route) {
                    const std::int64_t expert = expert_of(tensors, route);
                    const bool came =
                        expert < experts_ && scratch<std::int32_t>("position")[route] <
                                                 scratch<std::int32_t>("sent")[experts_ + expert];
                    if (came)
                        total += weights[route] * element(planned_->problem.out, y, route * hidden_ + column);
                }
                set_element(planned_->problem.out, given(tensors, "y"), token * hidden_ + column, total);
            }
        }
        reinterpret_cast<std::int32_t*>(done)[rank() * each + block] = 1;
        return Done{};
    }

    std::shared_ptr<const Planned> planned_;
    std::vector<runtime::Operand> operands_;
    runtime::FusedOp& op_;
    Scratch scratch_;
    std::uint64_t scratch_at_;
    std::int64_t ranks_, tokens_, experts_, topk_, hidden_, inner_;
    std::int64_t own_;  ///< experts of a rank
    std::int64_t routes_;
    std::int64_t bound_;
    plan::DType dtype_;
    bool int32_ids_ = false;
    ops::TileConfig tile_;
};

}  // namespace

Result<runtime::Executable::HostKernels> host_mixture(std::shared_ptr<const Planned> planned,
                                                      std::vector<runtime::Operand> operands,
                                                      runtime::FusedOp& op, std::uint64_t scratch) {
    if (planned->strategy.tiles.empty())
        return Error{"moe: its strategy says no tiles", {}, ErrorClass::usage};
    for (const std::string_view kernel : kKernels) {
        if (std::ranges::find(planned->launch.stages, kernel, &emit::KernelLaunch::kernel) ==
            planned->launch.stages.end())
            return Error{fmt::format("moe: its program has no stage {}", kernel), {}, ErrorClass::usage};
    }
    if (planned->launch.stages.size() != std::size(kKernels))
        return Error{fmt::format("moe: its program has {} stages, of which {} are known on host",
                                 planned->launch.stages.size(), std::size(kKernels)),
                     {},
                     ErrorClass::usage};
    auto made = std::make_shared<const HostMixture>(std::move(planned), std::move(operands), op, scratch);
    return runtime::Executable::HostKernels(
        [made](std::span<const runtime::CallTensor> tensors) { return made->run(tensors); });
}

}  // namespace syncopate::bundle
