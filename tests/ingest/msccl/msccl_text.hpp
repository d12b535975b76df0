// Short spellings of MSCCL XML for tests.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

namespace syncopate::ingest::test {

/// A step without its number. `src` and `dst` are a buffer and an index, as in "i3".
struct StepText {
    std::string type;
    std::string src = "i0";
    std::string dst = "i0";
    int count = 1;
    int dependence_tb = -1;
    int dependence_step = -1;
    int has_dependent = 1;
};

struct TbText {
    int send = -1;
    int receive = -1;
    std::vector<StepText> steps;
    int channel = 0;
};

struct GpuText {
    std::vector<TbText> tbs;
    std::string copies{};  ///< <copy> elements
    int scratch = 0;
};

/// Every element on a line of its own: <algo> on line 1, the first <gpu> on line 2, its first <tb> on line 3
/// (without copies).
inline std::string algo(const std::string& collective, int chunks, bool in_place,
                        const std::vector<GpuText>& gpus) {
    std::string text = fmt::format(
        R"(<algo name="test" proto="Simple" nchannels="4" nchunksperloop="{}" ngpus="{}" coll="{}" inplace="{}">)"
        "\n",
        chunks, gpus.size(), collective, in_place ? 1 : 0);
    for (std::size_t g = 0; g < gpus.size(); ++g) {
        text += fmt::format(R"(<gpu id="{}" i_chunks="{}" o_chunks="{}" s_chunks="{}">)"
                            "\n",
                            g, chunks, chunks, gpus[g].scratch);
        text += gpus[g].copies;
        for (std::size_t t = 0; t < gpus[g].tbs.size(); ++t) {
            const TbText& tb = gpus[g].tbs[t];
            text += fmt::format(R"(<tb id="{}" send="{}" recv="{}" chan="{}">)"
                                "\n",
                                t, tb.send, tb.receive, tb.channel);
            for (std::size_t s = 0; s < tb.steps.size(); ++s) {
                const StepText& step = tb.steps[s];
                text += fmt::format(
                    R"(<step s="{}" type="{}" srcbuf="{}" srcoff="{}" dstbuf="{}" dstoff="{}" cnt="{}" depid="{}" deps="{}" hasdep="{}"/>)"
                    "\n",
                    s, step.type, step.src[0], step.src.substr(1), step.dst[0], step.dst.substr(1),
                    step.count, step.dependence_tb, step.dependence_step, step.has_dependent);
            }
            text += "</tb>\n";
        }
        text += "</gpu>\n";
    }
    return text + "</algo>\n";
}

}  // namespace syncopate::ingest::test
