# The Rust crate rust/text as a static library behind its C header rust/text/twinkle_text.h.
find_program(CARGO cargo HINTS $ENV{HOME}/.cargo/bin)
if(NOT CARGO)
  message(FATAL_ERROR "cargo (Rust 1.80 or newer) is not on PATH; get it from your system's rustup package")
endif()
set(rust_target ${CMAKE_BINARY_DIR}/rust)
set(rust_library ${rust_target}/release/libtwinkle_text.a)
file(GLOB rust_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/rust/text/src/*.rs)
add_custom_command(
  OUTPUT ${rust_library}
  COMMAND ${CARGO} build --release --locked --target-dir ${rust_target}
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/rust/text
  DEPENDS ${rust_sources} ${CMAKE_SOURCE_DIR}/rust/text/Cargo.toml ${CMAKE_SOURCE_DIR}/rust/text/Cargo.lock
  COMMENT "cargo build rust/text" VERBATIM)
# Links know its file; were it a dependency of the target, compilers would wait for it, too.
add_custom_target(rust_text_build DEPENDS ${rust_library})
add_library(twinkle_rust_text INTERFACE)
target_include_directories(twinkle_rust_text INTERFACE ${CMAKE_SOURCE_DIR})
target_link_libraries(twinkle_rust_text INTERFACE ${rust_library} dl m Threads::Threads)
if(TWINKLE_TESTS)
  add_test(NAME rust_text_test
    COMMAND ${CARGO} test --release --locked --quiet --target-dir ${rust_target}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/rust/text)
endif()
