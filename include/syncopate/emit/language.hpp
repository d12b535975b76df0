// The languages that kernels come in. A further one is a folder kernel/<language>/ that makes the neutral
// kernel::Kernel, a folder emit/<language>/ that writes it back fused, and a line in languages.cpp.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/kernel/model/explained.hpp"
#include "syncopate/kernel/model/tiles.hpp"
#include "syncopate/result.hpp"

namespace syncopate::emit {

struct Language {
    std::string_view name;    ///< as Origin::language() of its kernels
    std::string_view suffix;  ///< of its files: ".py"

    /// What kernel `name` of `source`, the text of `file`, is for these arguments; of the only kernel without
    /// a name.
    Result<kernel::Kernel> (*analyse)(const std::string& source, std::string file, const std::string& name,
                                      const kernel::Arguments& arguments);
    /// The same, of other tiles than those of kernel::Tiles::loops.
    Result<kernel::Kernel> (*analyse_as)(const std::string& source, std::string file, const std::string& name,
                                         const kernel::Arguments& arguments, kernel::Tiles tiles);
    /// The same as `analyse`, with the reasons.
    Result<kernel::Explained> (*explain)(const std::string& source, std::string file, const std::string& name,
                                         const kernel::Arguments& arguments);
    /// The files below the folder of `file` that it imports.
    Result<std::vector<kernel::ImportedFile>> (*imported_files)(const std::string& source,
                                                                const std::string& file);

    /// The user's file with the kernel fused (emit.hpp).
    Result<std::string> (*emit)(const fuse::BoundKernel& program, const fuse::Schedule& schedule,
                                std::size_t stage);
    /// What is hardly meant of a kernel of which each rank runs some tiles (Kernel::warnings).
    std::vector<std::string> (*warnings)(const kernel::Kernel& kernel,
                                         const std::vector<std::set<std::int64_t>>& tiles);
    /// The user's file.
    const std::string& (*original)(const kernel::Kernel& kernel);
};

/// All of them; the first is that of files with an unknown suffix, as standard input has.
[[nodiscard]] std::span<const Language> languages();

/// The language of a file, by its suffix.
[[nodiscard]] const Language& language_of(std::string_view file);

/// That of a kernel's own file, ".py" or ".cu"; of one without any, the first language's.
[[nodiscard]] std::string suffix_of(std::string_view file);

/// The language that a kernel came in. Fails where none of them can write it.
[[nodiscard]] Result<const Language*> language_of(const kernel::Kernel& kernel);

}  // namespace syncopate::emit
