# Targets that are installed or run: the Python extension, the executable, the examples.
# An installed file finds torch beside it, in the environment that it is in; RPATHs say so.
add_custom_target(twinkle_product COMMENT "the extension and the executable")
if(TWINKLE_PYTHON)
  file(GLOB bindings CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/python/src/*.cpp
    ${CMAKE_SOURCE_DIR}/python/src/*/*.cpp)
  if(bindings)
    add_library(_core MODULE ${bindings})
    set_target_properties(_core PROPERTIES PREFIX "" SUFFIX ${PYTHON_SUFFIX}
      INSTALL_RPATH "$ORIGIN/../torch/lib;$ORIGIN/../nvidia/cu13/lib" BUILD_WITH_INSTALL_RPATH OFF)
    target_link_libraries(_core PRIVATE twinkle_sync twinkle_metric twinkle_rl torch_wheel_python)
    target_precompile_headers(_core REUSE_FROM twinkle_pch)
    set_target_properties(_core PROPERTIES UNITY_BUILD ${TWINKLE_UNITY} UNITY_BUILD_BATCH_SIZE 5)
    install(TARGETS _core LIBRARY DESTINATION twinkle)
    target_compile_definitions(_core PRIVATE TWINKLE_VERSION="${TWINKLE_VERSION}")
    add_dependencies(twinkle_product _core)
  endif()
endif()

if(EXISTS ${CMAKE_SOURCE_DIR}/twinkle/cli/main.cpp)
  add_executable(twinkle_program ${CMAKE_SOURCE_DIR}/twinkle/cli/main.cpp)
  target_link_libraries(twinkle_program PRIVATE twinkle_cli)
  set_target_properties(twinkle_program PROPERTIES OUTPUT_NAME twinkle
    INSTALL_RPATH "$ORIGIN/../../torch/lib;$ORIGIN/../../nvidia/cu13/lib")
  install(TARGETS twinkle_program RUNTIME DESTINATION twinkle/bin)
  target_compile_definitions(twinkle_program PRIVATE TWINKLE_VERSION="${TWINKLE_VERSION}")
  add_dependencies(twinkle_product twinkle_program)
endif()

# bin/twinkle that kills itself where a test says: the same libraries and one file more.
if(TWINKLE_TESTS)
  add_executable(twinkle_with_faults ${CMAKE_SOURCE_DIR}/twinkle/cli/main.cpp
    ${CMAKE_SOURCE_DIR}/tests/service/faults.cpp)
  target_link_libraries(twinkle_with_faults PRIVATE twinkle_cli)
  target_compile_definitions(twinkle_with_faults PRIVATE TWINKLE_VERSION="${TWINKLE_VERSION}")
endif()

if(TARGET twinkle_cuda)
  add_dependencies(twinkle_product twinkle_cuda)
endif()

# Every .cpp of a folder is a program of its own.
function(twinkle_programs folder prefix)
  file(GLOB programs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
  foreach(program ${programs})
    get_filename_component(name ${program} NAME_WE)
    add_executable(${prefix}${name} ${program})
    target_link_libraries(${prefix}${name} PRIVATE twinkle_engine)
    target_precompile_headers(${prefix}${name} REUSE_FROM twinkle_pch)
  endforeach()
endfunction()
if(TWINKLE_TESTS)
  twinkle_programs(examples example_)
  twinkle_programs(bench "")
  foreach(program null_service http_rate)  # without tensors
    add_executable(${program} ${CMAKE_SOURCE_DIR}/bench/service/${program}.cpp)
    target_link_libraries(${program} PRIVATE twinkle_server)
  endforeach()
  twinkle_programs(tests/soak "")
endif()

# The scheduling of engine and sampler, and the service over a null model, without torch: what ThreadSanitizer
# can watch and a fuzzer of another compiler can link (scripts/sanitize.sh, scripts/fuzz.sh).
if(TWINKLE_TESTS)
  # twinkle_without_torch_test(NAME LIBRARY LINK FILE...): tests and what they test, neither of them in `all`.
  function(twinkle_without_torch_test name library link)
    set(tests ${ARGN})
    set(sources ${ARGN})
    list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
    list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
    add_library(${library} STATIC EXCLUDE_FROM_ALL ${sources})
    target_link_libraries(${library} PUBLIC ${link})
    target_include_directories(${library} PUBLIC ${CMAKE_SOURCE_DIR})
    # Also where the rest is compiled file by file: headers of Asio and Beast take most of a compiler's time.
    set_target_properties(${library} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    add_executable(${name} EXCLUDE_FROM_ALL ${tests})
    target_link_libraries(${name} PRIVATE ${library} GTest::gtest GTest::gtest_main)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
  endfunction()

  set(engine ${CMAKE_SOURCE_DIR}/twinkle/engine)
  file(GLOB scheduling CONFIGURE_DEPENDS ${engine}/schedule/*.cpp ${engine}/fairness/*.cpp
    ${engine}/background/*.cpp ${engine}/stream/*.cpp ${engine}/memory/held_bytes*.cpp
    ${engine}/memory/*_without_torch.cpp ${engine}/group/*.cpp
    ${CMAKE_SOURCE_DIR}/twinkle/mesh/thread_channel.cpp ${CMAKE_SOURCE_DIR}/twinkle/mesh/watch.cpp)
  list(FILTER scheduling EXCLUDE REGEX "/(cut|group|overflow|sent|sharded)_test\\.cpp$")  # over a decoder
  foreach(name schedule/schedule schedule/prefill schedule/places stop_strings params cache/block_pool cache/prefix_cache
      cache/state_pool)
    file(GLOB part CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/twinkle/sampler/${name}.cpp
      ${CMAKE_SOURCE_DIR}/twinkle/sampler/${name}_test.cpp)
    list(APPEND scheduling ${part})
  endforeach()
  list(APPEND scheduling ${engine}/protocol/bytes.cpp)
  twinkle_without_torch_test(schedule_test twinkle_scheduling twinkle_base ${scheduling})

  # With the store, and of io no more than these need: the rest of it would take as long as all of this.
  file(GLOB service CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/twinkle/server/*.cpp
    ${CMAKE_SOURCE_DIR}/twinkle/server/*/*.cpp)
  file(GLOB store CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/twinkle/store/*.cpp ${CMAKE_SOURCE_DIR}/twinkle/store/*/*.cpp)
  list(FILTER store EXCLUDE REGEX "_test\\.cpp$")
  # Beast's connections take a minute, and no fuzzer goes through them.
  list(FILTER service EXCLUDE REGEX "/http/(connection|receive|server)\\.cpp$")
  twinkle_without_torch_test(service_test twinkle_service "twinkle_scheduling;twinkle_text;${ZSTD}" ${service} ${store}
    ${CMAKE_SOURCE_DIR}/twinkle/io/atomic.cpp ${CMAKE_SOURCE_DIR}/twinkle/io/folder/private.cpp)
  target_sources(service_test PRIVATE ${CMAKE_SOURCE_DIR}/twinkle/server/http/connection.cpp
    ${CMAKE_SOURCE_DIR}/twinkle/server/http/receive.cpp
    ${CMAKE_SOURCE_DIR}/twinkle/server/http/server.cpp)
endif()

# Readers of what others wrote, given damaged cases: a test of 3 s each; longer in scripts/sanitize.sh.
if(TWINKLE_TESTS)
  file(GLOB fuzz CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*.cpp)
  add_executable(fuzz ${fuzz})
  target_compile_options(fuzz PRIVATE ${twinkle_test_options})
  set_target_properties(fuzz PROPERTIES UNITY_BUILD ${TWINKLE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  target_link_libraries(fuzz PRIVATE twinkle_server)
  file(STRINGS ${CMAKE_SOURCE_DIR}/tests/fuzz/readers.def readers REGEX "^FUZZ")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/readers.def)
  foreach(reader ${readers})
    string(REGEX REPLACE "FUZZ\\((.*)\\)" "\\1" reader ${reader})
    add_test(NAME fuzz_${reader} COMMAND fuzz ${reader} 3)
  endforeach()
endif()

# The same readers where no torch is in the way, driven by libFuzzer, which is Clang's: scripts/fuzz.sh.
if(TWINKLE_TESTS AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(guided guided/guided bodies journal json operations scratch service)
  list(TRANSFORM guided REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/tests/fuzz/\\1.cpp")
  add_executable(guided EXCLUDE_FROM_ALL ${guided})
  target_link_libraries(guided PRIVATE twinkle_service)
  target_link_options(guided PRIVATE -fsanitize=fuzzer)
  set_target_properties(guided PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
endif()
