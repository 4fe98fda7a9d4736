# The Python that holds the wheels: -DPYTHON=..., else the repository's .venv, else the one on PATH.
set(PYTHON "" CACHE FILEPATH "Python interpreter whose environment has torch")
if(NOT PYTHON)
  if(DEFINED Python_EXECUTABLE)
    set(PYTHON ${Python_EXECUTABLE})
  elseif(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)
    set(PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  else()
    find_program(PYTHON_ON_PATH python3 REQUIRED)
    set(PYTHON ${PYTHON_ON_PATH})
  endif()
endif()
# Asked without importing: importing torch takes seconds.
execute_process(
  COMMAND ${PYTHON} -c "import importlib.util as u, os, sysconfig
where = lambda n: os.path.dirname(u.find_spec(n).origin) if u.find_spec(n) else ''
print(';'.join([where('torch'), sysconfig.get_path('include'), sysconfig.get_config_var('EXT_SUFFIX')]))"
  OUTPUT_VARIABLE python_facts OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET python_facts 0 TORCH_DIR)
list(GET python_facts 1 PYTHON_INCLUDE)
list(GET python_facts 2 PYTHON_SUFFIX)
if(NOT TORCH_DIR)
  message(FATAL_ERROR "torch 2.11 is not installed for ${PYTHON}: run `make setup`, or pass -DPYTHON=")
endif()
