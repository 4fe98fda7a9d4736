// twinkle._core.SyncLink: one rank's end of the way from a model's ranks to a sampler's.
#include <pybind11/pybind11.h>

#include <exception>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/src/future.h"
#include "python/src/interruptible.h"
#include "twinkle/base/error.h"
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

// Both ends for two engines of this process.
struct Pair {
  Pair(int64_t bucket_bytes, double timeout_s)
      : Pair(twinkle::mesh::thread_comms(2, timeout_s), Options{1, bucket_bytes}) {}
  Pair(std::vector<std::unique_ptr<twinkle::mesh::Comm>> comms, const Options& options)
      : sender(std::move(comms[0]), options), receiver(std::move(comms[1]), options) {}

  // One end waits for the other, so the sender has a thread of its own. Its error is raised before
  // the receiver's, which was told of it.
  Synced sync(const EnginePointer& from, const std::string& tenant, const std::string& name,
              const EnginePointer& to, const std::string& frozen) {
    auto sent = std::async(std::launch::async, [&] { sender.send(*from, tenant, name); });
    Synced out;
    std::exception_ptr failed;
    try {
      out = receiver.receive(*to, frozen);
    } catch (...) {
      failed = std::current_exception();
    }
    try {
      sent.get();
    } catch (const twinkle::Error& error) {
      if (!failed || !std::string_view(error.what()).starts_with("sync: rank ")) throw;
    }
    if (failed) std::rethrow_exception(failed);
    return out;
  }

  Link sender, receiver;
};

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
            return waited([&] { return pair.sync(from, tenant, name, to, frozen); });
          },
          "from_engine"_a, "tenant"_a, "name"_a, "to_engine"_a, "frozen"_a,
          "SyncLink's send and receive, at once.");
}
