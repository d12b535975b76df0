# The extension syncopate._syncopate, from python/bindings/*.cpp; it lands in python/syncopate/, so that PYTHONPATH=python
# is all that Python needs. Without nanobind or Python's headers it is left out, with a message.

file(GLOB binding_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/bindings/*.cpp)
if(NOT binding_sources)
    return()
endif()
if(NOT Python_EXECUTABLE AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
find_package(Python 3.9 COMPONENTS Interpreter Development.Module)
if(Python_FOUND)
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
        OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE no_nanobind)
endif()
if(NOT Python_FOUND OR no_nanobind)
    message(STATUS "Python extension: left out, for want of Python's headers or of nanobind")
    return()
endif()
message(STATUS "Python extension: for ${Python_EXECUTABLE}")
find_package(nanobind CONFIG REQUIRED)
nanobind_add_module(_syncopate NB_STATIC NOMINSIZE ${binding_sources})
if(TARGET nanobind-static)  # its sources as one: a fifth of the time
    set_target_properties(nanobind-static PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
endif()
target_link_libraries(_syncopate PRIVATE syncopate nlohmann_json)
# What is called once for a plan or a kernel is optimised less, and for a wheel compiled a few sources at a time: most of what
# one costs are nanobind's headers. Not so what runs at each call.
syncopate_optimise_less(_syncopate)
foreach(name IN ITEMS executable functions runtime tensor_view torch_ops)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/python/bindings/${name}.cpp PROPERTIES
        COMPILE_OPTIONS $<$<CONFIG:Release>:-O2> SKIP_PRECOMPILE_HEADERS ON)  # g++ 12 fails on those of another -O
endforeach()
if(SKBUILD)
    set_target_properties(_syncopate PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)
    foreach(name IN ITEMS ops tune)  # they have names that others have, too
        set_property(SOURCE ${PROJECT_SOURCE_DIR}/python/bindings/${name}.cpp PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
endif()
# What is linked in stays inside: in the same process are PyTorch, its C++ library, and maybe its fmt.
target_link_options(_syncopate PRIVATE -Wl,--exclude-libs,ALL)
if(SYNCOPATE_PRECOMPILED)
    target_precompile_headers(_syncopate PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.hpp <nanobind/nanobind.h>
        <nanobind/stl/optional.h> <nanobind/stl/pair.h> <nanobind/stl/string.h> <nanobind/stl/tuple.h> <nanobind/stl/vector.h>)
endif()
if(NOT SKBUILD)  # a wheel is put together from what cmake/Install.cmake installs
    set_target_properties(_syncopate PROPERTIES
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_SOURCE_DIR}/python/syncopate)
endif()

# The extension's types, for editors and type checkers: python/syncopate/_syncopate/*.pyi. They are written by importing the
# extension under its own name, from a package that is empty otherwise.
set(stubs ${PROJECT_BINARY_DIR}/stubs)
if(SKBUILD)
    set(stub_folder ${stubs}/written)
else()
    set(stub_folder ${PROJECT_SOURCE_DIR}/python/syncopate)
endif()
add_custom_command(OUTPUT ${stub_folder}/_syncopate/__init__.pyi
    COMMAND ${CMAKE_COMMAND} -E make_directory ${stubs}/syncopate ${stub_folder}
    COMMAND ${CMAKE_COMMAND} -E touch ${stubs}/syncopate/__init__.py
    COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_FILE:_syncopate> ${stubs}/syncopate/$<TARGET_FILE_NAME:_syncopate>
    COMMAND ${Python_EXECUTABLE} -m nanobind.stubgen -q -r -m syncopate._syncopate -i ${stubs} -O ${stub_folder}
    DEPENDS _syncopate VERBATIM COMMENT "Writing the extension's stubs")
add_custom_target(syncopate_stubs ALL DEPENDS ${stub_folder}/_syncopate/__init__.pyi)

# torch.ops.syncopate.* (python/torch_ops): a library of its own that finds torch's stable C interface in the process. It
# takes no torch to build, and no Python to run.
file(GLOB torch_ops_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/torch_ops/*.cpp)
add_library(syncopate_torch SHARED ${torch_ops_sources})
target_compile_features(syncopate_torch PRIVATE cxx_std_20)
target_link_libraries(syncopate_torch PRIVATE ${CMAKE_DL_LIBS} syncopate_warnings)
# Symbols of a static C++ library that stay visible are kept, with what they ask of the C library.
target_link_options(syncopate_torch PRIVATE -Wl,--exclude-libs,ALL)
set_target_properties(syncopate_torch PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_include_directories(_syncopate PRIVATE ${PROJECT_SOURCE_DIR}/python/torch_ops)
add_dependencies(_syncopate syncopate_torch)
if(NOT SKBUILD)
    set_target_properties(syncopate_torch PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_SOURCE_DIR}/python/syncopate)
endif()
