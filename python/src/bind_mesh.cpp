// twinkle._core.Rendezvous, Watch, SigtermHandler and Meeting: where the processes of a script find
// each other, whether they live, how they end, and what they tell each other in bytes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/src/interruptible.h"
#include "twinkle/base/error.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/mesh/rendezvous/rendezvous.h"
#include "twinkle/mesh/sigterm.h"
#include "twinkle/mesh/watched_comm.h"

namespace py = pybind11;
using namespace py::literals;
using twinkle::mesh::Channel;
using twinkle::mesh::Rendezvous;
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
    } catch (const twinkle::Error& error) {
      twinkle::fail(error.code, "infra: ", place, ": ", error.what());
    } catch (const py::error_already_set& error) {
      channel_->close(place + ": " + error.what());
      throw;
    } catch (...) {
      const std::string why = place + ": " + twinkle::engine::text_of(std::current_exception());
      channel_->close(why);
      twinkle::fail(twinkle::Code::kInternal, "infra: ", why);
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

// Who has not come, or cannot be reached, is Python's NotAvailableError.
template <class Call>
auto of_others(const Call& call) {
  try {
    return twinkle::python::interruptible(call);
  } catch (const twinkle::Error& error) {
    if (error.code != twinkle::Code::kNotFound) throw;
    const py::object type = py::module_::import("twinkle.errors").attr("NotAvailableError");
    PyErr_SetString(type.ptr(), error.what());
  }
  throw py::error_already_set();
}

// The store is one of torch's, which has bound the class.
Rendezvous rendezvous_at(const py::object& store, const std::string& failure, int rank, int size,
                         double timeout_s) {
  auto* const held = store.cast<c10d::Store*>();
  return {c10::intrusive_ptr<c10d::Store>::reclaim_copy(held),
          {.rank = rank, .size = size, .timeout_s = timeout_s, .failure = failure}};
}

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
      .def("fail", &Watch::fail, "scope"_a, "why"_a)
      .def("end", &Watch::end)
      .def("why_after", &Watch::why_after, "error"_a, "scope"_a,
           py::call_guard<twinkle::python::ReleasedGil>())
      .def("late", &Watch::late);
  py::class_<Rendezvous>(m, "Rendezvous", "rendezvous.h states each.")
      .def(py::init(&rendezvous_at), "store"_a, "failure"_a, "rank"_a, "size"_a, "timeout_s"_a)
      .def(
          "meet",
          [](const Rendezvous& ranks, const std::string& name, double most_s,
             const std::string& remedy, const std::shared_ptr<Watch>& watch) {
            of_others([&] { ranks.meet(name, most_s, remedy, watch); });
          },
          "name"_a, "most_s"_a, "remedy"_a, "watch"_a)
      .def(
          "watch",
          [](const Rendezvous& ranks, const std::string& name,
             const std::vector<std::string>& hosts) {
            return of_others([&] { return ranks.watch(name, hosts); });
          },
          "name"_a, "hosts"_a)
      .def(
          "refuse",
          [](const Rendezvous& ranks, const std::string& error,
             const std::shared_ptr<Watch>& watch) {
            of_others([&] { ranks.refuse(error, watch); });
          },
          "error"_a, "watch"_a);
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
