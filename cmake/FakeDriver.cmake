# syncopate_driver_tests: the runtime, and chains of sync/, on a CUDA driver in the CPU's memory (tests/fake_cuda/fake_cuda.hpp). The program is linked
# with it under the real one's name, so the runtime, which opens that by name, gets it, also on machines with GPUs. It lies
# in a folder of its own, where nothing else finds it.
add_library(fake_cuda SHARED EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/fake_cuda/fake_cuda.cpp)
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cuda VERSION 1 SOVERSION 1
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_driver)
target_include_directories(fake_cuda PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
target_include_directories(fake_cuda SYSTEM PRIVATE ${cuda_include})
target_link_libraries(fake_cuda PRIVATE syncopate_warnings)
syncopate_layer_tests(driver syncopate_sync fake_cuda)
target_include_directories(syncopate_driver_tests SYSTEM PRIVATE ${cuda_include})
