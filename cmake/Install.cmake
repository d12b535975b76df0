# What is installed. `cmake --install`: the command, the headers, and all layers with the libraries that they use as one
# static library, which find_package(syncopate) gives as syncopate::syncopate; no public header includes one of others.
# In a wheel (pip install .): the extension, the command, and the headers of users' CUDA kernels.
include(GNUInstallDirs)

if(SKBUILD)
    if(NOT TARGET _syncopate)
        message(FATAL_ERROR "a wheel needs the Python extension: Python's headers or nanobind are missing")
    endif()
    install(TARGETS _syncopate LIBRARY DESTINATION syncopate COMPONENT python)
    install(TARGETS syncopate_command RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
    # What a user's kernel in CUDA C++ includes (python/syncopate/cuda_source.py).
    foreach(header IN ITEMS emit/layout.hpp emit/schedule_device.cuh fuse/control_block.hpp)
        cmake_path(GET header PARENT_PATH folder)
        install(FILES ${PROJECT_SOURCE_DIR}/include/syncopate/${header}
            DESTINATION syncopate/include/syncopate/${folder} COMPONENT python)
    endforeach()
    return()
endif()

add_library(syncopate_whole STATIC)
foreach(part IN ITEMS syncopate_base syncopate_plan syncopate_ingest syncopate_kernel syncopate_fuse syncopate_emit
                      syncopate_runtime syncopate_tune syncopate_sync fmt pugixml tree_sitter tree_sitter_python)
    get_target_property(type ${part} TYPE)
    if(NOT type STREQUAL "INTERFACE_LIBRARY")
        target_sources(syncopate_whole PRIVATE $<TARGET_OBJECTS:${part}>)
    endif()
endforeach()
if(TARGET sqlite_amalgamation)
    target_sources(syncopate_whole PRIVATE $<TARGET_OBJECTS:sqlite_amalgamation>)
else()
    target_link_libraries(syncopate_whole INTERFACE $<INSTALL_INTERFACE:sqlite3>)  # the distribution's: -lsqlite3
endif()
target_include_directories(syncopate_whole INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(syncopate_whole INTERFACE cxx_std_20)
set_target_properties(syncopate_whole PROPERTIES
    OUTPUT_NAME syncopate EXPORT_NAME syncopate LINKER_LANGUAGE CXX)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/syncopate)
install(TARGETS syncopate_command RUNTIME)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS syncopate_whole EXPORT syncopate ARCHIVE)
install(EXPORT syncopate NAMESPACE syncopate:: FILE syncopate-config.cmake DESTINATION ${package})
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/syncopate-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/syncopate-config-version.cmake DESTINATION ${package})
