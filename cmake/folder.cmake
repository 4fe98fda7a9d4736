# twinkle_folder(NAME [TORCH] LINK ...): twinkle/NAME/*.cpp, and one folder deeper, is one static library, its *_test.cpp
# one ctest program, so that adding a leaf is adding a file. A folder without sources yet only forwards its links.
#
# Headers take most of a compiler's time: up to eight files of a folder, in alphabetical order, are compiled together,
# which takes a third of it. So the files of a folder share what an unnamed namespace holds: tests/test_unity.py refuses
# a name that two of them have, whatever the order puts together.
find_program(CCACHE ccache)
if(CCACHE)
  # A precompiled header is cached only when ccache may ignore its time stamps and macros.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()
# ISO mode would forbid fused multiply-add, which half of the kernels' speed is.
add_compile_options(-Wall -Wextra -Werror -Wno-missing-field-initializers
  -fPIC -fvisibility=hidden -ffp-contract=fast)

# One precompiled header for every folder that sees tensors.
add_library(twinkle_pch OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch.cpp)
target_precompile_headers(twinkle_pch PRIVATE ${CMAKE_SOURCE_DIR}/cmake/pch.h)
target_link_libraries(twinkle_pch PRIVATE torch_wheel Boost::headers)
target_include_directories(twinkle_pch PRIVATE ${CMAKE_SOURCE_DIR})

if(TWINKLE_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
  # GCC 12 takes `"a" + std::to_string(b)` for an overlap, in some units and not in others (its bug 105651).
  set(twinkle_test_warnings $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  # A test's own code runs once: optimising it took a third of its compiler's time.
  set(twinkle_test_options ${twinkle_test_warnings} $<$<CONFIG:Release>:-O1>)
endif()

# twinkle_alone(NAME FILE...): each of these files (or patterns of them; tests excepted) of twinkle/NAME is compiled by
# itself.
function(twinkle_alone name)
  list(TRANSFORM ARGN REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/twinkle/${name}/\\1.cpp")
  file(GLOB files CONFIGURE_DEPENDS ${ARGN})
  list(FILTER files EXCLUDE REGEX "_test\\.cpp$")
  set_source_files_properties(${files} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# twinkle_without_torch(NAME FILE...): these see no tensors; the precompiled header would cost them seconds. They are
# compiled alone.
function(twinkle_without_torch name)
  twinkle_alone(${name} ${ARGN})
  list(TRANSFORM ARGN REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/twinkle/${name}/\\1.cpp")
  set_source_files_properties(${ARGN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

function(twinkle_folder name)
  cmake_parse_arguments(arg "TORCH" "" "LINK" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/twinkle/${name})
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cpp ${dir}/*/*.cpp)
  file(GLOB tests CONFIGURE_DEPENDS ${dir}/*_test.cpp ${dir}/*/*_test.cpp)
  if(tests)
    list(REMOVE_ITEM sources ${tests})
  endif()
  # main.cpp is a program's; those of kernels/ that are for CUDA are cuda.cmake's, but for cuda.h's way there; of what
  # has no torch, programs.cmake's.
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$|/kernels/cuda/|/kernels/.*_cuda\\.cpp$|_without_torch\\.cpp$")
  if(name STREQUAL "kernels")
    list(APPEND sources ${dir}/cuda/cuda.cpp)
  endif()
  if(arg_TORCH)
    list(APPEND arg_LINK torch_wheel)
  endif()
  if(sources)
    add_library(twinkle_${name} STATIC ${sources})
    target_include_directories(twinkle_${name} PUBLIC ${CMAKE_SOURCE_DIR})
    target_link_libraries(twinkle_${name} PUBLIC ${arg_LINK})
    set_target_properties(twinkle_${name} PROPERTIES UNITY_BUILD ${TWINKLE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
    if(arg_TORCH)
      target_precompile_headers(twinkle_${name} REUSE_FROM twinkle_pch)
    endif()
  else()
    add_library(twinkle_${name} INTERFACE)
    target_include_directories(twinkle_${name} INTERFACE ${CMAKE_SOURCE_DIR})
    target_link_libraries(twinkle_${name} INTERFACE ${arg_LINK})
  endif()
  if(tests AND TWINKLE_TESTS)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE twinkle_${name} GTest::gtest GTest::gtest_main)
    target_compile_options(${name}_test PRIVATE ${twinkle_test_options})
    set_target_properties(${name}_test PROPERTIES UNITY_BUILD ${TWINKLE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
    if(arg_TORCH)
      target_precompile_headers(${name}_test REUSE_FROM twinkle_pch)
    endif()
    if(TWINKLE_HAS_CUDA AND arg_TORCH)
      # Opened later, a GPU would be unknown to a torch that has computed by then.
      target_link_libraries(${name}_test PRIVATE -Wl,--no-as-needed twinkle_cuda -Wl,--as-needed)
    endif()
    add_test(NAME ${name}_test COMMAND ${name}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    # Two programs share the cores: threads that wait must not spin.
    set_tests_properties(${name}_test PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
  endif()
endfunction()
