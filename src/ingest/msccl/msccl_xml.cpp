#include "syncopate/ingest/msccl/msccl_xml.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "ingest/msccl/msccl_algo.hpp"
#include "ingest/steps/buffers.hpp"
#include "ingest/steps/placement.hpp"
#include "ingest/steps/schedule.hpp"
#include "ingest/steps/weave.hpp"
#include "syncopate/at.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ingest {
namespace {

// The phases of a step: what it adds to is put in place, what arrives is written or added, the result is
// passed on.
constexpr std::int32_t kPrepare = 0;
constexpr std::int32_t kArrive = 1;
constexpr std::int32_t kPassOn = 2;

/// One direction of one channel between two ranks, and the steps at its ends.
struct Connection {
    std::vector<std::int32_t> sends;
    std::vector<std::int32_t> receives;
    std::int32_t sender = -1;  ///< tb
    std::int32_t receiver = -1;
};

class Translator {
public:
    Translator(const MscclAlgo& algo, const std::string& file_name, const ImportOptions& options)
        : algo_(algo), file_name_(file_name), options_(options) {}

    Result<Import> run() {
        import_.format = Format::msccl_xml;
        import_.name = algo_.name;
        import_.warnings = algo_.warnings;
        claim();
        if (!make_buffers() || !number_steps() || !connect() || !depend() || !move()) return *error_;
        SYNCOPATE_TRY(weave(std::move(schedule_), file_name_, buffers_->name(), import_));
        check_placement(*buffers_, import_);
        return std::move(import_);
    }

private:
    /// A step, found by its number.
    struct StepAt {
        std::int32_t rank;
        std::int32_t tb;
        std::int32_t index;
    };

    bool fail(std::int32_t line, std::string message) {
        error_ = Error{std::move(message), {file_name_, line}};
        return false;
    }
    bool fail_at(std::int32_t step, const std::string& problem) {
        const Step& place = schedule_.steps[at(step)];
        return fail(place.origin.line, describe(place) + ": " + problem);
    }

    [[nodiscard]] const MscclGpu& gpu(std::int32_t rank) const { return algo_.gpus[at(rank)]; }
    [[nodiscard]] const MscclThreadblock& tb(std::int32_t rank, std::int32_t index) const {
        return gpu(rank).threadblocks[at(index)];
    }
    [[nodiscard]] const MscclStep& step_of(std::int32_t step) const {
        const StepAt& place = places_[at(step)];
        static const MscclStep kCopy{};
        return place.tb < 0 ? kCopy : tb(place.rank, place.tb).steps[at(place.index)];
    }

    void claim() {
        auto& claims = import_.claims;
        claims.emplace_back("collective", algo_.collective.empty() ? "not said" : escaped(algo_.collective));
        claims.emplace_back("ranks", fmt::format("{}", algo_.gpus.size()));
        claims.emplace_back("chunks", fmt::format("{}", algo_.chunks));
        claims.emplace_back("in place", algo_.in_place ? "yes" : "no");
        claims.emplace_back("protocol", algo_.protocol);
        if (algo_.reduce == plan::Reduce::max) claims.emplace_back("reduce", "max");
        claims.emplace_back("channels", fmt::format("{}", algo_.channels));
        if (algo_.min_bytes != 0 || algo_.max_bytes != 0) {
            claims.emplace_back("bytes", algo_.max_bytes == 0
                                             ? fmt::format("from {}", algo_.min_bytes)
                                             : fmt::format("{} to {}", algo_.min_bytes, algo_.max_bytes));
        }
    }

    bool make_buffers() {
        constexpr std::array<std::pair<std::string_view, Collective>, 14> kCollectives{{
            {"", Collective::other},
            {"allgather", Collective::all_gather},
            {"allreduce", Collective::all_reduce},
            {"alltoall", Collective::all_to_all},
            {"alltoallv", Collective::other},
            {"broadcast", Collective::other},
            {"custom", Collective::other},
            {"gather", Collective::other},
            {"recv", Collective::other},
            {"reduce", Collective::other},
            {"reduce_scatter", Collective::reduce_scatter},
            {"reducescatter", Collective::reduce_scatter},
            {"scatter", Collective::other},
            {"send", Collective::other},
        }};
        const auto found = std::find_if(kCollectives.begin(), kCollectives.end(),
                                        [&](const auto& row) { return row.first == algo_.collective; });
        if (found == kCollectives.end()) {
            return fail(algo_.line, fmt::format("coll=\"{}\" is no collective that MSCCL knows",
                                                escaped(algo_.collective)));
        }
        BufferSizes sizes;
        sizes.collective = found->second;
        sizes.ranks = static_cast<std::int32_t>(algo_.gpus.size());
        sizes.in_place = algo_.in_place;
        sizes.input = sizes.output = algo_.chunks;
        const std::int64_t share = algo_.chunks / sizes.ranks;
        const bool shared =
            sizes.collective != Collective::other && sizes.collective != Collective::all_reduce;
        if (shared && share * sizes.ranks != algo_.chunks) {
            return fail(algo_.line, fmt::format("says {}, and its {} chunks cannot be shared by {} ranks",
                                                algo_.collective, algo_.chunks, sizes.ranks));
        }
        if (sizes.collective == Collective::all_gather) sizes.input = share;
        if (sizes.collective == Collective::reduce_scatter) sizes.output = share;
        for (const MscclGpu& gpu : algo_.gpus) {
            sizes.scratch = std::max(sizes.scratch, gpu.scratch_chunks);
            if (sizes.collective != Collective::other) continue;
            sizes.input = std::max(sizes.input, gpu.input_chunks);
            sizes.output = std::max(sizes.output, gpu.output_chunks);
        }
        if (sizes.collective == Collective::other)
            import_.warnings.emplace_back(
                "what this collective must end with is not known; nothing is asked of the end");
        Result<Buffers> made = Buffers::make(sizes, options_.tensor, import_.plan);
        if (!made) {
            error_ = made.error();
            return false;
        }
        buffers_ = *std::move(made);
        return true;
    }

    bool number_steps() {
        std::int32_t worker = 0;
        for (std::int32_t rank = 0; static_cast<std::size_t>(rank) < algo_.gpus.size(); ++rank) {
            auto& first = first_step_.emplace_back();
            const auto& copies = gpu(rank).copies;
            // In place, the input is the output already.
            for (std::size_t i = 0; i < copies.size() && !algo_.in_place; ++i) {
                places_.push_back({rank, -1, static_cast<std::int32_t>(i)});
                schedule_.steps.push_back({rank, worker, {copies[i].line, fmt::format("copy {}", i)}});
            }
            ++worker;
            const auto last_copy = static_cast<std::int32_t>(schedule_.steps.size()) - 1;
            for (std::int32_t t = 0; static_cast<std::size_t>(t) < gpu(rank).threadblocks.size();
                 ++t, ++worker) {
                first.push_back(static_cast<std::int32_t>(schedule_.steps.size()));
                const auto& steps = tb(rank, t).steps;
                for (std::size_t i = 0; i < steps.size(); ++i) {
                    places_.push_back({rank, t, static_cast<std::int32_t>(i)});
                    schedule_.steps.push_back(
                        {rank, worker, {steps[i].line, fmt::format("tb {} step {}", t, i)}});
                }
                if (!copies.empty() && !algo_.in_place && !steps.empty())
                    schedule_.edges.push_back({last_copy, first.back()});
            }
        }
        return true;
    }

    /// The k-th send of a connection meets its k-th receive.
    bool connect() {
        // from, to, channel.
        std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Connection> connections;
        for (std::int32_t step = 0; static_cast<std::size_t>(step) < places_.size(); ++step) {
            const StepAt& place = places_[at(step)];
            if (place.tb < 0) continue;
            const MscclThreadblock& block = tb(place.rank, place.tb);
            const MscclEffect effect = effect_of(step_of(step).type);
            if (effect.sends) {
                Connection& to = connections[{place.rank, block.send, block.channel}];
                if (to.sender >= 0 && to.sender != place.tb)
                    return fail_at(
                        step,
                        fmt::format(
                            "sends to rank {} on channel {}, as tb {} does; a connection belongs to one tb",
                            block.send, block.channel, to.sender));
                to.sender = place.tb;
                to.sends.push_back(step);
            }
            if (effect.receives) {
                Connection& from = connections[{block.receive, place.rank, block.channel}];
                if (from.receiver >= 0 && from.receiver != place.tb)
                    return fail_at(step, fmt::format("receives from rank {} on channel {}, as tb {} does; a "
                                                     "connection belongs to one tb",
                                                     block.receive, block.channel, from.receiver));
                from.receiver = place.tb;
                from.receives.push_back(step);
            }
        }
        sent_by_.assign(places_.size(), -1);
        fifo_.assign(places_.size(), -1);
        std::int32_t number = 0;
        for (const auto& [key, connection] : connections) {
            const auto& [from, to, channel] = key;
            const std::size_t met = std::min(connection.sends.size(), connection.receives.size());
            if (connection.sends.size() > met)
                return fail_at(connection.sends[met],
                               fmt::format("sends message {} to rank {} on channel {}, which receives {}",
                                           met + 1, to, channel, met));
            if (connection.receives.size() > met)
                return fail_at(connection.receives[met],
                               fmt::format("waits for message {} from rank {} on channel {}, which sends {}",
                                           met + 1, from, channel, met));
            for (std::size_t k = 0; k < met; ++k) {
                const std::int32_t send = connection.sends[k];
                const std::int32_t receive = connection.receives[k];
                if (step_of(send).count != step_of(receive).count)
                    return fail_at(receive,
                                   fmt::format("receives {} chunks, and {} sends {}", step_of(receive).count,
                                               describe(schedule_.steps[at(send)]), step_of(send).count));
                sent_by_[at(receive)] = send;
                fifo_[at(receive)] = number;
                schedule_.edges.push_back({send, receive, Edge::Kind::message});
                // The slot of an earlier message is free once that has been received. How many slots there
                // are is up to the runtime, so this order is no reason to believe that data has arrived.
                const auto slots = static_cast<std::size_t>(options_.fifo_slots);
                if (k >= slots)
                    schedule_.edges.push_back({connection.receives[k - slots], send, Edge::Kind::order});
            }
            ++number;
        }
        return true;
    }

    bool depend() {
        for (std::int32_t step = 0; static_cast<std::size_t>(step) < places_.size(); ++step) {
            const StepAt& place = places_[at(step)];
            const MscclStep& mine = step_of(step);
            if (place.tb < 0 || mine.dependence_tb < 0) continue;
            const auto& blocks = gpu(place.rank).threadblocks;
            const auto target_tb = static_cast<std::size_t>(mine.dependence_tb);
            if (target_tb >= blocks.size() ||
                static_cast<std::size_t>(mine.dependence_step) >= blocks[target_tb].steps.size())
                return fail_at(step, fmt::format("depends on tb {} step {}, which does not exist",
                                                 mine.dependence_tb, mine.dependence_step));
            if (!blocks[target_tb].steps[at(mine.dependence_step)].has_dependent)
                return fail_at(
                    step,
                    fmt::format(
                        "depends on tb {} step {}, which has hasdep=\"0\" and so never tells that it is done",
                        mine.dependence_tb, mine.dependence_step));
            schedule_.edges.push_back({first_step_[at(place.rank)][target_tb] + mine.dependence_step, step});
        }
        return true;
    }

    bool operand(std::int32_t step, std::string_view what, const MscclOperand& operand, std::int64_t count,
                 Span& out) {
        const std::int32_t rank = places_[at(step)].rank;
        const std::int64_t size =
            operand.buffer == Buffer::scratch ? gpu(rank).scratch_chunks : buffers_->chunks(operand.buffer);
        if (operand.index + count > size)
            return fail_at(step, fmt::format("{} is chunks {} to {} of {}, which has {}", what, operand.index,
                                             operand.index + count - 1, name_of(operand.buffer), size));
        // The sizes follow from the collective, and the file says them once more.
        const bool input = operand.buffer == Buffer::input;
        const std::int64_t said = input ? gpu(rank).input_chunks : gpu(rank).output_chunks;
        if (operand.buffer != Buffer::scratch && operand.index + count > said && !beyond_said_) {
            beyond_said_ = true;
            import_.warnings.push_back(fmt::format(
                "{}: {} is chunks {} to {} of {}, and <gpu id=\"{}\"> says {}=\"{}\"; {} are taken",
                describe(schedule_.steps[at(step)]), what, operand.index, operand.index + count - 1,
                name_of(operand.buffer), rank, input ? "i_chunks" : "o_chunks", said, size));
        }
        out = buffers_->span(rank, operand.buffer, operand.index, count);
        return true;
    }

    bool separate(std::int32_t step, const Span& src, const Span& dst) {
        if (src.tensor != dst.tensor || src.rows.end <= dst.rows.begin || dst.rows.end <= src.rows.begin)
            return true;
        return fail_at(step, "src and dst overlap in one buffer");
    }

    void local(std::int32_t step, std::int32_t phase, const Span& src, const Span& dst, plan::Reduce reduce) {
        schedule_.moves.push_back({plan::OpKind::local, src, dst, {step, phase}, {step, phase}, reduce});
    }

    bool move() {
        result_.assign(places_.size(), Span{});
        sum_rows_.assign(algo_.gpus.size(), 0);
        sums_tensor_ = static_cast<std::int32_t>(import_.plan.tensors.size());
        std::vector<std::int32_t> receives;
        for (std::int32_t step = 0; static_cast<std::size_t>(step) < places_.size(); ++step) {
            if (!move_locally(step)) return false;
            if (sent_by_[at(step)] >= 0) receives.push_back(step);
        }
        // What a step passes on is known by now.
        for (const std::int32_t step : receives) {
            const std::int32_t send = sent_by_[at(step)];
            const MscclType type = step_of(step).type;
            schedule_.moves.push_back({plan::OpKind::push,
                                       result_[at(send)],
                                       result_[at(step)],
                                       {send, kPassOn},
                                       {step, kArrive},
                                       reduces(type) ? algo_.reduce : plan::Reduce::none,
                                       fifo_[at(step)]});
        }
        if (const std::int64_t most = *std::max_element(sum_rows_.begin(), sum_rows_.end()); most > 0) {
            plan::Tensor sums = import_.plan.tensors.front();
            sums.name = buffers_->name() + ".sums";
            sums.shape.front() = most;
            import_.plan.tensors.push_back(std::move(sums));
        }
        return true;
    }

    /// What a step does in its own rank's memory; result_ is what it sends or where it receives.
    bool move_locally(std::int32_t step) {
        const StepAt& place = places_[at(step)];
        Span& result = result_[at(step)];
        Span src;
        Span dst;
        if (place.tb < 0) {
            const MscclCopy& copy = gpu(place.rank).copies[at(place.index)];
            if (!operand(step, "i_off", {Buffer::input, copy.input}, 1, src) ||
                !operand(step, "o_off", {Buffer::output, copy.output}, 1, dst))
                return false;
            local(step, kPrepare, src, dst, plan::Reduce::none);
            return true;
        }
        const MscclStep& mine = step_of(step);
        const MscclEffect effect = effect_of(mine.type);
        if ((effect.reads_src && !operand(step, "src", mine.src, mine.count, src)) ||
            (effect.uses_dst && !operand(step, "dst", mine.dst, mine.count, dst)))
            return false;
        switch (mine.type) {
            case MscclType::nop: break;
            case MscclType::s: result = src; break;
            case MscclType::r:
            case MscclType::rcs: result = dst; break;
            case MscclType::cpy:
                if (src == dst) break;  // in place, the same chunk by its two names
                if (!separate(step, src, dst)) return false;
                local(step, kPrepare, src, dst, plan::Reduce::none);
                break;
            case MscclType::re:
                if (!separate(step, src, dst)) return false;
                local(step, kPrepare, src, dst, algo_.reduce);
                break;
            case MscclType::rrs: {
                std::int64_t& used = sum_rows_[at(place.rank)];
                result = {place.rank, sums_tensor_, {used, used + src.rows.size()}};
                used = result.rows.end;
                local(step, kPrepare, src, result, plan::Reduce::none);
                break;
            }
            case MscclType::rrc:
            case MscclType::rrcs:
                result = dst;
                if (src == dst) break;
                if (!separate(step, src, dst)) return false;
                local(step, kPrepare, src, dst, plan::Reduce::none);
                break;
        }
        return true;
    }

    const MscclAlgo& algo_;
    const std::string& file_name_;
    const ImportOptions& options_;
    Import import_;
    std::optional<Buffers> buffers_;
    Schedule schedule_;
    std::vector<StepAt> places_;                         ///< by step
    std::vector<std::vector<std::int32_t>> first_step_;  ///< by rank and tb
    std::vector<std::int32_t> sent_by_;                  ///< by receiving step: the send that it meets
    std::vector<std::int32_t> fifo_;                     ///< by receiving step: its connection
    std::vector<Span> result_;
    std::vector<std::int64_t> sum_rows_;  ///< by rank: rows of NAME.sums in use
    std::int32_t sums_tensor_ = -1;
    bool beyond_said_ = false;  ///< told of a step beyond what its gpu says to have
    std::optional<Error> error_;
};

}  // namespace

Result<Import> read_msccl_xml(std::string_view text, const std::string& file_name,
                              const ImportOptions& options) {
    SYNCOPATE_TAKE(const MscclAlgo algo, read_msccl_algo(text, file_name));
    return Translator(algo, file_name, options).run();
}

}  // namespace syncopate::ingest
