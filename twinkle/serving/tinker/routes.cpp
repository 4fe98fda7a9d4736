#include "twinkle/serving/tinker/routes.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "twinkle/base/error.h"
#include "twinkle/server/tinker/address.h"
#include "twinkle/server/tinker/forward_backward_request.h"

namespace twinkle::server::tinker {

#define ROUTE(verb, path, name, form, is_audited, scope) Task<Response> name(api::Call& call);
#include "twinkle/serving/tinker/routes.def"
#undef ROUTE

namespace {

std::shared_ptr<Finder> finder(bool is_protobuf) {
  return address_finder(is_protobuf ? Form::kProtobuf : Form::kJson, Form::kProtobuf);
}

// A request's run and number, also where the rest cannot be read.
Address address_in(const Request& request) {
  const bool is_protobuf = request.header("content-type").find("protobuf") != std::string::npos;
  if (request.refused || is_protobuf) return address_of(request.body);
  const std::shared_ptr<Finder> in_json = finder(false);
  in_json->read(request.body);
  return address_of(in_json->found());
}

Task<std::optional<Response>> fail_number(api::Call& call, std::string why) {
  const Address to = address_in(call.request);
  const core::Run* const run = call.core.domain().run(to.model_id);
  if (!run || run->owner != call.owner() || to.seq_id < 1) co_return std::nullopt;
  const bool trains = call.route->form == api::Form::kProtobuf && !to.forward_only;
  core::Numbered numbered{
      .run = run->id, .seq_id = to.seq_id, .key_id = call.caller.key_id, .breaks_window = trains};
  const auto make = [&](const core::Run&) -> engine::Operation { fail(Code::kInvalid, why); };
  const std::string id = co_await call.core.submit(std::move(numbered), make);
  co_return ack(id);
}

constexpr api::Numbers kNumbers{finder, fail_number};

constexpr bool has_number(std::string_view name) {
  constexpr std::array<std::string_view, 6> kThese = {
      "forward_backward",      "optim_step",  "save_weights", "save_weights_for_sampler",
      "save_weights_external", "load_weights"};
  return std::ranges::find(kThese, name) != kThese.end();
}

}  // namespace

std::span<const api::Route> routes() {
  static constexpr std::array kRoutes = {
#define ROUTE(verb, path, name, form, is_audited, scope) \
  api::Route{#verb,                                      \
             path,                                       \
             name,                                       \
             Scope::scope,                               \
             api::Form::form,                            \
             is_audited,                                 \
             has_number(#name) ? &kNumbers : nullptr},
#include "twinkle/serving/tinker/routes.def"
#undef ROUTE
  };
  return kRoutes;
}

}  // namespace twinkle::server::tinker
