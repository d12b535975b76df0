# What is installed. `cmake --install`: the command, the headers, and all layers as one shared library, which
# find_package(syncopate) gives as syncopate::syncopate; no public header includes one of another library. With
# SYNCOPATE_INSTALL_STATIC also as an archive, syncopate::static.
# In a wheel (pip install .): the extension, the command, and the headers of users' CUDA kernels.
include(GNUInstallDirs)

if(SKBUILD)
    if(NOT TARGET _syncopate)
        message(FATAL_ERROR "a wheel needs the Python extension: Python's headers or nanobind are missing")
    endif()
    install(TARGETS _syncopate syncopate_torch LIBRARY DESTINATION syncopate COMPONENT python)
    install(DIRECTORY ${stub_folder}/_syncopate DESTINATION syncopate COMPONENT python)
    install(TARGETS syncopate_command RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
    install(DIRECTORY ${deps}/licenses/ DESTINATION ${SKBUILD_METADATA_DIR}/licenses/libraries COMPONENT python)
    # What a user's kernel in CUDA C++ includes (python/syncopate/device/cuda_source.py).
    foreach(header IN ITEMS emit/layout.hpp emit/schedule_device.cuh fuse/model/control_block.hpp)
        cmake_path(GET header PARENT_PATH folder)
        install(FILES ${PROJECT_SOURCE_DIR}/include/syncopate/${header}
            DESTINATION syncopate/include/syncopate/${folder} COMPONENT python)
    endforeach()
    return()
endif()

list(TRANSFORM layers PREPEND syncopate_ OUTPUT_VARIABLE parts)
set(libraries fmt pugixml_sources tree_sitter tree_sitter_python sqlite_amalgamation)

# syncopate_installed(TARGET NAME PARTS): a library of all layers, for find_package(syncopate).
function(syncopate_installed target name)
    foreach(part IN LISTS ARGN)
        if(TARGET ${part})
            get_target_property(type ${part} TYPE)
            if(NOT type STREQUAL "INTERFACE_LIBRARY")
                target_sources(${target} PRIVATE $<TARGET_OBJECTS:${part}>)
            endif()
        endif()
    endforeach()
    target_include_directories(${target} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_compile_features(${target} INTERFACE cxx_std_20)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME syncopate EXPORT_NAME ${name} LINKER_LANGUAGE CXX)
    install(TARGETS ${target} EXPORT syncopate LIBRARY ARCHIVE)
endfunction()

# libsyncopate.so: of the libraries that it uses, what it needs is inside and hidden.
add_library(syncopate_whole SHARED)
set(exports ${PROJECT_SOURCE_DIR}/cmake/syncopate.map)
syncopate_installed(syncopate_whole syncopate ${parts})
target_link_libraries(syncopate_whole PRIVATE fmt pugixml tree_sitter_python sqlite ${CMAKE_DL_LIBS})
target_link_options(syncopate_whole PRIVATE -Wl,--version-script=${exports} -Wl,-z,defs)
set_target_properties(syncopate_whole PROPERTIES LINK_DEPENDS ${exports}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# libsyncopate.a, which hides none of them: the other libraries of a program must be other ones.
if(SYNCOPATE_INSTALL_STATIC)
    add_library(syncopate_archive STATIC)
    syncopate_installed(syncopate_archive static ${parts} ${libraries})
    if(NOT TARGET sqlite_amalgamation)
        target_link_libraries(syncopate_archive INTERFACE $<INSTALL_INTERFACE:sqlite3>)  # the distribution's
    endif()
    if(NOT TARGET pugixml_sources)
        target_link_libraries(syncopate_archive INTERFACE $<INSTALL_INTERFACE:pugixml>)
    endif()
endif()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/syncopate)
install(TARGETS syncopate_command RUNTIME)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${deps}/licenses/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/libraries OPTIONAL)
install(EXPORT syncopate NAMESPACE syncopate:: FILE syncopate-config.cmake DESTINATION ${package})
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/syncopate-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/syncopate-config-version.cmake DESTINATION ${package})
