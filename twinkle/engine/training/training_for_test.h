// For tests: two tenants' training on a small decoder, without an engine; and linears that fail or
// tell of their passes.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "twinkle/engine/operations_for_test.h"
#include "twinkle/engine/training/split.h"
#include "twinkle/engine/training/training.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {

// Throws in the backward pass of every batch that holds a sequence of the slot.
class Failing : public nn::Delta {
 public:
  Failing(nn::Linear& linear, int32_t slot) : linear_(linear), inner_(linear.delta), slot_(slot) {
    linear.delta = this;
  }
  ~Failing() override { linear_.delta = inner_; }

  std::vector<at::Tensor> forward(const at::Tensor& x, const nn::Rows& rows,
                                  at::Tensor& y) override {
    return inner_->forward(x, rows, y);
  }
  void backward(const at::Tensor& dy, const at::Tensor& x, const std::vector<at::Tensor>& saved,
                const nn::Rows& rows, at::Tensor& dx) override {
    for (const auto& [slot, key, learn, first] : rows.segments) {
      if (slot == slot_) throw std::bad_alloc();
    }
    inner_->backward(dy, x, saved, rows, dx);
  }

 private:
  nn::Linear& linear_;
  nn::Delta* inner_;
  int32_t slot_;
};

// Tells of every forward and backward pass of a linear.
class Watched : public nn::Delta {
 public:
  Watched(nn::Linear& linear, std::function<void(bool backward)> tell)
      : linear_(linear), inner_(linear.delta), tell_(std::move(tell)) {
    linear.delta = this;
  }
  ~Watched() override { linear_.delta = inner_; }

  std::vector<at::Tensor> forward(const at::Tensor& x, const nn::Rows& rows,
                                  at::Tensor& y) override {
    tell_(false);
    return inner_->forward(x, rows, y);
  }
  void backward(const at::Tensor& dy, const at::Tensor& x, const std::vector<at::Tensor>& saved,
                const nn::Rows& rows, at::Tensor& dx) override {
    tell_(true);
    inner_->backward(dy, x, saved, rows, dx);
  }

 private:
  nn::Linear& linear_;
  nn::Delta* inner_;
  std::function<void(bool)> tell_;
};

class TrainingOnADecoder : public testing::Test {
 protected:
  TrainingOnADecoder()
      : checkpoint_(Checkpoint::open(model_.path())),
        decoder_(model::read_spec(checkpoint_.config()), checkpoint_, at::kFloat),
        pool_(decoder_),
        graphs_(decoder_, pool_),
        training_({decoder_, pool_, graphs_, split_},
                  [this](const std::string& name) -> Tenant& { return *tenants_.at(name); }) {
    for (const char* name : {"a", "b"}) {
      const Json config =
          parse_json(R"({"peft_type": "LORA", "r": 4, "target_modules": "all-linear"})", "test");
      auto adapter =
          std::make_unique<lora::Adapter>(peft_config(config, "test"), pool_.linears(), 3);
      tenants_[name] = std::make_unique<Tenant>(name, Mode::kLora, pool_.add(std::move(adapter)), 3,
                                                Tenant::Home{decoder_, pool_});
    }
  }

  uint64_t gradients(const char* tenant) { return tenants_.at(tenant)->inspect(false).gradients; }
  BatchOutcome run(const std::vector<Work>& batch) {
    BatchOutcome outcome;
    training_.run_batch(batch, stop_, outcome);
    return outcome;
  }
  void succeed(int64_t id, const Operation& operation) {
    const BatchOutcome outcome = run({{id, &operation, 0, 2}});
    ASSERT_EQ(outcome.ended.size(), 1u);
    ASSERT_FALSE(outcome.ended[0].error);
    training_.commit(id);
  }

  const model::TinyModel model_;
  const Checkpoint checkpoint_;
  model::Decoder decoder_;
  lora::Pool pool_;
  std::map<std::string, std::unique_ptr<Tenant>> tenants_;
  lora::TrainGraphs graphs_;
  const Split split_;
  Training training_;
  Stop stop_ = false;
};

}  // namespace twinkle::engine
