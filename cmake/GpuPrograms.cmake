# Programs for machines with GPUs, in bin/; they need a driver to run. syncopate_check_engine (tests/gpu/) is built wherever
# tests are, as all else; syncopate_bench_engine (bench/), which calls the driver itself, where there is CUDA.
syncopate_test_program(syncopate_check_engine ${PROJECT_SOURCE_DIR}/tests/gpu/check_engine.cpp
    ${PROJECT_SOURCE_DIR}/tests/runtime/engine_cases.cpp)
set(programs syncopate_check_engine)
if(cuda_include)
    syncopate_test_program(syncopate_bench_engine ${PROJECT_SOURCE_DIR}/bench/engine/engine.cpp)
    target_include_directories(syncopate_bench_engine PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_include_directories(syncopate_bench_engine SYSTEM PRIVATE ${cuda_include})
    list(APPEND programs syncopate_bench_engine)
endif()
foreach(program IN LISTS programs)
    target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${program} PRIVATE syncopate_runtime syncopate_warnings)
endforeach()

# syncopate_check_sync (tests/gpu/) and its kernels, for sm_80 and sm_90a: the header-only device code of sync/ compiles.
if(cuda_include)
    set(sync_kernels ${PROJECT_SOURCE_DIR}/tests/gpu/sync_kernels.cu)
    set(sync_fatbin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/sync_kernels.fatbin)
    add_custom_command(OUTPUT ${sync_fatbin}
        COMMAND ${SYNCOPATE_NVCC} -fatbin -O3 -std=c++17 -lineinfo
            -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a
            -I ${PROJECT_SOURCE_DIR}/include -Werror all-warnings
            -MD -MF ${sync_fatbin}.d -MT ${sync_fatbin} -o ${sync_fatbin} ${sync_kernels}
        DEPENDS ${sync_kernels} DEPFILE ${sync_fatbin}.d VERBATIM
        COMMENT "Compiling the kernels of syncopate_check_sync")
    syncopate_test_program(syncopate_check_sync ${PROJECT_SOURCE_DIR}/tests/gpu/check_sync.cpp ${sync_fatbin})
    target_include_directories(syncopate_check_sync PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_include_directories(syncopate_check_sync SYSTEM PRIVATE ${cuda_include})
    target_link_libraries(syncopate_check_sync PRIVATE syncopate_sync syncopate_warnings ${CMAKE_DL_LIBS})
endif()

# syncopate_cuda_program(NAME SOURCE [OPTION…]): a program of one .cu file, compiled by nvcc for sm_90a and linked with sync/ and the
# static CUDA runtime.
function(syncopate_cuda_program name source)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
    add_custom_command(OUTPUT ${object}
        COMMAND ${SYNCOPATE_NVCC} -c -O3 -std=c++20 -DNDEBUG ${ARGN}
            -gencode arch=compute_90a,code=sm_90a -I ${PROJECT_SOURCE_DIR}/include
            -MD -MF ${object}.d -MT ${object} -o ${object} ${source}
        DEPENDS ${source} DEPFILE ${object}.d VERBATIM
        COMMENT "Compiling ${name}")
    find_library(cudart_static cudart_static HINTS ${cuda_include}/../lib64 ${cuda_include}/../lib
        PATH_SUFFIXES x64 ../lib64 ../lib)
    add_executable(${name} EXCLUDE_FROM_ALL ${object})
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(${name} PRIVATE syncopate_sync ${cudart_static} ${CMAKE_DL_LIBS} rt)
endfunction()

# example_chain: examples/cuda/chain.cu, which users copy.
if(cuda_include)
    syncopate_cuda_program(example_chain ${PROJECT_SOURCE_DIR}/examples/cuda/chain.cu -Werror all-warnings)
    add_dependencies(tests example_chain)
endif()

# syncopate_check_cutlass (tests/gpu/): a chain of products from CUTLASS's building blocks, where scripts/fetch-cutlass has been
# run. Not part of `tests`: compiling it takes most of a minute.
set(cutlass_include ${PROJECT_SOURCE_DIR}/.cutlass/include)
if(cuda_include AND EXISTS ${cutlass_include}/cute/tensor.hpp)
    syncopate_cuda_program(syncopate_check_cutlass ${PROJECT_SOURCE_DIR}/tests/gpu/check_cutlass.cu
        --expt-relaxed-constexpr -isystem ${cutlass_include})
endif()
