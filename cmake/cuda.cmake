# CUDA kernels: twinkle/kernels/*/*.cu, compiled when an nvcc is found and the torch wheel carries CUDA,
# by commands of our own: CMake's CUDA language wants a whole toolkit, we have the compiler's wheels.
#   TWINKLE_CUDA       AUTO (default), ON (its absence is an error), OFF
# twinkle_cuda: libtwinkle_cuda.so, the kernels and CUDA's libraries; no such target without CUDA.
# cuda_emulation_test: the kernels compiled as C++ against tests/cuda_emulation, which runs them on the CPU, and
# every *_cuda_test.cpp, those of the folders above too, on any machine.
set(TWINKLE_CUDA AUTO CACHE STRING "build the CUDA kernels: AUTO, ON, OFF")
# require_capability (kernels/cuda/place.h) refuses what these are not for.
set(cuda_architectures -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_90,code=compute_90)
get_filename_component(site_packages ${TORCH_DIR} DIRECTORY)
set(cuda_wheels ${site_packages}/nvidia/cu13)

set(TWINKLE_HAS_CUDA OFF)
if(NOT TWINKLE_CUDA STREQUAL "OFF")
  find_program(NVCC nvcc HINTS ${cuda_wheels}/bin /usr/local/cuda/bin)
  if(NVCC AND EXISTS ${TORCH_DIR}/lib/libtorch_cuda.so)
    set(TWINKLE_HAS_CUDA ON)
  elseif(TWINKLE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TWINKLE_CUDA is ON, but there is no nvcc (found: ${NVCC}) or torch has no libtorch_cuda.so: "
      "run `scripts/setup.sh cuda`, or pass -DNVCC=")
  endif()
endif()
message(STATUS "CUDA kernels: ${TWINKLE_HAS_CUDA}")

# Objects of the .cu files, in VAR.
function(twinkle_cuda_objects var)
  set(flags -std=c++20 -O3 ${cuda_architectures} --expt-relaxed-constexpr
    -Xcompiler=-fPIC,-fvisibility=hidden,-Wall -Werror=all-warnings -I${CMAKE_SOURCE_DIR})
  if(EXISTS ${cuda_wheels}/include/cuda_runtime.h)
    list(APPEND flags -isystem ${cuda_wheels}/include -isystem ${cuda_wheels}/include/cccl)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/twinkle/kernels/*/*.cu)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
  set(objects)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${CCACHE} ${NVCC} ${flags} -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d COMMENT "nvcc ${name}.cu" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  file(GLOB stale ${CMAKE_BINARY_DIR}/cuda/*.o)  # objects of sources that are gone
  list(REMOVE_ITEM stale ${objects})
  if(stale)
    file(REMOVE ${stale})
  endif()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${var} ${objects} PARENT_SCOPE)
endfunction()

# libtwinkle_cuda.so, opened when a device is asked for: those who compute on the CPU load none of CUDA's libraries.
function(twinkle_add_cuda)
  if(NOT TWINKLE_HAS_CUDA)
    return()
  endif()
  twinkle_cuda_objects(objects)
  set(dir ${CMAKE_SOURCE_DIR}/twinkle/kernels)
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/cuda/*.cpp ${dir}/*/*_cuda.cpp)
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$|/cuda/cuda\\.cpp$")
  add_library(twinkle_cuda SHARED ${sources} ${objects})
  target_precompile_headers(twinkle_cuda REUSE_FROM twinkle_pch)
  target_include_directories(twinkle_cuda PRIVATE ${CMAKE_SOURCE_DIR})
  if(EXISTS ${cuda_wheels}/include/cuda_runtime.h)
    target_compile_options(twinkle_cuda PRIVATE -isystem ${cuda_wheels}/include)
  endif()
  find_library(CUDART NAMES libcudart.so.13 libcudart.so PATHS ${cuda_wheels}/lib /usr/local/cuda/lib64
    NO_DEFAULT_PATH REQUIRED)
  # Nothing names libtorch_cuda: it registers itself with ATen when it is loaded.
  target_link_libraries(twinkle_cuda PRIVATE torch_wheel -Wl,--no-as-needed ${TORCH_DIR}/lib/libtorch_cuda.so
    ${TORCH_DIR}/lib/libc10_cuda.so -Wl,--as-needed ${CUDART})
  target_link_options(twinkle_cuda PRIVATE -Wl,--no-undefined)
  set_target_properties(twinkle_cuda PROPERTIES
    INSTALL_RPATH "$ORIGIN/../torch/lib;$ORIGIN/../nvidia/cu13/lib")
  install(TARGETS twinkle_cuda LIBRARY DESTINATION twinkle)
endfunction()

function(twinkle_cuda_emulation_test)
  set(dir ${CMAKE_SOURCE_DIR}/twinkle/kernels)
  file(GLOB kernels CONFIGURE_DEPENDS ${dir}/*/*.cu)
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/cuda/tensors.cpp ${dir}/cuda/tables.cpp ${dir}/*/*_cuda.cpp ${dir}/cuda/*_test.cpp
    ${CMAKE_SOURCE_DIR}/twinkle/*/*_cuda_test.cpp ${CMAKE_SOURCE_DIR}/twinkle/*/*/*_cuda_test.cpp
    ${CMAKE_SOURCE_DIR}/tests/cuda_emulation/*.cpp)
  set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "-x;c++")
  add_executable(cuda_emulation_test ${kernels} ${sources})
  target_include_directories(cuda_emulation_test BEFORE PRIVATE ${CMAKE_SOURCE_DIR}/tests/cuda_emulation)
  # Its own cuda:: functions come before those of the library.
  target_link_libraries(cuda_emulation_test PRIVATE twinkle_engine GTest::gtest GTest::gtest_main)
  target_precompile_headers(cuda_emulation_test REUSE_FROM twinkle_pch)
  target_compile_options(cuda_emulation_test PRIVATE ${twinkle_test_warnings})
  set_target_properties(cuda_emulation_test PROPERTIES UNITY_BUILD ${TWINKLE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  foreach(shard 0 1)  # by far the longest: half the tests each, at the same time
    add_test(NAME cuda_emulation_test_${shard} COMMAND cuda_emulation_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(cuda_emulation_test_${shard} PROPERTIES COST 1000
      ENVIRONMENT "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()
