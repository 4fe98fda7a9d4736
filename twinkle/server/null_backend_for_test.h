// For tests: the engine as the service sees it, over a dispatcher that has a null model behind it.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/engine/schedule/dispatcher.h"
#include "twinkle/server/metrics/operation_times.h"
#include "twinkle/server/service/backend.h"

namespace twinkle::server {

class NullBackend : public Backend {
 public:
  ModelFacts facts;             // what it tells, ...
  engine::ParkingStats parked;  // ... and of this
  OperationTimes* times = nullptr;
  // Called by each of these, on its thread; of validate() and submit() at their end.
  std::function<void(const engine::Operation&)> on_check;
  std::function<void()> on_validate = [] {}, on_submit = [] {};

  explicit NullBackend(engine::Dispatcher& dispatcher, std::vector<std::string> names = {"null"})
      : facts{
            .directory = "null", .names = std::move(names), .max_positions = 64, .vocab_size = 100},
        dispatcher_(dispatcher) {}
  const ModelFacts& model() const override { return facts; }
  engine::Stats stats() const override { return dispatcher_.stats(); }
  engine::ParkingStats parking() const override { return parked; }
  engine::SamplingStats sampling() const override { return {.num_shared_tokens = 7}; }
  void validate(const engine::Operation& operation) const override {
    dispatcher_.require_possible(operation);
    on_validate();
  }
  int64_t bytes_of(const engine::Operation& operation) const override {
    return dispatcher_.bytes_of(operation);
  }
  engine::Accepted check(engine::Operation&& operation, engine::Beyond beyond,
                         const engine::SampleHooks& hooks) override {
    if (on_check) on_check(operation);
    return std::move(dispatcher_.accept({&operation, 1}, hooks, beyond)[0]);
  }
  int64_t submit(engine::Accepted accepted, engine::OnDone on_done) override {
    if (times) on_done = times->watch(accepted.operation(), std::move(on_done));
    std::vector<engine::Accepted> one;
    one.push_back(std::move(accepted));
    const int64_t id = dispatcher_.submit(std::move(one), {std::move(on_done)})[0];
    on_submit();
    return id;
  }
  bool cancel(int64_t id) override { return dispatcher_.cancel(id); }

 private:
  engine::Dispatcher& dispatcher_;
};

// ForwardBackwardRequest of one datum: tokens 1, 2, 3, targets 2, 3, 4 and weights 0, 1, 1.
inline std::string forward_backward_bytes(const std::string& run, int64_t seq_id,
                                          const std::string& loss) {
  constexpr std::string_view kDatum =
      "1a640a100a0e0a0c01000000020000000300000012300a0d7461726765745f746f6b656e73121f0a180200000000"
      "0000"
      "0003000000000000000400000000000000180222010312"
      "1e0a077765696768747312130a0c000000000000803f0000803f1801220103";
  std::string out = {'\x0a', static_cast<char>(run.size())};
  out += run + '\x10' + static_cast<char>(seq_id);
  for (size_t i = 0; i + 1 < kDatum.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(kDatum.substr(i, 2)), nullptr, 16));
  return out + '\x22' + static_cast<char>(loss.size()) + loss;
}

}  // namespace twinkle::server
