// Boxes that many tiles have in common: all tiles of a row of C read the same rows of A. They are made once
// and shared; copying them copies a pointer.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "syncopate/plan/model/region.hpp"

namespace syncopate::kernel {

/// A constant std::vector<plan::Region>, shared by its copies. It reads like the vector, and converts to it.
class SharedBoxes {
public:
    using List = std::vector<plan::Region>;

    SharedBoxes() = default;
    // NOLINTNEXTLINE(google-explicit-constructor): it reads like the list
    SharedBoxes(List boxes) : boxes_(std::make_shared<const List>(std::move(boxes))) {}
    /// It may be one of many that are kept together.
    explicit SharedBoxes(std::shared_ptr<const List> boxes) : boxes_(std::move(boxes)) {}

    operator const List&() const { return list(); }  // NOLINT(google-explicit-constructor)
    [[nodiscard]] bool empty() const { return boxes_ == nullptr || boxes_->empty(); }
    [[nodiscard]] std::size_t size() const { return list().size(); }
    [[nodiscard]] List::const_iterator begin() const { return list().begin(); }
    [[nodiscard]] List::const_iterator end() const { return list().end(); }
    [[nodiscard]] const plan::Region& front() const { return boxes_->front(); }
    const plan::Region& operator[](std::size_t i) const { return (*boxes_)[i]; }
    bool operator==(const SharedBoxes& other) const {
        return boxes_ == other.boxes_ || list() == other.list();
    }
    bool operator==(const List& other) const { return list() == other; }

private:
    [[nodiscard]] const List& list() const {
        static const List none;
        return boxes_ == nullptr ? none : *boxes_;
    }

    std::shared_ptr<const List> boxes_;  // null: none
};

}  // namespace syncopate::kernel
