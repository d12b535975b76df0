// Mixture of experts, tensor parallel: of all experts rank r has columns [r · F / R, (r + 1) · F / R), and T
// tokens of H.
//
//     count      how many of this rank's rows go to each expert; every rank is told
//     gather     tokens, and of each the experts, their weights and its place among their rows, at all ranks
//     layout     where each group (source rank × expert) lies, and the tables of the two products
//     spread     a row of each route, expert by expert; a token's tile starts when it is there
//     up, down   as of expert parallel ones (moe.cpp); `down` makes a part of each sum over F
//     sum        of a token the topk rows, by their weights, in the order of k in fp32; stored at its rank
//     reduce     the sum over ranks, in their order in fp32
//
// Every rank gets all rows, so there is no bound to be over. A token travels once, and is a row for each of its
// experts only then. The kernels are python/syncopate/kernels/moe_tensor.py.
//
// `part`: "dispatch" ends with `spread`; "combine" begins with rows that lie so, and takes what they make of the
// weights of the routes along ("dots"); "kept" is all of it, and leaves what a backward pass needs.
//
// Tokens of fp8 bring their scales with them, as rows of moe.cpp's do.
#include <algorithm>

#include <fmt/format.h>

#include "ops/mixture.hpp"
#include "syncopate/ops/mixture.hpp"

namespace syncopate::ops {
namespace {

using plan::Interval;

constexpr std::int64_t kRouteWords = 3;  // expert, place among its rows, weight
constexpr std::int64_t kPieces = 4;      // in which a rank's tokens go to another one

class TensorMoe final : public Mixture {
public:
    TensorMoe(const Problem& problem, const Strategy& strategy)
        : Mixture(problem, strategy),
          routes_(of_.tokens * of_.topk),
          block_(mixture_block(of_.tokens, of_.programs)),
          blocks_(MixtureSizes::blocks(of_.tokens, block_)) {}

    Outline outline() override {
        if (part_ != "combine") {
            add_counts();
            add_gathered();
            add_spread();
        }
        if (part_ != "dispatch") {
            if (part_ != "combine") add_inner();
            add_sums();
        }
        if (part_ == "dispatch" || part_ == "kept") keep();
        return finished();
    }

private:
    [[nodiscard]] Interval ranks() const { return {0, of_.ranks}; }
    [[nodiscard]] Interval experts() const { return {0, of_.experts}; }
    [[nodiscard]] Interval columns() const { return {0, of_.hidden}; }

    /// What the caller may read until the next call.
    void keep() {
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            hold(plan_.final, rank, counts_, {ranks(), {0, of_.experts + 1}});
            hold(plan_.final, rank, tokens_, {ranks(), {0, of_.tokens}, columns()});
            hold(plan_.final, rank, words_, {ranks(), {0, of_.tokens}, {0, kRouteWords * of_.topk}});
            hold(plan_.final, rank, x_, {ranks(), experts(), columns()});
            hold(plan_.final, rank, origin_, {ranks(), experts()});
        }
    }

    void add_gathered() {
        tokens_ = add("tokens", {of_.ranks, of_.tokens, of_.hidden}, problem_.dtype);
        words_ = add("routes", {of_.ranks, of_.tokens, kRouteWords * of_.topk}, plan::DType::int32);
        const Interval of_token{0, kRouteWords * of_.topk};
        const Interval scales{0, of_.x_scales()};
        if (is_scaled())
            token_scale_ = add("token_scale", {of_.ranks, of_.tokens, of_.x_scales()}, plan::DType::fp32);
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            hold(plan_.produced, rank, tokens_, {one(rank), {0, of_.tokens}, columns()});
            hold(plan_.produced, rank, words_, {one(rank), {0, of_.tokens}, of_token});
            if (is_scaled()) hold(plan_.produced, rank, token_scale_, {one(rank), {0, of_.tokens}, scales});
        }
        const std::int64_t each = MixtureSizes::blocks(blocks_, kPieces) * block_;
        each_peer([&](std::int64_t rank, std::int64_t peer) {
            for (std::int64_t begin = 0; begin < of_.tokens; begin += each) {
                const Interval piece{begin, std::min(begin + each, of_.tokens)};
                push(rank, peer, tokens_, {one(rank), piece, columns()});
                push(rank, peer, words_, {one(rank), piece, of_token});
                if (is_scaled()) push(rank, peer, token_scale_, {one(rank), piece, scales});
            }
        });
    }

    /// Rows that nobody else reads, as what the products make of them.
    void add_spread() {
        x_ = add_routed("X", {of_.hidden}, problem_.dtype, of_.rows(), of_.bound);
        origin_ = add_routed("origin", {}, plan::DType::int32, of_.rows(), of_.bound);
        std::int32_t x_scale = -1;
        if (is_scaled())
            x_scale = add_routed("x_scale", {of_.x_scales()}, plan::DType::fp32, of_.rows(), of_.bound);
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            hold(plan_.produced, rank, x_, {ranks(), experts(), columns()});
            hold(plan_.produced, rank, origin_, {ranks(), experts()});
            if (is_scaled()) hold(plan_.produced, rank, x_scale, {ranks(), experts(), {0, of_.x_scales()}});
        }
    }

    void make_part(std::int32_t tensor, const plan::Region& region) {
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            hold(plan_.produced, rank, tensor, region);
            plan_.produced.back().partial = true;
        }
    }

    void add_inner() {
        const std::int32_t inner = add_routed("A", {of_.inner}, problem_.dtype, of_.rows(), of_.bound);
        make_part(inner, {ranks(), experts(), {0, of_.inner}});
        if (!is_scaled()) return;
        const std::int32_t scale =
            add_routed("a_scale", {of_.a_scales()}, plan::DType::fp32, of_.rows(), of_.bound);
        make_part(scale, {ranks(), experts(), {0, of_.a_scales()}});
    }

    /// Of each rank's tokens what this one makes, and what all ranks make of its own.
    void add_sums() {
        const std::int32_t rows = add("Y", {of_.ranks, routes_, of_.hidden}, problem_.out);
        make_part(rows, {ranks(), {0, routes_}, columns()});
        add_summand("P", of_.hidden, problem_.out);
        if (part_ == "combine") add_summand("dots", of_.topk, plan::DType::fp32);
        add_done(blocks_);
    }

    void add_summand(const char* name, std::int64_t width, plan::DType dtype) {
        const std::int64_t rows = of_.ranks * of_.tokens;
        const std::int32_t made =
            add_ragged(name, {"rows_from_rank", "rank"}, {of_.ranks, of_.ranks}, {width}, dtype, rows, rows);
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank)
            hold(plan_.produced, rank, made, {one(rank), ranks(), {0, width}});
        each_peer([&](std::int64_t rank, std::int64_t peer) {
            push(rank, peer, made, {one(rank), one(peer), {0, width}});
        });
    }

    [[nodiscard]] std::map<std::string, kernel::Scalar> scalars() const override {
        auto made = Mixture::scalars();
        made["BLOCK"] = block_;
        made["TILES"] = blocks_;
        return made;
    }

    [[nodiscard]] std::vector<Statement> stages() const override {
        const bool combines = part_ == "combine";
        const std::vector<std::string> group{":", "e", ":"};
        const std::vector<std::string> block{"s", "b*BLOCK : (b+1)*BLOCK", ":"};
        const std::vector<std::string> everything{":", ":", ":"};
        std::vector<Statement> made;
        if (!combines) {
            made.push_back(counting());
            Statement gather = stage("moe_gather", {"tokens_ptr", "routes_ptr"});
            gather.tiles = {{"s", "R"}, {"b", "TILES"}};
            gather.writes = {{"tokens_ptr", block}, {"routes_ptr", block}};
            gather.sends = {"tokens_ptr", "routes_ptr"};
            if (is_scaled()) {
                with(gather, gather.writes, "token_scale_ptr", block);
                gather.sends.emplace_back("token_scale_ptr");
            }
            made.push_back(std::move(gather));
        }
        Statement layout = stage("moe_tensor_layout", {"counts_ptr"});
        layout.tiles = {{"p", "PROGRAMS"}};
        layout.reads = {{"counts_ptr", {":", ":"}}};
        made.push_back(std::move(layout));
        if (!combines) {
            Statement spread = stage("moe_spread", {"tokens_ptr", "routes_ptr", "x_ptr", "origin_ptr"});
            spread.tiles = {{"s", "R"}, {"b", "TILES"}};
            spread.reads = {{"tokens_ptr", block}, {"routes_ptr", block}};
            spread.writes = {{"x_ptr", {"s", ":", ":"}}, {"origin_ptr", {"s", ":"}}};
            if (is_scaled()) {
                with(spread, spread.reads, "token_scale_ptr", block);
                with(spread, spread.writes, "x_scale_ptr", {"s", ":", ":"});
            }
            made.push_back(std::move(spread));
        }
        if (part_ == "dispatch") return made;
        if (!combines) {
            Statement up = grouped("moe_up", {"x_ptr", "a_ptr"}, "UP");
            up.reads = {{"x_ptr", group}};
            up.writes = {{"a_ptr", group}};
            if (is_scaled()) {
                with(up, up.reads, "x_scale_ptr", group);
                with(up, up.writes, "a_scale_ptr", group);
            }
            made.push_back(std::move(up));
        }
        Statement down = combines ? grouped("moe_return", {"y_ptr"}, "1")
                                  : grouped("moe_down", {"a_ptr", "origin_ptr", "y_ptr"}, "DOWN");
        if (!combines) down.reads = {{"a_ptr", group}, {"origin_ptr", {":", "e"}}};
        if (!combines && is_scaled()) with(down, down.reads, "a_scale_ptr", group);
        down.writes = {{"y_ptr", everything}};
        made.push_back(std::move(down));
        Statement sum = stage("moe_sum", {"y_ptr", "p_ptr"});
        sum.tiles = {{"s", "R"}, {"d", "R"}, {"b", "TILES"}};
        sum.reads = {{"y_ptr", {"d", ":", ":"}}};
        sum.writes = {{"p_ptr", {"s", "d", ":"}}};
        sum.sends = {"p_ptr"};
        Statement reduce = stage("moe_reduce", {"p_ptr", "done_ptr"});
        reduce.tiles = {{"s", "R"}, {"b", "TILES"}};
        reduce.reads = {{"p_ptr", {":", "s", ":"}}};
        if (combines) {
            sum.parameters.insert(sum.parameters.begin(), "dots_ptr");
            sum.writes.push_back({"dots_ptr", {"s", "d", ":"}});
            sum.sends.emplace_back("dots_ptr");
            reduce.parameters.insert(reduce.parameters.begin(), "dots_ptr");
            reduce.reads.push_back({"dots_ptr", {":", "s", ":"}});
        }
        reduce.writes = {{"done_ptr", {"s", "b"}}};
        made.push_back(std::move(sum));
        made.push_back(std::move(reduce));
        return made;
    }

    std::int64_t routes_;  ///< of a rank
    std::int64_t block_;   ///< tokens of a tile
    std::int64_t blocks_;  ///< tiles of a rank's tokens
    std::int32_t tokens_ = -1;
    std::int32_t words_ = -1;
    std::int32_t token_scale_ = -1;
    std::int32_t x_ = -1;
    std::int32_t origin_ = -1;
};

}  // namespace

std::unique_ptr<Mixture> tensor_mixture(const Problem& problem, const Strategy& strategy) {
    return std::make_unique<TensorMoe>(problem, strategy);
}

}  // namespace syncopate::ops
