// An MSCCL algorithm as its file states it, each part by itself already known to be sound.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingest/steps/buffers.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

enum class MscclType : std::uint8_t { s, r, rcs, rrs, rrc, rrcs, cpy, re, nop };

[[nodiscard]] std::string_view name_of(MscclType type);
/// What a step of this type does, over all its chunks.
struct MscclEffect {
    bool sends, receives, reads_src, uses_dst;
};
[[nodiscard]] MscclEffect effect_of(MscclType type);

/// Whether a step of this type adds to (or takes the maximum with) what is there.
[[nodiscard]] bool reduces(MscclType type);

struct MscclOperand {
    Buffer buffer = Buffer::input;
    std::int64_t index = 0;
};

struct MscclStep {
    MscclType type = MscclType::nop;
    MscclOperand src, dst;  ///< meaningful if the type reads src or uses dst
    std::int64_t count = 0;
    std::int32_t dependence_tb = -1;  ///< of the same gpu; -1: none
    std::int32_t dependence_step = -1;
    bool has_dependent = false;
    std::int32_t line = 0;
};

struct MscclThreadblock {
    std::int32_t send = -1;  ///< peers; -1: none
    std::int32_t receive = -1;
    std::int32_t channel = 0;
    std::int32_t line = 0;
    std::vector<MscclStep> steps;
};

struct MscclCopy {
    std::int64_t input = 0;
    std::int64_t output = 0;
    std::int32_t line = 0;
};

struct MscclGpu {
    std::int64_t input_chunks = 0;  ///< used sizes, not those of the collective
    std::int64_t output_chunks = 0;
    std::int64_t scratch_chunks = 0;
    std::vector<MscclCopy> copies;
    std::vector<MscclThreadblock> threadblocks;
};

struct MscclAlgo {
    std::string name;
    std::string protocol;
    std::string collective;  ///< as spelt; empty: not said
    bool in_place = false;
    plan::Reduce reduce = plan::Reduce::sum;  ///< what steps that reduce do; none: they may not
    std::int32_t channels = 0;
    std::int64_t chunks = 0;
    std::int64_t min_bytes = 0;
    std::int64_t max_bytes = 0;
    std::int32_t line = 0;
    std::vector<MscclGpu> gpus;
    std::vector<std::string> warnings;
};

/// Reads the document. Fails at the line of the first thing that is not as docs/ingest.md says.
[[nodiscard]] Result<MscclAlgo> read_msccl_algo(std::string_view text, const std::string& file_name);

}  // namespace syncopate::ingest
