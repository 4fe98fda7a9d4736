// For tests: a tenant that has stepped and has gradients again, saved and loaded; by an adapter and
// by a whole model.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "twinkle/engine/operations_for_test.h"
#include "twinkle/io/safetensors.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::engine {

inline constexpr const char* kLora = R"({"r": 4, "target_modules": ["q_proj", "down_proj"]})";

// Both kinds of checkpoint: an adapter's and a whole model's.
class Persist : public testing::TestWithParam<bool> {
 protected:
  Persist() : engine_({.model = {.path = model_.path(), .mixed_precision = "no"}}) {
    engine_.run<Done>(Create{.tenant = "me", .lora_json = GetParam() ? "" : kLora, .seed = 3});
    train();
    engine_.run<ForwardResult>(work("me", 7));  // gradients that wait for a step
  }

  void train(const char* optimizer = "AdamW", const char* options = R"({"lr": 0.01})") {
    engine_.run<ForwardResult>(work("me"));
    engine_.run<StepResult>(Step{.tenant = "me", .optimizer = optimizer, .options = options});
  }
  std::string target() const { return (scratch_ / "checkpoint").string(); }
  std::filesystem::path file(const char* name) const { return scratch_ / "checkpoint" / name; }
  std::filesystem::path weights() const {
    return file(GetParam() ? "model.safetensors" : "adapter_model.safetensors");
  }
  void save() { engine_.run<SaveResult>(Save{"me", target(), true, "note"}); }
  std::string load() {
    return error_of([&] { engine_.run<LoadResult>(Load{"me", target(), true}); });
  }

  // Saves, changes what was saved, and expects a load to name it and to change nothing.
  void refused(const std::function<void()>& spoil, const std::string& want) {
    save();
    spoil();
    const State before = state_of(engine_, "me");
    const std::string text = load();
    EXPECT_NE(text.find(want), text.npos) << text << "\nwanted: " << want;
    EXPECT_EQ(state_of(engine_, "me"), before) << want;
    std::filesystem::remove_all(target());
  }
  void set(const char* field, const Json& value) const {
    Json state = read_json(file("trainer_state.json"));
    state.as_object()["training"].as_object()[field] = value;
    write_text(file("trainer_state.json"), pretty(state));
  }
  // The tensors of training.safetensors, by name.
  using Tensors = std::map<std::string, at::Tensor>;
  void edit_tensors(const std::function<void(Tensors&)>& edit) const {
    Tensors tensors;
    {
      const SafetensorsFile saved(file("training.safetensors"));
      for (const StoredTensor& view : saved.tensors()) tensors[view.name] = model::to_float32(view);
    }
    edit(tensors);
    std::vector<TensorView> views;
    for (const auto& [name, t] : tensors) views.push_back(model::view_of(name, t));
    write_safetensors(file("training.safetensors"), views);
  }

  const model::TinyModel model_;
  const ScratchDir scratch_{memory_folder()};
  Engine engine_;
};

}  // namespace twinkle::engine
