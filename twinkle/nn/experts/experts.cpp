#include "twinkle/nn/experts/experts.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "twinkle/kernels/experts/routed_rows.h"
#include "twinkle/kernels/linear/grouped.h"
#include "twinkle/kernels/simd/team.h"

namespace twinkle::nn {
namespace {

using kernels::RoutedRows;
using kernels::RowGroup;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The adapters of one expert, and what their forward passes return.
struct Seams {
  size_t expert = 0;
  int64_t begin = 0, count = 0;  // its routed rows
  Rows rows;
  struct Seam {
    Delta* delta = nullptr;
    std::vector<at::Tensor> saved = {};
  };
  Seam gate_up, gate, up, down;

  bool any() const { return gate_up.delta || gate.delta || up.delta || down.delta; }
};

// One pass through the experts of a layer.
struct RoutedCall : torch::CustomClassHolder {
  RoutedCall(const at::Tensor& ids, const Experts& of, const Rows& batch);

  at::Tensor gate_up_of(const at::Tensor& x);
  at::Tensor down_of(const at::Tensor& gate_up, const at::Tensor& weights);
  at::Tensor down_backward(const at::Tensor& dy, const at::Tensor& gate_up,
                           const at::Tensor& weights, at::Tensor& dweights);
  at::Tensor gate_up_backward(const at::Tensor& grad, const at::Tensor& x, bool needs_dx);
  bool reads_x() const;
  bool reads_h() const;
  bool turned() const { return clamped.has_value(); }
  bool trains() const { return gate_up_grad || down_grad || gate_up_bias_grad || down_bias_grad; }
  at::Tensor activation(const at::Tensor& gate_up, const at::Tensor& weights) const;
  kernels::RoutedSwigluGrads activation_backward(const at::Tensor& grad, const at::Tensor& gate_up,
                                                 const at::Tensor& weights) const;
  void add_down_bias_grad(const at::Tensor& dy, const at::Tensor& weights) const;

  at::Tensor gate_up, down;  // the stacks
  bool exact;
  WeightGrad *gate_up_grad, *down_grad;
  std::optional<kernels::ClampedSwiglu> clamped;
  at::Tensor gate_up_bias, down_bias;
  WeightGrad *gate_up_bias_grad, *down_bias_grad;
  RoutedRows routed;
  std::vector<Seams>
      seams;  // seams of the experts that have rows, and adapters or weights that learn
};

RoutedCall::RoutedCall(const at::Tensor& ids, const Experts& of, const Rows& batch)
    : gate_up(of.gate_up),
      down(of.down),
      exact(of.each.front().down.exact),
      gate_up_grad(of.gate_up_grad),
      down_grad(of.down_grad),
      clamped(of.clamped),
      gate_up_bias(of.gate_up_bias),
      down_bias(of.down_bias),
      gate_up_bias_grad(of.gate_up_bias_grad),
      down_bias_grad(of.down_bias_grad),
      routed(kernels::routed_rows(ids, of.count())) {
  for (size_t e = 0; e < of.each.size(); ++e) {
    const int64_t begin = routed.offsets[e], count = routed.offsets[e + 1] - begin;
    if (count == 0) continue;
    const Expert& expert = of.each[e];
    Seams its{.expert = e, .begin = begin, .count = count};
    its.gate_up.delta = expert.gate_up.delta;
    its.gate.delta = expert.gate.delta;
    its.up.delta = expert.up.delta;
    its.down.delta = expert.down.delta;
    if (!its.any() && !trains()) continue;
    const std::span<const int64_t> tokens(routed.tokens);
    its.rows = batch.gather_sequences(
        tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
    seams.push_back(std::move(its));
  }
}

bool RoutedCall::reads_x() const {
  return gate_up_grad || std::ranges::any_of(seams, [](const Seams& its) {
           return its.gate_up.delta || its.gate.delta || its.up.delta;
         });
}

bool RoutedCall::reads_h() const {
  return down_grad || std::ranges::any_of(seams, [](const Seams& its) { return its.down.delta; });
}

// x W^T of each expert's rows with its own; backward x W.
at::Tensor products(const RoutedCall& call, const at::Tensor& x, const at::Tensor& stack,
                    bool backward) {
  const bool transposed = backward != call.turned();
  std::vector<RowGroup> groups;
  const auto& offsets = call.routed.offsets;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    if (offsets[e] == offsets[e + 1]) continue;
    const at::Tensor w = stack.select(0, static_cast<int64_t>(e));
    groups.push_back({offsets[e], offsets[e + 1], transposed ? w.t() : w});
  }
  if (x.scalar_type() != at::kDouble) return kernels::grouped_linear(x, groups);
  std::vector<at::Tensor> parts;
  for (const RowGroup& group : groups) {
    const at::Tensor mine = x.narrow(0, group.begin, group.end - group.begin);
    parts.push_back(call.exact ? batch_invariant_linear(mine, group.weight)
                               : plain_linear(mine, group.weight, {}));
  }
  return at::cat(parts);
}

// Adds a delta to some columns of an expert's rows, which it wants contiguous.
void add_delta(Seams::Seam& seam, const at::Tensor& x, const Rows& rows, const at::Tensor& y) {
  if (!seam.delta) return;
  at::Tensor sum = y.contiguous();
  seam.saved = seam.delta->forward(x, rows, sum);
  if (!sum.is_same(y)) y.copy_(sum);
}

void delta_backward(const Seams::Seam& seam, const at::Tensor& dy, const at::Tensor& x,
                    const Rows& rows, at::Tensor& dx) {
  if (seam.delta) seam.delta->backward(dy.contiguous(), x, seam.saved, rows, dx);
}

// The gate's half of an expert's rows, and the up's.
at::Tensor half(const RoutedCall& call, const at::Tensor& gate_up, int64_t which) {
  const int64_t width = gate_up.size(1) / 2;
  if (call.turned()) return gate_up.slice(1, which, 2 * width, 2);
  return gate_up.narrow(1, which * width, width);
}

// sum += dy^T x of the learning segments, at the expert's place in the stack.
void add_stack_grad(const RoutedCall& call, const at::Tensor& dy, const at::Tensor& x,
                    const Seams& its, const at::Tensor& sum) {
  const at::Tensor mine = sum.select(0, static_cast<int64_t>(its.expert));
  if (call.turned()) return add_weight_grad(x, dy, its.rows, mine);
  add_weight_grad(dy, x, its.rows, mine);
}

at::Tensor RoutedCall::activation(const at::Tensor& gates, const at::Tensor& weights) const {
  if (!clamped) return kernels::routed_swiglu(gates, weights, routed);
  return kernels::routed_clamped_swiglu(gates, gate_up_bias, weights, routed, *clamped);
}

kernels::RoutedSwigluGrads RoutedCall::activation_backward(const at::Tensor& grad,
                                                           const at::Tensor& gates,
                                                           const at::Tensor& weights) const {
  if (!clamped) return kernels::routed_swiglu_backward(grad, gates, weights, routed);
  return kernels::routed_clamped_swiglu_backward(grad, gates, gate_up_bias, weights, routed,
                                                 *clamped);
}

// Sums dy of the routed rows: a row has its expert's bias times its weight.
void RoutedCall::add_down_bias_grad(const at::Tensor& dy, const at::Tensor& weights) const {
  const at::Tensor by_row =
      at::empty({routed.num_rows(), 1}, weights.options())
          .index_put_({at::tensor(routed.places, at::kLong)}, weights.reshape({-1, 1}));
  const at::Tensor sum = down_bias_grad->buffer(down_bias);
  for (const Seams& its : seams) {
    const at::Tensor mine = dy.narrow(0, its.begin, its.count).to(by_row.scalar_type()) *
                            by_row.narrow(0, its.begin, its.count);
    add_bias_grad(mine, its.rows, sum.select(0, static_cast<int64_t>(its.expert)));
  }
}

at::Tensor RoutedCall::gate_up_of(const at::Tensor& x) {
  const at::Tensor rows = kernels::gather_rows(x, routed);
  const at::Tensor out = products(*this, rows, gate_up, false);
  for (Seams& its : seams) {
    const at::Tensor mine = rows.narrow(0, its.begin, its.count);
    const at::Tensor y = out.narrow(0, its.begin, its.count);
    add_delta(its.gate_up, mine, its.rows, y);
    add_delta(its.gate, mine, its.rows, half(*this, y, 0));
    add_delta(its.up, mine, its.rows, half(*this, y, 1));
  }
  return out;
}

at::Tensor RoutedCall::down_of(const at::Tensor& gates, const at::Tensor& weights) {
  const at::Tensor h = activation(gates, weights);
  const at::Tensor out = products(*this, h, down, false);
  for (Seams& its : seams) {
    add_delta(its.down, h.narrow(0, its.begin, its.count), its.rows,
              out.narrow(0, its.begin, its.count));
  }
  if (clamped) return kernels::sum_biased_rows(out, down_bias, weights, routed);
  return kernels::sum_rows(out, routed);
}

// d loss / d the input of down; `dweights` gets what biases add to d loss / d weights.
at::Tensor RoutedCall::down_backward(const at::Tensor& grad, const at::Tensor& gates,
                                     const at::Tensor& weights, at::Tensor& dweights) {
  const at::Tensor dy = kernels::gather_rows(grad, routed);
  const at::Tensor dh = products(*this, dy, down, true);
  if (clamped) dweights = kernels::biased_rows_backward(dy, down_bias, routed);
  if (down_bias_grad) add_down_bias_grad(dy, weights);
  if (!reads_h()) return dh;
  const at::Tensor h = activation(gates, weights);
  for (const Seams& its : seams) {
    const at::Tensor mine = dy.narrow(0, its.begin, its.count),
                     x = h.narrow(0, its.begin, its.count);
    at::Tensor dx = dh.narrow(0, its.begin, its.count);
    delta_backward(its.down, mine, x, its.rows, dx);
    if (down_grad) add_stack_grad(*this, mine, x, its, down_grad->buffer(down));
  }
  return dh;
}

// d loss / d x, undefined unless it is needed.
at::Tensor RoutedCall::gate_up_backward(const at::Tensor& grad, const at::Tensor& x,
                                        bool needs_dx) {
  const at::Tensor dx = needs_dx ? products(*this, grad, gate_up, true) : at::Tensor();
  if (reads_x()) {
    const at::Tensor rows = kernels::gather_rows(x, routed);
    for (const Seams& its : seams) {
      const at::Tensor dy = grad.narrow(0, its.begin, its.count),
                       in = rows.narrow(0, its.begin, its.count);
      at::Tensor to = needs_dx ? dx.narrow(0, its.begin, its.count) : at::Tensor();
      delta_backward(its.gate_up, dy, in, its.rows, to);
      delta_backward(its.gate, half(*this, dy, 0), in, its.rows, to);
      delta_backward(its.up, half(*this, dy, 1), in, its.rows, to);
      if (gate_up_grad) add_stack_grad(*this, dy, in, its, gate_up_grad->buffer(gate_up));
    }
  }
  if (gate_up_bias_grad) {
    const at::Tensor sum = gate_up_bias_grad->buffer(gate_up_bias);
    for (const Seams& its : seams) {
      add_bias_grad(grad.narrow(0, its.begin, its.count), its.rows,
                    sum.select(0, static_cast<int64_t>(its.expert)));
    }
  }
  return needs_dx ? kernels::sum_rows(dx, routed) : dx;
}

// The library's products would run on one thread of a team.
void in_team(const at::Tensor& x, const std::function<void()>& run) {
  x.scalar_type() == at::kDouble ? run() : kernels::with_team(run);
}

struct ExpertsFunction : torch::autograd::Function<ExpertsFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weights,
                            const at::Tensor& ids, const Experts* of, const Rows* rows) {
    auto call = c10::make_intrusive<RoutedCall>(ids, *of, *rows);
    at::Tensor gates, y;
    in_team(x, [&] {
      const at::NoGradGuard no_grad;
      gates = call->gate_up_of(x);
      y = call->down_of(gates, weights);
    });
    ctx->save_for_backward({call->reads_x() ? x : at::Tensor(), weights, gates});
    ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weights = saved[1], &gates = saved[2];
    const auto capsule = ctx->saved_data.at("call").toCapsule();
    auto& call = static_cast<RoutedCall&>(*capsule);
    at::Tensor dx, dweights;
    in_team(gates, [&] {
      at::Tensor of_biases;
      const at::Tensor dh = call.down_backward(grads[0].contiguous(), gates, weights, of_biases);
      auto slopes = call.activation_backward(dh, gates, weights);
      dweights = of_biases.defined() ? slopes.weights + of_biases : std::move(slopes.weights);
      dx = call.gate_up_backward(slopes.gate_up, x, ctx->needs_input_grad(0));
    });
    return {dx, dweights, {}, {}, {}};
  }
};

}  // namespace

void Experts::cut() {
  each.clear();
  for (int64_t e = 0; e < count(); ++e) {
    Expert& expert = each.emplace_back();
    if (clamped) {
      const at::Tensor both = gate_up.select(0, e).t();
      expert.gate_up.weight = both;
      expert.gate.weight = both.slice(0, 0, 2 * width(), 2);
      expert.up.weight = both.slice(0, 1, 2 * width(), 2);
      expert.down.weight = down.select(0, e).t();
      continue;
    }
    const at::Tensor both = gate_up.select(0, e);
    expert.gate_up.weight = both;
    expert.gate.weight = both.narrow(0, 0, width());
    expert.up.weight = both.narrow(0, width(), width());
    expert.down.weight = down.select(0, e);
  }
}

bool Experts::needs_input() const {
  return gate_up_grad || std::ranges::any_of(each, [](const Expert& expert) {
           return expert.gate_up.delta || expert.gate.delta || expert.up.delta;
         });
}

int64_t Experts::saved_bytes(const Rows& rows, int64_t top_k) const {
  const int64_t routed = rows.num_tokens() * top_k;
  const int64_t weight = gate_up.scalar_type() == at::kDouble ? 8 : 4, id = 4, places = 16;
  const int64_t row = 2 * width() * gate_up.element_size() + weight + id + places;
  int64_t adapters = 0;  // where every token went to every expert
  for (const Expert& expert : each) {
    for (const Linear* w : {&expert.gate_up, &expert.gate, &expert.up, &expert.down})
      adapters += w->saved_bytes(rows);
  }
  return routed * row + adapters * top_k / count();
}

at::Tensor experts(const at::Tensor& x, const Routes& routes, const Experts& of, const Rows& rows) {
  if (at::GradMode::is_enabled()) {
    return ExpertsFunction::apply(x, routes.weights, routes.ids, &of, &rows);
  }
  RoutedCall call(routes.ids, of, rows);
  at::Tensor y;
  in_team(x, [&] {
    const at::NoGradGuard no_grad;  // a team's threads' own
    y = call.down_of(call.gate_up_of(x), routes.weights);
  });
  return y;
}

}  // namespace twinkle::nn
