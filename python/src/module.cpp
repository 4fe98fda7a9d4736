// The module twinkle._core: one bind_<concept> per file, and the one place where the program's
// errors become Python's.
#include <pybind11/pybind11.h>

#include <cstring>
#include <exception>

#include "twinkle/base/error.h"
#include "twinkle/base/parallel.h"
#include "twinkle/engine/memory/text_of_error.h"

namespace py = pybind11;

void bind_text(py::module_& m);
void bind_io(py::module_& m);
void bind_data(py::module_& m);
void bind_loss(py::module_& m);
void bind_optim(py::module_& m);
void bind_metric(py::module_& m);
void bind_mesh(py::module_& m);
void bind_engine(py::module_& m);
void bind_sync(py::module_& m);
void bind_batch(py::module_& m);
void bind_loop(py::module_& m);
void bind_names(py::module_& m);
void bind_arrays(py::module_& m);
void bind_advantages(py::module_& m);
void bind_rewards(py::module_& m);

namespace {

const char* class_of(twinkle::Code code) {
  switch (code) {
    case twinkle::Code::kInvalid:
      return "InvalidError";
    case twinkle::Code::kNotFound:
      return "NotFoundError";
    case twinkle::Code::kConflict:
      return "ConflictError";
    case twinkle::Code::kBusy:
      return "BusyError";
    case twinkle::Code::kInternal:
      break;
  }
  return "InternalError";
}

// An error's text may quote bytes that are not UTF-8, such as those of a path.
py::object text_of(const char* text) {
  const auto size = static_cast<Py_ssize_t>(std::strlen(text));
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(text, size, "backslashreplace"));
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const twinkle::Error& e) {
    const py::object type = py::module_::import("twinkle.errors").attr(class_of(e.code));
    PyErr_SetObject(type.ptr(), text_of(e.what()).ptr());
  } catch (const twinkle::Interrupted&) {  // the signal's exception is set already
    if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
  } catch (const py::builtin_exception&) {
    throw;  // Python's own: pybind11 knows which
  } catch (const py::error_already_set&) {
    throw;
  } catch (const std::exception& e) {
    const py::object type = py::module_::import("twinkle.errors").attr("InternalError");
    PyErr_SetObject(type.ptr(), text_of(twinkle::engine::text_of(e)).ptr());
  }
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "Twinkle's C++ engine. The classes of `twinkle` are what to use.";
  py::register_local_exception_translator(&translate);  // torch's own modules keep theirs
  bind_text(m);
  bind_io(m);
  bind_data(m);
  bind_loss(m);
  bind_optim(m);
  bind_metric(m);
  bind_mesh(m);
  bind_engine(m);
  bind_sync(m);
  bind_batch(m);
  bind_loop(m);
  bind_names(m);
  bind_arrays(m);
  bind_advantages(m);
  bind_rewards(m);
}
