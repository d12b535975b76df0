#include "syncopate/excerpt.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "syncopate/utf8.hpp"

namespace syncopate {
namespace {

constexpr std::size_t kWidest = 160;  // columns of a line that is shown whole
constexpr std::size_t kBefore = 60;   // columns kept before the caret in one that is not

struct CodeRange {
    char32_t first;
    char32_t last;
};

bool within(char32_t code, const auto& ranges) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const CodeRange& range) { return code >= range.first && code <= range.last; });
}

/// Columns of a terminal that a character fills: Unicode's EastAsianWidth W and F fill two, marks that
/// combine with the character before them none.
std::size_t width_of(char32_t code) {
    static constexpr std::array<CodeRange, 20> kWide{
        {{0x1100, 0x115f}, {0x231a, 0x231b}, {0x2329, 0x232a},   {0x23e9, 0x23ec},   {0x2705, 0x2705},
         {0x2728, 0x2728}, {0x274c, 0x274c}, {0x2753, 0x2757},   {0x2e80, 0x303e},   {0x3041, 0x4dbf},
         {0x4e00, 0xa4cf}, {0xa960, 0xa97f}, {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
         {0xff01, 0xff60}, {0xffe0, 0xffe6}, {0x1f300, 0x1f64f}, {0x1f680, 0x1f9ff}, {0x20000, 0x3fffd}}};
    static constexpr std::array<CodeRange, 8> kNone{{{0x0300, 0x036f},
                                                     {0x0483, 0x0489},
                                                     {0x0591, 0x05bd},
                                                     {0x064b, 0x065f},
                                                     {0x1ab0, 0x1aff},
                                                     {0x20d0, 0x20ff},
                                                     {0xfe00, 0xfe0f},
                                                     {0xfe20, 0xfe2f}}};
    if (code < 0x300) return 1;
    return within(code, kWide) ? 2 : within(code, kNone) ? 0 : 1;
}

struct Line {
    std::size_t begin = 0;
    std::size_t end = 0;  ///< before "\n" or "\r\n"
};

Line line_of(std::string_view text, std::size_t offset) {
    Line line;
    if (const std::size_t before = offset == 0 ? std::string_view::npos : text.rfind('\n', offset - 1);
        before != std::string_view::npos)
        line.begin = before + 1;
    line.end = std::min(text.find('\n', offset), text.size());
    if (line.end > line.begin && text[line.end - 1] == '\r') --line.end;
    return line;
}

/// One character as it is shown: its text, the columns that it fills, and the byte that it begins at.
struct Cell {
    std::string_view text;
    std::size_t width = 1;
    std::size_t at = 0;
};

}  // namespace

std::int32_t column_of(std::string_view text, std::size_t offset) {
    offset = std::min(offset, text.size());
    std::int32_t column = 1;
    for (std::size_t at = line_of(text, offset).begin; at < offset; ++column)
        at += character_at(text, at).bytes.size();
    return column;
}

std::string excerpt(std::string_view text, std::size_t begin, std::size_t end) {
    begin = std::min(begin, text.size());
    const Line line = line_of(text, begin);
    begin = std::min(begin, line.end);
    end = std::clamp(end, begin, line.end);
    while (end > begin && (text[end - 1] == ' ' || text[end - 1] == '\t')) --end;

    std::vector<Cell> cells;
    std::size_t columns = 0, caret = 0;
    for (std::size_t at = line.begin; at < line.end;) {
        const Character c = character_at(text, at);
        Cell cell{c.bytes, 1, at};
        if (c.valid && c.code == '\t')
            cell.text = "\t";
        else if (is_hidden(c))
            cell.text = "?";
        else
            cell.width = width_of(c.code);
        if (at < begin) caret += cell.width;
        columns += cell.width;
        cells.push_back(cell);
        at += c.bytes.size();
    }
    // The columns to show: all, or a window with the caret inside it.
    const bool cut = columns > kWidest;
    const std::size_t from = cut && caret > kBefore ? caret - kBefore : 0;
    const std::size_t to = cut ? from + kWidest : columns;
    std::string shown, marks;
    if (from > 0) shown = "…", marks = " ";
    std::size_t column = 0;
    bool marked = false;
    for (const Cell& cell : cells) {
        const bool inside = column >= from && column + cell.width <= to;
        column += cell.width;
        if (!inside) continue;
        shown += cell.text;
        if (cell.at < begin) {
            marks += cell.text == "\t" ? "\t" : std::string(cell.width, ' ');
        } else if (cell.at < end || !marked) {
            // Below a tab another one, so that what follows stays in its column.
            std::string mark = marked && cell.text == "\t" ? "\t" : std::string(cell.width, '~');
            if (!marked && !mark.empty()) mark[0] = '^', marked = true;
            marks += mark;
        }
    }
    if (!marked) marks += '^';
    if (to < columns) shown += "…";
    return shown + "\n" + marks;
}

std::string printable(std::string_view text, std::size_t most) {
    std::string shown;
    std::size_t count = 0;
    bool space = false;
    for (std::size_t at = 0; at < text.size();) {
        const Character c = character_at(text, at);
        at += c.bytes.size();
        if (c.valid && (c.code == ' ' || (c.code >= '\t' && c.code <= '\r'))) {
            space = true;
            continue;
        }
        if (count + (space && count > 0 ? 1 : 0) >= most) return shown + "…";
        if (space && count > 0) shown += ' ', ++count;
        space = false;
        shown += is_hidden(c) ? std::string_view("?") : c.bytes;
        ++count;
    }
    return shown;
}

}  // namespace syncopate
