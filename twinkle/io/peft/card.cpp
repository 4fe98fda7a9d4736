#include "twinkle/io/peft/card.h"

#include <sstream>

#include "twinkle/base/file.h"
#include "twinkle/base/random.h"

namespace twinkle {
namespace {

constexpr std::string_view kBegin = "<!-- Written by Twinkle, which replaces it with the adapter: ";
constexpr std::string_view kEnd = " -->\n";
constexpr int64_t kMaxBytes = int64_t{1} << 20;

// The name of the built-in model (python/twinkle/hub/models.py).
constexpr std::string_view kRounded = "smollm2-q4_1";
constexpr std::string_view kOfRounded =
    "`smollm2-q4_1` is Twinkle's built-in model `smollm2`: HuggingFaceTB/SmolLM2-135M-Instruct, "
    "rounded to 4 bits. The adapter was not trained on the weights that the hub has under that "
    "name. `python -m twinkle.hub get smollm2` prints the folder of the rounded ones.\n\n";

std::string quoted(const std::string& text) { return boost::json::serialize(Json(text)); }

std::string module_names(const PeftConfig& config) {
  if (const auto* pattern = std::get_if<std::string>(&config.target_modules)) return *pattern;
  std::string out;
  for (const auto& names : {std::get<0>(config.target_modules), config.target_parameters})
    for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

std::string last_line(std::string_view text) {
  return std::string(kBegin) + std::to_string(key_of(0, text)) + std::string(kEnd);
}

}  // namespace

std::string peft_card(const PeftConfig& config, std::string_view about) {
  const std::string base = config.base_model.empty() ? "BASE" : config.base_model;
  std::ostringstream out;
  out << "---\n";
  if (!config.base_model.empty()) out << "base_model: " << quoted(base) << "\n";
  out << "library_name: peft\ntags:\n- lora\n- twinkle\n---\n\n# A LoRA adapter of " << base
      << "\n\n";
  if (base == kRounded) out << kOfRounded;
  out << "- base model: " << base << "\n- rank: " << config.rank << ", alpha: " << config.alpha;
  if (!config.rank_pattern.empty()) out << " (other ranks of some modules: adapter_config.json)";
  const bool classifies = config.num_labels > 0;
  if (classifies) out << "\n- labels of its head: " << config.num_labels;
  out << "\n- modules: " << module_names(config) << "\n\nWith Twinkle:\n\n";
  if (classifies)
    out << "```python\nmodel.add_adapter_to_model(\"default\", \"THIS_FOLDER\")\n"
           "logits = model.forward_only(inputs=chats)[\"logits\"]\n```\n\n";
  else
    out << "```sh\ntwinkle sample " << quoted(base)
        << " \"Who are you?\" --adapter THIS_FOLDER\n```\n\n";
  const std::string model =
      classifies ? "AutoModelForSequenceClassification" : "AutoModelForCausalLM";
  const std::string labels =
      classifies ? ", num_labels=" + std::to_string(config.num_labels) : std::string();
  if (!config.share_expert_factors)
    out << "With peft:\n\n```python\nfrom peft import PeftModel\nfrom transformers import " << model
        << "\n\nbase = " << model << ".from_pretrained("
        << (base == kRounded ? "FOLDER_OF_THE_BASE" : quoted(base)) << labels
        << ")\nmodel = PeftModel.from_pretrained(base, \"THIS_FOLDER\")\n```\n\n";
  out << about;
  const std::string text = out.str();
  return text + last_line(text);
}

bool is_peft_card(const std::filesystem::path& file) {
  if (File(file).size() > kMaxBytes) return false;
  const std::string text = read_file(file);
  const size_t last = text.rfind(kBegin);
  return last != text.npos &&
         text.substr(last) == last_line(std::string_view(text).substr(0, last));
}

}  // namespace twinkle
