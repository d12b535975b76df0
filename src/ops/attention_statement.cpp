// The statements of the attention kernels for Hopper. Forward, a tile's loop runs over the blocks of K that some
// of its rows see; its ranges may come in any order. Backward, a tile is a block of K.
#include <string>

#include <fmt/format.h>

#include "syncopate/ops/statements.hpp"

namespace syncopate::ops {

using kernel::stated::Statement;

Statement attention_statement(const AttentionForm& form) {
    const std::vector<std::string> rows{"b", "h", "m*BM : (m+1)*BM"};
    const std::string begin = "(m*BM + OFFSET)";
    const std::string end = "(min((m+1)*BM, SQ) + OFFSET)";
    std::string low = "0";
    std::string high = "SK";
    Statement made{.kernel = "gluon_attention", .file = "gluon_attention.py"};
    if (form.one_pass) {
        made.order = {"-m", "b", "h"};
    } else if (form.documents) {
        low = "bounds_ptr[4*m] // BN";
        high = "bounds_ptr[4*m + 3]";
        made.order = {"bounds_ptr[4*m] - bounds_ptr[4*m + 3]", "b", "h"};
    } else {
        if (form.causal) high = fmt::format("min(SK, {})", end);
        if (form.windowed && !form.causal) high = fmt::format("min(SK, {} + WINDOW - 1)", end);
        if (form.windowed) low = fmt::format("max({} - WINDOW + 1, 0) // BN", begin);
        if (form.causal && !form.windowed) made.order = {"-m", "b", "h"};
    }
    // The longest tiles first, but those of heads that come first before all others.
    if (form.together > 0 && !made.order.empty())
        made.order.insert(made.order.begin(), fmt::format("h // {}", form.together));
    made.tiles = {{"b", "B"}, {"h", "H"}, {"m", "cdiv(SQ, BM)"}};
    made.loops = {{"n", fmt::format("cdiv(max({}, 0), BN) - {}", high, low)}};
    made.any_order = {"n"};
    const std::vector<std::string> block{"b", "h // (H // HKV)",
                                         fmt::format("({0} + n)*BN : ({0} + n + 1)*BN", low), ":"};
    const std::vector<std::string> whole{rows[0], rows[1], rows[2], ":"};
    made.reads = {{"k_desc", block}, {"v_desc", block}};
    made.writes = {{"l_ptr", rows}};
    if (!form.placed) {
        made.reads.push_back({"q_desc", whole});
        made.writes.push_back({"o_desc", whole});
    }
    made.parameters = {"q_desc", "k_desc",     "v_desc",      "o_desc",
                       "l_ptr",  "bounds_ptr", "sy_schedule", "sy_control"};
    return made;
}

Statement attention_backward_statement(const AttentionBackwardForm& form) {
    Statement made{.kernel = "gluon_attention_backward", .file = "gluon_attention_backward.py"};
    made.tiles = {{"b", "B"}, {"h", "HKV"}, {"n", "cdiv(SK, BN)"}};
    if (form.causal) made.order = {"n", "b", "h"};  // the longest first
    if (form.together > 0) made.order.insert(made.order.begin(), fmt::format("h // {}", form.together));
    const std::vector<std::string> block{"b", "h", "n*BN : (n+1)*BN", ":"};
    made.reads = {{"k_desc", block}, {"v_desc", block}};
    made.writes = {{"dk_ptr", block}, {"dv_ptr", block}};
    made.parameters = {"k_desc", "v_desc", "dk_ptr", "dv_ptr", "bounds_ptr", "sy_schedule", "sy_control"};
    // Five products with all rows of Q; of a causal mask's tiles, on average, with half of them. Part by part, and in each the longest
    // first: by about as long as they take is told what has come when one begins.
    const std::string products =
        form.causal ? "5 * BN * D * SQ * (H // HKV)" : "10 * BN * D * SQ * (H // HKV)";
    if (form.whole && !(form.groups && form.causal)) made.operations = products;
    if (!form.exchanges) return made;
    std::string seen = ":";
    if (!form.groups) {
        if (!form.causal) made.order.insert(made.order.end(), {"n", "b", "h"});
        made.operations = products;
        seen = "bounds_ptr[4*n]*BM : min(bounds_ptr[4*n + 3]*BM, SQ)";
    }
    const std::vector<std::string> rows{"b", "h*(H // HKV) : (h+1)*(H // HKV)", seen};
    std::vector<std::string> whole = rows;
    whole.emplace_back(":");
    for (const char* name : {"q_desc", "do_desc"}) made.reads.push_back({name, whole});
    for (const char* name : {"lse_desc", "delta_desc"}) made.reads.push_back({name, rows});
    made.parameters.insert(made.parameters.begin(), {"q_desc", "do_desc", "lse_desc", "delta_desc"});
    return made;
}

}  // namespace syncopate::ops
