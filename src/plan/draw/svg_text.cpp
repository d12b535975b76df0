#include "syncopate/plan/draw/svg_text.hpp"

#include <fmt/format.h>

namespace syncopate::plan {

std::string svg_escaped(std::string_view text) {
    std::string safe;
    for (const char c : text) {
        switch (c) {
            case '<': safe += "&lt;"; break;
            case '>': safe += "&gt;"; break;
            case '&': safe += "&amp;"; break;
            case '"': safe += "&quot;"; break;
            default: safe += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
        }
    }
    return safe;
}

std::string svg_document(double width, double height, int font_size, std::string_view elements) {
    return fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
        R"(font-family="Helvetica, Arial, sans-serif" font-size="{2}">)"
        "\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{3}</svg>\n",
        width, height, font_size, elements);
}

}  // namespace syncopate::plan
