#include "syncopate/runtime/call/strided_copy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/signals/turns.hpp"
#include "syncopate/at.hpp"

namespace syncopate::runtime {
namespace {

/// One axis of a copy: how often, and from where to where (bytes).
struct Axis {
    std::uint64_t count;
    std::uint64_t src;
    std::uint64_t dst;
};

std::vector<std::int64_t> long_axes(const std::vector<std::int64_t>& shape) {
    std::vector<std::int64_t> axes;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] != 1) axes.push_back(static_cast<std::int64_t>(i));
    }
    return axes;
}

}  // namespace

BoxView view_of(const plan::Tensor& tensor, const plan::Region& region, std::uint64_t address) {
    BoxView view;
    view.shape.resize(region.size());
    view.strides.resize(region.size());
    std::int64_t stride = 1;
    std::int64_t first = 0;
    for (std::size_t i = region.size(); i-- > 0;) {
        view.shape[i] = region[i].size();
        view.strides[i] = stride;
        first += region[i].begin * stride;
        stride *= tensor.shape[i];
    }
    view.address = address + static_cast<std::uint64_t>(first) * plan::size_of(tensor.dtype);
    return view;
}

Result<std::vector<StridedCopy>> copies_between(const BoxView& src, const BoxView& dst,
                                                std::size_t element_size) {
    const std::vector<std::int64_t> src_axes = long_axes(src.shape);
    const std::vector<std::int64_t> dst_axes = long_axes(dst.shape);
    bool same = src_axes.size() == dst_axes.size();
    for (std::size_t i = 0; same && i < src_axes.size(); ++i) {
        same = src.shape[at(src_axes[i])] == dst.shape[at(dst_axes[i])];
    }
    if (!same) {
        return Error{fmt::format("a box of [{}] cannot be copied to one of [{}]", fmt::join(src.shape, ", "),
                                 fmt::join(dst.shape, ", "))};
    }

    // From the innermost axis outwards: an axis that continues the one inside it, on both sides, joins it.
    std::vector<Axis> axes;  // innermost first; the first one is bytes, both strides 1
    axes.push_back({element_size, 1, 1});
    for (std::size_t i = src_axes.size(); i-- > 0;) {
        const auto s = static_cast<std::size_t>(src_axes[i]);
        const auto d = static_cast<std::size_t>(dst_axes[i]);
        const auto count = static_cast<std::uint64_t>(src.shape[s]);
        if (src.shape[s] <= 0) return std::vector<StridedCopy>{};
        if (src.strides[s] <= 0 || dst.strides[d] <= 0) {
            return Error{fmt::format("a stride of {} elements cannot be copied",
                                     std::min(src.strides[s], dst.strides[d]))};
        }
        const std::uint64_t src_stride = static_cast<std::uint64_t>(src.strides[s]) * element_size;
        const std::uint64_t dst_stride = static_cast<std::uint64_t>(dst.strides[d]) * element_size;
        Axis& inner = axes.back();
        if (src_stride == inner.count * inner.src && dst_stride == inner.count * inner.dst) {
            inner.count *= count;
        } else {
            axes.push_back({count, src_stride, dst_stride});
        }
    }

    StridedCopy copy{.src = src.address, .dst = dst.address, .width = axes[0].count};
    copy.src_pitch = copy.dst_pitch = copy.width;
    if (axes.size() > 1) {
        copy.height = axes[1].count;
        copy.src_pitch = axes[1].src;
        copy.dst_pitch = axes[1].dst;
    }
    copy.src_plane = copy.src_pitch * copy.height;
    copy.dst_plane = copy.dst_pitch * copy.height;
    if (axes.size() > 2) {
        copy.depth = axes[2].count;
        copy.src_plane = axes[2].src;
        copy.dst_plane = axes[2].dst;
    }
    std::vector<StridedCopy> copies{copy};
    for (std::size_t a = 3; a < axes.size(); ++a) {
        const std::size_t count = copies.size();
        for (std::uint64_t k = 1; k < axes[a].count; ++k) {
            for (std::size_t i = 0; i < count; ++i) {
                StridedCopy next = copies[i];
                next.src += k * axes[a].src;
                next.dst += k * axes[a].dst;
                copies.push_back(next);
            }
        }
    }
    return copies;
}

void copy_on_host(const StridedCopy& copy) {
    if (Turns* const turns = Turns::of_thread()) turns->copy(copy);
    for (std::uint64_t plane = 0; plane < copy.depth; ++plane) {
        for (std::uint64_t row = 0; row < copy.height; ++row) {
            std::memcpy(
                reinterpret_cast<void*>(copy.dst + plane * copy.dst_plane + row * copy.dst_pitch),
                reinterpret_cast<const void*>(copy.src + plane * copy.src_plane + row * copy.src_pitch),
                copy.width);
        }
    }
}

void Turns::copy(const StridedCopy& copy) {
    const auto each_row = [&](std::uint64_t base, std::uint64_t plane, std::uint64_t pitch,
                              const auto& visit) {
        for (std::uint64_t at = 0; at < copy.depth * copy.height; ++at)
            visit(base + at / copy.height * plane + at % copy.height * pitch);
    };
    each_row(copy.src, copy.src_plane, copy.src_pitch, [&](std::uint64_t row) { read(row, copy.width); });
    each_row(copy.dst, copy.dst_plane, copy.dst_pitch, [&](std::uint64_t row) { write(row, copy.width); });
}

namespace {

struct Range {
    std::uint64_t begin, end;
    [[nodiscard]] bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

Range range_of(const StridedCopy& copy, std::uint64_t address, std::uint64_t pitch, std::uint64_t plane) {
    if (copy.bytes() == 0) return {address, address};
    return {address, address + (copy.depth - 1) * plane + (copy.height - 1) * pitch + copy.width};
}

Range written_by(const StridedCopy& copy) { return range_of(copy, copy.dst, copy.dst_pitch, copy.dst_plane); }

}  // namespace

bool depend(std::span<const StridedCopy* const> copies) {
    Range written{.begin = std::numeric_limits<std::uint64_t>::max(), .end = 0};
    for (const StridedCopy* copy : copies) {
        const Range one = written_by(*copy);
        written = {std::min(written.begin, one.begin), std::max(written.end, one.end)};
    }
    return std::ranges::any_of(copies, [&](const StridedCopy* reader) {
        const Range read = range_of(*reader, reader->src, reader->src_pitch, reader->src_plane);
        return read.meets(written) && std::ranges::any_of(copies, [&](const StridedCopy* writer) {
                   return writer != reader && read.meets(written_by(*writer));
               });
    });
}

}  // namespace syncopate::runtime
