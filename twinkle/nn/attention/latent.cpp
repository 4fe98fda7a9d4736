#include "twinkle/nn/attention/latent.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <set>
#include <vector>

#include "twinkle/kernels/linear/grouped.h"

namespace twinkle::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Rows unit_rows(int64_t rank, int32_t slot, bool learn) {
  Rows rows;
  rows.add(rank, {.slot = slot, .learn = learn});
  return rows;
}

}  // namespace

struct AbsorbedPass : torch::CustomClassHolder {
  // The rows of a head: W_k, by which queries are multiplied from the left, or W_v.
  enum class Half { kKeys, kValues };
  // An adapter on kv_b: what it adds to the weight, which its delta gives of the rows of a unit
  // matrix.
  struct Added {
    int32_t slot = -1;
    at::Tensor weight = {};  // as kv_b's
    std::vector<at::Tensor> saved = {};
  };

  AbsorbedPass(const Linear& kv_b, int64_t num_heads, int64_t nope_dim, const Rows& batch);

  at::Tensor forward(const at::Tensor& x_THI, Half half) const;
  at::Tensor backward(const at::Tensor& dy_THO, const at::Tensor& x_THI, Half half);

  bool needs_input() const { return weight_grad || !added.empty(); }

  const Added* added_to(int64_t segment) const;
  at::Tensor rows_of(const at::Tensor& weight, int64_t head, Half half) const;
  at::Tensor product(const at::Tensor& x_HTI, const at::Tensor& weight, Half half,
                     bool backward) const;
  void add_to(const at::Tensor& y_HTO, const at::Tensor& x_HTI, Half half, bool backward) const;
  void add_grad(const at::Tensor& dy_HTO, const at::Tensor& x_HTI, Half half, const Rows& rows,
                const at::Tensor& sum) const;
  void add_grads_of_added(const at::Tensor& dy_HTO, const at::Tensor& x_HTI, Half half);

  at::Tensor weight;
  WeightGrad* weight_grad;
  Delta* delta;
  bool exact;
  int64_t heads, nope;
  Rows rows;
  std::vector<Added> added;
  // d loss / d the adapter's addition, for each segment: the values' half comes first.
  std::vector<at::Tensor> slopes;
};

AbsorbedPass::AbsorbedPass(const Linear& kv_b, int64_t num_heads, int64_t nope_dim,
                           const Rows& batch)
    : weight(kv_b.weight),
      weight_grad(kv_b.weight_grad),
      delta(kv_b.delta),
      exact(kv_b.exact),
      heads(num_heads),
      nope(nope_dim),
      rows(batch),
      slopes(batch.segments.size()) {
  std::set<int32_t> slots;
  for (const Segment& segment : rows.segments) {
    if (!delta || segment.slot < 0 || !slots.insert(segment.slot).second) continue;
    const at::Tensor unit = at::eye(weight.size(1), weight.options());
    at::Tensor sum = at::zeros({weight.size(1), weight.size(0)}, weight.options());
    auto saved = delta->forward(unit, unit_rows(weight.size(1), segment.slot, false), sum);
    if (saved.empty()) continue;  // it has no factors here
    added.push_back({segment.slot, sum.t().contiguous(), std::move(saved)});
  }
}

const AbsorbedPass::Added* AbsorbedPass::added_to(int64_t segment) const {
  for (const Added& one : added) {
    if (one.slot == rows.segments[static_cast<size_t>(segment)].slot) return &one;
  }
  return nullptr;
}

at::Tensor AbsorbedPass::rows_of(const at::Tensor& of, int64_t head, Half half) const {
  const int64_t size = of.size(0) / heads;
  const bool keys = half == Half::kKeys;
  return of.narrow(0, head * size + (keys ? 0 : nope), keys ? nope : size - nope);
}

// Each head's rows by its matrix, [H, T, O].
at::Tensor AbsorbedPass::product(const at::Tensor& x, const at::Tensor& of, Half half,
                                 bool backward) const {
  const int64_t tokens = x.size(1);
  std::vector<kernels::RowGroup> groups;
  std::vector<at::Tensor> parts;  // in float64
  for (int64_t h = 0; h < heads; ++h) {
    at::Tensor w = rows_of(of, h, half);
    if ((half == Half::kKeys) != backward) w = w.t();
    if (x.scalar_type() == at::kDouble) {
      const at::Tensor mine = x.select(0, h);
      parts.push_back(exact ? batch_invariant_linear(mine, w) : plain_linear(mine, w, {}));
    } else {
      groups.push_back({h * tokens, (h + 1) * tokens, w});
    }
  }
  if (!parts.empty()) return at::stack(parts);
  return kernels::grouped_linear(x.flatten(0, 1), groups).view({heads, tokens, -1});
}

// The adapters' part of a product, to the rows of their sequences.
void AbsorbedPass::add_to(const at::Tensor& y, const at::Tensor& x, Half half,
                          bool backward) const {
  for (int64_t s = 0; s < rows.num_segments(); ++s) {
    const Added* const its = added_to(s);
    if (!its) continue;
    const int64_t begin = rows.cu_seqlens[static_cast<size_t>(s)],
                  count = rows.cu_seqlens[static_cast<size_t>(s) + 1] - begin;
    y.narrow(1, begin, count) +=
        product(x.narrow(1, begin, count).contiguous(), its->weight, half, backward);
  }
}

at::Tensor AbsorbedPass::forward(const at::Tensor& x_THI, Half half) const {
  const at::Tensor x = x_THI.transpose(0, 1).contiguous();
  const at::Tensor y = product(x, weight, half, false);
  add_to(y, x, half, false);
  return y.transpose(0, 1).contiguous();
}

// d loss / d a weight, each head's rows of this half: W_k's are q^T dy, W_v's dy^T x.
void AbsorbedPass::add_grad(const at::Tensor& dy, const at::Tensor& x, Half half, const Rows& of,
                            const at::Tensor& sum) const {
  const bool keys = half == Half::kKeys;
  for (int64_t h = 0; h < heads; ++h) {
    add_weight_grad((keys ? x : dy).select(0, h), (keys ? dy : x).select(0, h), of,
                    rows_of(sum, h, half));
  }
}

void AbsorbedPass::add_grads_of_added(const at::Tensor& dy, const at::Tensor& x, Half half) {
  for (int64_t s = 0; s < rows.num_segments(); ++s) {
    const Added* const its = added_to(s);
    const Segment& segment = rows.segments[static_cast<size_t>(s)];
    if (!its || !segment.learn) continue;
    const int64_t begin = rows.cu_seqlens[static_cast<size_t>(s)],
                  count = rows.cu_seqlens[static_cast<size_t>(s) + 1] - begin;
    at::Tensor& slope = slopes[static_cast<size_t>(s)];
    if (!slope.defined()) {
      const auto type = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      slope = at::zeros(weight.sizes(), weight.options().dtype(type));
    }
    add_grad(dy.narrow(1, begin, count), x.narrow(1, begin, count), half, rows.part(begin, count),
             slope);
    if (half == Half::kValues) continue;  // the queries' half is still to come
    const at::Tensor unit = at::eye(weight.size(1), weight.options());
    at::Tensor none;
    delta->backward(slope.t().to(weight.scalar_type()).contiguous(), unit, its->saved,
                    unit_rows(weight.size(1), segment.slot, true), none);
    slope = at::Tensor();
  }
}

at::Tensor AbsorbedPass::backward(const at::Tensor& dy_THO, const at::Tensor& x_THI, Half half) {
  const at::Tensor dy = dy_THO.transpose(0, 1).contiguous();
  const at::Tensor dx = product(dy, weight, half, true);
  add_to(dx, dy, half, true);
  if (needs_input()) {
    const at::Tensor x = x_THI.transpose(0, 1).contiguous();
    if (weight_grad) add_grad(dy, x, half, rows, weight_grad->buffer(weight));
    add_grads_of_added(dy, x, half);
  }
  return dx.transpose(0, 1).contiguous();
}

namespace {

using Half = AbsorbedPass::Half;

struct AbsorbedFunction : torch::autograd::Function<AbsorbedFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            c10::intrusive_ptr<AbsorbedPass> pass, bool keys) {
    if (pass->needs_input()) ctx->save_for_backward({x});
    at::Tensor y = pass->forward(x, keys ? Half::kKeys : Half::kValues);
    ctx->saved_data["keys"] = keys;
    ctx->saved_data["pass"] = c10::IValue::make_capsule(std::move(pass));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto capsule = ctx->saved_data.at("pass").toCapsule();
    const Half half = ctx->saved_data.at("keys").toBool() ? Half::kKeys : Half::kValues;
    const at::Tensor x = saved.empty() ? at::Tensor() : saved[0];
    return {static_cast<AbsorbedPass&>(*capsule).backward(grads[0], x, half), {}, {}};
  }
};

at::Tensor absorbed(const at::Tensor& x, const c10::intrusive_ptr<AbsorbedPass>& pass, Half half) {
  if (!at::GradMode::is_enabled()) return pass->forward(x, half);
  return AbsorbedFunction::apply(x, pass, half == Half::kKeys);
}

}  // namespace

AbsorbedKv::AbsorbedKv(const Linear& kv_b, int64_t num_heads, int64_t nope_dim, const Rows& rows) {
  const at::NoGradGuard no_grad;
  pass_ = c10::make_intrusive<AbsorbedPass>(kv_b, num_heads, nope_dim, rows);
}

AbsorbedKv::~AbsorbedKv() = default;

at::Tensor AbsorbedKv::queries(const at::Tensor& q) const {
  return absorbed(q, pass_, AbsorbedPass::Half::kKeys);
}

at::Tensor AbsorbedKv::values(const at::Tensor& mixed) const {
  return absorbed(mixed, pass_, AbsorbedPass::Half::kValues);
}

namespace {

// Bytes that the adapter of a slot saves; 0: it has no factors here.
int64_t saved_of(const Linear& kv_b, int32_t slot) {
  if (!kv_b.delta || slot < 0) return 0;
  return kv_b.delta->saved_bytes(unit_rows(kv_b.weight.size(1), slot, false));
}

}  // namespace

int64_t AbsorbedKv::saved_bytes(const Linear& kv_b, const Rows& rows) {
  std::set<int32_t> slots;
  for (const Segment& segment : rows.segments) slots.insert(segment.slot);
  int64_t bytes = 0;
  for (const int32_t slot : slots) {
    const int64_t saved = saved_of(kv_b, slot);
    if (saved > 0) bytes += saved + static_cast<int64_t>(kv_b.weight.nbytes());
  }
  return bytes;
}

int64_t AbsorbedKv::backward_bytes(const Linear& kv_b, const Rows& rows) {
  const int64_t slope = kv_b.weight.numel() * (kv_b.weight.scalar_type() == at::kDouble ? 8 : 4);
  int64_t bytes = 0;
  for (const Segment& segment : rows.segments) {
    if (saved_of(kv_b, segment.slot) > 0) bytes += slope;
  }
  return bytes;
}

}  // namespace twinkle::nn
