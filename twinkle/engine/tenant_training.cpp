// A tenant's training state to and from a checkpoint.
#include <ATen/ATen.h>

#include <algorithm>

#include "twinkle/engine/tenant.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::engine {
namespace {

// The part of a tied head through the head, the last one, is summed apart on only one rank.
void add_head_grad(std::vector<at::Tensor>& grads, size_t num_weights) {
  if (grads.size() == num_weights) return;
  const at::Tensor head = grads.back();
  grads.pop_back();
  if (head.defined()) grads[0] = grads[0].defined() ? grads[0] + head : head;
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> Tenant::training_tensors(bool gradients) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  // `param`: its index; of a rank that has a run of it, what it has.
  const auto add = [&](const std::string& name, size_t param, const at::Tensor& t) {
    if (!parts_)
      out.emplace_back(name, t);
    else if (t.numel() > 0)
      out.emplace_back(name_of_run(name, parts_->runs()[param]), t);
  };
  if (optimizer_) {
    const std::map<std::string, size_t> indices = param_indices();
    for (auto& [name, t] : optimizer_->state().tensors)
      add("optimizer/" + name, indices.at(name.substr(0, name.rfind('.'))), t);
  }
  if (gradients && pending_ > 0) {
    const auto sums = grads();
    const auto names = grad_names();
    for (size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].defined()) add("grad/" + names[i], i, sums[i]);
    }
  }
  // bfloat16 files would round the weights that the steps are taken from.
  for (size_t i = 0; i < masters_.size(); ++i) add("master/" + weights_[i].name, i, masters_[i]);
  return out;
}

std::map<std::string, size_t> Tenant::param_indices() {
  std::map<std::string, size_t> out;
  for (const optim::Param& p : params()) out.emplace(p.name, out.size());
  return out;
}

at::Tensor Tenant::whole(size_t param, const at::Tensor& mine, at::IntArrayRef sizes) const {
  return parts_ ? parts_->whole(param, mine) : owners_.whole(param, mine, sizes);
}

void Tenant::visit_params(const std::function<void(const optim::Param&)>& see) {
  const std::vector<optim::Param> all = params();
  for (size_t i = 0; i < all.size(); ++i) {
    optim::Param p = all[i];
    if (parts_) p.value = whole(i, p.value, {});
    if (!parts_ || p.grad.defined()) p.grad = whole(i, p.grad, p.value.sizes());
    see(p);
  }
}

// In the order of one rank's: by names.
void Tenant::visit_moments(const std::function<void(const std::string&, const at::Tensor&)>& see) {
  if (!optimizer_) return;
  const optim::State state = optimizer_->state();
  if (num_ranks() == 1) {
    for (const auto& [name, t] : state.tensors) see(name, t);
    return;
  }
  const std::map<std::string, at::Tensor> mine(state.tensors.begin(), state.tensors.end());
  const std::vector<optim::Param> all = params();
  for (const auto& [param, i] : param_indices()) {
    if (!find(*find(state.fields, "steps"), param)) continue;
    for (const std::string& buffer : optimizer_->buffers()) {
      const std::string name = param + "." + buffer;
      const auto found = mine.find(name);
      see(name, whole(i, found == mine.end() ? at::Tensor() : found->second, all[i].value.sizes()));
    }
  }
}

std::vector<std::string> Tenant::grad_names() {
  std::vector<std::string> out;
  if (mode_ == Mode::kLora) {
    for (const size_t i : adapter().learned()) out.push_back(adapter().name(i));
  } else {
    for (const auto& w : weights_) out.push_back(w.name);
    if (!parts_) out.emplace_back(kHeadWeight);  // the last, where the head is tied
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
  if (parts_) add_head_grad(state.gradients, masters_.size());
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
