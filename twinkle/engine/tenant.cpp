#include "twinkle/engine/tenant.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <set>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"
#include "twinkle/model/weights/tensors.h"
#include "twinkle/optim/clip.h"

namespace twinkle::engine {
namespace {

uint64_t checksum(uint64_t hash, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.cpu().contiguous();
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

// Lends the state of one optimizer to another, which may keep it.
struct StateLoan {
  StateLoan(optim::Optimizer* from, optim::Optimizer& to) : from(from), to(to) { swap(); }
  ~StateLoan() {
    if (!taken) swap();
  }
  void swap() const noexcept {
    if (from) from->swap_state(to);
  }

  optim::Optimizer* from;  // or null: there is none
  optim::Optimizer& to;
  bool taken = false;
};

}  // namespace

Tenant::Tenant(std::string name, Mode mode, lora::AdapterRef pin, uint64_t seed, const Home& home)
    : name_(std::move(name)),
      mode_(mode),
      pin_(std::move(pin)),
      seed_(seed),
      decoder_(home.decoder),
      pool_(home.pool) {
  if (mode_ == Mode::kLora) {
    std::vector<int64_t> sizes;
    for (const size_t i : adapter().learned()) sizes.push_back(adapter().value(i).numel());
    owners_ = Owners(home.comm, name_, sizes);
    adapter_bytes_ = adapter().num_bytes();
  }
  if (mode_ != Mode::kFull) return;
  // Updates smaller than half a bfloat16 step would vanish: the weights that are stepped are
  // float32. Copied first: without memory for them the decoder stays frozen.
  weights_ = decoder_.weights();
  if (home.comm && home.comm->size() > 1) {
    parts_ = std::make_unique<parallel::TrainedWeights>(decoder_, *home.ownership, *home.comm,
                                                        home.shards);
    peers_.emplace(*home.comm);
    masters_ = parts_->masters();
    return;
  }
  for (const auto& w : weights_) masters_.push_back(w.value->to(at::kFloat));
  decoder_.train_all();
}

Tenant::~Tenant() {
  if (mode_ == Mode::kFull) decoder_.freeze();
}

int64_t Tenant::publish() {
  require(mode_ == Mode::kLora, Code::kInvalid, "engine: publish: tenant '", name_,
          "' has no adapter; only adapters have versions");
  published_.emplace(++num_published_, pin_);
  return num_published_;
}

void Tenant::release(int64_t version) {
  pinned(version);
  published_.erase(version);
}

lora::AdapterRef Tenant::pinned(int64_t version) const {
  if (version == 0) return pin_;
  const auto it = published_.find(version);
  require(it != published_.end(), Code::kNotFound, "engine: tenant '", name_, "' keeps no version ",
          version, "; it has published ", num_published_, " and keeps ", published_.size());
  return it->second;
}

std::vector<lora::Adapter*> Tenant::adapters() {
  std::set<int32_t> slots;
  if (slot() >= 0) slots.insert(slot());
  for (const auto& [version, pin] : published_) slots.insert(pin.slot());
  std::vector<lora::Adapter*> out;
  for (const int32_t s : slots) out.push_back(&pool_.at(s));
  return out;
}

int64_t Tenant::num_bytes() {
  int64_t n = 0;
  for (const lora::Adapter* adapter : adapters()) n += adapter->num_bytes();
  if (!optimizer_ || mode_ != Mode::kLora) return n;
  for (const at::Tensor* t : optimizer_->tensors())
    n += t->defined() ? static_cast<int64_t>(t->nbytes()) : 0;
  return n;
}

bool Tenant::is_read() const {
  if (mode_ != Mode::kLora) return false;
  if (published_.empty()) return pin_.num_shares() > 1;
  std::map<int32_t, int64_t> mine{{slot(), 1}};
  for (const auto& [version, pin] : published_) ++mine[pin.slot()];
  const auto read = [&](const lora::AdapterRef& pin) {
    return pin.num_shares() > mine[pin.slot()];
  };
  return read(pin_) ||
         std::ranges::any_of(published_, [&](const auto& each) { return read(each.second); });
}

std::vector<at::Tensor*> Tenant::movable_tensors() {
  if (mode_ != Mode::kLora || is_read()) return {};
  std::vector<at::Tensor*> out;
  for (lora::Adapter* adapter : adapters()) {
    adapter->weights_changed();
    for (const size_t i : adapter->held())
      out.insert(out.end(), {&adapter->value(i), &adapter->grad(i)});
  }
  if (!optimizer_) return out;
  const auto more = optimizer_->tensors();
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

lora::Adapter& Tenant::own_adapter() {
  pool_.copy_on_write(pin_);
  return pool_.at(slot());
}

uint64_t Tenant::stream(int64_t index, int64_t later) const {
  const uint64_t call = key_of(key_of(seed_, "dropout"), static_cast<uint64_t>(calls_ + later));
  return key_of(call, static_cast<uint64_t>(index)) | 1;
}

void Tenant::link_shared() {
  for (lora::Adapter* adapter : adapters()) adapter->link_shared();
}

void Tenant::count(double num_tokens) {
  if (mode_ == Mode::kLora) adapter().join_shared_grads();
  num_tokens_ += num_tokens;
  ++calls_;
  ++pending_;
}

std::vector<optim::Param> Tenant::params() {
  std::vector<optim::Param> out;
  if (mode_ == Mode::kLora) {
    lora::Adapter& mine = adapter();
    for (const size_t i : mine.learned())
      out.push_back({.name = mine.name(i),
                     .value = mine.value(i),
                     .grad = mine.grad(i),
                     .is_b = mine.kind(i).is_b});
    for (size_t i = 0; i < out.size(); ++i) {
      out[i].here = owners_.has(i);
      if (out[i].here && !out[i].grad.defined()) out[i].grad = at::zeros_like(out[i].value);
    }
  } else if (mode_ == Mode::kFull) {
    const auto grads = parts_ ? parts_->grads() : decoder_.grads();
    for (size_t i = 0; i < weights_.size(); ++i)
      out.push_back({weights_[i].name, masters_[i], grads[i], weights_[i].decay});
  }
  return out;
}

std::vector<at::Tensor> Tenant::grads() {
  if (mode_ == Mode::kFull) return parts_ ? parts_->grads() : decoder_.buffers();
  std::vector<at::Tensor> out;
  if (mode_ != Mode::kLora) return out;
  lora::Adapter& mine = adapter();
  for (const size_t i : mine.learned()) out.push_back(mine.grad(i));
  return out;
}

// During an operation, whose experts have not yet joined the gradients that they share.
bool Tenant::gradients_finite() {
  std::vector<at::Tensor> all = grads();
  if (mode_ == Mode::kLora) {
    for (size_t i = 0; i < adapter().num_tensors(); ++i)
      if (!adapter().holds(i)) all.push_back(adapter().grad(i));
  }
  return optim::finite(all);
}

Tenant::Snapshot Tenant::snapshot() {
  Snapshot out{grads()};
  for (at::Tensor& g : out.grads) g = g.defined() ? g.clone() : g;
  return out;
}

void Tenant::restore(Snapshot snapshot) {
  const std::vector<at::Tensor>& grads = snapshot.grads;
  if (parts_) {
    parts_->set_grads(std::move(snapshot.grads));
  } else if (mode_ == Mode::kLora) {
    lora::Adapter& mine = adapter();
    mine.zero_grads();
    for (size_t i = 0; const size_t number : mine.learned()) mine.grad(number) = grads[i++];
  } else if (mode_ == Mode::kFull) {
    decoder_.set_buffers(grads);
  }
}

const optim::Peers& Tenant::peers() const {
  if (peers_) return *peers_;
  return owners_;
}

void Tenant::require_trainable(const char* what) const {
  require(mode_ != Mode::kFrozen, Code::kInvalid, "engine: ", what, ": tenant '", name_,
          "' is the frozen base model; add an adapter, or create it for full-parameter training");
}

void Tenant::require_one_rank_of_shared(const char* method) const {
  require(owners_.alone() || !shares_factors(), Code::kInvalid, "engine: ", method, ": tenant '",
          name_,
          "' has experts that share factors (share_expert_factors), which are trained by one data "
          "rank only; give experts factors of their own, or take one rank");
}

Tenant::Change Tenant::scaled(double num_tokens, double max_norm, double norm_type) {
  require(max_norm >= 0, Code::kInvalid, "engine: max_grad_norm is ", max_norm,
          ", it must be at least 0; 0 and infinity do not clip");
  const double per_token = 1.0 / std::max(1.0, num_tokens);
  const auto all = params();
  Change change{per_token, optim::grad_norm(all, norm_type, per_token, peers())};
  const double factor = max_norm > 0 ? optim::clip_factor(change.norm, max_norm) : 1;
  change.scale *= factor;
  require(factor == 1 || change.scale >= std::numeric_limits<float>::min(), Code::kInvalid,
          "engine: a gradient norm of ", change.norm, " (norm_type ", norm_type,
          ") clipped to max_grad_norm ", max_norm, " leaves ", change.scale,
          " of every gradient, which is 0 in float32; take a larger max_grad_norm or norm_type 2");
  return change;
}

StepResult Tenant::step(const Step& operation) {
  require_trainable("step");
  require_one_rank_of_shared("step");
  require(pending_ > 0 || operation.none_is_zero, Code::kConflict, "engine: step: tenant '", name_,
          "' has no accumulated gradients; run forward_backward first");
  require(operation.divide || !clipped_, Code::kConflict,
          "engine: step: divide is false, but the "
          "gradients of tenant '",
          name_,
          "' have been divided by clip_grad_norm; give "
          "max_grad_norm to the step instead");
  Json options = operation.options.empty() ? Json(JsonObject{})
                                           : parse_json(operation.options, "step options");
  const Change change =
      scaled(operation.divide ? num_tokens_ : 1, operation.max_grad_norm, operation.norm_type);
  // Another optimizer starts afresh, whether this one was loaded or not: a replay from a snapshot
  // is to end where the first run did.
  const bool goes_on = optimizer_ && optimizer_->name() == operation.optimizer;
  std::unique_ptr<optim::Optimizer> next = optim::make(operation.optimizer, options);
  if (mode_ == Mode::kLora) own_adapter();
  std::vector<optim::Param> all = params();
  for (optim::Param& p : all) {
    if (pending_ == 0 && p.here && !p.grad.defined()) p.grad = at::zeros_like(p.value);
  }
  {
    // If this throws, when memory runs out, say, the previous optimizer keeps its state.
    StateLoan loan(goes_on ? optimizer_.get() : nullptr, *next);
    next->step(all, next->lr(), change.scale, change.norm, peers());
    loan.taken = true;
  }
  owners_.share_values(all);
  optimizer_ = std::move(next);
  options_.swap(options);
  weights_changed();
  const StepResult result{change.norm, num_tokens_, optimizer_->num_steps()};
  zero_grad();
  return result;
}

StepResult Tenant::clip(const ClipGradNorm& operation) {
  require_trainable("clip_grad_norm");
  require(pending_ > 0, Code::kConflict, "engine: clip_grad_norm: tenant '", name_,
          "' has no accumulated gradients; run forward_backward first");
  const Change change = scaled(num_tokens_, operation.max_grad_norm, operation.norm_type);
  const StepResult result{change.norm, num_tokens_, optimizer_ ? optimizer_->num_steps() : 0};
  optim::scale(grads(), change.scale);
  num_tokens_ = 1;
  clipped_ = true;
  return result;
}

void Tenant::require_unclipped() const {
  require(!clipped_, Code::kConflict, "engine: forward_backward: the gradients of tenant '", name_,
          "' have been divided by their tokens and clipped (clip_grad_norm), and more can't be "
          "added to them; step or zero_grad first");
}

void Tenant::zero_grad() {
  if (mode_ == Mode::kLora) pool_.at(slot()).zero_grads();
  if (parts_) parts_->zero_grads();
  if (mode_ == Mode::kFull) decoder_.zero_grads();
  num_tokens_ = 0;
  pending_ = 0;
  clipped_ = false;
}

void Tenant::weights_changed() {
  if (mode_ == Mode::kLora) pool_.weights_changed(pin_);
  if (mode_ != Mode::kFull) return;
  if (parts_) parts_->share();
  for (size_t i = 0; !parts_ && i < weights_.size(); ++i)
    model::assign(masters_[i], *weights_[i].value);
  pool_.base_changed();
}

void Tenant::load_weights(const std::vector<at::Tensor>& weights) {
  if (parts_) return parts_->assign(weights);
  for (size_t i = 0; i < weights.size(); ++i) {
    model::assign(weights[i], *weights_[i].value);
    model::assign(*weights_[i].value, masters_[i]);
  }
}

void Tenant::reset_training() {
  optimizer_.reset();
  if (mode_ == Mode::kLora) pool_.weights_changed(pin_);
  if (mode_ == Mode::kFull) pool_.base_changed();
  zero_grad();
}

InspectResult Tenant::inspect(bool tensors) {
  InspectResult out;
  const auto add = [&](const std::string& name, const at::Tensor& t) {
    if (!tensors) return;
    const at::Tensor f = t.to(at::kCPU, at::kFloat).contiguous();
    const float* v = f.const_data_ptr<float>();
    out.tensors.push_back({name, f.sizes().vec(), std::vector<float>(v, v + f.numel())});
  };
  visit_params([&](const optim::Param& p) {
    out.weights = checksum(out.weights, p.value);
    if (p.grad.defined()) out.gradients = checksum(out.gradients, p.grad);
    out.num_parameters += p.value.numel();
    add(p.name, p.value);
    if (p.grad.defined()) add("grad/" + p.name, p.grad);
  });
  visit_moments([&](const std::string& name, const at::Tensor& t) {
    out.optimizer = checksum(out.optimizer, t);
    add("optimizer/" + name, t);
  });
  if (optimizer_) out.step = optimizer_->num_steps();
  out.num_tokens = num_tokens_;
  if (mode_ != Mode::kFrozen) return out;
  decoder_.visit_weights([&](const model::NamedWeight& w) {
    out.weights = checksum(out.weights, *w.value);
    add(w.name, *w.value);
  });
  return out;
}

}  // namespace twinkle::engine
