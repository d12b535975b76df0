// What tuning has found, as choosing asks it.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "bindings.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/store/snapshot.hpp"
#include "syncopate/tune/store/store.hpp"
#include "syncopate/tune/store/winners.hpp"

namespace syncopate::bindings {

/// For a kernel, by its hash; nothing without one, and where SYNCOPATE_TUNE is off.
class Known {
public:
    /// `of`: by whose files; by those of this process where none is given.
    Known(const std::string& kernel, const std::string& device, const std::string& versions, bool cuda,
          const std::optional<tune::Snapshot>& of = {}) {
        if (kernel.empty()) return;
        if (of) {
            file_.emplace(unwrap(tune::store_of(of->results)));
        } else if (unwrap(tune::tune_mode()) != tune::TuneMode::off) {
            file_.emplace();
        } else {
            return;
        }
        winners_.emplace(
            *file_, tune::Scope{.kernel = kernel, .device = cuda ? device : "host", .versions = versions});
    }
    [[nodiscard]] const tune::Store* store() const { return winners_ ? &*winners_ : nullptr; }

    /// (strategy, µs, whether these were measured, note), with warnings of what is to be said.
    [[nodiscard]] nanobind::tuple told(const tune::Choice& made) const {
        if (file_) warn_of(*file_);
        if (!made.warning.empty())
            nanobind::module_::import_("warnings")
                .attr("warn")(made.warning, nanobind::arg("stacklevel") = 2);
        return nanobind::make_tuple(made.strategy, made.us, made.measured, made.note);
    }

private:
    std::optional<tune::StoreFile> file_;
    std::optional<tune::Winners> winners_;
};

}  // namespace syncopate::bindings
