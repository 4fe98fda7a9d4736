#include "twinkle/model/blocks/experts.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/nn/gate/sigmoid_gate.h"
#include "twinkle/nn/mlp.h"

namespace twinkle::model {

RoutedExperts::RoutedExperts(const DecoderSpec& decoder, const ExpertsSpec& spec, Parts& parts) {
  kernels::check_route(spec.route, spec.num_experts);
  const int64_t d = decoder.hidden_size, e = spec.num_experts, f = spec.intermediate_size;
  router_.options = spec.route;
  router_.aux_loss = spec.aux_loss;
  parts.weight("mlp.gate.weight", {e, d}, true, router_.weight, router_.weight_grad);
  if (spec.correction) parts.constant("mlp.gate.e_score_correction_bias", {e}, router_.correction);
  if (spec.clamped) {
    experts_.clamped = spec.clamped;
    parts.weight("mlp.gate.bias", {e}, false, router_.bias, router_.bias_grad);
    parts.weight("mlp.experts.gate_up_proj_bias", {e, 2 * f}, false, experts_.gate_up_bias,
                 experts_.gate_up_bias_grad);
    parts.weight("mlp.experts.down_proj_bias", {e, d}, false, experts_.down_bias,
                 experts_.down_bias_grad);
  }
  using Sizes = std::vector<int64_t>;
  parts.weight("mlp.experts.gate_up_proj", spec.clamped ? Sizes{e, d, 2 * f} : Sizes{e, 2 * f, d},
               true, experts_.gate_up, experts_.gate_up_grad);
  parts.weight("mlp.experts.down_proj", spec.clamped ? Sizes{e, f, d} : Sizes{e, d, f}, true,
               experts_.down, experts_.down_grad);
  require(experts_.down.is_cpu(), Code::kInvalid, "model: device is ", experts_.down.device(),
          ", but routed experts (", decoder.family,
          ") run on the CPU only in this version; set the device to cpu");
  experts_.cut();
  // Adapters know transformers' modules, which are "mlp.experts" whatever the checkpoint calls
  // them.
  const Layout modules{.model = decoder.layout.model};
  for (size_t i = 0; i < experts_.each.size(); ++i) {
    const std::string path = modules.name(parts.path + "mlp.experts." + std::to_string(i)) + ".";
    nn::Expert& expert = experts_.each[i];
    const auto add = [&](const char* name, nn::Linear& linear) {
      parts.linears.push_back({path + name, &linear, true, spec.clamped.has_value()});
    };
    add("gate_up_proj", expert.gate_up);
    add("gate_proj", expert.gate);
    add("up_proj", expert.up);
    add("down_proj", expert.down);
  }
  if (spec.shared_size == 0) return;
  const std::string path = "mlp." + std::string(spec.shared_name);
  parts.linear(path + ".gate_proj", {spec.shared_size, d}, shared_gate_);
  parts.linear(path + ".up_proj", {spec.shared_size, d}, shared_up_);
  parts.linear(path + ".down_proj", {d, spec.shared_size}, shared_down_);
  if (spec.shared_gate) parts.linear("mlp.shared_expert_gate", {1, d}, shared_share_);
}

at::Tensor RoutedExperts::shared(const at::Tensor& x, const nn::Rows& rows) const {
  const at::Tensor gate = nn::linear(x, shared_gate_, rows), up = nn::linear(x, shared_up_, rows);
  nn::prefetch(shared_down_);
  const at::Tensor y = nn::swiglu_linear(gate, up, shared_down_, rows);
  if (!shared_share_.weight.defined()) return y;
  return nn::sigmoid_gate(y, nn::linear(x, shared_share_, rows));
}

at::Tensor RoutedExperts::forward(const at::Tensor& x, const Context& context) const {
  const nn::Rows& rows = context.rows;
  const nn::Routes routes = nn::route(x, router_, rows, {context.routing, context.layer});
  const at::Tensor y = nn::experts(x, routes, experts_, rows);
  return has_shared() ? y + shared(x, rows) : y;
}

void RoutedExperts::prefetch() const { nn::prefetch({.weight = router_.weight}); }

int64_t RoutedExperts::saved_bytes(const nn::Rows& rows) const {
  const int64_t size = router_.weight.element_size(), d = router_.weight.size(1);
  const int64_t scores = router_.weight.size(0) * std::max<int64_t>(size, 4);
  bool reads_x = router_.weight_grad || experts_.needs_input();
  int64_t row = scores, bytes = experts_.saved_bytes(rows, router_.options.top_k);
  for (const nn::Linear* w : {&shared_gate_, &shared_up_, &shared_share_}) {
    if (!w->weight.defined()) continue;
    row += w->weight.size(0) * size;
    reads_x = reads_x || w->needs_input();
    bytes += w->saved_bytes(rows);
  }
  bytes += shared_down_.saved_bytes(rows);
  if (shared_share_.weight.defined()) row += d * size;  // its gate multiplies it
  if (reads_x) row += d * size;
  return bytes + row * rows.num_tokens();
}

}  // namespace twinkle::model
