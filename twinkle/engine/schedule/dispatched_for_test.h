// For tests of the dispatcher: one over a null model, with a clock that the test moves.
#pragma once
#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/schedule/dispatcher.h"
#include "twinkle/engine/schedule/null_executor_for_test.h"

namespace twinkle::engine {

using twinkle::error_of;  // shared by callees; here, by a Future, too

inline std::string error_of(Future& future) {
  try {
    future.get();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

inline ForwardBackward pass_of(const std::string& tenant, size_t num_sequences,
                               size_t tokens = 10) {
  ForwardBackward out{.tenant = tenant};
  out.sequences.resize(num_sequences);
  for (Example& s : out.sequences) s.input_ids.resize(tokens);
  return out;
}

inline Sample sampled(const std::string& tenant, int64_t tokens, size_t prompts = 1) {
  SamplingParams params;
  params.max_tokens = tokens;
  return {tenant, std::vector<std::vector<int32_t>>(prompts, {1}), {params}};
}

class Dispatched : public testing::Test {
 protected:
  // A batch waits for nobody: the clock moves when the test moves it.
  void open(DispatcherOptions options = {.token_budget = 100}) {
    options.gather_ms = 0;
    executor_.clock = [this] { return time_.load(); };
    dispatcher_ = std::make_unique<Dispatcher>(options, executor_);
  }
  Future submit(Operation operation) {
    std::vector<Operation> one;
    one.push_back(std::move(operation));
    return std::move(dispatcher_->submit(std::move(one))[0]);
  }
  void create(const std::string& tenant, double weight = 1, int32_t priority = 0) {
    submit(Create{.tenant = tenant, .weight = weight, .priority = priority}).get();
  }
  // The operations of a tenant, in order.
  std::vector<std::string> state(const std::string& tenant) {
    std::vector<std::string> out;
    const auto result = std::get<InspectResult>(submit(Inspect{tenant}).get());
    for (const auto& t : result.tensors) out.push_back(t.name);
    return out;
  }
  // close(), which another thread calls, has begun.
  void wait_until_closed() {
    try {
      while (true) dispatcher_->cancel(submit(ZeroGrad{"nobody"}).id);
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()), "engine: closed");
    }
  }
  // The next batch waits in its middle until it is let go.
  void hold_batch() {
    executor_.on_batch = [this] {
      if (held_.exchange(true)) return;
      in_batch_.count_down();
      go_on_.wait();
    };
  }

  std::atomic<double> time_ = 0;
  std::atomic<bool> held_ = false;
  std::latch in_batch_{1}, go_on_{1};
  NullExecutor executor_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

}  // namespace twinkle::engine
