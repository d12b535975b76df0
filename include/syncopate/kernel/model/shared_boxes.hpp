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

    SharedBoxes() : boxes_(none()) {}
    // NOLINTNEXTLINE(google-explicit-constructor): it reads like the list
    SharedBoxes(List boxes) : boxes_(std::make_shared<const List>(std::move(boxes))) {}
    /// Not null. It may be one of many that are kept together.
    explicit SharedBoxes(std::shared_ptr<const List> boxes) : boxes_(std::move(boxes)) {}

    operator const List&() const { return *boxes_; }  // NOLINT(google-explicit-constructor)
    [[nodiscard]] bool empty() const { return boxes_->empty(); }
    [[nodiscard]] std::size_t size() const { return boxes_->size(); }
    [[nodiscard]] List::const_iterator begin() const { return boxes_->begin(); }
    [[nodiscard]] List::const_iterator end() const { return boxes_->end(); }
    [[nodiscard]] const plan::Region& front() const { return boxes_->front(); }
    const plan::Region& operator[](std::size_t i) const { return (*boxes_)[i]; }
    bool operator==(const SharedBoxes& other) const {
        return boxes_ == other.boxes_ || *boxes_ == *other.boxes_;
    }
    bool operator==(const List& other) const { return *boxes_ == other; }

private:
    static const std::shared_ptr<const List>& none() {
        static const auto empty = std::make_shared<const List>();
        return empty;
    }
    std::shared_ptr<const List> boxes_;
};

}  // namespace syncopate::kernel
