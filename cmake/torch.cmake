# The torch wheel as imported targets. find_package(Torch) would demand a CUDA toolkit for a CUDA wheel.
#   torch_wheel         ATen, autograd, c10d; CUDA's libraries are the kernels' (cuda.cmake)
#   torch_wheel_python  Python's headers and pybind11's, for python/src alone. Not libtorch_python: it
#                       would load all of CUDA's libraries
add_library(torch_wheel INTERFACE)
target_include_directories(torch_wheel SYSTEM INTERFACE
  ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
# CMake gives what is built an RPATH to these libraries and drops it from what is installed.
target_link_options(torch_wheel INTERFACE -Wl,-rpath-link,${TORCH_DIR}/lib)
target_link_libraries(torch_wheel INTERFACE ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)
# at::parallel_for is serial in files compiled without OpenMP; the runtime is the wheel's own.
target_compile_options(torch_wheel INTERFACE -fopenmp)
target_link_libraries(torch_wheel INTERFACE ${TORCH_DIR}/lib/libgomp.so.1)
add_library(torch_wheel_python INTERFACE)
target_include_directories(torch_wheel_python SYSTEM INTERFACE ${PYTHON_INCLUDE})
target_link_libraries(torch_wheel_python INTERFACE torch_wheel)
