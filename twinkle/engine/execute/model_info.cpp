#include "twinkle/engine/execute/model_info.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"
#include "twinkle/engine/checkpoint/persist.h"
#include "twinkle/io/folder/eos.h"
#include "twinkle/kernels/linear/linear_bf16.h"
#include "twinkle/kernels/linear/linear_f32_product.h"
#include "twinkle/lora/expert_factors.h"
#include "twinkle/lora/targets.h"
#include "twinkle/model/family.h"

namespace twinkle::engine {
namespace {

std::string products(at::ScalarType dtype, at::Device device) {
  if (!device.is_cpu()) return "library";
  if (dtype == at::kBFloat16) return std::string(kernels::linear_bf16_best());
  return "runs of " + std::to_string(kernels::kSumRun);
}

// An adapter has an expert's gate_up_proj, or its two halves.
bool is_both_halves(const lora::LinearShape& linear) {
  const auto expert = lora::expert_path(linear.path);
  return expert && expert->name == "gate_up_proj";
}

}  // namespace

at::ScalarType dtype_named(const std::string& precision) {
  return precision == "bf16" ? at::kBFloat16 : at::kFloat;
}

JsonObject arithmetic_of(at::ScalarType dtype, at::Device device, bool deterministic) {
  return {{"device", device.is_cpu() ? "cpu" : "cuda"},
          {"mixed_precision", dtype == at::kBFloat16 ? "bf16" : "no"},
          {"products", products(dtype, device)},
          {"deterministic", deterministic},
          {"torch", TORCH_VERSION},
          {"instructions", at::get_cpu_capability()}};
}

ModelInfo facts_of(model::Decoder& decoder, const Checkpoint& checkpoint) {
  const model::DecoderSpec& spec = decoder.spec();
  ModelInfo info;
  info.family = spec.family;
  info.directory = checkpoint.path().string();
  info.config_json = boost::json::serialize(checkpoint.config());
  info.vocab_size = spec.vocab_size;
  info.max_positions = spec.max_positions;
  info.num_layers = spec.num_layers();
  if (const std::vector<size_t> routed = spec.routed_layers(); !routed.empty()) {
    info.num_routed_layers = std::ssize(routed);
    info.num_experts_per_tok = spec.layers[routed.front()].experts()->route.top_k;
  }
  info.bf16_products = kernels::linear_bf16_best();
  for (const auto& w : decoder.weights()) info.num_parameters += w.value->numel();
  for (const lora::LinearShape& linear : lora::shapes_of(decoder.linears())) {
    if (is_both_halves(linear)) continue;
    AdapterSize& size = info.adapter_sizes[linear.path.substr(linear.path.rfind('.') + 1)];
    // A stack's B has zeros beside those of the gate and of the up (lora/peft/form.h).
    const bool is_half = lora::expert_path(linear.path) && !linear.path.ends_with("down_proj");
    size.numbers += linear.inputs + linear.outputs * (is_half ? 2 : 1);
    ++size.linears;
  }
  info.carried_bytes = carried_bytes(checkpoint.path());
  info.eos_ids = read_eos(checkpoint.path(), model::text_of(checkpoint.config()), spec.vocab_size);
  return info;
}

}  // namespace twinkle::engine
