# CUDA at build time: headers, and device code compiled to one fatbin that is embedded as bytes. Nothing links libcuda
# or libcudart: the driver is opened at run time, so one build also works on a machine with no GPU.

set(SYNCOPATE_NVCC "" CACHE FILEPATH "nvcc; found on its own where it is in the usual places")
set(cuda_include "")
if(SYNCOPATE_CUDA)
    if(NOT SYNCOPATE_NVCC)
        file(GLOB toolkit_bins /usr/local/cuda/bin /usr/local/cuda-*/bin)
        find_program(found_nvcc nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin ${toolkit_bins})
        if(found_nvcc)
            set(SYNCOPATE_NVCC ${found_nvcc} CACHE FILEPATH "" FORCE)
        endif()
    endif()
    if(SYNCOPATE_NVCC)
        # nvcc may be a wrapper far from its toolkit; it names the toolkit itself.
        execute_process(COMMAND ${SYNCOPATE_NVCC} -v --dryrun __ -o /dev/null
            OUTPUT_VARIABLE dryrun ERROR_VARIABLE dryrun)
        if(dryrun MATCHES "TOP=([^\r\n]+)")
            string(STRIP "${CMAKE_MATCH_1}" toolkit)
            find_path(found_cuda_include cuda.h
                PATHS ${toolkit}/include ${toolkit}/targets/x86_64-linux/include ${toolkit}/targets/sbsa-linux/include
                NO_DEFAULT_PATH)
            if(found_cuda_include)
                set(cuda_include ${found_cuda_include})
            endif()
        endif()
    endif()
    if(cuda_include)
        message(STATUS "CUDA: ${SYNCOPATE_NVCC}, headers in ${cuda_include}")
    else()
        message(STATUS "CUDA: no toolkit found; building without the cuda device")
    endif()
endif()

# syncopate_embed_device_code(LAYER): where CUDA is on, defines SYNCOPATE_HAS_CUDA=1 for the layer and compiles its
# src/LAYER/*.cu, as one translation unit, to a fatbin (sm_90 machine code and compute_90 PTX) found at
#
#     extern "C" const unsigned char syncopate_device_fatbin[];
#     extern "C" const std::size_t syncopate_device_fatbin_size;   // bytes; 0 when there is no .cu file
function(syncopate_embed_device_code layer)
    get_target_property(type syncopate_${layer} TYPE)
    if(NOT cuda_include OR type STREQUAL "INTERFACE_LIBRARY")
        return()
    endif()
    target_compile_definitions(syncopate_${layer} PUBLIC SYNCOPATE_HAS_CUDA=1)
    target_include_directories(syncopate_${layer} SYSTEM PRIVATE ${cuda_include})

    set(out ${PROJECT_BINARY_DIR}/device)
    set(unit ${out}/device.cu)
    set(fatbin ${out}/device.fatbin)
    set(embedded ${out}/device_fatbin.cpp)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/*.cu)
    set(includes "")
    foreach(source IN LISTS sources)
        string(APPEND includes "#include \"${source}\"\n")
    endforeach()
    file(CONFIGURE OUTPUT ${unit} CONTENT "${includes}" @ONLY)
    if(sources)
        add_custom_command(OUTPUT ${fatbin}
            COMMAND ${SYNCOPATE_NVCC} -fatbin -O3 -std=c++17 -lineinfo
                -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90
                -I ${PROJECT_SOURCE_DIR}/include -I ${PROJECT_SOURCE_DIR}/src
                -Werror all-warnings -MD -MF ${fatbin}.d -MT ${fatbin} -o ${fatbin} ${unit}
            DEPENDS ${unit} ${sources} DEPFILE ${fatbin}.d VERBATIM
            COMMENT "Compiling device code for sm_90")
    else()
        file(WRITE ${fatbin} "")
    endif()
    file(CONFIGURE OUTPUT ${embedded} @ONLY CONTENT [[
// The device code as bytes, 64-byte aligned; the size is a constant of the image, ready before any constructor runs.
asm(R"(
    .section .rodata
    .global syncopate_device_fatbin
    .type syncopate_device_fatbin, %object
    .balign 64
syncopate_device_fatbin:
    .incbin "@fatbin@"
0:
    .size syncopate_device_fatbin, 0b - syncopate_device_fatbin
    .global syncopate_device_fatbin_size
    .type syncopate_device_fatbin_size, %object
    .balign 8
syncopate_device_fatbin_size:
    .quad 0b - syncopate_device_fatbin
    .size syncopate_device_fatbin_size, 8
    .text
)");
]])
    set_source_files_properties(${embedded} PROPERTIES OBJECT_DEPENDS ${fatbin})
    target_sources(syncopate_${layer} PRIVATE ${embedded})
endfunction()
