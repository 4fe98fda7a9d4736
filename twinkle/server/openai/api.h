// OpenAI's routes: lists of models, chats and completions, whole or as streams of events (SSE). The
// service's thread alone; outlives what it has been asked.
#pragma once
#include <memory>
#include <string_view>
#include <utility>

#include "twinkle/base/json.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/openai/core.h"
#include "twinkle/server/openai/request.h"
#include "twinkle/server/openai/texts.h"

namespace twinkle::server::openai {

// True of paths whose errors have OpenAI's form.
bool speaks(std::string_view path);
// A refusal, {"detail": text}, in that form and with its statuses; any other response as it is.
Response in_form(Response refusal);

class Api {
 public:
  explicit Api(std::unique_ptr<Core> core) : core_(std::move(core)) {}

  Response models(const Caller& caller) const;
  // Answers later. Errors are of a request that is wrong; the answer then is theirs.
  void ask(Form form, const Request& request, const Json& body, const Caller& caller, Reply reply);

 private:
  const std::unique_ptr<Core> core_;
  // Read with the first request; touched by the texts' thread alone.
  const std::shared_ptr<std::shared_ptr<const Texts>> texts_ =
      std::make_shared<std::shared_ptr<const Texts>>();
};

}  // namespace twinkle::server::openai
