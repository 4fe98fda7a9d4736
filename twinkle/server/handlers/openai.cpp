// OpenAI's routes, and the service as they need it.
#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/server/openai/api.h"
#include "twinkle/server/replay/brief.h"
#include "twinkle/server/routes.h"

namespace twinkle::server {
namespace {

class ServiceCore : public openai::Core {
 public:
  explicit ServiceCore(Services& services) : s_(services) {}
  Loop& loop() override { return s_.loop; }
  Worker& texts() override { return s_.texts; }
  const ModelFacts& model() const override { return s_.backend.model(); }
  int64_t max_result_bytes() const override { return s_.promises.max_sample_bytes(); }

  std::vector<std::string> checkpoints(const Caller& caller) const override {
    std::vector<std::string> out;
    for (const auto& [path, checkpoint] : s_.checkpoints)
      if (checkpoint.owner == caller.owner) out.push_back(path);
    return out;
  }

  std::string tenant_of(const std::string& model, const Caller& caller) override {
    const auto& names = s_.backend.model().names;
    if (std::ranges::find(names, model) != names.end()) return s_.tenant_of_base(caller.owner);
    constexpr std::string_view kTwinkle = "twinkle://";
    const auto found = s_.checkpoints.find(
        model.starts_with(kTwinkle) ? "tinker://" + model.substr(kTwinkle.size()) : model);
    require(found != s_.checkpoints.end() && found->second.owner == caller.owner, Code::kNotFound,
            "openai: model '", quoted(model),
            "' is not served; GET /v1/models lists the names and your checkpoints");
    return s_.tenant_of(found->second.folder, caller.owner);
  }

  void sample(const Caller& caller, const std::string& id, engine::Sample sample,
              std::shared_ptr<Listener> listener) override {
    const std::string tenant = sample.tenant;
    const auto pending = std::make_shared<Pending>(id, Ready{std::move(sample), {}});
    pending->key_id = caller.key_id;
    pending->listener = std::move(listener);
    if (pending->listener->wants_tokens())
      pending->hooks.on_tokens = [&loop = s_.loop, to = pending->listener](
                                     std::span<const engine::TokenEvent> events) {
        loop.post([to, come = std::vector(events.begin(), events.end())] { to->on_tokens(come); });
      };
    s_.prepare(tenant, caller.owner,
               [this, owner = caller.owner, pending](const std::string& refused) {
                 try {
                   require(refused.empty(), Code::kInvalid, refused);
                   s_.sample_live(owner, pending);
                   pending->listener->on_accepted();
                 } catch (...) {
                   pending->listener->on_end({.error = std::current_exception()});
                 }
               });
  }

  void cancel(const std::string& id) override { s_.operations.cancel(id); }

 private:
  Services& s_;
};

openai::Api& api_of(Services& services) {
  if (!services.openai_api)
    services.openai_api = std::make_shared<openai::Api>(std::make_unique<ServiceCore>(services));
  return *services.openai_api;
}

std::optional<Response> ask(openai::Form form, Call& call) {
  api_of(call.services)
      .ask(form, call.request, call.body, {.owner = call.owner, .key_id = call.key_id}, call.reply);
  return std::nullopt;
}

}  // namespace

std::optional<Response> openai_models(Call& call) {
  return api_of(call.services).models({.owner = call.owner});
}
std::optional<Response> openai_chat(Call& call) { return ask(openai::Form::kChat, call); }
std::optional<Response> openai_completion(Call& call) {
  return ask(openai::Form::kCompletion, call);
}

}  // namespace twinkle::server
