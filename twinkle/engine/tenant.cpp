#include "twinkle/engine/tenant.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"
#include "twinkle/io/tensor_view.h"
#include "twinkle/optim/clip.h"

namespace twinkle::engine {
namespace {

uint64_t checksum(uint64_t hash, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  const auto* words = static_cast<const unsigned char*>(flat.const_data_ptr());
  size_t i = 0;
  for (; i + 8 <= flat.nbytes(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, words + i, 8);
    hash = key_of(hash, word);
  }
  for (; i < flat.nbytes(); ++i) hash = key_of(hash, uint64_t{words[i]});
  return hash;
}

}  // namespace

Tenant::Tenant(std::string name, Mode mode, int32_t slot, uint64_t seed, model::Decoder& decoder,
               lora::Pool& pool)
    : name_(std::move(name)),
      mode_(mode),
      slot_(slot),
      seed_(seed),
      decoder_(decoder),
      pool_(pool) {
  if (mode_ != Mode::kFull) return;
  decoder_.train_all();
  // Updates smaller than half a bfloat16 step would vanish: the weights that are stepped are
  // float32.
  for (const auto& w : decoder_.weights()) masters_.push_back(w.value->to(at::kFloat));
}

Tenant::~Tenant() {
  if (mode_ == Mode::kFull) decoder_.freeze();
  if (slot_ >= 0) pool_.remove(slot_);
}

uint64_t Tenant::stream(int64_t index) const {
  const uint64_t call = key_of(key_of(seed_, "dropout"), static_cast<uint64_t>(calls_));
  return key_of(call, static_cast<uint64_t>(index)) | 1;
}

void Tenant::count(double num_tokens) {
  num_tokens_ += num_tokens > 0 ? num_tokens : 1;
  ++calls_;
  ++pending_;
}

std::vector<optim::Param> Tenant::params() {
  std::vector<optim::Param> out;
  if (mode_ == Mode::kLora) {
    for (auto& entry : pool_.at(slot_).factors()) {
      out.push_back({entry.path + ".lora_A.weight", entry.f.a, entry.grad_a, true});
      out.push_back({entry.path + ".lora_B.weight", entry.f.b, entry.grad_b, true});
    }
  } else if (mode_ == Mode::kFull) {
    const auto weights = decoder_.weights();
    const auto grads = decoder_.grads();
    for (size_t i = 0; i < weights.size(); ++i) {
      out.push_back({weights[i].name, masters_[i], grads[i], weights[i].decay});
    }
  }
  return out;
}

Tenant::Snapshot Tenant::snapshot() {
  Snapshot out;
  if (mode_ == Mode::kLora) {
    for (const auto& p : params()) out.grads.push_back(p.grad.clone());
  } else if (mode_ == Mode::kFull) {
    for (const at::Tensor& g : decoder_.buffers()) out.grads.push_back(g.defined() ? g.clone() : g);
  }
  return out;
}

void Tenant::restore(const Snapshot& snapshot) {
  if (mode_ == Mode::kLora) {
    auto all = params();
    for (size_t i = 0; i < all.size(); ++i) all[i].grad.copy_(snapshot.grads[i]);
  } else if (mode_ == Mode::kFull) {
    decoder_.set_buffers(snapshot.grads);
  }
}

void Tenant::require_trainable(const char* what) const {
  require(mode_ != Mode::kFrozen, Code::kInvalid, "engine: ", what, ": tenant '", name_,
          "' is the frozen base model; add an adapter, or create it for full-parameter training");
}

Tenant::Change Tenant::scaled(double max_norm, double norm_type) {
  require(max_norm >= 0, Code::kInvalid, "engine: max_grad_norm is ", max_norm,
          ", it must be at least 0");
  const double per_token = 1.0 / std::max(1.0, num_tokens_);
  const auto all = params();
  Change change{per_token, optim::grad_norm(all, norm_type, per_token)};
  if (max_norm > 0) change.scale *= optim::clip_factor(change.norm, max_norm);
  return change;
}

StepResult Tenant::step(const Step& operation) {
  require_trainable("step");
  require(pending_ > 0, Code::kConflict, "engine: step: tenant '", name_,
          "' has no accumulated gradients; run forward_backward first");
  const Json options = operation.options.empty() ? Json(JsonObject{})
                                                 : parse_json(operation.options, "step options");
  const Change change = scaled(operation.max_grad_norm, operation.norm_type);
  if (!optimizer_) {
    optimizer_ = optim::make(operation.optimizer, options);
  } else if (optimizer_->name() != operation.optimizer) {
    require(!resumed_, Code::kInvalid, "engine: step: optimizer is ", operation.optimizer,
            ", the checkpoint's is ", optimizer_->name(),
            "; use that one, or load without the optimizer");
    optimizer_ = optim::make(operation.optimizer, options);  // another optimizer starts afresh
  } else {
    optimizer_->configure(options);
  }
  options_ = options;
  optimizer_->step(params(), optimizer_->lr(), change.scale);
  weights_changed();
  const StepResult result{change.norm, num_tokens_, optimizer_->num_steps()};
  zero_grad();
  return result;
}

StepResult Tenant::clip(const ClipGradNorm& operation) {
  require_trainable("clip_grad_norm");
  require(pending_ > 0, Code::kConflict, "engine: clip_grad_norm: tenant '", name_,
          "' has no accumulated gradients; run forward_backward first");
  const Change change = scaled(operation.max_grad_norm, operation.norm_type);
  const StepResult result{change.norm, num_tokens_, optimizer_ ? optimizer_->num_steps() : 0};
  if (mode_ == Mode::kLora) {
    for (auto& p : params()) p.grad.mul_(change.scale);
  } else {
    for (at::Tensor g : decoder_.buffers()) {
      if (g.defined()) g.mul_(change.scale);
    }
  }
  num_tokens_ = 1;
  return result;
}

void Tenant::zero_grad() {
  if (mode_ == Mode::kLora) pool_.at(slot_).zero_grads();
  if (mode_ == Mode::kFull) decoder_.zero_grads();
  num_tokens_ = 0;
  pending_ = 0;
}

void Tenant::weights_changed() {
  if (mode_ == Mode::kLora) pool_.at(slot_).repack();
  if (mode_ != Mode::kFull) return;
  const auto weights = decoder_.weights();
  for (size_t i = 0; i < weights.size(); ++i) weights[i].value->copy_(masters_[i]);
}

void Tenant::reset_training() {
  optimizer_.reset();
  resumed_ = false;
  if (mode_ == Mode::kLora) pool_.at(slot_).repack();
  if (mode_ == Mode::kFull) {
    const auto weights = decoder_.weights();
    for (size_t i = 0; i < weights.size(); ++i) masters_[i].copy_(*weights[i].value);
  }
  zero_grad();
}

InspectResult Tenant::inspect(bool tensors) {
  InspectResult out;
  const auto add = [&](const std::string& name, const at::Tensor& t) {
    if (!tensors) return;
    const at::Tensor f = t.to(at::kFloat).contiguous();
    const float* v = f.const_data_ptr<float>();
    out.tensors.push_back({name, f.sizes().vec(), std::vector<float>(v, v + f.numel())});
  };
  for (const auto& p : params()) {
    out.weights = checksum(out.weights, p.value);
    if (p.grad.defined()) out.gradients = checksum(out.gradients, p.grad);
    out.num_parameters += p.value.numel();
    add(p.name, p.value);
    if (p.grad.defined()) add("grad/" + p.name, p.grad);
  }
  if (optimizer_) {
    const auto state = optimizer_->state();
    for (const auto& [name, t] : state.tensors) {
      out.optimizer = checksum(out.optimizer, t);
      add("optimizer/" + name, t);
    }
    out.step = optimizer_->num_steps();
  }
  out.num_tokens = num_tokens_;
  return out;
}

std::vector<std::pair<std::string, at::Tensor>> Tenant::training_tensors() {
  std::vector<std::pair<std::string, at::Tensor>> out;
  if (optimizer_) {
    for (auto& [name, t] : optimizer_->state().tensors) out.emplace_back("optimizer/" + name, t);
  }
  if (pending_ > 0) {
    const auto keep = snapshot().grads;
    for (size_t i = 0; i < keep.size(); ++i) {
      if (keep[i].defined()) out.emplace_back("grad/" + std::to_string(i), keep[i]);
    }
  }
  // bfloat16 files would round the weights that the steps are taken from.
  const auto weights = decoder_.weights();
  for (size_t i = 0; i < masters_.size(); ++i)
    out.emplace_back("master/" + weights[i].name, masters_[i]);
  return out;
}

Json Tenant::training_fields() {
  JsonObject out;
  out["seed"] = seed_;
  out["calls"] = calls_;
  out["pending"] = pending_;
  out["num_tokens"] = num_tokens_;
  if (optimizer_) {
    out["optimizer"] = optimizer_->state().fields;
    out["optimizer_options"] = options_;
  }
  return out;
}

struct Tenant::Training {
  std::unique_ptr<optim::Optimizer> optimizer;
  Json options = JsonObject{};  // the optimizer's
  std::vector<at::Tensor> grads, masters;
  uint64_t seed;
  int64_t calls, pending;
  double num_tokens;
};

Tenant::Training Tenant::parse(const Json& fields,
                               const std::map<std::string, at::Tensor>& tensors) {
  Training out;
  const auto all = params();
  const auto take = [&](const std::string& name, at::IntArrayRef shape) {
    const auto it = tensors.find(name);
    require(it != tensors.end(), Code::kInvalid, "engine: load: the training state has no tensor ",
            name);
    require(it->second.sizes() == shape, Code::kInvalid, "engine: load: tensor ", name,
            " has shape ", shape_text(it->second.sizes().vec()), ", expected ",
            shape_text(shape.vec()));
    return it->second;
  };
  if (const Json* options = find(fields, "optimizer_options")) out.options = *options;
  if (const Json* saved = find(fields, "optimizer")) {
    optim::State state{*saved, {}};
    for (const auto& [name, t] : tensors) {
      if (!name.starts_with("optimizer/")) continue;
      const std::string rest = name.substr(10), parameter = rest.substr(0, rest.rfind('.'));
      const auto mine =
          std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == parameter; });
      require(mine != all.end(), Code::kInvalid, "engine: load: tensor ", name,
              " belongs to no parameter of tenant '", name_, "'");
      state.tensors.emplace_back(rest, take(name, mine->value.sizes()));
    }
    // Which buffers there are depends on the options: SGD has one with momentum alone.
    out.optimizer = optim::make(get<std::string>(*saved, "optimizer"), out.options);
    out.optimizer->load(state);
  }
  out.pending = get<int64_t>(fields, "pending");
  out.calls = get<int64_t>(fields, "calls");
  out.num_tokens = get<double>(fields, "num_tokens");
  const Json* seed = find(fields, "seed");
  out.seed = seed && seed->is_uint64() ? seed->get_uint64()
                                       : static_cast<uint64_t>(get<int64_t>(fields, "seed"));
  const auto now = snapshot().grads;
  for (size_t i = 0; i < now.size(); ++i) {
    const std::string name = "grad/" + std::to_string(i);
    const bool there = tensors.contains(name);
    if (mode_ == Mode::kLora) {
      out.grads.push_back(there ? take(name, now[i].sizes()).clone() : at::zeros_like(now[i]));
    } else {
      // The last buffer of a tied head is the embedding's second one.
      const at::Tensor& like = all[i < all.size() ? i : 0].value;
      out.grads.push_back(there ? take(name, like.sizes()).clone() : at::Tensor());
    }
  }
  for (size_t i = 0; i < masters_.size(); ++i)
    out.masters.push_back(take("master/" + all[i].name, masters_[i].sizes()));
  return out;
}

void Tenant::check_training(const Json& fields, const std::map<std::string, at::Tensor>& tensors) {
  parse(fields, tensors);
}

void Tenant::load_training(const Json& fields, const std::map<std::string, at::Tensor>& tensors) {
  Training training = parse(fields, tensors);
  for (size_t i = 0; i < masters_.size(); ++i) masters_[i].copy_(training.masters[i]);
  restore({std::move(training.grads)});
  resumed_ = training.optimizer != nullptr;
  optimizer_ = std::move(training.optimizer);
  options_ = std::move(training.options);
  seed_ = training.seed;
  calls_ = training.calls;
  pending_ = training.pending;
  num_tokens_ = training.num_tokens;
}

}  // namespace twinkle::engine
