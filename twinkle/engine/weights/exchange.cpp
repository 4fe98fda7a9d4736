#include "twinkle/engine/weights/exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::engine {
namespace {

std::vector<Weight> base_of(const BaseWeights& base) {
  std::map<std::string, parallel::Shards::Held> held;
  if (base.shards) held = base.shards->held();
  std::vector<Weight> out;
  for (const auto& w : base.decoder.weights()) {
    const auto found = held.find(w.name);
    if (found == held.end())
      out.push_back({w.name, *w.value, w.value->sizes().vec()});
    else
      out.push_back({w.name, found->second.values, w.value->sizes().vec(), found->second.first});
  }
  return out;
}

std::vector<Weight> factors_of(const lora::Adapter& adapter) {
  std::vector<Weight> out;
  for (const size_t i : adapter.held())
    out.push_back({adapter.name(i), adapter.value(i), adapter.value(i).sizes().vec()});
  return out;
}

void require_fits(const std::vector<Weight>& given, const std::vector<Weight>& ours,
                  const std::string& tenant) {
  for (size_t i = 0; i < std::min(given.size(), ours.size()); ++i) {
    const auto& [name, value, shape, first] = given[i];
    require(name == ours[i].name, Code::kInvalid, "engine: replace_weights: tensor ", i, " is '",
            name, "', tenant '", tenant, "' has '", ours[i].name, "' there");
    require(value.sizes() == ours[i].value.sizes() && first == ours[i].first &&
                value.scalar_type() == ours[i].value.scalar_type(),
            Code::kInvalid, "engine: replace_weights: '", name, "' is ", value.scalar_type(), " ",
            value.sizes(), ", tenant '", tenant, "' has ", ours[i].value.scalar_type(), " ",
            ours[i].value.sizes());
  }
  require(given.size() == ours.size(), Code::kInvalid, "engine: replace_weights: ", given.size(),
          " tensors, tenant '", tenant, "' has ", ours.size());
}

// The decoder's tensor gets the memory of the new one, which is as large: nothing is copied, and
// the old memory is freed.
void adopt(const at::Tensor& from, const at::Tensor& to) {
  c10::TensorImpl* impl = to.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(from.storage());
  impl->set_storage_offset(from.storage_offset());
}

void put(const Weight& from, const Weight& to) {
  // Views of a stack's experts would stay in the memory that adopt() leaves.
  if (to.is_part() || !to.value.is_cpu() || to.value.dim() > 2)
    model::assign(from.value, to.value);
  else
    adopt(from.value, to.value);
}

}  // namespace

WeightsView view_of(Tenant& tenant, const BaseWeights& base, const lora::Pool& pool) {
  WeightsView out{.trains_base = tenant.mode() == Mode::kFull,
                  .base_version = pool.base_version(),
                  .base = base_of(base)};
  if (tenant.mode() != Mode::kLora) return out;
  const lora::Adapter& adapter = tenant.adapter();
  out.lora_json = boost::json::serialize(json_of(adapter.config()));
  out.adapter = factors_of(adapter);
  return out;
}

void replace_weights(const NewWeights& weights, Tenant& tenant, const BaseWeights& base,
                     lora::Pool& pool) {
  require(tenant.mode() != Mode::kFull, Code::kInvalid, "engine: replace_weights: tenant '",
          tenant.name(), "' trains all weights itself; receive into an engine that samples");
  std::vector<Weight> ours;
  if (!weights.base.empty()) {
    ours = base_of(base);
    require_fits(weights.base, ours, tenant.name());
  }
  lora::Adapter* adapter = nullptr;
  if (tenant.mode() == Mode::kLora) {
    require_fits(weights.adapter, factors_of(tenant.adapter()), tenant.name());
    adapter = &tenant.own_adapter();  // it may lack the memory
  } else {
    require_fits(weights.adapter, {}, tenant.name());
  }
  if (!weights.base.empty()) {
    for (size_t i = 0; i < ours.size(); ++i) put(weights.base[i], ours[i]);
    pool.base_changed();
  }
  if (!adapter) return;
  for (size_t i = 0; const size_t held : adapter->held())
    model::assign(weights.adapter[i++].value, adapter->value(held));
  adapter->weights_changed();
  tenant.reset_training();
}

}  // namespace twinkle::engine
