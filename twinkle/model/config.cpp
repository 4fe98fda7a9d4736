#include "twinkle/model/config.h"

#include <array>
#include <string>
#include <utility>

namespace twinkle::model {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
// Its names, and who gives them.
constexpr std::array<std::pair<const char*, const char*>, 3> kClasses{
    {{kEmbedding, "a text model alone has it"},
     {"model.language_model.embed_tokens.weight",
      "transformers 5 has it of the text inside a model with pictures"},
     {"language_model.model.embed_tokens.weight",
      "the hub's older files have it of the text inside a model with pictures"}}};

// Who gives it this name; null: another kind of family.
const char* class_of(const std::string& embedding) {
  for (const auto& [name, who] : kClasses)
    if (embedding == name) return who;
  return nullptr;
}

// Without it the first of all tensors would be said to be missing.
void require_its_class(const Checkpoint& checkpoint, const Layout& layout) {
  const std::string asked = layout.name(kEmbedding);
  const char* const whose = class_of(asked);
  if (!whose || checkpoint.contains(asked)) return;
  for (const auto& [name, who] : kClasses)
    require(!checkpoint.contains(name), Code::kInvalid, "model: ", checkpoint.path().string(),
            " has the embedding ", name, ", as ", who, "; its config.json",
            layout.is_older ? " and other tensors ask" : " asks", " for ", asked, ", as ", whose,
            ": take the config.json that was saved with these weights");
}

}  // namespace

DecoderSpec spec_of(const Json& config, const std::filesystem::path& checkpoint, bool value_head) {
  try {
    return read_spec(config, value_head);
  } catch (const Error& e) {  // the fields' readers do not know where they read
    const std::string text = e.what();
    const size_t begin = text.find(": ");
    fail(e.code, "model: the config of ", checkpoint.string(), ": ",
         begin == std::string::npos ? text : text.substr(begin + 2),
         "; fetch it again if it is damaged, else use a model that README.md lists");
  }
}

DecoderSpec spec_of(const Checkpoint& checkpoint, bool value_head) {
  DecoderSpec spec = spec_of(checkpoint.config(), checkpoint.path(), value_head);
  spec.layout.settle(checkpoint.names());
  require_its_class(checkpoint, spec.layout);
  return spec;
}

}  // namespace twinkle::model
