# The C and C++ libraries that Syncopate uses, each as one target: from .deps/ (scripts/fetch-deps fills it from
# deps/pins.txt), else, for those that a distribution installs, from the system. Their headers are SYSTEM: warnings in
# them are not ours.

set(deps ${PROJECT_SOURCE_DIR}/.deps)
if(SKBUILD AND NOT EXISTS ${deps}/.stamp)  # pip install . in a fresh clone
    find_package(Python COMPONENTS Interpreter REQUIRED)
    message(STATUS "Dependencies: fetching them into ${deps}")
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/fetch-deps --python ${Python_EXECUTABLE})
endif()
if(NOT EXISTS ${deps}/tree-sitter/src/lib.c OR NOT EXISTS ${deps}/pugixml/pugixml.cpp)
    message(FATAL_ERROR "${deps} is missing or incomplete: run scripts/fetch-deps (or make deps)")
endif()

# The parser runtime and the Python grammar: always from .deps/.
add_library(tree_sitter STATIC ${deps}/tree-sitter/src/lib.c)
target_include_directories(tree_sitter SYSTEM PUBLIC ${deps}/tree-sitter/include)
target_include_directories(tree_sitter PRIVATE ${deps}/tree-sitter/src)
target_compile_definitions(tree_sitter PRIVATE _POSIX_C_SOURCE=200112L _DEFAULT_SOURCE)
target_compile_options(tree_sitter PRIVATE -w)
add_library(tree_sitter_python STATIC
    ${deps}/tree-sitter-python/src/parser.c ${deps}/tree-sitter-python/src/scanner.c)
target_include_directories(tree_sitter_python PRIVATE ${deps}/tree-sitter-python/src)
target_compile_options(tree_sitter_python PRIVATE -w)
target_link_libraries(tree_sitter_python PUBLIC tree_sitter)

# XML: always from .deps/. No XPath, no streams and no exceptions, which nothing here uses.
add_library(pugixml STATIC ${deps}/pugixml/pugixml.cpp)
target_include_directories(pugixml SYSTEM PUBLIC ${deps}/pugixml)
target_compile_definitions(pugixml PUBLIC PUGIXML_NO_XPATH PUGIXML_NO_STL PUGIXML_NO_EXCEPTIONS)
target_compile_options(pugixml PRIVATE -w)

# SQLite, for the store of tuning results: the distribution's library, else the amalgamation in .deps/.
add_library(sqlite INTERFACE)
if(NOT SYNCOPATE_DEPS_ONLY)
    find_package(SQLite3 3.24 QUIET)
endif()
if(SQLite3_FOUND)
    target_include_directories(sqlite SYSTEM INTERFACE ${SQLite3_INCLUDE_DIRS})
    target_link_libraries(sqlite INTERFACE ${SQLite3_LIBRARIES})
elseif(EXISTS ${deps}/sqlite/sqlite3.c)
    find_package(Threads REQUIRED)
    add_library(sqlite_amalgamation STATIC ${deps}/sqlite/sqlite3.c)
    target_include_directories(sqlite_amalgamation SYSTEM PUBLIC ${deps}/sqlite)
    # What the store uses none of is left out. It is as quick at -O1, and compiled in half the time.
    target_compile_definitions(sqlite_amalgamation PRIVATE SQLITE_OMIT_LOAD_EXTENSION SQLITE_OMIT_DEPRECATED
        SQLITE_OMIT_SHARED_CACHE SQLITE_OMIT_AUTHORIZATION SQLITE_DEFAULT_MEMSTATUS=0 SQLITE_DQS=0 SQLITE_THREADSAFE=1)
    target_compile_options(sqlite_amalgamation PRIVATE -w -O1)
    target_link_libraries(sqlite_amalgamation PUBLIC Threads::Threads)
    target_link_libraries(sqlite INTERFACE sqlite_amalgamation)
else()
    message(FATAL_ERROR "SQLite is in neither the system nor .deps/: run scripts/fetch-deps, or install libsqlite3-dev")
endif()

# syncopate_header_library(NAME HEADER PACKAGE): NAME as an interface target, from .deps/include or the system.
function(syncopate_header_library name header package)
    add_library(${name} INTERFACE)
    if(EXISTS ${deps}/include/${header})
        target_include_directories(${name} SYSTEM INTERFACE ${deps}/include)
        return()
    endif()
    if(NOT SYNCOPATE_DEPS_ONLY)
        find_path(${name}_include_dir ${header})
        if(${name}_include_dir)
            target_include_directories(${name} SYSTEM INTERFACE ${${name}_include_dir})
            return()
        endif()
    endif()
    message(FATAL_ERROR "${header} is in neither .deps/ nor the system: run scripts/fetch-deps, or install ${package}")
endfunction()

syncopate_header_library(nlohmann_json nlohmann/json.hpp nlohmann-json3-dev)
syncopate_header_library(CLI11 CLI/CLI.hpp libcli11-dev)
syncopate_header_library(fmt_headers fmt/format.h libfmt-dev)
add_library(fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
target_compile_options(fmt PRIVATE -w)
target_link_libraries(fmt PUBLIC fmt_headers)

if(SYNCOPATE_TESTS)
    find_package(Threads REQUIRED)
    syncopate_header_library(gtest_headers gtest/gtest.h libgtest-dev)
    set(googletest ${deps}/googletest)
    if(NOT EXISTS ${googletest}/src/gtest-all.cc)
        set(googletest /usr/src/googletest/googletest)
    endif()
    add_library(gtest_main STATIC EXCLUDE_FROM_ALL ${googletest}/src/gtest-all.cc ${googletest}/src/gtest_main.cc)
    target_include_directories(gtest_main PRIVATE ${googletest})
    target_compile_options(gtest_main PRIVATE -w)
    target_link_libraries(gtest_main PUBLIC gtest_headers Threads::Threads)
endif()
