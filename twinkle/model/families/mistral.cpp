// Mistral 7B (Jiang et al. 2023): llama, whose layers all have a window where the config says one.
#include "twinkle/model/family.h"

namespace twinkle::model {

Family mistral() {
  return {.name = "mistral",
          .architectures = {"MistralForCausalLM"},
          .keys = {"use_sliding_window"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = llama_like(config);
                if (!find(config, "sliding_window")) return spec;
                for (LayerSpec& layer : spec.layers)
                  layer.attention().window = read_size(config, "sliding_window");
                return spec;
              },
          .absent = {{"num_key_value_heads", 8}, {"sliding_window", 4096}}};
}

}  // namespace twinkle::model
