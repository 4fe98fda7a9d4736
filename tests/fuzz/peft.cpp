// adapter_config.json, beside an adapter that fits it.
#include "twinkle/io/peft/peft.h"

#include "tests/fuzz/fuzz.h"

namespace twinkle::fuzz {
namespace {

std::string weights() {
  const std::string header =
      R"({"base_model.model.q.lora_A.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("base_model.model.q.lora_B.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[24,48]}})";
  return raw<uint64_t>(header.size()) + header + std::string(48, 'x');
}

void read_adapter(const std::string& bytes) {
  const std::filesystem::path file = file_of(bytes, "adapter_config.json");
  if (!is_there(file.parent_path() / "adapter_model.safetensors"))
    file_of(weights(), "adapter_model.safetensors");
  const PeftAdapter adapter = read_peft(file.parent_path());
  for (const StoredPeftEntry& entry : adapter.entries) entry.a.load();
  peft_config(json_of(adapter.config), "what was read");
}

}  // namespace

Reader peft() {
  return {.name = "peft",
          .corpus = {R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "lora_dropout": 0.1,
  "target_modules": ["q_proj", "down_proj"], "bias": "none", "task_type": "CAUSAL_LM",
  "use_rslora": false, "base_model_name_or_path": "x", "rank_pattern": {},
  "init_lora_weights": true, "modules_to_save": null})",
                     R"({"peft_type": "LORA", "r": 2, "target_modules": ".*\\.(q|v)_proj"})",
                     R"({"peft_type": "LORA", "r": 2, "lora_alpha": 1e30,
  "target_modules": "all-linear"})"},
          .words = {"\"use_dora\": true", "\"r\": ", "\"target_modules\": ", "[[[[", "null",
                    "\"lora_alpha\": 1e999"},
          .read = read_adapter};
}

}  // namespace twinkle::fuzz
