#include "twinkle/nn/experts/router.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "twinkle/kernels/experts/far_route.h"
#include "twinkle/nn/linear.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// The data besides tensors for backward.
struct RouterCall : torch::CustomClassHolder {
  RouterCall(const Router& from, const Rows& of, const RoutingOf& in) : router(from), routing(in) {
    if (router.weight_grad || router.bias_grad) rows = of;
  }
  Router router;
  Rows rows;
  RoutingOf routing;
};

// True if the pass is told where this layer's rows go.
bool is_given(const RoutingOf& of) { return of.pass && of.pass->given.contains(of.layer); }

// Where rows go, by what the pass is told; and tells it.
at::Tensor settled(at::Tensor ids, const at::Tensor& scores, AuxLoss form, const RoutingOf& of) {
  if (!of.pass) return ids;
  Routing& pass = *of.pass;
  if (const auto found = pass.given.find(of.layer); found != pass.given.end()) {
    const at::Tensor& given = found->second;
    ids = at::where(given.narrow(1, 0, 1) >= 0, given, ids).contiguous();
  }
  if (pass.keeps) pass.chosen[of.layer] = ids;
  if (pass.balance) pass.balance->note(of.layer, form, scores, ids);
  return ids;
}

Routes forward(const at::Tensor& x, const Router& router, const RoutingOf& routing,
               at::Tensor& scores) {
  const at::ScalarType type = wide_type(x);
  const at::Tensor logits =
      product(x.to(type), {.weight = router.weight.to(type),
                           .bias = router.bias.defined() ? router.bias.to(type) : router.bias,
                           .exact = router.exact});
  scores = kernels::route_scores(logits, router.options.score);
  const at::Tensor correction =
      router.correction.defined() ? router.correction.to(type) : router.correction;
  const at::Tensor ids = settled(kernels::route_top_k(scores, correction, router.options), scores,
                                 router.aux_loss, routing);
  if (is_given(routing))
    return {ids, kernels::far_route_weights(logits, {scores, ids}, router.options)};
  return {ids, kernels::route_weights(scores, ids, router.options)};
}

struct RouterFunction : torch::autograd::Function<RouterFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const Router* router,
                               const Rows* rows, const RoutingOf* routing) {
    at::Tensor scores;
    const Routes routes = nn::forward(x, *router, *routing, scores);
    ctx->save_for_backward({router->weight_grad ? x : at::Tensor(), scores, routes.ids,
                            is_given(*routing) ? routes.weights : at::Tensor()});
    ctx->saved_data["type"] = x.scalar_type();
    ctx->saved_data["call"] =
        c10::IValue::make_capsule(c10::make_intrusive<RouterCall>(*router, *rows, *routing));
    ctx->mark_non_differentiable({routes.ids});
    return {routes.ids, routes.weights};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &scores = saved[1], &ids = saved[2], &weights = saved[3];
    const auto capsule = ctx->saved_data.at("call").toCapsule();
    const auto& call = static_cast<const RouterCall&>(*capsule);
    const Router& router = call.router;
    const at::Tensor grad = grads[1].contiguous();
    const at::Tensor dlogits =
        weights.defined()
            ? kernels::far_route_backward(grad, weights, {scores, ids}, router.options)
            : kernels::route_backward(grad, scores, ids, router.options);
    if (const Routing* pass = call.routing.pass.get(); pass && pass->balance)
      pass->balance->add_grad(call.routing.layer, scores, dlogits);
    if (router.weight_grad) {
      add_weight_grad(dlogits, x.to(scores.scalar_type()), router.weight, call.rows,
                      *router.weight_grad);
    }
    if (router.bias_grad) add_bias_grad(dlogits, call.rows, router.bias_grad->buffer(router.bias));
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) {
      dx = transposed_product(dlogits, router.weight.to(scores.scalar_type()), router.exact)
               .to(ctx->saved_data.at("type").toScalarType());
    }
    return {dx, {}, {}, {}};
  }
};

}  // namespace

Routes route(const at::Tensor& x, const Router& router, const Rows& rows,
             const RoutingOf& routing) {
  if (at::GradMode::is_enabled()) {
    const variable_list out = RouterFunction::apply(x, &router, &rows, &routing);
    return {out[0], out[1]};
  }
  at::Tensor scores;
  return forward(x, router, routing, scores);
}

}  // namespace twinkle::nn
