#include "syncopate/fuse/model/draw_graph.hpp"

#include <gtest/gtest.h>

#include <sstream>

#include "fuse/sample.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"

namespace syncopate::fuse {
namespace {

StagedProgram gathered() {
    const Program program = sample::all_gather_gemm({4, 4, 4, 2, 2, 2}, 2);
    return {{{program.kernel, program.bindings}}, program.plan};
}

std::string graph_text(const StagedProgram& program, const Decisions& decisions) {
    std::ostringstream text;
    write_graph(text, program, decisions);
    return std::move(text).str();
}

TEST(DrawGraph, PrintsEachNodeWithWhatComesBeforeIt) {
    const StagedProgram program = gathered();
    EXPECT_EQ(graph_text(program, decide(program, {.device = Device::cuda}).value()),
              "rank 0\n"
              "  n0    push A[0:2, 0:4] of rank 1  [copies 0]\n"
              "  n2    tiles 0…1 of matmul\n"
              "  n3    tiles 2…3 of matmul  after n1\n"
              "  n6    begin\n"
              "  n7    start  after n6, n10\n"
              "  n8    kernel  after n2, n3\n"
              "  n9    end  after n8\n"
              "rank 1\n"
              "  n1    push A[2:4, 0:4] of rank 0  [copies 0]\n"
              "  n4    tiles 0…1 of matmul  after n0\n"
              "  n5    tiles 2…3 of matmul\n"
              "  n10   begin\n"
              "  n11   start  after n10, n6\n"
              "  n12   kernel  after n4, n5\n"
              "  n13   end  after n12\n");
}

TEST(DrawGraph, NamesChunksSumsAndWhoCarriesOutAnOp) {
    const plan::Plan plan = plan::push_reduce(sample::ranks(2), {"C", {4, 4}, plan::DType::bf16}).value();
    const StagedProgram program{{{sample::gemm({4, 4, 4, 2, 2, 2}), {{"c_ptr", "C"}}}}, plan};
    const std::string text = graph_text(program, decide(program).value());
    EXPECT_NE(text.find("push C[2:4, 0:4] to C.staging"), std::string::npos) << text;
    EXPECT_NE(text.find("sum C.staging[0:1, 0:2, 0:4] into C[0:2, 0:4]  [sums]"), std::string::npos) << text;
    EXPECT_NE(text.find("chunk C[2:4, 0:4]  after"), std::string::npos) << text;
}

TEST(DrawGraph, DrawsABoxForEveryNode) {
    const StagedProgram program = gathered();
    const Decisions work = decide(program).value();
    const std::string svg = graph_svg(program, work).value();
    std::size_t titles = 0;
    for (std::size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1))
        ++titles;
    EXPECT_EQ(titles, work.graph.nodes.size());
}

TEST(DrawGraph, RefusesAPictureOfTooManyNodes) {
    const Program large = sample::all_gather_gemm({256, 4, 4, 2, 2, 2}, 8);
    const StagedProgram program{{{large.kernel, large.bindings}}, large.plan};
    const auto svg = graph_svg(program, decide(program).value());
    ASSERT_FALSE(svg.ok());
    EXPECT_NE(svg.error().message.find("a picture shows at most 300"), std::string::npos);
}

}  // namespace
}  // namespace syncopate::fuse
