// twinkle._core.Watch, SigtermHandler and Meeting: whether the processes of a script live, how they
// end, and what they tell each other in bytes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "python/src/interruptible.h"
#include "twinkle/base/error.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/mesh/sigterm.h"
#include "twinkle/mesh/watched_comm.h"

namespace py = pybind11;
using namespace py::literals;
using twinkle::mesh::Channel;
using twinkle::mesh::SigtermHandler;
using twinkle::mesh::Watch;

namespace {

// A lack of memory is one for all here; pybind11's own constructor has another text for it.
py::bytes bytes_of(const std::string& text) {
  PyObject* const out = PyBytes_FromStringAndSize(text.data(), std::ssize(text));
  if (out != nullptr) return py::reinterpret_steal<py::bytes>(out);
  PyErr_Clear();
  throw std::bad_alloc();
}

// A group of this name, and the watch of its ranks, which knows where they wait.
class Meeting {
 public:
  Meeting(const std::string& name, std::shared_ptr<Watch> watch)
      : watch_(std::move(watch)), channel_(twinkle::mesh::c10d_comm(name, watch_)) {}

  // Errors are all ranks', or have been told to them. Of anything else, as a lack of memory, the
  // others have not heard, and this rank would come to its next exchange in the midst of this one.
  py::list all_gather(const py::bytes& bytes, const std::string& place) {
    try {
      return gathered(bytes.cast<std::string>(), place);
    } catch (const twinkle::Error&) {
      throw;
    } catch (...) {
      channel_->close(place + ": " + twinkle::engine::text_of(std::current_exception()));
      throw;
    }
  }

 private:
  py::list gathered(const std::string& bytes, const std::string& place) {
    const auto all = twinkle::python::interruptible([&] {
      const Watch::Waiting waiting(*watch_, place);
      return channel_->all_gather(bytes);
    });
    py::list out;
    for (const std::string& each : all) out.append(bytes_of(each));
    return out;
  }

  std::shared_ptr<Watch> watch_;
  std::unique_ptr<Channel> channel_;
};

// Watch::Waiting as a context manager.
class Waiting {
 public:
  Waiting(std::shared_ptr<Watch> watch, std::string place)
      : watch_(std::move(watch)), place_(std::move(place)) {}

  void enter() { now_.emplace(*watch_, place_); }
  void leave(const py::args&) { now_.reset(); }

 private:
  std::shared_ptr<Watch> watch_;
  std::string place_;
  std::optional<Watch::Waiting> now_;
};

}  // namespace

void bind_mesh(py::module_& m) {
  py::class_<Watch, std::shared_ptr<Watch>>(m, "Watch", "watch.h states each.")
      .def(py::init<int, int, const std::vector<int>&, double>(), "rank"_a, "size"_a, "sockets"_a,
           "timeout_s"_a)
      .def("fail", &Watch::fail, "scope"_a, "why"_a)
      .def("end", &Watch::end)
      .def("check",
           [](const Watch& watch) {
             const std::string why = watch.why("");
             twinkle::require(why.empty(), twinkle::Code::kInternal, why);
           })
      .def("why_after", &Watch::why_after, "error"_a, "scope"_a,
           py::call_guard<twinkle::python::ReleasedGil>())
      .def("late", &Watch::late);
  py::class_<SigtermHandler>(m, "SigtermHandler", "sigterm.h states what it does.")
      .def(py::init<std::shared_ptr<Watch>>(), "watch"_a);
  py::class_<Waiting>(m, "Waiting",
                      "In its block this thread waits for the other ranks at a place.")
      .def(py::init<std::shared_ptr<Watch>, std::string>(), "watch"_a, "place"_a)
      .def("__enter__", &Waiting::enter)
      .def("__exit__", &Waiting::leave);
  py::class_<Meeting>(m, "Meeting", "A process group of torch.distributed, by its name.")
      .def(py::init<const std::string&, std::shared_ptr<Watch>>(), "name"_a, "watch"_a)
      .def("all_gather", &Meeting::all_gather, "bytes"_a, "place"_a,
           "The bytes of each rank, in their order; place: what for, as errors say it.");
}
