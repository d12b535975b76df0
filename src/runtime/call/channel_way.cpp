#include "syncopate/runtime/call/channel_way.hpp"

#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

namespace syncopate::runtime {

Result<ChannelWay> channel_way() {
    const char* const given = std::getenv("SYNCOPATE_CHANNEL");
    const std::string_view name = given == nullptr ? "" : given;
    if (name.empty() || name == "send") return ChannelWay::send;
    if (name == "put") return ChannelWay::put;
    return usage_error(fmt::format("SYNCOPATE_CHANNEL: expected \"send\" or \"put\", got '{}'", name));
}

#if !SYNCOPATE_HAS_CUDA
std::string channel_on_cuda() { return "NCCL, which is not there"; }
#endif

}  // namespace syncopate::runtime
