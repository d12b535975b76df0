// Winners: the store of tuning results as choose() asks it, for one kernel on one device.
#pragma once

#include <optional>
#include <utility>

#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/store/results.hpp"
#include "syncopate/tune/store/store.hpp"

namespace syncopate::tune {

class Winners final : public Store {
public:
    /// `file` must outlive it.
    Winners(StoreFile& file, Scope scope) : file_(file), scope_(std::move(scope)) {}
    /// The problem's own winner, or that of the nearest rows which is legal here (strategy_objection).
    [[nodiscard]] std::optional<Stored> find(const Problem& problem) const override;

private:
    StoreFile& file_;
    Scope scope_;
};

}  // namespace syncopate::tune
