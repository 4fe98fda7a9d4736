// For tests: the engine as the service sees it, over a dispatcher that has a null model behind it.
#pragma once
#include <utility>
#include <vector>

#include "twinkle/engine/schedule/dispatcher.h"
#include "twinkle/server/service/backend.h"

namespace twinkle::server {

class NullBackend : public Backend {
 public:
  explicit NullBackend(engine::Dispatcher& dispatcher) : dispatcher_(dispatcher) {}
  const ModelFacts& model() const override { return model_; }
  engine::Stats stats() const override { return dispatcher_.stats(); }
  engine::Accepted check(engine::Operation operation) override {
    std::vector<engine::Operation> one;
    one.push_back(std::move(operation));
    return std::move(dispatcher_.accept(std::move(one))[0]);
  }
  int64_t submit(engine::Accepted accepted, engine::OnDone on_done) override {
    std::vector<engine::Accepted> one;
    one.push_back(std::move(accepted));
    return dispatcher_.submit(std::move(one), {std::move(on_done)})[0];
  }

 private:
  engine::Dispatcher& dispatcher_;
  const ModelFacts model_{.directory = "null", .names = {"null"}, .max_positions = 64};
};

}  // namespace twinkle::server
