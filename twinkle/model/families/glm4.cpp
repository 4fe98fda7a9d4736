// GLM-4-0414: glm with two more norms a layer, of what its blocks return.
#include "twinkle/model/families/glm.h"

namespace twinkle::model {

Family glm4() {
  return {.name = "glm4",
          .architectures = {"Glm4ForCausalLM"},
          .keys = {"partial_rotary_factor"},
          .spec =
              [](const Json& config) {
                DecoderSpec spec = glm_like(config);
                spec.sandwich = true;
                return spec;
              },
          .absent = {{"num_key_value_heads", 2}, {"head_dim", 128}}};
}

}  // namespace twinkle::model
