#include "syncopate/nesting.hpp"

#include <algorithm>

namespace syncopate {

std::size_t json_nesting(std::string_view text) {
    std::size_t open = 0;
    std::size_t most = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        switch (text[i]) {
            case '[':
            case '{': most = std::max(most, ++open); break;
            case ']':
            case '}': open -= open > 0 ? 1 : 0; break;
            case '"':
                while (++i < text.size() && text[i] != '"') {
                    if (text[i] == '\\') ++i;
                }
                break;
            default: break;
        }
    }
    return most;
}

}  // namespace syncopate
