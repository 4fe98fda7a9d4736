# What is installed and what is run: the Python extension, the executable, the examples.
if(TWINKLE_PYTHON)
  file(GLOB bindings CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/python/src/*.cpp)
  if(bindings)
    add_library(_core MODULE ${bindings})
    set_target_properties(_core PROPERTIES PREFIX "" SUFFIX ${PYTHON_SUFFIX}
      INSTALL_RPATH "$ORIGIN/../torch/lib;$ORIGIN/../pyarrow" BUILD_WITH_INSTALL_RPATH OFF)
    target_link_libraries(_core PRIVATE twinkle_engine torch_wheel_python)
    install(TARGETS _core LIBRARY DESTINATION twinkle)
  endif()
endif()

if(EXISTS ${CMAKE_SOURCE_DIR}/twinkle/cli/main.cpp)
  add_executable(twinkle_program ${CMAKE_SOURCE_DIR}/twinkle/cli/main.cpp)
  target_link_libraries(twinkle_program PRIVATE twinkle_cli)
  set_target_properties(twinkle_program PROPERTIES OUTPUT_NAME twinkle
    INSTALL_RPATH "$ORIGIN/../../torch/lib;$ORIGIN/../../pyarrow")
  install(TARGETS twinkle_program RUNTIME DESTINATION twinkle/bin)
endif()

if(TWINKLE_TESTS)
  file(GLOB examples CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/examples/*.cpp)
  foreach(example ${examples})
    get_filename_component(name ${example} NAME_WE)
    add_executable(example_${name} ${example})
    target_link_libraries(example_${name} PRIVATE twinkle_engine)
    target_precompile_headers(example_${name} REUSE_FROM twinkle_pch)
  endforeach()
endif()
