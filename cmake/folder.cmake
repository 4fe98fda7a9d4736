# twinkle_folder(NAME [TORCH] LINK ...): twinkle/NAME/*.cpp, and one folder deeper, is one static library, its *_test.cpp one
# ctest program, so that adding a leaf is adding a file. A folder without sources yet only forwards its links.
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
target_link_libraries(twinkle_pch PRIVATE torch_wheel)
target_include_directories(twinkle_pch PRIVATE ${CMAKE_SOURCE_DIR})

if(TWINKLE_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
endif()

function(twinkle_folder name)
  cmake_parse_arguments(arg "TORCH" "" "LINK" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/twinkle/${name})
  file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.cpp ${dir}/*/*.cpp)
  file(GLOB tests CONFIGURE_DEPENDS ${dir}/*_test.cpp ${dir}/*/*_test.cpp)
  if(tests)
    list(REMOVE_ITEM sources ${tests})
  endif()
  # main.cpp is a program's; cuda.cmake chooses among those of kernels/cuda.
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$|/kernels/cuda/")
  if(arg_TORCH)
    list(APPEND arg_LINK torch_wheel)
  endif()
  if(sources)
    add_library(twinkle_${name} STATIC ${sources})
    target_include_directories(twinkle_${name} PUBLIC ${CMAKE_SOURCE_DIR})
    target_link_libraries(twinkle_${name} PUBLIC ${arg_LINK})
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
    if(arg_TORCH)
      target_precompile_headers(${name}_test REUSE_FROM twinkle_pch)
    endif()
    add_test(NAME ${name}_test COMMAND ${name}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    # Two programs share the cores: threads that wait must not spin.
    set_tests_properties(${name}_test PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
  endif()
endfunction()
