// Qwen1.5 and Qwen2 with experts (Qwen team 2024): qwen2's attention, experts by the softmax of
// all, and a shared expert behind a sigmoid gate.
#include "twinkle/model/routed_families/routed.h"

namespace twinkle::model {
namespace {

// Another rule than qwen2's: every other layer, of the first max_window_layers.
void read_windows(const Json& config, DecoderSpec& spec) {
  if (!get_or(config, "use_sliding_window", false) || find(config, "layer_types")) return;
  const int64_t window = find(config, "sliding_window") ? read_size(config, "sliding_window") : 0;
  const auto last = get_or<int64_t>(config, "max_window_layers", 28);
  for (int64_t i = 0; i < spec.num_layers(); ++i)
    spec.layers[static_cast<size_t>(i)].attention().window = i % 2 == 0 && i < last ? window : 0;
}

}  // namespace

Family qwen2_moe() {
  return {.name = "qwen2_moe",
          .architectures = {"Qwen2MoeForCausalLM"},
          .keys = {"num_experts", "num_local_experts", "use_sliding_window"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = llama_like(config);
                for (LayerSpec& layer : spec.layers)
                  layer.attention().qkv_bias = read_flag(config, "qkv_bias", true);
                read_windows(config, spec);
                route_as_qwen(spec, config, get_or(config, "norm_topk_prob", false),
                              qwen_routed(config));
                return spec;
              },
          .absent = {{"num_key_value_heads", 16}, {"sliding_window", 4096}}};
}

}  // namespace twinkle::model
