// The C API (syncopate/c.h): handles around C++ objects, errors as codes and a text of the thread, and no exception
// across.
#include "syncopate/c.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bundle/c/dtypes.hpp"
#include "bundle/c/handles.hpp"
#include "syncopate/bundle/bundle.hpp"
#include "syncopate/bundle/loaded.hpp"
#include "syncopate/runtime/cuda/driver/capture.hpp"
#include "syncopate/runtime/heap/group_memory.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/runtime/recover/recover.hpp"
#include "syncopate/try.hpp"

using syncopate::Done;
using syncopate::Error;
using syncopate::ErrorClass;
using syncopate::Result;
using syncopate::Status;
namespace bundle = syncopate::bundle;
namespace runtime = syncopate::runtime;
namespace plan = syncopate::plan;
using bundle::c::guarded;
using bundle::c::handles;
using bundle::c::InCall;
using bundle::c::require;
using bundle::c::require_free;
using bundle::c::usage;

namespace {

/// A struct of the caller's, whose `size` says which version of it: of members that it lacks, zeros.
template <typename T>
Result<T> read_struct(const T* given, const char* name) {
    if (given == nullptr) return usage(fmt::format("{}: it is NULL", name));
    if (given->size < sizeof(std::size_t) || given->size > 4096)
        return usage(fmt::format("{}.size is {}: set it to sizeof({})", name, given->size, name));
    T made{};
    std::memcpy(&made, given, std::min(given->size, sizeof(T)));
    const char* rest = reinterpret_cast<const char*>(given);
    for (std::size_t at = sizeof(T); at < given->size; ++at) {
        if (rest[at] != 0)
            return usage(
                fmt::format("{} asks for what version {} of the library does not know", name, SY_VERSION));
    }
    return made;
}

/// Whether what is asked for can be written there.
template <typename T>
Status require_place(const T* place, const char* name) {
    if (place == nullptr) return usage(fmt::format("{}: it is NULL", name));
    if (place->size < sizeof(std::size_t) || place->size > 4096)
        return usage(fmt::format("{}.size is {}: set it to sizeof({})", name, place->size, name));
    return Done{};
}

template <typename T>
Status write_struct(T* place, T value, const char* name) {
    SYNCOPATE_TRY(require_place(place, name));
    value.size = place->size;
    std::memcpy(place, &value, std::min(place->size, sizeof(T)));
    return Done{};
}

using Meeting = Result<std::shared_ptr<runtime::Rendezvous>>;

Meeting rendezvous_of(const sy_store* given, int rank, int size) {
    SYNCOPATE_TAKE(sy_store store, read_struct(given, "sy_store"));
    if (store.set == nullptr || store.wait == nullptr || store.get == nullptr)
        return usage("sy_store: it needs set, wait and get");
    if (size < 1 || size > plan::kMaxRanks || rank < 0 || rank >= size)
        return usage(fmt::format("rank {} of {} makes no sense", rank, size));
    const auto put = [of = store](const std::string& key, const runtime::Bytes& value) {
        if (of.set(of.context, key.c_str(), value.data(), value.size()) != 0)
            throw std::runtime_error("the store could not set " + key);
    };
    const auto read = [of = store](const std::string& key) {
        runtime::Bytes value(256, '\0');
        for (;;) {
            std::size_t bytes = 0;
            if (of.get(of.context, key.c_str(), value.data(), value.size(), &bytes) != 0)
                throw std::runtime_error("the store could not get " + key);
            const bool whole = bytes <= value.size();
            value.resize(bytes);
            if (whole) return value;
        }
    };
    const auto get = [of = store, read](const std::string& key, runtime::Milliseconds timeout) {
        if (of.wait(of.context, key.c_str(), timeout.count()) != 0)
            throw std::runtime_error("nothing at " + key);
        return read(key);
    };
    runtime::CallbackRendezvous::PutFirst put_first;
    if (store.set_first != nullptr) {
        put_first = [of = store, read](const std::string& key, const runtime::Bytes& value) {
            if (of.set_first(of.context, key.c_str(), value.data(), value.size()) != 0)
                throw std::runtime_error("the store could not set " + key + " first");
            return read(key);
        };
    }
    return std::shared_ptr<runtime::Rendezvous>(
        std::make_shared<runtime::CallbackRendezvous>(rank, size, put, get, put_first));
}

Meeting rendezvous_of(const sy_comm_config& config) {
    if (config.store != nullptr) return rendezvous_of(config.store, config.rank, config.num_ranks);
    SYNCOPATE_TAKE(const auto environment, runtime::launch_environment());
    if (environment.rank != config.rank || environment.size != config.num_ranks)
        return usage(fmt::format("rank {} of {} is asked for, and {} says {} of {}", config.rank,
                                 config.num_ranks, environment.launcher, environment.rank, environment.size));
    const runtime::Milliseconds timeout =
        config.timeout_ms > 0 ? runtime::Milliseconds(config.timeout_ms) : runtime::kRendezvousTimeout;
    SYNCOPATE_TAKE(auto made, runtime::environment_rendezvous(timeout));
    return std::shared_ptr<runtime::Rendezvous>(std::move(made));
}

/// Those that go on with `comm`, which is theirs from now on.
Result<runtime::Recovered> go_on(sy_comm& comm, const sy_recover_config& config) {
    std::shared_ptr<runtime::Rendezvous> to;
    if (config.store != nullptr) {
        SYNCOPATE_TAKE(auto made, rendezvous_of(config.store, config.rank, config.num_ranks));
        to = std::move(made);
    }
    const runtime::Milliseconds deadline =
        config.deadline_ms > 0 ? runtime::Milliseconds(config.deadline_ms) : comm.rendezvous->timeout();
    SYNCOPATE_TAKE(auto recovered, runtime::recover(comm.rendezvous, to, deadline));
    const bool as_many = recovered.group->size() == comm.rendezvous->size();
    comm.rendezvous = recovered.group;
    for (const auto& [known, loaded] : comm.loaded) loaded->set_group(as_many ? comm.rendezvous : nullptr);
    if (!as_many) comm.loaded.clear();
    return recovered;
}

/// Of what is no matter of the store.
Status require_sense(const sy_comm_config& config) {
    if (config.device != SY_ON_HOST && config.device != SY_ON_CUDA)
        return usage(fmt::format("sy_comm_config.device is {}: it is SY_ON_HOST or SY_ON_CUDA",
                                 static_cast<int>(config.device)));
    if (config.device == SY_ON_CUDA && config.ordinal < 0)
        return usage(fmt::format("sy_comm_config.ordinal is {}: GPUs are numbered from 0", config.ordinal));
    if (config.timeout_ms < 0)
        return usage(fmt::format("sy_comm_config.timeout_ms is {}: give milliseconds, or 0 for a minute",
                                 config.timeout_ms));
    if (config.joins != 0 && config.store == nullptr)
        return usage("sy_comm_config.joins: a rank that was started again needs a store");
    return Done{};
}

/// What sy_prepare is given, if that makes sense on this rank.
struct PrepareArguments {
    sy_prepare_config config;
    bundle::Loaded* loaded = nullptr;
};

Result<PrepareArguments> arguments_of(sy_comm& comm, const sy_bundle* of, const sy_prepare_config* config,
                                      sy_op* const* op) {
    SYNCOPATE_TRY(require(of, "bundle"));
    if (op == nullptr) return usage("op: it is NULL");
    SYNCOPATE_TAKE(const sy_prepare_config given, read_struct(config, "sy_prepare_config"));
    const bool capturing =
        comm.device.kind == runtime::Device::Kind::cuda &&
        runtime::is_capturing(comm.device.ordinal, reinterpret_cast<runtime::CudaStream>(given.stream));
    if (capturing) return usage("sy_prepare: the stream is being captured into a graph: prepare before");
    SYNCOPATE_TAKE(const auto loaded, bundle::c::loaded_of(comm, *of));
    return PrepareArguments{given, loaded.get()};
}

/// A user's tile kernel as the bundle takes it.
bundle::TileKernel tiles_of(const sy_prepare_config& config) {
    if (config.tiles == nullptr) return {};
    return [kernel = config.tiles, context = config.tiles_context](const bundle::Tile& tile) -> Status {
        std::vector<sy_box> boxes;
        std::vector<std::vector<std::int64_t>> places;
        std::size_t count = 0;
        for (const bundle::TileTensor& tensor : tile.tensors)
            count += tensor.reads.size() + tensor.writes.size();
        places.reserve(2 * count);  // boxes point into it
        const auto add = [&](const bundle::TileTensor& tensor, const plan::Region& region, bool writes) {
            std::vector<std::int64_t>& begin = places.emplace_back();
            std::vector<std::int64_t>& end = places.emplace_back();
            for (const auto& [first, last] : region) {
                begin.push_back(first);
                end.push_back(last);
            }
            boxes.push_back({tensor.parameter.c_str(), writes ? 1 : 0,
                             static_cast<std::int32_t>(tensor.shape.size()),
                             reinterpret_cast<void*>(tensor.address), tensor.shape.data(),
                             tensor.strides.data(), begin.data(), end.data()});
        };
        for (const bundle::TileTensor& tensor : tile.tensors) {
            for (const plan::Region& region : tensor.reads) add(tensor, region, false);
            for (const plan::Region& region : tensor.writes) add(tensor, region, true);
        }
        const sy_tile given{sizeof(sy_tile), tile.stage, static_cast<std::int32_t>(boxes.size()), tile.tile,
                            boxes.data()};
        const InCall inside;
        if (const int code = kernel(context, &given); code != 0)
            return Error{fmt::format("the tile kernel returned {} for tile {} of stage {}", code, tile.tile,
                                     tile.stage)};
        return Done{};
    };
}

/// What a call gives for an operand, or an error that names it.
Result<runtime::CallTensor> tensor_of(const sy_op& op, std::size_t index, const sy_tensor* given) {
    const runtime::Operand& operand = op.prepared->operands()[index];
    const auto wrong = [&](const std::string& what) {
        return usage(fmt::format("{}: {}", operand.name, what));
    };
    if (given == nullptr) return wrong("it is NULL");
    const bundle::c::DlTensor& tensor = *reinterpret_cast<const bundle::c::DlTensor*>(given);
    const auto expected = bundle::c::dtype_of(operand.dtype);
    if (tensor.code != expected.code || tensor.bits != expected.bits || tensor.lanes != 1)
        return wrong(fmt::format("its dtype is ({}, {} bits), not {}", tensor.code, tensor.bits,
                                 plan::name_of(operand.dtype)));
    if (static_cast<std::size_t>(tensor.ndim) != operand.shape.size())
        return wrong(fmt::format("it has {} axes, not {}", tensor.ndim, operand.shape.size()));
    if (tensor.shape == nullptr && tensor.ndim > 0) return wrong("its shape is NULL");
    for (std::size_t axis = 0; axis < operand.shape.size(); ++axis) {
        if (tensor.shape[axis] != operand.shape[axis])
            return wrong(fmt::format("axis {} has {} elements, not {}", axis, tensor.shape[axis],
                                     operand.shape[axis]));
    }
    const bool host = op.device.kind == runtime::Device::Kind::host;
    if (tensor.device_type != (host ? 1 : 2) || (!host && tensor.ordinal != op.device.ordinal))
        return wrong(fmt::format("it lies on device ({}, {}), not on {}", tensor.device_type, tensor.ordinal,
                                 op.device.to_string()));
    const bool empty = std::ranges::find(operand.shape, 0) != operand.shape.end();
    if (tensor.data == nullptr && !empty) return wrong("its data is NULL");
    const std::size_t axes = operand.shape.size();
    const std::span<const std::int64_t> strides = tensor.strides == nullptr
                                                      ? std::span<const std::int64_t>(op.row_major[index])
                                                      : std::span(tensor.strides, axes);
    return runtime::CallTensor{reinterpret_cast<std::uint64_t>(tensor.data) + tensor.byte_offset,
                               operand.shape, strides};
}

}  // namespace

extern "C" {

const char* sy_last_error(void) { return bundle::c::last_error.c_str(); }
uint32_t sy_version(void) { return SY_VERSION; }

sy_code sy_comm_create(const sy_comm_config* config, sy_comm** comm) {
    return guarded([&]() -> Status {
        if (comm == nullptr) return usage("comm: it is NULL");
        SYNCOPATE_TAKE(const sy_comm_config given, read_struct(config, "sy_comm_config"));
        if (given.num_ranks < 1 || given.num_ranks > plan::kMaxRanks || given.rank < 0 ||
            given.rank >= given.num_ranks)
            return usage(fmt::format("rank {} of {} makes no sense", given.rank, given.num_ranks));
        SYNCOPATE_TRY(require_sense(given));
        SYNCOPATE_TAKE(auto rendezvous, rendezvous_of(given));
        auto made = std::make_unique<sy_comm>();
        made->rendezvous = std::move(rendezvous);
        made->rendezvous->set_late_comer(given.joins != 0);
        if (given.timeout_ms > 0) made->rendezvous->set_timeout(runtime::Milliseconds(given.timeout_ms));
        made->rendezvous->memory().set_budget(given.budget);
        if (given.device == SY_ON_CUDA) made->device = {runtime::Device::Kind::cuda, given.ordinal};
        *comm = handles<sy_comm>().add(std::move(made));
        return Done{};
    });
}

void sy_comm_destroy(sy_comm* comm) {
    (void)guarded([&]() -> Status {
        if (handles<sy_comm>().drop(comm)) delete comm;
        return Done{};
    });
}

sy_code sy_comm_memory(sy_comm* comm, sy_memory* memory) {
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require(comm, "comm"));
        const runtime::GroupMemory& of = comm->rendezvous->memory();
        return write_struct(memory, {0, of.bytes(), of.bytes_released(), of.budget()}, "sy_memory");
    });
}

sy_code sy_release(sy_comm* comm) {
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require_free(comm, "comm", "sy_release"));
        const auto released = runtime::release(*comm->rendezvous);
        return released ? Status(Done{}) : Status(released.error());
    });
}

sy_code sy_restore(sy_comm* comm) {
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require_free(comm, "comm", "sy_restore"));
        const auto restored = runtime::restore(*comm->rendezvous);
        return restored ? Status(Done{}) : Status(restored.error());
    });
}

sy_code sy_recover(sy_comm* comm, const sy_recover_config* config, sy_group* group) {
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require_free(comm, "comm", "sy_recover"));
        if (group != nullptr) {  // before anything is changed
            SYNCOPATE_TRY(require_place(group, "sy_group"));
        }
        sy_recover_config chosen{};
        if (config != nullptr) {
            SYNCOPATE_TAKE(sy_recover_config given, read_struct(config, "sy_recover_config"));
            chosen = given;
            if (chosen.deadline_ms < 0)
                return usage(
                    fmt::format("sy_recover_config.deadline_ms is {}: give milliseconds, or 0 for the "
                                "communicator's timeout",
                                chosen.deadline_ms));
        }
        SYNCOPATE_TAKE(const runtime::Recovered recovered, go_on(*comm, chosen));
        comm->ranks.assign(recovered.ranks.begin(), recovered.ranks.end());
        if (group == nullptr) return Done{};
        return write_struct(group,
                            {0, comm->rendezvous->rank(), comm->rendezvous->size(), recovered.renewed ? 1 : 0,
                             comm->ranks.data()},
                            "sy_group");
    });
}

sy_code sy_bundle_open(const char* file, sy_bundle** made) {
    return guarded([&]() -> Status {
        if (file == nullptr || made == nullptr) return usage("file, bundle: one is NULL");
        SYNCOPATE_TAKE(bundle::Bundle read, bundle::read_bundle(file));
        auto opened = std::make_unique<sy_bundle>();
        opened->bundle = std::make_shared<const bundle::Bundle>(std::move(read));
        *made = handles<sy_bundle>().add(std::move(opened));
        return Done{};
    });
}

void sy_bundle_close(sy_bundle* made) {
    (void)guarded([&]() -> Status {
        if (handles<sy_bundle>().drop(made)) delete made;
        return Done{};
    });
}

sy_code sy_bundle_describe(const sy_bundle* made, sy_bundle_info* info) {
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require(made, "bundle"));
        const bundle::Bundle& of = *made->bundle;
        return write_struct(
            info, {0, of.name.c_str(), of.arch.c_str(), of.ranks(), of.op ? of.op->buckets.back().rows : 0},
            "sy_bundle_info");
    });
}

sy_code sy_workspace_size(const sy_bundle* made, int64_t rows, sy_workspace* workspace) {
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require(made, "bundle"));
        SYNCOPATE_TAKE(const bundle::Planned planned, bundle::plan_rows(*made->bundle, rows));
        const bundle::Needs needs = bundle::needs_of(*made->bundle, planned, 0);
        return write_struct(workspace, {0, needs.all(), needs.heap, needs.workspace + needs.tables},
                            "sy_workspace");
    });
}

sy_code sy_prepare(sy_comm* comm, const sy_bundle* of, const sy_prepare_config* config, sy_op** op) {
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require_free(comm, "comm", "sy_prepare"));
        const Result<PrepareArguments> given = arguments_of(*comm, of, config, op);
        if (!given) {  // the others need not wait for it
            const bool known =
                config != nullptr && config->size >= sizeof(config->size) + sizeof(config->rows);
            (void)agree(*comm->rendezvous, bundle::prepare_label(known ? config->rows : 0),
                        Result<runtime::Bytes>(given.error()));
            return given.error();
        }
        bundle::PrepareOptions options{.tiles = tiles_of(given->config), .graphs = given->config.graphs != 0};
        if (given->config.deadline_ms != 0)
            options.deadline_ms = std::max<std::int64_t>(given->config.deadline_ms, 0);
        SYNCOPATE_TAKE(auto prepared, given->loaded->prepare(given->config.rows, options));
        auto made = std::make_unique<sy_op>();
        made->device = comm->device;
        made->prepared = std::move(prepared);
        for (const runtime::Operand& operand : made->prepared->operands())
            made->row_major.push_back(bundle::row_major(operand.shape));
        made->call.resize(made->row_major.size());
        *op = handles<sy_op>().add(std::move(made));
        return Done{};
    });
}

int32_t sy_num_operands(const sy_op* op) {
    return handles<sy_op>().has(op) ? static_cast<int32_t>(op->row_major.size()) : 0;
}

sy_code sy_operand_at(const sy_op* op, int32_t index, sy_operand* operand) {
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require(op, "op"));
        if (index < 0 || index >= sy_num_operands(op))
            return usage(fmt::format("there is no operand {}: it has {}", index, sy_num_operands(op)));
        const runtime::Operand& of = op->prepared->operands()[static_cast<std::size_t>(index)];
        const auto dtype = bundle::c::dtype_of(of.dtype);
        const bool writes = !of.outputs.empty() || op->prepared->planned().writes(of.name);
        return write_struct(
            operand,
            {0, of.name.c_str(), writes ? 1 : 0, static_cast<std::int32_t>(of.shape.size()), of.shape.data(),
             dtype.code, dtype.bits, static_cast<std::int32_t>(of.alignment)},
            "sy_operand");
    });
}

sy_code sy_run(sy_op* op, const sy_tensor* const* tensors, int32_t num_tensors, void* stream) {
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require_free(op, "op", "sy_run"));
        if (tensors == nullptr) return usage("tensors: it is NULL");
        if (static_cast<std::size_t>(num_tensors) != op->call.size())
            return usage(
                fmt::format("{} tensors are given, and a call takes {}", num_tensors, op->call.size()));
        for (std::size_t i = 0; i < op->call.size(); ++i) {
            SYNCOPATE_TAKE(runtime::CallTensor tensor, tensor_of(*op, i, tensors[i]));
            op->call[i] = tensor;
        }
        return op->prepared->run(op->call, reinterpret_cast<runtime::CudaStream>(stream));
    });
}

sy_code sy_status(sy_op* op) {
    return guarded([&]() -> Status {
        SYNCOPATE_TRY(require_free(op, "op", "sy_status"));
        return op->prepared->check();
    });
}

sy_code sy_poll(sy_op* op) {
    return guarded([&]() -> Status {
        const Status there = require(op, "op");
        return there ? op->prepared->op().poll() : there;
    });
}

void sy_abort(sy_op* op) {
    (void)guarded([&]() -> Status {
        if (handles<sy_op>().has(op)) op->prepared->op().give_up();
        return Done{};
    });
}

sy_code sy_op_reset(sy_op* op) {
    return guarded([&]() -> Status {
        const Status free = require_free(op, "op", "sy_op_reset");
        return free ? op->prepared->reset() : free;
    });
}

sy_code sy_op_destroy(sy_op* op) {
    return guarded([&]() -> Status {
        if (op == nullptr) return Done{};
        SYNCOPATE_TRY(require_free(op, "op", "sy_op_destroy"));
        handles<sy_op>().drop(op);
        const std::unique_ptr<sy_op> owned(op);
        return op->prepared->destroy();
    });
}

}  // extern "C"
