#include "syncopate/bundle/bundle.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "syncopate/digest.hpp"
#include "syncopate/io.hpp"
#include "syncopate/names.hpp"
#include "syncopate/ops/operators.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

constexpr std::string_view kManifest = "manifest.json";
constexpr std::string_view kSchedule = "folder/schedule.json";
constexpr std::string_view kLaunches = "folder/launches.json";
constexpr std::string_view kElf =
    "\x7f"
    "ELF";

/// Sections of which nothing but a reader knows.
bool is_for_reading(std::string_view name) {
    return name.starts_with("source/") || name.starts_with("folder/");
}

Error wrong(const std::string& file, const std::string& message) { return Error{message, {.file = file}}; }

Status require_sections(const Bundle& made) {
    std::set<std::string, std::less<>> named;
    for (const CompiledKernel& kernel : made.kernels) {
        const auto found = made.sections.find(kernel.section);
        if (found == made.sections.end())
            return wrong(made.file, fmt::format("section manifest.json names {}, which is not there",
                                                escaped(kernel.section)));
        if (!std::string_view(found->second).starts_with(kElf))
            return wrong(made.file, fmt::format("section {} is no cubin", escaped(kernel.section)));
        named.insert(kernel.section);
    }
    if (made.folder && !made.sections.contains(kSchedule))
        return wrong(made.file, "section folder/schedule.json is not there, which says what is run");
    if (made.grouped && !made.sections.contains(kLaunches))
        return wrong(made.file, "section folder/launches.json is not there, which says what is called");
    for (const auto& [name, content] : made.sections) {
        if (!named.contains(name) && !is_for_reading(name))
            return wrong(made.file, fmt::format("section {} belongs to nothing", escaped(name)));
    }
    return Done{};
}

std::string rows_of(const OperatorPart& part) {
    std::string text;
    std::int64_t first = 1;
    for (const Bucket& bucket : part.buckets) {
        const std::string which = part.takes_exact_rows() ? fmt::format("{} tokens a rank", bucket.rows)
                                  : first > bucket.rows   ? "rows that this does not take"
                                                          : fmt::format("rows {} to {}", first, bucket.rows);
        text += fmt::format("{}: {}\n", which, ops::name_of(bucket.strategy));
        for (const Variant& variant : bucket.variants) {
            text += "  kernels";
            for (const std::int32_t kernel : variant.kernels) text += fmt::format(" {}", kernel);
            text += ":";
            for (const Traits& traits : variant.traits) {
                for (const auto& [name, value] : traits) {
                    if (value != 0) text += value == 1 ? " " + name : fmt::format(" {}={}", name, value);
                }
            }
            text += '\n';
        }
        first = bucket.rows + 1;
    }
    return text;
}

}  // namespace

std::string to_bytes(const Bundle& bundle) {
    Sections all = bundle.sections;
    all[std::string(kManifest)] = manifest_to_json(bundle);
    return pack(all);
}

Result<Bundle> from_bytes(std::string_view bytes, const std::string& file) {
    SYNCOPATE_TAKE(Sections sections, unpack(bytes, file));
    const auto manifest = sections.find(kManifest);
    if (manifest == sections.end()) return wrong(file, "section manifest.json is not there");
    SYNCOPATE_TAKE(Bundle made, manifest_from_json(manifest->second, file + ": section manifest.json"));
    sections.erase(manifest);
    made.sections = std::move(sections);
    made.file = file;
    SYNCOPATE_TRY(require_sections(made));
    return made;
}

Result<Bundle> read_bundle(const std::string& file) {
    std::error_code none;
    const std::filesystem::file_status found = std::filesystem::status(file, none);
    if (std::filesystem::is_other(found))  // a device or a pipe may never end
        return Error{"is no file on a disk, as a bundle is", {.file = file}};
    SYNCOPATE_TAKE(const std::string bytes, read_file(file));
    return from_bytes(bytes, file);
}

Status write_bundle(const Bundle& bundle, const std::string& file) {
    const std::string bytes = to_bytes(bundle);
    // What cannot be read again is not written.
    if (const Result<Bundle> again = from_bytes(bytes, file); !again) return again.error();
    return write_file_atomically(file, bytes);
}

std::string describe(const Bundle& bundle) {
    std::string text = fmt::format("{}, for {}, {} ranks, made by {}\n", bundle.name, bundle.arch,
                                   bundle.ranks(), bundle.made_by);
    if (bundle.op) text += rows_of(*bundle.op);
    for (std::size_t i = 0; i < bundle.kernels.size(); ++i) {
        const CompiledKernel& kernel = bundle.kernels[i];
        text +=
            fmt::format("kernel {}: {}, {} warps, {} bytes of shared memory, {} arguments\n", i, kernel.entry,
                        kernel.options.num_warps, kernel.options.shared_bytes, kernel.parameters.size());
    }
    for (const auto& [name, content] : bundle.sections)
        text += fmt::format("section {}: {} bytes, {}\n", escaped(name), content.size(), digest(content));
    return text;
}

ops::Call OperatorPart::called() const {
    ops::Call made = call;
    if (int32_ids) made.ids = plan::DType::int32;
    return made;
}

bool OperatorPart::takes_exact_rows() const {
    const ops::OperatorRow* const row = ops::operator_row(problem.op);
    return row != nullptr && row->exact_rows;
}

Result<const Bucket*> bucket_of(const Bundle& bundle, std::int64_t rows) {
    const bool exact = bundle.op->takes_exact_rows();
    const auto fits = [&](const Bucket& bucket) { return exact ? rows == bucket.rows : rows <= bucket.rows; };
    const auto found = std::ranges::find_if(bundle.op->buckets, fits);
    if (rows >= 1 && found != bundle.op->buckets.end()) return &*found;
    if (exact) {
        std::vector<std::int64_t> known;
        for (const Bucket& bucket : bundle.op->buckets) known.push_back(bucket.rows);
        return Error{
            fmt::format("{} tokens a rank are not in this bundle, which has {}: compile it with --rows "
                        "{}, or fill up to one of these",
                        rows, fmt::join(known, ", "), rows),
            {.file = bundle.file},
            ErrorClass::usage};
    }
    return Error{fmt::format("{} rows are not in this bundle, which has 1 to {}: compile it with --rows {}",
                             rows, bundle.op->buckets.back().rows, rows),
                 {.file = bundle.file},
                 ErrorClass::usage};
}

}  // namespace syncopate::bundle
