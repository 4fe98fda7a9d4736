#include "twinkle/server/tinker/modelscope.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::server::tinker {
namespace {

void translate_loss(ForwardBackwardRequest& request) {
  const auto has_reference = [](const Datum& datum) {
    return datum.loss_fn_inputs.contains("ref_logps");
  };
  if (request.loss_fn != "importance_sampling" || !std::ranges::any_of(request.data, has_reference))
    return;
  request.loss_fn = "DPOLoss";
  constexpr std::string_view kPrefix = "dpo_";
  LossConfig options;
  for (auto& [name, value] : request.loss_fn_config)
    options[name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name] = std::move(value);
  request.loss_fn_config = std::move(options);
}

void translate_disable_lora(ForwardBackwardRequest& request) {
  const auto found = request.loss_fn_config.find("disable_lora");
  if (!request.forward_only || found == request.loss_fn_config.end()) return;
  const auto* flag = std::get_if<double>(&found->second);
  require(flag && (*flag == 0 || *flag == 1), Code::kInvalid,
          "server: loss_fn_config.disable_lora must be true or false");
  request.disable_lora = *flag == 1;
  request.loss_fn_config.erase(found);
}

}  // namespace

void translate(ForwardBackwardRequest& request) {
  translate_loss(request);
  translate_disable_lora(request);
}

}  // namespace twinkle::server::tinker
