// What the functions of the C API have in common: what handles hold, which of them are in use, and errors as codes.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <pthread.h>

#include "syncopate/bundle/bundle.hpp"
#include "syncopate/bundle/loaded.hpp"
#include "syncopate/c.h"
#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/device.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"
#include "syncopate/try.hpp"

struct sy_comm {
    syncopate::runtime::Device device;
    std::shared_ptr<syncopate::runtime::Rendezvous> rendezvous;
    std::vector<std::pair<std::shared_ptr<const syncopate::bundle::Bundle>,
                          std::shared_ptr<syncopate::bundle::Loaded>>>
        loaded;                         ///< also what torch's ops are served
    std::vector<std::int32_t> ranks{};  ///< after sy_recover: which they were in the store
};

struct sy_bundle {
    std::shared_ptr<const syncopate::bundle::Bundle> bundle;
};

struct sy_op {
    syncopate::runtime::Device device;
    std::unique_ptr<syncopate::bundle::Prepared> prepared;
    std::vector<syncopate::runtime::CallTensor> call;  ///< of the call at hand
    std::vector<std::vector<std::int64_t>> row_major;  ///< by operand
};

namespace syncopate::bundle::c {

inline thread_local std::string last_error;
inline thread_local bool in_call = false;  ///< of a user's tile kernel, whose thread waits for it

struct InCall {
    InCall() : outer(std::exchange(in_call, true)) {}
    ~InCall() { in_call = outer; }
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;
    bool outer;
};

/// Handles of one kind that are in use, so that one that was destroyed is refused and not looked into.
template <typename T>
class Handles {
public:
    T* add(std::unique_ptr<T> made) {
        const std::unique_lock lock(mutex_);
        known_.insert(made.get());
        return made.release();
    }
    /// Whether it was there.
    bool drop(const void* handle) {
        const std::unique_lock lock(mutex_);
        return known_.erase(handle) > 0;
    }
    [[nodiscard]] bool has(const void* handle) const {
        const std::shared_lock lock(mutex_);
        return known_.contains(handle);
    }

    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }
    void unlock_in_child() { new (&mutex_) std::shared_mutex; }

private:
    mutable std::shared_mutex mutex_;
    std::unordered_set<const void*> known_;
};

template <typename T>
Handles<T>& handles() {
    static auto* made = new Handles<T>;  // as long as the process: handles may be dropped at its end
    // A fork may come while another thread, which its child does not have, holds the lock.
    [[maybe_unused]] static const int of_forks =
        pthread_atfork([] { made->lock(); }, [] { made->unlock(); }, [] { made->unlock_in_child(); });
    return *made;
}

inline Error usage(std::string message) { return Error{std::move(message), {}, ErrorClass::usage}; }

inline sy_code failed(const Error& error) {
    last_error = error.to_string();
    return static_cast<sy_code>(error.error_class);
}

/// Runs `work`, which returns a Status.
template <typename Work>
sy_code guarded(Work work) noexcept {
    try {
        const Status done = work();
        if (done) return SY_OK;
        return failed(done.error());
    } catch (const std::bad_alloc&) {
        last_error = "out of memory";  // which takes none
        return SY_MACHINE;
    } catch (const std::exception& error) {
        last_error = error.what();
    } catch (...) {
        last_error = "an exception that is none of C++'s";
    }
    return SY_BUG;
}

/// Of an argument that is to be a handle.
template <typename T>
Status require(const T* handle, const char* name) {
    if (handle == nullptr) return usage(fmt::format("{}: it is NULL", name));
    if (!handles<T>().has(handle))
        return usage(fmt::format("{}: it has been destroyed, or is no handle of this kind", name));
    return Done{};
}

/// Of what all ranks call together: a tile kernel is in the middle of a call.
inline Status require_no_call(const char* function) {
    if (!in_call) return Done{};
    return usage(
        fmt::format("{}: called by a tile kernel, in the middle of a call: call it when sy_run has "
                    "returned",
                    function));
}

/// Both, of a collective function.
template <typename T>
Status require_free(const T* handle, const char* name, const char* function) {
    if (Status there = require(handle, name); !there) return there;
    return require_no_call(function);
}

/// The bundle as the communicator's ranks set it up: one for all that asks for it, so that it goes on with them.
inline Result<std::shared_ptr<Loaded>> loaded_of(sy_comm& comm, const sy_bundle& given) {
    for (const auto& [known, loaded] : comm.loaded) {
        if (known == given.bundle) return loaded;
    }
    SYNCOPATE_TAKE(std::unique_ptr<Loaded> made, Loaded::open(given.bundle, comm.device, comm.rendezvous));
    return comm.loaded.emplace_back(given.bundle, std::move(made)).second;
}

}  // namespace syncopate::bundle::c
