// What of a tenant's training state goes to a checkpoint, and back.
#include <ATen/ATen.h>

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/engine/tenant.h"
#include "twinkle/io/tensor_view.h"

namespace twinkle::engine {

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
  out["published"] = num_published_;
  if (optimizer_) {
    out["optimizer"] = optimizer_->state().fields;
    out["optimizer_options"] = options_;
  }
  return out;
}

Tenant::Training Tenant::parse_training(const Json& fields,
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
  out.published = get_or<int64_t>(fields, "published", 0);
  const Json* seed = find(fields, "seed");
  out.seed = seed && seed->is_uint64() ? seed->get_uint64()
                                       : static_cast<uint64_t>(get<int64_t>(fields, "seed"));
  const size_t num_grads = mode_ == Mode::kFull ? decoder_.buffers().size() : all.size();
  for (size_t i = 0; i < num_grads; ++i) {
    const std::string name = "grad/" + std::to_string(i);
    // The last buffer of a tied head is the embedding's second one.
    const at::Tensor& like = all[i < all.size() ? i : 0].value;
    out.grads.push_back(tensors.contains(name)
                            ? take(name, like.sizes()).to(like.device(), false, /*copy=*/true)
                            : at::Tensor());
  }
  for (size_t i = 0; i < masters_.size(); ++i)
    out.masters.push_back(take("master/" + all[i].name, masters_[i].sizes()));
  return out;
}

void Tenant::load_training(Training training) {
  for (size_t i = 0; i < masters_.size(); ++i) masters_[i].copy_(training.masters[i]);
  restore({std::move(training.grads)});
  optimizer_ = std::move(training.optimizer);
  options_ = std::move(training.options);
  seed_ = training.seed;
  calls_ = training.calls;
  pending_ = training.pending;
  num_tokens_ = training.num_tokens;
  num_published_ = std::max(num_published_, training.published);  // numbers do not come twice
}

}  // namespace twinkle::engine
