#include "bundle/host_grouped.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "bundle/host_slots.hpp"
#include "syncopate/at.hpp"
#include "syncopate/emit/layout.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/plan/model/ragged.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/runtime/host/table_player.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

namespace table = emit::table;
using Of = ops::Parameter::Of;
using runtime::TableSlot;

enum Stage : std::size_t { kCounts, kLayout, kRows, kUsers };
static_assert(kUsers == ops::kRaggedStages);

/// Of one executable.
class HostGrouped {
public:
    using Tensors = std::span<const runtime::CallTensor>;

    HostGrouped(std::shared_ptr<const Planned> planned, std::vector<runtime::Operand> operands,
                runtime::FusedOp& op, std::uint64_t scratch, TileKernel tiles)
        : planned_(std::move(planned)),
          operands_(std::move(operands)),
          op_(op),
          scratch_(scratch_of(*planned_)),
          scratch_at_(scratch),
          tiles_(std::move(tiles)),
          program_(*planned_->grouped),
          of_(program_.of) {}

    [[nodiscard]] Status run(Tensors tensors) const {
        for (std::size_t stage = 0; stage < planned_->launch.stages.size(); ++stage) {
            Tile user{.stage = static_cast<std::int32_t>(stage) - static_cast<std::int32_t>(kUsers)};
            if (is_users(stage)) {
                SYNCOPATE_TAKE(user.tensors, tensors_of(stage, tensors));
            }
            const auto make = [&](const TableSlot& slot) -> Status {
                if (stage == kLayout) return Done{};  // a slot of it only waits
                if (stage == kCounts) return count(tensors);
                if (stage == kRows) return send(slot, tensors);
                if (!is_users(stage)) return stage == back_stage() ? send_back(slot) : take(slot, tensors);
                user.tile = slot.tile;
                return tiles_(user);
            };
            SYNCOPATE_TRY(runtime::play_made_table(op_, stage, make));
            if (!op_.poll()) return Done{};  // what a stage would read has not come: end_call says which
            if (stage == kLayout) {
                SYNCOPATE_TRY(lay_out());
            }
        }
        return Done{};
    }

private:
    [[nodiscard]] std::size_t back_stage() const { return kUsers + program_.users.size(); }
    [[nodiscard]] bool is_users(std::size_t stage) const { return stage >= kUsers && stage < back_stage(); }
    [[nodiscard]] std::int64_t rank() const { return op_.rank(); }

    [[nodiscard]] std::uint64_t given(Tensors tensors, const std::string& name) const {
        const auto operand = std::ranges::find(operands_, name, &runtime::Operand::name);
        return tensors[static_cast<std::size_t>(operand - operands_.begin())].address;
    }
    template <typename T = std::int32_t>
    [[nodiscard]] T* scratch(const std::string& name) const {
        return reinterpret_cast<T*>(scratch_at_ + scratch_.places.find(name)->second.offset);
    }
    template <typename T>
    [[nodiscard]] Result<T*> heap(const std::string& tensor, std::int64_t of_rank) const {
        SYNCOPATE_TAKE(const std::uint64_t address, op_.tensor_address(tensor, static_cast<int>(of_rank)));
        return reinterpret_cast<T*>(address);
    }
    [[nodiscard]] std::int32_t* table_of(std::size_t stage) const {
        return reinterpret_cast<std::int32_t*>(op_.table_address(stage));
    }
    /// Of the counts that this rank has, those of rank `source`.
    [[nodiscard]] Result<const std::int32_t*> counts_of(std::int64_t source) const {
        SYNCOPATE_TAKE(const std::int32_t* const all, heap<const std::int32_t>(of_.counts, rank()));
        return all + source * (of_.experts + 1);
    }

    /// As ragged_counts.
    [[nodiscard]] Status count(Tensors tensors) const {
        constexpr std::int64_t kMost = std::int64_t{1} << 30;
        const auto* const mine = reinterpret_cast<const std::int32_t*>(given(tensors, of_.counts));
        std::vector<std::int32_t> told;
        std::int64_t left = of_.rows.rows, wrong = 0;
        for (std::int64_t expert = 0; expert < of_.experts; ++expert) {
            const std::int64_t most = std::clamp<std::int64_t>(mine[expert], 0, kMost);
            const std::int64_t taken = std::min(most, left);
            left -= taken;
            wrong += std::min(std::abs(std::int64_t{mine[expert]} - taken), kMost);
            told.push_back(static_cast<std::int32_t>(taken));
        }
        told.push_back(static_cast<std::int32_t>(std::min(wrong, kMost / of_.ranks)));
        for (std::int64_t peer = 0; peer < of_.ranks; ++peer) {
            SYNCOPATE_TAKE(std::int32_t* const there, heap<std::int32_t>(of_.counts, peer));
            std::ranges::copy(told, there + rank() * (of_.experts + 1));
        }
        return Done{};
    }

    /// Of the groups that come to rank `peer`, expert by expert and of each rank by rank.
    struct Laid {
        std::vector<plan::Interval> places;
        HostGroups runs;  ///< of an expert
        std::int64_t over = 0;
    };
    [[nodiscard]] Result<Laid> laid_at(std::int64_t peer) const {
        std::vector<std::int64_t> of_groups;
        Laid made;
        for (std::int64_t expert = peer * of_.own; expert < (peer + 1) * of_.own; ++expert) {
            for (std::int64_t source = 0; source < of_.ranks; ++source) {
                SYNCOPATE_TAKE(const std::int32_t* const counts, counts_of(source));
                of_groups.push_back(counts[expert]);
                made.over += counts[expert];
            }
        }
        made.places = plan::lay_groups(of_groups, {.run = of_.ranks, .align = 1, .bound = of_.bound});
        for (std::int64_t expert = 0; expert < of_.own; ++expert) {
            const std::int64_t begin = made.places[at(expert * of_.ranks)].begin;
            made.runs.begin.push_back(begin);
            made.runs.rows.push_back(made.places[at((expert + 1) * of_.ranks - 1)].end - begin);
            made.over -= made.runs.rows.back();
        }
        return made;
    }

    /// As ragged_layout.
    [[nodiscard]] Status lay_out() const {
        SYNCOPATE_TAKE(const std::int32_t* const mine, counts_of(rank()));
        std::int32_t before = 0;
        for (std::int64_t expert = 0; expert < of_.experts; ++expert) {
            scratch("group")[expert] = before;
            before += mine[expert];
        }
        HostGroups going;
        std::int64_t over = 0;
        std::uint32_t bad = 0;
        for (std::int64_t peer = 0; peer < of_.ranks; ++peer) {
            SYNCOPATE_TAKE(const Laid laid, laid_at(peer));
            SYNCOPATE_TAKE(const std::int32_t* const counts, counts_of(peer));
            over = std::max(over, laid.over);
            bad += static_cast<std::uint32_t>(counts[of_.experts]);
            for (std::int64_t expert = 0; expert < of_.own; ++expert) {
                const plan::Interval& there = laid.places[at(expert * of_.ranks + rank())];
                const std::int64_t of_all = peer * of_.own + expert;
                scratch("sent")[of_all] = static_cast<std::int32_t>(there.begin);
                scratch("sent")[of_.experts + of_all] = static_cast<std::int32_t>(there.size());
                going.begin.push_back(scratch("group")[of_all]);
                going.rows.push_back(there.size());
            }
        }
        tell_of_call({scratch<std::uint32_t>(ops::kSeen), ops::kSeenWords}, over, bad);
        SYNCOPATE_TAKE(const Laid own, laid_at(rank()));
        SYNCOPATE_TRY(make_slots(table_of(kRows), going, {.rows = program_.sending.rows},
                                 next_rank_first(rank(), of_.ranks, of_.own)));
        tell(own.runs);
        place_tiles(own.runs);
        return of_.back ? lay_out_back(own) : Done{};
    }

    /// Where the user's kernels find their experts' rows.
    void tell(const HostGroups& runs) const {
        std::int64_t block = 0;
        for (std::int64_t expert = 0; expert < of_.own; ++expert) {
            const std::int64_t begin = runs.begin[at(expert)], rows = runs.rows[at(expert)];
            scratch("offsets")[expert] = static_cast<std::int32_t>(begin);
            scratch("offsets")[expert + 1] = static_cast<std::int32_t>(begin + rows);
            scratch("ends")[expert] = static_cast<std::int32_t>(begin + rows);
            scratch("sizes")[expert] = static_cast<std::int32_t>(rows);
            for (std::int64_t row = 0; program_.block > 0 && row < rows; row += program_.block, ++block)
                tell_block(block, static_cast<std::int32_t>(expert), begin + row,
                           std::min(program_.block, rows - row));
        }
        scratch("padded")[0] = static_cast<std::int32_t>(block * program_.block);
        for (; block < program_.blocks; ++block) tell_block(block, 0, 0, 0);
    }
    void tell_block(std::int64_t block, std::int32_t expert, std::int64_t first, std::int64_t rows) const {
        scratch("experts")[block] = expert;
        for (std::int64_t i = 0; i < program_.block; ++i)
            scratch("places")[block * program_.block + i] =
                static_cast<std::int32_t>(i < rows ? first + i : of_.bound);
    }

    /// As _place_tiles.
    void place_tiles(const HostGroups& runs) const {
        const ops::RaggedKernel& user = program_.users.front();
        std::int32_t* const words = table_of(kUsers);
        const std::vector<const std::int32_t*> records = records_of(words, rank() * user.groups, user.groups);
        HostGroups groups = runs;  // that tiles wait for
        if (user.groups == 1) groups = {{0}, {scratch("offsets")[of_.own]}};
        std::int64_t total = 0;
        if (user.order.rows > 0) {
            for (const std::int64_t rows : runs.rows)
                total += ceil_div(rows, user.order.rows) * user.order.columns;
        }
        const bool counts = user.order.rows > 0 && user.kernel.persistent;
        words[table::num_slots] = static_cast<std::int32_t>(counts ? total : user.tiles);
        const std::vector<std::int32_t> none(table::slot_words, 0);
        for (std::int64_t tile = 0; tile < user.tiles; ++tile) {
            std::int64_t group = -1, row = 0;
            if (user.order.rows > 0) {
                group = in_order(user.order, tile, runs);
            } else {
                group = user.expert_of[at(tile)];
                row = user.row_of[at(tile)];
            }
            std::int32_t* const made = words + table::first_slot + table::slot_words * tile;
            const std::int64_t left = group < 0 ? 0 : groups.rows[at(group)] - row;
            std::copy_n(group < 0 ? none.data() : records[at(group)], table::slot_words, made);
            if (user.reads_on > 0 && group >= 0) reach_on(user.reads_on, runs, records, group, made);
            if (left <= 0) made[table::slot_waits] = made[table::slot_waits + 1] = 0;
            made[table::slot_tile] = static_cast<std::int32_t>(tile);
            made[table::slot_group] = static_cast<std::int32_t>(group);
            made[table::slot_rows] = static_cast<std::int32_t>(std::max<std::int64_t>(left, 0));
        }
    }

    /// The expert of a tile that is numbered expert after expert; -1: there is none.
    [[nodiscard]] std::int64_t in_order(const ops::RaggedOrder& order, std::int64_t tile,
                                        const HostGroups& runs) const {
        std::int64_t left = tile / order.apart % order.count;
        for (std::int64_t expert = 0; expert < of_.own; ++expert) {
            left -= ceil_div(runs.rows[at(expert)], order.rows) * order.columns;
            if (left < 0) return expert;
        }
        return -1;
    }

    /// An expert's last block reaches into the rows of those behind it, whose waits lie beside its own.
    void reach_on(std::int64_t block, const HostGroups& runs, const std::vector<const std::int32_t*>& records,
                  std::int64_t group, std::int32_t* made) const {
        const std::int64_t until = runs.begin[at(group)] + ceil_div(runs.rows[at(group)], block) * block;
        for (std::int64_t behind = group + 1; behind < of_.own; ++behind) {
            if (runs.rows[at(behind)] == 0 || runs.begin[at(behind)] >= until) continue;
            const std::int32_t* const record = records[at(behind)];
            made[table::slot_waits] = std::min(made[table::slot_waits], record[table::slot_waits]);
            made[table::slot_waits + 1] =
                std::max(made[table::slot_waits + 1], record[table::slot_waits + 1]);
        }
    }

    [[nodiscard]] Status lay_out_back(const Laid& own) const {
        HostGroups going;
        for (const plan::Interval& place : own.places) {
            scratch("from")[going.rows.size()] = static_cast<std::int32_t>(place.begin);
            going.begin.push_back(place.begin);
            going.rows.push_back(place.size());
        }
        for (std::int64_t source = 0; source < of_.ranks; ++source) {
            SYNCOPATE_TAKE(const std::int32_t* const counts, counts_of(source));
            std::int32_t before = 0;
            for (std::int64_t expert = 0; expert < of_.experts; ++expert) {
                if (expert / of_.own == rank())
                    scratch("to")[(expert % of_.own) * of_.ranks + source] = before;
                before += counts[expert];
            }
        }
        return make_slots(table_of(back_stage()), going,
                          {.first = rank() * of_.own * of_.ranks, .rows = ops::kRaggedTile},
                          bundle::in_order(static_cast<std::int64_t>(going.rows.size())));
    }

    [[nodiscard]] static std::int64_t row_bytes(const ops::RaggedTensor& of) {
        return of.columns * static_cast<std::int64_t>(plan::size_of(of.dtype));
    }

    [[nodiscard]] Status send(const TableSlot& slot, Tensors tensors) const {
        const std::int64_t row = scratch("sent")[slot.group] + slot.tile - scratch("group")[slot.group];
        for (const ops::RaggedTensor* const one : of_.brought()) {
            SYNCOPATE_TAKE(char* const there, heap<char>(one->name, slot.group / of_.own));
            const auto* const from = reinterpret_cast<const char*>(given(tensors, one->name));
            const std::int64_t bytes = row_bytes(*one);
            std::copy_n(from + slot.tile * bytes, slot.rows * bytes, there + row * bytes);
        }
        return Done{};
    }

    [[nodiscard]] Status send_back(const TableSlot& slot) const {
        SYNCOPATE_TAKE(char* const there, heap<char>(of_.back->name, slot.group % of_.ranks));
        SYNCOPATE_TAKE(const char* const from, heap<const char>(program_.made, rank()));
        const std::int64_t bytes = row_bytes(*of_.back);
        const std::int64_t row = scratch("to")[slot.group] + slot.tile - scratch("from")[slot.group];
        std::copy_n(from + slot.tile * bytes, slot.rows * bytes, there + row * bytes);
        return Done{};
    }

    /// What was made of this rank's rows; zeros for those over the bound.
    [[nodiscard]] Status take(const TableSlot& slot, Tensors tensors) const {
        SYNCOPATE_TAKE(const char* const came, heap<const char>(of_.back->name, rank()));
        SYNCOPATE_TAKE(const std::int32_t* const mine, counts_of(rank()));
        SYNCOPATE_TAKE(std::int32_t* const taken, heap<std::int32_t>(program_.taken, rank()));
        auto* const out = reinterpret_cast<char*>(given(tensors, of_.back->name));
        const std::int64_t bytes = row_bytes(*of_.back);
        const ops::Parameters& own = planned_->parameters.back();
        const std::int64_t programs = own.at("PROGRAMS").value, part = slot.tile % programs;
        for (std::int64_t expert = 0; expert < of_.experts; ++expert) {
            const std::int64_t begin = scratch("group")[expert];
            for (std::int64_t i = 0; i < mine[expert]; ++i) {
                const std::int64_t row = begin + i;
                if (row / ops::kRaggedTile % programs != part) continue;
                char* const there = out + row * bytes;
                if (i < scratch("sent")[of_.experts + expert])
                    std::copy_n(came + row * bytes, bytes, there);
                else
                    std::fill_n(there, bytes, '\0');
            }
        }
        taken[rank() * programs + part] = 1;
        return Done{};
    }

    /// Those of a user's kernel, whole.
    [[nodiscard]] Result<std::vector<TileTensor>> tensors_of(std::size_t stage, Tensors tensors) const {
        const ops::RaggedKernel& user = program_.users[stage - kUsers];
        const ops::Parameters& own = planned_->parameters[stage];
        std::vector<TileTensor> made;
        for (const auto& [param, tensor] : user.kernel.arguments.tensors) {
            TileTensor one{.parameter = param, .dtype = tensor.dtype};
            if (const auto found = own.find(param); found == own.end()) {  // it lies in the heap
                const std::string read = user.tensor_read(param);
                const ops::RaggedTensor& rows = read.empty()            ? *of_.back
                                                : read == of_.rows.name ? of_.rows
                                                                        : *of_.more;
                SYNCOPATE_TAKE(one.address, op_.tensor_address(read.empty() ? program_.made : read));
                one.shape = {rows.rows, rows.columns};
            } else {
                const ops::Parameter& of = found->second;
                one.address = of.of == Of::operand ? given(tensors, of.name)
                                                   : reinterpret_cast<std::uint64_t>(scratch<char>(of.name));
                one.shape = of.shape;
            }
            one.strides = row_major(one.shape);
            plan::Region whole;
            for (const std::int64_t extent : one.shape) whole.push_back({0, extent});
            const kernel::Param* const known = user.kernel.find_param(param);
            const bool written = known != nullptr && known->written;
            (written ? one.writes : one.reads).push_back(std::move(whole));
            made.push_back(std::move(one));
        }
        return made;
    }

    std::shared_ptr<const Planned> planned_;
    std::vector<runtime::Operand> operands_;
    runtime::FusedOp& op_;
    Scratch scratch_;
    std::uint64_t scratch_at_;
    TileKernel tiles_;
    const ops::RaggedProgram& program_;
    const ops::RaggedRows& of_;
};

}  // namespace

runtime::Executable::HostKernels host_grouped(std::shared_ptr<const Planned> planned,
                                              std::vector<runtime::Operand> operands, runtime::FusedOp& op,
                                              std::uint64_t scratch, TileKernel tiles) {
    const auto made = std::make_shared<const HostGrouped>(std::move(planned), std::move(operands), op,
                                                          scratch, std::move(tiles));
    return [made](std::span<const runtime::CallTensor> tensors) { return made->run(tensors); };
}

}  // namespace syncopate::bundle
