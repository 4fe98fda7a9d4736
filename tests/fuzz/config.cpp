// config.json as a model's families read it.
#include "tests/fuzz/fuzz.h"
#include "twinkle/model/family.h"

namespace twinkle::fuzz {
namespace {

std::string config_of(const std::string& more, const std::string& family = "llama") {
  return R"({"model_type": ")" + family + R"(", "hidden_size": 64,
  "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 131, "max_position_embeddings": 512,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "hidden_act": "silu", "eos_token_id": 2)" +
         more + "}";
}

void read_config(const std::string& bytes) {
  const Json parsed = parse_json(bytes, "config.json");
  std::string refused;
  try {
    model::read_spec(parsed, true);
  } catch (const Error& e) {
    refused = e.what();
  }
  model::read_spec(parsed);
}

}  // namespace

Reader config() {
  const std::string windows = R"(, "use_sliding_window": true, "sliding_window": 3)";
  return {
      .name = "config",
      .corpus = {config_of(""), config_of(windows + R"(, "max_window_layers": 1)", "qwen2"),
                 config_of(windows + R"(, "max_window_layers": -1)", "qwen2"),
                 config_of(windows + R"(, "max_window_layers": -9223372036854775808)", "qwen2"),
                 config_of(windows + R"(, "layer_types": ["sliding_attention", "full_attention"])",
                           "qwen2"),
                 config_of(R"(, "rope_theta": 1e4, "rope_scaling": {"rope_type": "llama3",
  "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
  "original_max_position_embeddings": 64})"),
                 config_of(R"(, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4,
  "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.5,
  "attention_factor": 1.0, "truncate": true})"),
                 R"({"model_type": "qwen2", "architectures": ["Qwen2ForTokenClassification"],
  "hidden_size": 1e30, "id2label": {"0": "LABEL_0"}, "num_labels": 1})"},
      .words = {"\"max_window_layers\": ", "\"rope_scaling\": {", "\"head_dim\": ", "\"qwen3\"",
                "\"id2label\": {}", "\"quantization_config\": {}", "[[[[", "null", "-1",
                "\"layer_types\": [", "\"linear\""},
      .read = read_config};
}

}  // namespace twinkle::fuzz
