// OpenAI's protocol on the core: models, chats and completions, whole or streamed.
#pragma once
#include <span>

#include "twinkle/serving/api/call.h"
#include "twinkle/serving/api/router.h"

namespace twinkle::server::openai {

std::span<const api::Route> routes();

}  // namespace twinkle::server::openai
