#include "twinkle/lora/adapter.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"
#include "twinkle/kernels/random/uniform.h"
#include "twinkle/lora/expert_factors.h"
#include "twinkle/lora/saved_adapter.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::lora {
namespace {

TensorView owning_view(const char* name, const at::Tensor& tensor) {
  const at::Tensor host = tensor.cpu();
  TensorView view = model::view_of(name, host);
  view.owner = std::make_shared<at::Tensor>(host);
  return view;
}

// lora_A's first values, uniform in +-1/sqrt(inputs).
at::Tensor drawn(uint64_t key, int64_t rank, int64_t inputs) {
  at::Tensor out = at::empty({rank, inputs}, at::kFloat);
  kernels::fill_uniform(key, 1.0 / std::sqrt(static_cast<double>(inputs)),
                        {out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel())});
  return out;
}

}  // namespace

void Adapter::make_grads() {
  std::vector<size_t> all(2 * factors_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  make_grads(all);
}

// In blocks of a few MiB, which the heap gives back whole: of gradients that come and go one by one
// among tensors that stay, it keeps holes. Larger ones would be mapped anew in every step.
void Adapter::make_grads(std::span<const size_t> which) {
  constexpr int64_t kBlock = int64_t{2} << 20;  // elements
  const auto value = [&](size_t i) -> const at::Tensor& {
    return i % 2 ? factors_[i / 2].f.b : factors_[i / 2].f.a;
  };
  std::vector<size_t> missing;
  std::ranges::copy_if(which, std::back_inserter(missing),
                       [&](size_t i) { return !grad(i).defined(); });
  for (auto first = missing.begin(); first != missing.end();) {
    auto last = first;
    int64_t total = 0;
    while (last != missing.end() && total < kBlock) total += value(*last++).numel();
    const at::Tensor block = at::zeros({total}, value(*first).options());
    for (int64_t at = 0; first != last; at += value(*first++).numel())
      grad(*first) = block.narrow(0, at, value(*first).numel()).view(value(*first).sizes());
  }
}

Adapter::Adapter(const PeftConfig& config, std::vector<model::NamedLinear> linears, uint64_t seed) {
  const Sizes sizes(config);
  const std::vector<LinearShape> shapes = shapes_of(linears);
  config_ = with_named_targets(config, shapes);
  auto places = std::make_shared<Places>(Places{std::vector<int>(linears.size(), -1), {}});
  for (const size_t i : match_targets(config, shapes)) {
    require(linears[i].drops || config.dropout == 0, Code::kInvalid, "lora: lora_dropout is ",
            config.dropout, ", but ", linears[i].path,
            " has none: its input is that of every later token; set it to 0, or leave the module "
            "out of target_modules");
    const nn::Linear& linear = *linears[i].linear;
    const int64_t out = linear.weight.size(0), in = linear.weight.size(1),
                  r = sizes.rank(linears[i].path);
    const auto type = linear.weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    Factors entry{.path = linears[i].path};
    entry.f.a =
        drawn(key_of(key_of(seed, "lora_A"), entry.path), r, in).to(linear.weight.device(), type);
    entry.f.b = at::zeros({out, r}, linear.weight.options().dtype(type));
    entry.f.scale = sizes.scale(entry.path);
    places->factor_of[i] = static_cast<int>(factors_.size());
    places->linears.push_back(i);
    factors_.push_back(std::move(entry));
  }
  places_ = std::move(places);
}

void Adapter::check(const SavedAdapter& saved) const {
  std::vector<std::string> ours;
  for (const Factors& f : factors_) ours.push_back(f.path);
  check_fits(saved, config_, ours);
}

void Adapter::load(const SavedAdapter& saved) {
  check(saved);
  for (size_t i = 0; i < factors_.size(); ++i) {
    model::assign(saved.modules[i].a, factors_[i].f.a);
    model::assign(saved.modules[i].b, factors_[i].f.b);
  }
  weights_changed();
}

std::vector<PeftEntry> Adapter::entries() const {
  std::vector<LinearShape> shapes;
  for (const Factors& f : factors_) shapes.push_back({f.path, f.f.a.size(1), f.f.b.size(0)});
  std::vector<size_t> stacked = match_parameters(config_, shapes);
  std::vector<PeftEntry> out;
  for (const StackedPair& stack : stacked_pairs(shapes, stacked)) {
    std::vector<Pair> experts;
    for (const size_t i : stack.linears) experts.push_back({factors_[i].f.a, factors_[i].f.b});
    const Pair all = joined_pair(experts);
    out.push_back({stack.module, owning_view("a", all.a), owning_view("b", all.b)});
  }
  for (size_t i = 0; i < factors_.size(); ++i) {
    if (std::ranges::binary_search(stacked, i)) continue;
    const Factors& f = factors_[i];
    out.push_back({f.path, model::view_of("a", f.f.a), model::view_of("b", f.f.b)});
  }
  return out;
}

void Adapter::pack(at::ScalarType type) {
  at::parallel_for(0, static_cast<int64_t>(factors_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernels::LoraFactors& f = factors_[static_cast<size_t>(i)].f;
      if (!f.packed()) f.repack(type);
    }
  });
}

void Adapter::weights_changed() {
  for (Factors& entry : factors_) entry.f.unpack();
}

void Adapter::zero_grads() {
  for (Factors& entry : factors_) entry.grad_a = entry.grad_b = at::Tensor();
}

std::unique_ptr<Adapter> Adapter::fork() {
  std::unique_ptr<Adapter> out(new Adapter(*this));
  for (Factors& entry : out->factors_) {
    // The packed layouts stay shared: packing again makes new ones.
    entry.f.a = entry.f.a.clone();
    entry.f.b = entry.f.b.clone();
  }
  zero_grads();
  return out;
}

std::unique_ptr<Adapter> Adapter::shadow() const {
  std::unique_ptr<Adapter> out(new Adapter(*this));
  out->zero_grads();
  for (Factors& entry : out->factors_) entry.scales_grad = false;
  return out;
}

void Adapter::add_grad_of_shadow(size_t i, const at::Tensor& flat) {
  kernels::lora_add_part(grad(i), flat, i % 2 ? factors_[i / 2].f.scale : 1);
}

std::unique_ptr<Adapter> Adapter::recorded_copy() const {
  std::unique_ptr<Adapter> out(new Adapter(*this));
  out->weights_changed();
  out->zero_grads();
  return out;
}

void Adapter::refresh() {
  for (Factors& entry : factors_) entry.f.refresh();
}

bool Adapter::has_weights_of(const Adapter& other) const {
  return std::ranges::equal(factors_, other.factors_, [](const Factors& x, const Factors& y) {
    return x.f.a.is_same(y.f.a) && x.f.b.is_same(y.f.b);
  });
}

void Adapter::add_grads_in(Adapter& recorded_copy) {
  std::vector<at::Tensor> zeros, copies, sums;
  const auto take = [&](at::Tensor& mine, const at::Tensor& there) {
    if (mine.is_same(there)) return;
    (mine.defined() ? copies : zeros).push_back(there);
    if (mine.defined()) sums.push_back(mine);
  };
  for (size_t i = 0; i < factors_.size(); ++i) {
    take(factors_[i].grad_a, recorded_copy.factors_[i].grad_a);
    take(factors_[i].grad_b, recorded_copy.factors_[i].grad_b);
  }
  if (!zeros.empty()) at::_foreach_zero_(zeros);
  if (!copies.empty()) at::_foreach_copy_(copies, sums);
  for (size_t i = 0; i < factors_.size(); ++i) {
    factors_[i].grad_a = recorded_copy.factors_[i].grad_a;
    factors_[i].grad_b = recorded_copy.factors_[i].grad_b;
  }
}

int64_t Adapter::num_parameters() const {
  int64_t n = 0;
  for (const Factors& e : factors_) n += e.f.a.numel() + e.f.b.numel();
  return n;
}

int64_t Adapter::num_bytes() const {
  size_t n = 0;
  for (const Factors& e : factors_) {
    for (const at::Tensor* t : {&e.f.a, &e.f.b, &e.f.a_rI, &e.f.b_rO, &e.grad_a, &e.grad_b})
      if (t->defined()) n += t->nbytes();
  }
  return static_cast<int64_t>(n);
}

}  // namespace twinkle::lora
