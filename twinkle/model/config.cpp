#include "twinkle/model/config.h"

#include <string>

namespace twinkle::model {

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

}  // namespace twinkle::model
