// twinkle._core.SyncLink: one rank's end of the way from a model's ranks to a sampler's.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

#include "python/src/future.h"
#include "python/src/interruptible.h"
#include "twinkle/mesh/thread_comm.h"
#include "twinkle/mesh/watched_comm.h"
#include "twinkle/sync/link.h"

namespace py = pybind11;
using namespace py::literals;

namespace {

using twinkle::python::EnginePointer;
using twinkle::sync::Link;
using twinkle::sync::Options;
using twinkle::sync::Synced;

py::dict as_dict(const Synced& s) {
  return py::dict("num_bytes"_a = s.num_bytes, "has_base"_a = s.has_base,
                  "adapter_name"_a = s.adapter_name, "tenant"_a = s.tenant);
}

template <class Call>
py::dict waited(const Call& call) {
  return as_dict(twinkle::python::interruptible(call));
}

}  // namespace

void bind_sync(py::module_& m) {
  py::class_<Link, std::shared_ptr<Link>>(
      m, "SyncLink", "One rank's end of the way from a model's ranks to a sampler's: sync/link.h.")
      .def(py::init([](const std::string& group, std::shared_ptr<twinkle::mesh::Watch> watch,
                       int num_senders, int64_t bucket_bytes) {
             return std::make_shared<Link>(twinkle::mesh::c10d_comm(group, std::move(watch)),
                                           Options{num_senders, bucket_bytes});
           }),
           "group"_a, "watch"_a, "num_senders"_a, "bucket_bytes"_a,
           "group: the registered name of a process group, which is the link's from here on; "
           "watch: of its ranks.")
      .def_static(
          "pair",
          [](int64_t bucket_bytes, double timeout_s) {
            auto comms = twinkle::mesh::thread_comms(2, timeout_s);
            const Options options{1, bucket_bytes};
            return py::make_tuple(std::make_shared<Link>(std::move(comms[0]), options),
                                  std::make_shared<Link>(std::move(comms[1]), options));
          },
          "bucket_bytes"_a, "timeout_s"_a,
          "Both ends for two engines of this process: to send from one thread, and to receive in "
          "another.")
      .def(
          "send",
          [](Link& link, const EnginePointer& engine, const std::string& tenant,
             const std::string& name) {
            return waited([&] { return link.send(*engine, tenant, name); });
          },
          "engine"_a, "tenant"_a, "name"_a)
      .def(
          "receive",
          [](Link& link, const EnginePointer& engine, const std::string& frozen) {
            return waited([&] { return link.receive(*engine, frozen); });
          },
          "engine"_a, "frozen"_a)
      .def("close", &Link::close, "why"_a, py::call_guard<py::gil_scoped_release>());
}
