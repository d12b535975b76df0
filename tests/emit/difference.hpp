// What was changed in a file, as `diff -u` prints it: goldens say it so that a reader sees the added lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace syncopate::emit::test {

inline std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
        lines.push_back(text.substr(0, end));
        text.remove_prefix(end);
    }
    return lines;
}

/// The lines of both, each after ' ' (in both), '-' (in the first) or '+' (in the second): as few as there
/// can be of the latter two.
inline std::vector<std::string> edited_lines(std::string_view from, std::string_view to) {
    const std::vector<std::string_view> a = lines_of(from), b = lines_of(to);
    // common[i][j]: of the lines from a[i] and b[j] on, how many can be kept.
    std::vector<std::vector<int>> common(a.size() + 1, std::vector<int>(b.size() + 1, 0));
    for (std::size_t i = a.size(); i-- > 0;) {
        for (std::size_t j = b.size(); j-- > 0;)
            common[i][j] =
                a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
    }
    std::vector<std::string> edited;
    const auto add = [&](char sign, std::string_view line) { edited.push_back(sign + std::string(line)); };
    std::size_t i = 0, j = 0;
    while (i < a.size() || j < b.size()) {
        if (i < a.size() && j < b.size() && a[i] == b[j])
            add(' ', a[i++]), ++j;
        else if (i < a.size() && (j == b.size() || common[i + 1][j] >= common[i][j + 1]))
            add('-', a[i++]);
        else
            add('+', b[j++]);
    }
    return edited;
}

/// Hunks with two lines around each change. Both texts end with a line end.
inline std::string difference(const std::string& from_name, std::string_view from, const std::string& to_name,
                              std::string_view to) {
    constexpr std::size_t kAround = 2;
    const std::vector<std::string> edited = edited_lines(from, to);
    std::vector<bool> shown(edited.size());
    for (std::size_t at = 0; at < edited.size(); ++at) {
        if (edited[at][0] == ' ') continue;
        const std::size_t end = std::min(at + kAround + 1, edited.size());
        for (std::size_t near = at - std::min(at, kAround); near < end; ++near) shown[near] = true;
    }
    std::string text = "--- " + from_name + "\n+++ " + to_name + "\n";
    std::size_t old_line = 1, new_line = 1;
    for (std::size_t at = 0; at < edited.size();) {
        std::string hunk;
        std::size_t olds = 0, news = 0;
        for (; at < edited.size() && shown[at]; ++at) {
            hunk += edited[at];
            olds += edited[at][0] != '+' ? 1 : 0;
            news += edited[at][0] != '-' ? 1 : 0;
        }
        if (!hunk.empty()) {
            text += "@@ -" + std::to_string(old_line) + "," + std::to_string(olds) + " +" +
                    std::to_string(new_line) + "," + std::to_string(news) + " @@\n" + hunk;
        }
        old_line += olds;
        new_line += news;
        for (; at < edited.size() && !shown[at]; ++at) ++old_line, ++new_line;
    }
    return text;
}

}  // namespace syncopate::emit::test
