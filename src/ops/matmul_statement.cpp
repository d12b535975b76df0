// The statement of the kernels that make products.
#include <fmt/format.h>

#include "syncopate/ops/statements.hpp"

namespace syncopate::ops {
namespace {

using kernel::stated::Access;
using kernel::stated::Statement;

constexpr const char* kRows = "m*BLOCK_M : (m+1)*BLOCK_M";
constexpr const char* kColumns = "n*BLOCK_N : (n+1)*BLOCK_N";
constexpr const char* kDepth = "k*BLOCK_K : (k+1)*BLOCK_K";

/// Of matmul_mixed: where column `n` of tiles begins.
std::string begin_of(const std::string& n) {
    return fmt::format("min({0}, num_wide)*BLOCK_N + max({0} - num_wide, 0)*(BLOCK_N // 2)", n);
}

std::string file_of(MatmulKernel kernel) {
    return kernel == MatmulKernel::gluon ? "gluon_matmul.py" : "matmul.py";
}

std::string name_of(MatmulKernel kernel) {
    switch (kernel) {
        case MatmulKernel::plain: return "matmul";
        case MatmulKernel::mixed: return "matmul_mixed";
        case MatmulKernel::gluon: break;
    }
    return "gluon_matmul";
}

/// Of the plain kernels, which number their tiles so: GROUP_M rows of tiles share the same columns of w while
/// these are in the L2 cache. In the last group, of fewer rows, the kernel begins where its tile's number leaves it.
void set_plain_order(bool mixed, Statement& statement) {
    const std::string narrow = "min(max(n - num_wide + 1, 0), 1)";  // 1: of narrow tiles
    const std::string columns = mixed ? fmt::format(
                                            "(num_wide + {0}*(cdiv(N - num_wide*BLOCK_N, BLOCK_N // "
                                            "2) - num_wide))",
                                            narrow)
                                      : std::string("cdiv(N, BLOCK_N)");
    const std::string first = "(m // GROUP_M)*GROUP_M";
    statement.numbered_by_order = true;
    if (mixed) statement.order.push_back(narrow);
    statement.order.insert(
        statement.order.end(),
        {"m // GROUP_M", "n",
         fmt::format("(m - {0} - {0}*{1}) % min(cdiv(M, BLOCK_M) - {0}, GROUP_M)", first, columns)});
}

void add_reads(const MatmulForm& form, const std::string& columns, Statement& statement) {
    const auto read = [&](std::string param, std::vector<std::string> ranges) {
        statement.reads.push_back({std::move(param), std::move(ranges)});
    };
    read("a_desc", {kRows, kDepth});
    std::vector<std::string> sides{columns};
    if (form.gated) sides.emplace_back("N + n*BLOCK_N : N + (n+1)*BLOCK_N");
    for (const std::string& side : sides)
        read("b_desc", form.w_transposed ? std::vector<std::string>{side, kDepth}
                                         : std::vector<std::string>{kDepth, side});
    read("bias_ptr", form.whole_bias ? std::vector<std::string>{kRows, columns} : std::vector{columns});
    if (form.scales == Scales::row) {
        read("scale_a_ptr", {kRows});
        read("scale_b_ptr", {columns});
    } else if (form.scales == Scales::block) {
        read("scale_a_ptr", {kRows, ":"});
        read("scale_b_ptr", {fmt::format("n*BLOCK_N // {0} : cdiv((n+1)*BLOCK_N, {0})", kScaled), ":"});
    }
}

}  // namespace

Statement matmul_statement(const MatmulForm& form) {
    const bool gluon = form.kernel == MatmulKernel::gluon;
    const bool mixed = form.kernel == MatmulKernel::mixed;
    Statement made{.kernel = name_of(form.kernel), .file = file_of(form.kernel)};
    made.tiles = {{"m", "cdiv(M, BLOCK_M)"},
                  {"n", mixed ? "num_wide + cdiv(N - num_wide*BLOCK_N, BLOCK_N // 2)" : "cdiv(N, BLOCK_N)"}};
    made.loops = {{"k", "cdiv(K, BLOCK_K)"}};
    const std::string columns = mixed ? begin_of("n") + " : " + begin_of("(n+1)") : kColumns;
    add_reads(form, columns, made);
    made.writes = {{"c_desc", {kRows, columns}}};
    made.placed = {"a_desc", "c_desc"};
    made.parameters = {"a_desc",      "b_desc",      "c_desc", "bias_ptr",  "scale_a_ptr",
                       "scale_b_ptr", "sy_schedule", "sy_own", "sy_control"};
    if (!gluon) {
        set_plain_order(mixed, made);
        return made;
    }
    // Of a row, by each of its tiles.
    const std::string copied = "cdiv(cdiv(K, BLOCK_K), cdiv(N, BLOCK_N))*BLOCK_K";
    made.writes.push_back({"a_copy_desc", {kRows, fmt::format("n*{0} : (n+1)*{0}", copied)}});
    made.split = "SPLIT_K";
    made.sums = "SUMS";
    made.head_start = "HEAD_START";
    made.order = {"m // GROUP_M", "n", "m"};
    made.parameters.insert(made.parameters.end(), {"a_copy_desc", "SUMS", "HEAD_START"});
    return made;
}

}  // namespace syncopate::ops
