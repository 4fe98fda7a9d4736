#include "twinkle/serving/openai/routes.h"

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/server/openai/api.h"
#include "twinkle/server/replay/brief.h"

namespace twinkle::server::openai {
namespace {

constexpr std::string_view kTinker = "tinker://", kTwinkle = "twinkle://";

// RUN/KIND/NAME of a path in either scheme, or "".
std::string path_in(const std::string& model) {
  for (const std::string_view scheme : {kTinker, kTwinkle})
    if (model.starts_with(scheme)) return model.substr(scheme.size());
  return "";
}

// The core as this protocol needs it. Tenants are served names and checkpoints' paths here: the
// core finds the engine's.
class LiveCore : public Core {
 public:
  LiveCore(core::Core& core, const api::Service& service) : core_(core), service_(service) {}
  Loop& loop() override { return core_.loop(); }
  Worker& texts() override { return texts_; }
  const ModelFacts& model() const override { return core_.backend().model(); }
  int64_t max_result_bytes() const override { return service_.results.max_sample_bytes; }

  std::vector<std::string> checkpoints(const Caller& caller) const override {
    std::vector<std::string> out;
    for (const auto& [path, checkpoint] : core_.domain().checkpoints())
      if (checkpoint.owner == caller.owner || checkpoint.is_public)
        out.push_back(std::string(kTinker).append(path));
    return out;
  }

  std::string tenant_of(const std::string& model, const Caller& caller) override {
    const auto& names = core_.backend().model().names;
    if (std::ranges::find(names, model) != names.end()) return "";
    const std::string path = path_in(model);
    const core::Checkpoint* const found = core_.domain().checkpoint(path);
    require(found && (found->owner == caller.owner || found->is_public), Code::kNotFound,
            "openai: model '", quoted(model),
            "' is not served; GET /v1/models lists the names and your checkpoints");
    return path;
  }

  void sample(const Caller& caller, const std::string& id, engine::Sample sample,
              std::shared_ptr<Listener> listener) override {
    core::Sampler sampler{.id = id, .owner = caller.owner, .key_id = caller.key_id};
    if (const core::Checkpoint* of = core_.domain().checkpoint(sample.tenant)) {
      sampler.checkpoint = of->path;
      sampler.folder = of->folder;
    }
    engine::SampleHooks hooks;
    if (listener->wants_tokens())
      hooks.on_tokens = [&loop = core_.loop(),
                         listener](std::span<const engine::TokenEvent> events) {
        loop.post([listener, come = std::vector(events.begin(), events.end())] {
          listener->on_tokens(come);
        });
      };
    core_.tasks().start(
        run(std::move(sampler), std::move(sample), std::move(hooks), std::move(listener)));
  }

  void cancel(const std::string& id) override { core_.cancel(id); }

 private:
  Task<> run(core::Sampler sampler, engine::Sample sample, engine::SampleHooks hooks,
             std::shared_ptr<Listener> listener) {
    engine::Outcome outcome;
    const auto accepted = [listener] { listener->on_accepted(); };
    try {
      outcome = co_await core_.sample_live(std::move(sampler), std::move(sample), std::move(hooks),
                                           accepted);
    } catch (const Error&) {
      outcome.error = std::current_exception();
    }
    listener->on_end(std::move(outcome));
  }

  core::Core& core_;
  const api::Service& service_;
  Worker texts_;
};

Api& api_of(api::Call& call) {
  if (!call.service.openai)
    call.service.openai =
        std::make_shared<Api>(std::make_unique<LiveCore>(call.core, call.service));
  return *call.service.openai;
}

Task<Response> ask(Form form, api::Call& call) {
  const Later<Response> later;
  // A reply that is dropped answers, too.
  const std::shared_ptr<void> dropped(
      nullptr, [later](void*) { later.set(refusal(500, "openai: the request was dropped")); });
  const auto reply = [later, dropped](Response response) { later.set(std::move(response)); };
  api_of(call).ask(form, call.request, call.body, call.caller, reply);
  co_return co_await later;
}

Task<Response> models(api::Call& call) { co_return api_of(call).models(call.caller); }
Task<Response> chat(api::Call& call) { return ask(Form::kChat, call); }
Task<Response> completion(api::Call& call) { return ask(Form::kCompletion, call); }

}  // namespace

std::span<const api::Route> routes() {
  using api::Form;
  static constexpr std::array kRoutes = {
      api::Route{"GET", "/v1/models", models, Scope::kAny, Form::kNone, false, nullptr, in_form},
      api::Route{"GET", "/api/v1/models", models, Scope::kAny, Form::kNone, false, nullptr,
                 in_form},
      api::Route{"POST", "/v1/chat/completions", chat, Scope::kSample, Form::kJson, false, nullptr,
                 in_form},
      api::Route{"POST", "/api/v1/chat/completions", chat, Scope::kSample, Form::kJson, false,
                 nullptr, in_form},
      api::Route{"POST", "/v1/completions", completion, Scope::kSample, Form::kJson, false, nullptr,
                 in_form},
      api::Route{"POST", "/api/v1/completions", completion, Scope::kSample, Form::kJson, false,
                 nullptr, in_form},
  };
  return kRoutes;
}

}  // namespace twinkle::server::openai
