// A CUDA driver of two GPUs in the CPU's memory, under the name by which the runtime opens the real one. What
// is enqueued is done at once, kernels do nothing, and any call can be made to fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fake_cuda {

/// Calls so far of those that may fail. What frees or asks for the text of an error does not.
std::size_t num_calls();

/// Calls so far of one function, by the driver's name for it, also of those that do not fail.
std::size_t calls_of(const char* function);

/// From now on what would be enqueued is only counted: nothing is copied, launched or noted, and no call fails. So a bench sees what
/// its own side costs.
void only_count(bool on);

/// The call of this number fails, counted as num_calls() does; 0: none does. `from_then_on`: so do all after
/// it, as when a kernel has failed on a GPU.
void fail(std::size_t number, bool from_then_on = false);

/// Every call of this function fails from now on; empty: of none.
void fail_every(const std::string& function);

/// The function that was made to fail since; empty: none.
const std::string& failed();

/// What has been made and not given back: "2 streams, 1 event".
std::string left();

/// What has been enqueued since this was last asked for: "sy_begin on stream 0".
std::vector<std::string> take_log();

/// The kernels' launches since this was last asked for, by their grids and attributes: "8x2x1 early".
std::vector<std::string> take_launches();

/// What a launch of a kernel does, instead of nothing: called with the kernel's name and the addresses of its
/// parameters.
void on_launch(std::function<void(const std::string& name, void** parameters)> play);

/// How many communicators of the stand-in for NCCL, which is in the same library, were aborted.
int aborted();
/// What an abort does besides, once it counts.
void on_abort(std::function<void()> play);

/// Its version, 22800 at first, and whether a window that is registered with it is one that takes puts.
void set_nccl(int version, bool puts = true);
/// What a receive by it of four bytes brings from now on, and the last word of what is put, which comes to who puts it.
void receive(std::uint32_t word);

/// From now on every stream is, or is not, being captured into a graph.
void capture(bool on);

}  // namespace fake_cuda
