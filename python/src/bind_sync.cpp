// twinkle._core.SyncLink: one rank's end of the way from a model's ranks to a sampler's.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

#include "python/src/future.h"
#include "python/src/interruptible.h"
#include "twinkle/mesh/watched_comm.h"
#include "twinkle/sync/link.h"

namespace py = pybind11;
using namespace py::literals;

namespace {

using twinkle::python::EnginePointer;
using twinkle::sync::Link;
using twinkle::sync::Options;
using twinkle::sync::Pair;
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
  py::class_<Pair>(m, "SyncPair", "Both ends for two engines of this process.")
      .def(py::init<int64_t, double>(), "bucket_bytes"_a, "timeout_s"_a)
      .def(
          "sync",
          [](Pair& pair, const EnginePointer& from, const std::string& tenant,
             const std::string& name, const EnginePointer& to, const std::string& frozen) {
            return waited([&] { return pair.sync(*from, tenant, name, *to, frozen); });
          },
          "from_engine"_a, "tenant"_a, "name"_a, "to_engine"_a, "frozen"_a,
          "SyncLink's send and receive, at once.");
}
