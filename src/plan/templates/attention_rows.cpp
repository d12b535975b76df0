#include <algorithm>
#include <utility>

#include "syncopate/plan/templates/attention.hpp"

namespace syncopate::plan {
namespace {

/// The documents of a sequence, or the one that it is.
std::vector<Interval> documents_of(const Sequence& sequence) {
    if (sequence.documents.empty()) return {{0, sequence.length}};
    std::vector<Interval> documents;
    for (std::size_t d = 0; d + 1 < sequence.documents.size(); ++d)
        documents.push_back({sequence.documents[d], sequence.documents[d + 1]});
    return documents;
}

/// Sorted, neighbours joined.
Rows joined(Rows rows) {
    std::ranges::sort(rows, {}, [](const Interval& run) { return std::pair(run.begin, run.end); });
    Rows made;
    for (const Interval& run : rows) {
        if (run.empty()) continue;
        if (!made.empty() && run.begin <= made.back().end)
            made.back().end = std::max(made.back().end, run.end);
        else
            made.push_back(run);
    }
    return made;
}

/// Of runs one behind another what lies from row `begin` of them to row `end`.
Rows part_of(const Rows& rows, std::int64_t begin, std::int64_t end) {
    Rows made;
    std::int64_t before = 0;
    for (const Interval& run : rows) {
        const Interval part{run.begin + std::max<std::int64_t>(begin - before, 0),
                            std::min(run.end, run.begin + end - before)};
        if (!part.empty()) made.push_back(part);
        before += run.size();
    }
    return made;
}

std::vector<Rows> inside_groups(const std::vector<Rows>& groups, std::int32_t group) {
    std::vector<Rows> rows;
    for (const Rows& own : groups) {
        const std::int64_t size = num_rows(own);
        for (std::int64_t member = 0; member < group; ++member)
            rows.push_back(part_of(own, size * member / group, size * (member + 1) / group));
    }
    return rows;
}

}  // namespace

std::int64_t num_rows(const Rows& rows) {
    std::int64_t held = 0;
    for (const Interval& run : rows) held += run.size();
    return held;
}

std::int64_t most_rows(const std::vector<Rows>& rows) {
    std::int64_t most = 0;
    for (const Rows& own : rows) most = std::max(most, num_rows(own));
    return most;
}

std::optional<Sharding> sharding_from(std::string_view name) {
    if (name == "contiguous") return Sharding::contiguous;
    if (name == "zigzag") return Sharding::zigzag;
    if (name == "documents") return Sharding::documents;
    return std::nullopt;
}

std::vector<Rows> shard_rows(const Sequence& sequence, std::int32_t ranks, Sharding sharding,
                             std::int64_t block, std::int32_t group) {
    if (group > 1) return inside_groups(shard_rows(sequence, ranks / group, sharding, block), group);
    const bool zigzag = sharding != Sharding::contiguous;
    const std::int64_t parts = zigzag ? 2 * std::int64_t{ranks} : ranks;
    const std::vector<Interval> whole{{0, sequence.length}};
    // A cut at the nearest multiple of `block`; the sequence's end is one whatever it is.
    const auto cut = [&](const Interval& document, std::int64_t part) {
        const std::int64_t at = document.begin + document.size() * part / parts;
        const std::int64_t rounded = (at + block / 2) / block * block;
        return at >= sequence.length ? sequence.length : std::min(rounded, sequence.length);
    };
    std::vector<Rows> rows(static_cast<std::size_t>(ranks));
    for (const Interval& document : sharding == Sharding::documents ? documents_of(sequence) : whole) {
        for (std::int64_t part = 0; part < parts; ++part) {
            const auto rank = static_cast<std::size_t>(part < ranks ? part : parts - 1 - part);
            rows[rank].push_back({cut(document, part), cut(document, part + 1)});
        }
    }
    for (Rows& own : rows) own = joined(std::move(own));
    return rows;
}

bool cut_at_tiles(const std::vector<Rows>& rows, std::int64_t length, std::int64_t block,
                  std::int32_t group) {
    const auto members = static_cast<std::size_t>(group);
    for (std::size_t first = 0; first < rows.size(); first += members) {
        Rows all;
        for (std::size_t rank = first; rank < std::min(first + members, rows.size()); ++rank)
            all.insert(all.end(), rows[rank].begin(), rows[rank].end());
        for (const Interval& run : joined(std::move(all)))
            if (run.end % block != 0 && run.end != length) return false;
    }
    return true;
}

Rows attended_by(const Sequence& sequence, const Rows& rows, std::int64_t block) {
    Rows made;
    for (const Interval& document : documents_of(sequence)) {
        for (const Interval& run : rows) {
            const Interval own{std::max(run.begin, document.begin), std::min(run.end, document.end)};
            if (own.empty()) continue;
            Interval needed = document;
            if (sequence.causal) needed.end = own.end;
            if (sequence.window > 0) {
                const std::int64_t back = sequence.window - 1;
                needed.begin = std::max(needed.begin, own.begin - back);
                if (!sequence.causal) needed.end = std::min(needed.end, own.end + back);
            }
            made.push_back({needed.begin / block * block,
                            std::min((needed.end + block - 1) / block * block, sequence.length)});
        }
    }
    return joined(std::move(made));
}

}  // namespace syncopate::plan
