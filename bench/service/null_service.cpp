// The service as `twinkle serve` runs it, journal and all, over a model that computes nothing: what
// is left is the service's own time. Usage: null_service STATE_DIR DURABILITY [TIMES]. Prints where
// it listens; serves until standard input ends. DURABILITY: process or disk, as --durability of
// `twinkle serve`. TIMES: a file for the times of all requests, a line each: path, when it was
// answered by the monotonic clock, and how long that took from its head on, both in microseconds.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/engine/schedule/null_executor_for_test.h"
#include "twinkle/server/bodies/body_room.h"
#include "twinkle/server/http/server.h"
#include "twinkle/server/null_backend_for_test.h"
#include "twinkle/server/routes.h"

namespace {

using namespace twinkle;

// Tells a log-probability for each token of a ForwardBackward, as a model would.
class NullModel : public engine::NullExecutor {
 public:
  void run_batch(std::span<const engine::Work> batch, const std::atomic<bool>& stop,
                 engine::BatchOutcome& out) override {
    NullExecutor::run_batch(batch, stop, out);
    batches.clear();  // a test's record, without bound here
    for (const engine::Work& work : batch) {
      const auto* op = std::get_if<engine::ForwardBackward>(work.operation);
      if (!op || work.last < op->sequences.size()) continue;
      std::vector<size_t>& sizes = sizes_[work.id];
      for (const auto& sequence : op->sequences) sizes.push_back(sequence.input_ids.size());
    }
  }
  engine::Result commit(int64_t id) override {
    engine::Result result = NullExecutor::commit(id);
    const auto sizes = sizes_.extract(id);
    if (sizes)
      for (const size_t size : sizes.mapped())
        std::get<engine::ForwardResult>(result).logps.emplace_back(size, -0.5f);
    return result;
  }
  void undo(int64_t id) override {
    sizes_.erase(id);
    NullExecutor::undo(id);
  }

 private:
  std::map<int64_t, std::vector<size_t>> sizes_;
};

struct Time {
  std::string path;
  int64_t at_us = 0, took_us = 0;
};

// As `twinkle serve` ends.
struct Ending {
  server::Services& services;
  engine::Dispatcher& dispatcher;
  server::BodyRoom& room;
  std::unique_ptr<server::HttpServer>& http;
  ~Ending() {
    services.close();
    dispatcher.close();
    room.close();
    http.reset();
  }
};

// `times`: kept in memory, so that none waits for a disk; null: not kept.
void serve(const std::string& state, store::Durability durability, std::vector<Time>* times) {
  auto http = std::make_unique<server::HttpServer>(server::HttpOptions{});
  NullModel model;
  engine::Dispatcher dispatcher({}, model);
  server::NullBackend backend(dispatcher);
  server::Services services(backend, *http, std::filesystem::absolute(state),
                            {.journal = {.durability = durability}});
  server::BodyRoom room({}, *http);
  const Ending ending{services, dispatcher, room, http};
  services.open({}, false, [&](uint64_t sequence, const server::Command& command) {
    return server::replay(sequence, command, services);
  });
  http->serve({.admit =
                   [&](const server::Head& head, const server::Admit& admit) {
                     server::admit(head, head.path, services, room, admit);
                   },
               .handle =
                   [&](server::Request request, server::Reply reply) {
                     server::route(std::move(request), services, std::move(reply));
                   },
               .answered =
                   [times](const server::Head& head, const server::Told& told) {
                     if (!times) return;
                     const auto at = std::chrono::steady_clock::now().time_since_epoch();
                     times->push_back(
                         {head.path,
                          std::chrono::duration_cast<std::chrono::microseconds>(at).count(),
                          told.time.count()});
                   }});
  std::printf("serves at http://127.0.0.1:%d\n", http->port());
  std::fflush(stdout);
  std::cin.ignore(std::numeric_limits<std::streamsize>::max());
  http->drain(std::chrono::seconds(5));
}

void write(const std::vector<Time>& times, const char* path) {
  std::ofstream file(path);
  for (const Time& time : times)
    file << time.path << ' ' << time.at_us << ' ' << time.took_us << '\n';
  require(static_cast<bool>(file.flush()), Code::kInternal, "null_service: cannot write ", path);
}

store::Durability durability_of(const std::string& word) {
  require(word == "process" || word == "disk", Code::kInvalid, "null_service: durability is ", word,
          ", it must be process or disk");
  return word == "disk" ? store::Durability::kDisk : store::Durability::kProcess;
}

}  // namespace

int main(int argc, char** argv) try {
  twinkle::require(argc == 3 || argc == 4, twinkle::Code::kInvalid,
                   "usage: null_service STATE_DIR DURABILITY [TIMES]");
  std::vector<Time> times;
  serve(argv[1], durability_of(argv[2]), argc == 4 ? &times : nullptr);
  if (argc == 4) write(times, argv[3]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "null_service: %s\n", error.what());
  return 1;
}
