#include "twinkle/engine/weights/exchange.h"

#include <ATen/ATen.h>

#include "twinkle/base/error.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::engine {
namespace {

std::vector<Weight> base_of(model::Decoder& decoder) {
  require(decoder.has_all(), Code::kInvalid,
          "engine: the weights of a base that ranks hold in parts are not sent, nor replaced, in "
          "this version: give the ranks to dp_size instead of fsdp_size");
  std::vector<Weight> out;
  for (const auto& w : decoder.weights()) out.push_back({w.name, *w.value});
  return out;
}

std::vector<Weight> factors_of(const lora::Adapter& adapter) {
  std::vector<Weight> out;
  for (const lora::Factors& entry : adapter.factors()) {
    out.push_back({lora::name_of_a(entry.path), entry.f.a});
    out.push_back({lora::name_of_b(entry.path), entry.f.b});
  }
  return out;
}

void require_fits(const std::vector<Weight>& given, const std::vector<Weight>& ours,
                  const std::string& tenant) {
  for (size_t i = 0; i < std::min(given.size(), ours.size()); ++i) {
    const auto& [name, value] = given[i];
    require(name == ours[i].name, Code::kInvalid, "engine: replace_weights: tensor ", i, " is '",
            name, "', tenant '", tenant, "' has '", ours[i].name, "' there");
    require(value.sizes() == ours[i].value.sizes() &&
                value.scalar_type() == ours[i].value.scalar_type(),
            Code::kInvalid, "engine: replace_weights: '", name, "' is ", value.scalar_type(), " ",
            value.sizes(), ", tenant '", tenant, "' has ", ours[i].value.scalar_type(), " ",
            ours[i].value.sizes());
  }
  require(given.size() == ours.size(), Code::kInvalid, "engine: replace_weights: ", given.size(),
          " tensors, tenant '", tenant, "' has ", ours.size());
}

}  // namespace

WeightsView view_of(Tenant& tenant, model::Decoder& decoder, const lora::Pool& pool) {
  WeightsView out{.trains_base = tenant.mode() == Mode::kFull,
                  .base_version = pool.base_version(),
                  .base = base_of(decoder)};
  if (tenant.mode() != Mode::kLora) return out;
  const lora::Adapter& adapter = tenant.adapter();
  out.lora_json = boost::json::serialize(json_of(adapter.config()));
  out.adapter = factors_of(adapter);
  return out;
}

void replace_weights(const std::vector<Weight>& weights, Tenant& tenant, model::Decoder& decoder,
                     lora::Pool& pool) {
  require(tenant.mode() != Mode::kFull, Code::kInvalid, "engine: replace_weights: tenant '",
          tenant.name(), "' trains all weights itself; receive into an engine that samples");
  if (tenant.mode() == Mode::kFrozen) {
    const std::vector<Weight> ours = base_of(decoder);
    require_fits(weights, ours, tenant.name());
    for (size_t i = 0; i < ours.size(); ++i) model::assign(weights[i].value, ours[i].value);
    pool.base_changed();
    return;
  }
  require_fits(weights, factors_of(tenant.adapter()), tenant.name());
  lora::Adapter& adapter = tenant.own_adapter();
  size_t i = 0;
  for (lora::Factors& entry : adapter.factors()) {
    model::assign(weights[i++].value, entry.f.a);
    model::assign(weights[i++].value, entry.f.b);
  }
  adapter.weights_changed();
  tenant.reset_training();
}

}  // namespace twinkle::engine
