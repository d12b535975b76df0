// Short spellings of MSCCL++ execution plans for tests.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

namespace syncopate::ingest::test {

/// Threadblocks' ops, each a JSON object; and the gpu's other members.
struct PlusGpu {
    std::vector<std::vector<std::string>> tbs;
    int input = 1;
    int output = 2;
    int scratch = 0;
};

/// A plan of version 2 in which every rank has one memory channel to every other (in order of rank, so
/// channel number = rank less one if behind the own) for each threadblock, and may touch every buffer of
/// every other: buffer_id is 3 * channel number + 0, 1, 2 for i, o, s. Threadblock t's channel_ids are the
/// peers. One op a line.
inline std::string plus_v2(const std::string& collective, bool in_place, const std::vector<PlusGpu>& gpus,
                           const std::string& protocol = "Simple", const std::string& semaphores = "[]") {
    std::string text =
        fmt::format(R"({{"name": "test", "collective": "{}", "protocol": "{}", "inplace": {}, "gpus": [)"
                    "\n",
                    collective, protocol, in_place);
    const std::size_t peers = gpus.size() - 1;
    for (std::size_t g = 0; g < gpus.size(); ++g) {
        std::string connected;
        std::string remote;
        for (std::size_t p = 0; p < gpus.size(); ++p) {
            if (p == g) continue;
            for (const char* type : {"i", "o", "s"})
                remote += fmt::format(R"({}{{"rank": {}, "type": "{}", "access_channel_types": ["memory"]}})",
                                      remote.empty() ? "" : ", ", p, type);
        }
        for (std::size_t t = 0; t < gpus[g].tbs.size(); ++t) {
            for (std::size_t p = 0; p < gpus.size(); ++p) {
                if (p != g) connected += fmt::format("{}{}", connected.empty() ? "" : ", ", p);
            }
        }
        text += fmt::format(
            R"({{"id": {}, "input_chunks": {}, "output_chunks": {}, "scratch_chunks": {}, "channels": [{{"channel_type": "memory", "connected_to": [{}]}}], "remote_buffers": [{}], "semaphores": {}, "threadblocks": [)"
            "\n",
            g, gpus[g].input, gpus[g].output, gpus[g].scratch, connected, remote, semaphores);
        for (std::size_t t = 0; t < gpus[g].tbs.size(); ++t) {
            std::string channels;
            std::string buffers;
            for (std::size_t p = 0; p < peers; ++p)
                channels += fmt::format("{}{}", p == 0 ? "" : ", ", t * peers + p);
            for (std::size_t b = 0; b < 3 * peers; ++b) buffers += fmt::format("{}{}", b == 0 ? "" : ", ", b);
            text += fmt::format(
                R"({{"id": {}, "channels": [{{"channel_type": "memory", "channel_ids": [{}]}}], "remote_buffer_refs": [{{"access_channel_type": "memory", "remote_buffer_ids": [{}]}}], "ops": [)"
                "\n",
                t, channels, buffers);
            const auto& ops = gpus[g].tbs[t];
            for (std::size_t i = 0; i < ops.size(); ++i) text += ops[i] + (i + 1 < ops.size() ? ",\n" : "\n");
            text += t + 1 < gpus[g].tbs.size() ? "]},\n" : "]}\n";
        }
        text += g + 1 < gpus.size() ? "]},\n" : "]}\n";
    }
    return text + "]}\n";
}

/// {"type": "i", "index": 0, "size": 1}
inline std::string here(const std::string& type, int index, int size = 1) {
    return fmt::format(R"({{"type": "{}", "index": {}, "size": {}}})", type, index, size);
}
inline std::string there(int buffer_id, int index, int size = 1) {
    return fmt::format(R"({{"buffer_id": {}, "index": {}, "size": {}}})", buffer_id, index, size);
}
/// An op over memory channels; `src` and `dst` are joined by the caller. `more` follows, such as R"(,
/// "channel_ids": [0])".
inline std::string data_op(const std::string& name, const std::string& src, const std::string& dst,
                           const std::string& more = "") {
    return fmt::format(R"({{"name": "{}", "channel_type": "memory", "src_buff": [{}], "dst_buff": [{}]{}}})",
                       name, src, dst, more);
}
inline std::string sync_op(const std::string& name, const std::string& channel_ids = "0") {
    return fmt::format(R"({{"name": "{}", "channel_type": "memory", "channel_ids": [{}]}})", name,
                       channel_ids);
}

}  // namespace syncopate::ingest::test
