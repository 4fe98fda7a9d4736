#include "twinkle/server/openai/api.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/server/openai/answer.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::server::openai {
namespace {

Response busy(const std::string& text) {
  Response out = refusal(429, text);
  out.headers.emplace_back("Retry-After", "1");
  return out;
}

Response refusal_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    if (e.code == Code::kBusy) return busy(e.what());
    if (e.code == Code::kNotFound) return refusal(404, e.what());
    return refusal(e.code == Code::kInternal ? 500 : 422, e.what());
  } catch (const std::bad_alloc&) {
    return busy("openai: there is no memory for the request now; come again");
  } catch (const std::exception&) {
    return refusal(500, "internal error");
  }
}

// The field that an error's text is of: behind the folder's name, or json's "field '".
Json param_of(const std::string& text) {
  size_t at = text.find(": ");
  at = at == text.npos ? 0 : at + 2;
  constexpr std::string_view kField = "field '";
  if (text.compare(at, kField.size(), kField) == 0) at += kField.size();
  const std::string name = text.substr(at, text.find_first_of(" .['", at) - at);
  return is_field(name) ? Json(name) : Json();
}

}  // namespace

bool speaks(std::string_view path) {
  if (path.starts_with("/v1/")) return true;
  return path == "/api/v1/models" || path == "/api/v1/completions" ||
         path == "/api/v1/chat/completions";
}

Response in_form(Response refusal) {
  const std::optional<Json> body = json_in(refusal.text());
  const Json* detail = body ? find(*body, "detail") : nullptr;
  if (refusal.status < 400 || !detail || !detail->is_string()) return refusal;
  const std::string text(detail->get_string());
  int& status = refusal.status;
  if (status == 422) status = 400;
  const Json param = param_of(text);
  JsonObject error{{"message", text},
                   {"type", status >= 500   ? "server_error"
                            : status == 429 ? "rate_limit_error"
                                            : "invalid_request_error"},
                   {"param", param},
                   {"code", nullptr}};
  if (status == 401) error["code"] = "invalid_api_key";
  if (status == 404 && param == "model") error["code"] = "model_not_found";
  if (status == 429) error["code"] = "rate_limit_exceeded";
  refusal.body = boost::json::serialize(JsonObject{{"error", std::move(error)}});
  refusal.shared = {};
  return refusal;
}

namespace {

// One request from its prompt to the end of its answer.
class Exchange : public Listener, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Core& core, Caller caller, Asked asked, Reply reply, std::shared_ptr<HeldRoom> held)
      : core_(core),
        caller_(std::move(caller)),
        asked_(std::move(asked)),
        reply_(std::move(reply)),
        held_(std::move(held)) {}

  void begin(std::shared_ptr<std::shared_ptr<const Texts>> texts) {
    tenant_ = core_.tenant_of(asked_.model, caller_);
    const std::string directory = core_.model().directory;
    later(
        [self = shared_from_this(), texts = std::move(texts), directory] {
          if (!*texts) *texts = Texts::of_model(directory);
          self->texts_ = *texts;
          self->prompts_ = self->texts_->prompts_of(self->asked_);
        },
        [](Exchange& self) { self.ask(); });
  }

  void gone() {
    is_gone_ = true;
    core_.cancel(id_);
  }

  bool wants_tokens() const override { return asked_.stream; }
  void on_accepted() override {
    if (is_gone_) return core_.cancel(id_);
    if (!asked_.stream) return;
    writer_.emplace();
    writer_->when_gone([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->gone();
    });
    reply_({.content_type = "text/event-stream",
            .headers = {{"Cache-Control", "no-cache"}},
            .stream = writer_->stream()});
    writer_->write(answer_->first());
  }
  void on_tokens(std::span<const engine::TokenEvent> events) override {
    if (!is_gone_) writer_->write(answer_->chunks(events));
  }
  void on_end(engine::Outcome outcome) override {
    if (is_gone_) return;
    if (outcome.error) return fail(outcome.error);
    if (asked_.stream) {
      writer_->write(answer_->last());
      return writer_->end();
    }
    later(
        [self = shared_from_this(),
         result = std::make_shared<engine::Result>(std::move(outcome.result))] {
          self->body_ =
              self->answer_->whole(std::get<engine::SampleResult>(*result), self->prompts_);
        },
        [](Exchange& self) { self.reply_({.body = std::move(self.body_)}); });
  }

 private:
  // The job on the texts' thread, then the rest on the service's.
  template <class Job>
  void later(Job job, void (*then)(Exchange&)) {
    core_.texts().run(
        std::move(job), core_.loop(),
        [self = shared_from_this(), then](const std::exception_ptr& error) {
          if (self->is_gone_) return;
          try {
            if (error) std::rethrow_exception(error);
            then(*self);
          } catch (...) {
            self->fail(std::current_exception());
          }
        },
        caller_.owner);
  }

  void ask() {
    asked_.conversation.clear();  // they are tokens now
    asked_.prompts.clear();
    held_.reset();
    engine::Sample sample{.tenant = tenant_, .prompts = prompts_, .params = {asked_.params}};
    engine::SamplingParams& params = sample.params[0];
    int64_t longest = 0;
    for (const auto& prompt : prompts_) longest = std::max<int64_t>(longest, std::ssize(prompt));
    const int64_t most = core_.model().max_positions;
    const char* const name = asked_.form == Form::kChat ? "messages" : "prompt";
    require(longest < most || (longest == most && asked_.max_tokens == 0), Code::kInvalid,
            "openai: ", name, " has ", longest, " tokens, the model's context has ", most,
            " with the answer; send fewer");
    const int64_t room = std::max<int64_t>(1, std::min(most, core_.model().kv_tokens) - longest);
    params.max_tokens = std::min(asked_.max_tokens.value_or(room), most - longest);
    if (!params.stop.empty()) sample.tokenizer = core_.model().directory;
    require_fits(params, longest);
    answer_.emplace(asked_, texts_, store::random_hex(16), std::time(nullptr), prompts_);
    core_.sample(caller_, id_, std::move(sample), shared_from_this());
  }

  // As bytes of the engine's result, of which an answer is made at once.
  void require_fits(const engine::SamplingParams& params, int64_t longest) const {
    const int64_t generated = params.num_samples * params.max_tokens * (1 + params.top_logprobs);
    const int64_t scored = asked_.echo ? longest * (1 + params.top_prompt_logprobs) : 0;
    const int64_t bytes = std::ssize(prompts_) * (generated + scored) * 8;
    require(bytes <= core_.max_result_bytes(), Code::kInvalid,
            "openai: n, max_tokens and the log-probabilities may make a result of ", bytes,
            " bytes, max_sample_bytes is ", core_.max_result_bytes(),
            "; ask for less in one request");
  }

  void fail(const std::exception_ptr& error) {
    Response refused = in_form(refusal_of(error));
    if (!writer_) return reply_(std::move(refused));
    writer_->write("data: " + refused.body + "\n\n");
    writer_->cut();
  }

  Core& core_;
  const Caller caller_;
  Asked asked_;
  const Reply reply_;
  std::shared_ptr<HeldRoom> held_;  // the room of the request's body
  const std::string id_ = "openai:" + store::random_hex(16);
  std::string tenant_, body_;
  std::shared_ptr<const Texts> texts_;
  Answer::Prompts prompts_;
  std::optional<Answer> answer_;
  std::optional<StreamWriter> writer_;  // once the head of a stream is told
  bool is_gone_ = false;
};

Json model_of(const std::string& id, const char* owner) {
  return {{"id", id}, {"object", "model"}, {"created", 0}, {"owned_by", owner}};
}

}  // namespace

Response Api::models(const Caller& caller) const {
  JsonArray data;
  for (const std::string& name : core_->model().names) data.push_back(model_of(name, "twinkle"));
  for (const std::string& path : core_->checkpoints(caller)) data.push_back(model_of(path, "you"));
  return {.body =
              boost::json::serialize(JsonObject{{"object", "list"}, {"data", std::move(data)}})};
}

void Api::ask(Form form, const Request& request, const Json& body, const Caller& caller,
              Reply reply) {
  const uint64_t seed = std::stoull(store::random_hex(8), nullptr, 16);
  const auto exchange = std::make_shared<Exchange>(*core_, caller, read(body, form, seed),
                                                   std::move(reply), request.held);
  if (request.when_gone)
    request.when_gone([weak = std::weak_ptr(exchange)] {
      if (const auto self = weak.lock()) self->gone();
    });
  exchange->begin(texts_);
}

}  // namespace twinkle::server::openai
