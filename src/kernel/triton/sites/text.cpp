#include "syncopate/kernel/triton/sites/text.hpp"

#include <stdexcept>

namespace syncopate::kernel::triton {

const Text& text_of(const Kernel& kernel) {
    const auto* text = dynamic_cast<const Text*>(kernel.origin.get());
    if (text == nullptr) throw std::logic_error("kernel " + kernel.name + " has no Triton text");
    return *text;
}

}  // namespace syncopate::kernel::triton
