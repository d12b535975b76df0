// How a call's stages run on one GPU, and which way is the faster.
//
//   tiles    | up  tile tile tile … |             a block of `down` waits for the tiles that it reads
//            |        | down tile tile tile … |
//   stream   | up  tile tile tile … | down tile tile tile … |      the same kernels, nothing awaited or posted
//
// Tile by tile fills the last, partial wave of a stage with the next stage's tiles, and costs a ticket, waits and
// posts a tile. Where the last wave is full it loses by those (docs/sync.md has figures), so it is measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"

namespace syncopate::sync {

enum class Way : std::uint8_t {
    tiles,         ///< a stage starts beside the one before it; its tiles await what they read
    programmatic,  ///< in stream order; a kernel starts beside the one before it and awaits its end by itself
    stream,        ///< a stage starts when the one before it has ended
};
inline constexpr std::size_t kNumWays = 3;
[[nodiscard]] std::string_view name_of(Way way);

/// µs of a call, by way, round by round: the same round of both met the same clocks.
struct WayTimes {
    std::vector<double> tiles, stream;
};

/// µs of a call by each way that was measured, round by round.
using TimesByWay = std::map<Way, std::vector<double>>;

/// Of the ways that win three rounds of four against stream order, and by 1 % at the median, the one with the least
/// median; else stream order. A nearer win is within what clocks do. Launched programmatically the same kernels do
/// the same work: there any win is one. Stream order also where there is no round of it.
[[nodiscard]] Way fastest(const TimesByWay& times);
[[nodiscard]] inline Way faster(const WayTimes& times) {
    return fastest({{Way::tiles, times.tiles}, {Way::stream, times.stream}});
}

/// µs of what `call` enqueues on the stream that it is given, by replays of a graph of ten calls: one round each
/// time that it is called. The first call of `call` warms up: it runs before the capture. Fails with the error of
/// `call`, or of the driver.
class ReplayedCall {
public:
    static Result<std::unique_ptr<ReplayedCall>> make(std::shared_ptr<runtime::CudaContext> context,
                                                      const std::function<Status(runtime::CudaStream)>& call);
    ~ReplayedCall();
    ReplayedCall(const ReplayedCall&) = delete;
    ReplayedCall& operator=(const ReplayedCall&) = delete;

    [[nodiscard]] Result<double> microseconds() const;

private:
    struct State;
    explicit ReplayedCall(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace syncopate::sync
