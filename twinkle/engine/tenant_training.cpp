// A tenant's training state to and from a checkpoint.
#include <ATen/ATen.h>

#include <algorithm>

#include "twinkle/engine/tenant.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::engine {

std::vector<std::pair<std::string, at::Tensor>> Tenant::training_tensors(bool gradients) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  if (optimizer_) {
    for (auto& [name, t] : optimizer_->state().tensors) out.emplace_back("optimizer/" + name, t);
  }
  if (gradients && pending_ > 0) {
    const auto sums = grads();
    const auto names = grad_names();
    for (size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].defined()) out.emplace_back("grad/" + names[i], sums[i]);
    }
  }
  // bfloat16 files would round the weights that the steps are taken from.
  for (size_t i = 0; i < masters_.size(); ++i)
    out.emplace_back("master/" + weights_[i].name, masters_[i]);
  return out;
}

std::vector<optim::Param> Tenant::whole_params() {
  std::vector<optim::Param> out = params();
  if (owners_.alone()) return out;
  for (size_t i = 0; i < out.size(); ++i)
    out[i].grad = owners_.whole(i, out[i].grad, out[i].value.sizes());
  return out;
}

// In the order of one rank's: by names.
std::vector<std::pair<std::string, at::Tensor>> Tenant::whole_moments() {
  if (!optimizer_) return {};
  optim::State state = optimizer_->state();
  if (owners_.alone()) return std::move(state.tensors);
  const std::map<std::string, at::Tensor> mine(state.tensors.begin(), state.tensors.end());
  std::map<std::string, size_t> indices;
  const std::vector<optim::Param> all = params();
  for (size_t i = 0; i < all.size(); ++i) indices[all[i].name] = i;
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const auto& [param, i] : indices) {
    if (!find(*find(state.fields, "steps"), param)) continue;
    for (const std::string& buffer : optimizer_->buffers()) {
      const std::string name = param + "." + buffer;
      const auto found = mine.find(name);
      out.emplace_back(name, owners_.whole(i, found == mine.end() ? at::Tensor() : found->second,
                                           all[i].value.sizes()));
    }
  }
  return out;
}

std::vector<std::string> Tenant::grad_names() {
  std::vector<std::string> out;
  if (mode_ == Mode::kLora) {
    for (const auto& entry : adapter().factors())
      out.insert(out.end(), {lora::name_of_a(entry.path), lora::name_of_b(entry.path)});
  } else {
    for (const auto& w : weights_) out.push_back(w.name);
    out.emplace_back(kHeadWeight);  // the last, where the head is tied
  }
  return out;
}

Json Tenant::training_fields(bool gradients) {
  JsonObject out;
  out["seed"] = seed_;
  out["calls"] = calls_;
  out["pending"] = gradients ? pending_ : 0;
  out["num_tokens"] = gradients ? num_tokens_ : 0;
  out["clipped"] = gradients && clipped_;
  out["published"] = num_published_;
  if (optimizer_) {
    out["optimizer"] = optimizer_->state().fields;
    out["optimizer_options"] = options_;
  }
  return out;
}

void Tenant::load_training(TrainingState state) {
  const std::vector<std::string> names =
      owners_.alone() ? std::vector<std::string>() : grad_names();
  for (size_t i = 0; i < names.size(); ++i) {
    if (owners_.has(i)) continue;
    state.gradients[i] = at::Tensor();
    if (state.optimizer) state.optimizer->leave(names[i]);
  }
  for (size_t i = 0; i < masters_.size(); ++i) model::assign(state.masters[i], masters_[i]);
  restore({std::move(state.gradients)});
  optimizer_ = std::move(state.optimizer);
  options_ = std::move(state.options);
  seed_ = state.seed;
  calls_ = state.calls;
  pending_ = state.pending;
  num_tokens_ = state.num_tokens;
  clipped_ = state.clipped;
  num_published_ = std::max(num_published_, state.published);  // numbers do not come twice
}

}  // namespace twinkle::engine
