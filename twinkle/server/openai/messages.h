// Messages and tools of a chat in OpenAI's form, as a chat template takes them.
#pragma once
#include <string>

#include "twinkle/base/json.h"

namespace twinkle::server::openai {

// "messages" and, where the body has them, "tools" and "chat_template_kwargs". `has_tools`: the
// model may call some. Error kInvalid: as read's (request.h).
JsonObject conversation_of(const Json& body, bool& has_tools);

// A value for an error's text: its JSON, or the beginning; a name as it is.
std::string shown(const Json& value);
std::string shown(const std::string& name);

}  // namespace twinkle::server::openai
