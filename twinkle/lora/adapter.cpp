#include "twinkle/lora/adapter.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <map>
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

// Error kInvalid: experts are to share factors, but there are none, not all of a layer, or of
// another kind.
void check_sharing(const PeftConfig& config, std::span<const LinearShape> linears,
                   std::span<const size_t> matched) {
  if (!config.share_expert_factors) return;
  std::map<std::string, int64_t> experts, targeted;
  for (const LinearShape& linear : linears)
    if (const auto expert = expert_path(linear.path)) ++experts[expert->parameter()];
  for (const size_t i : matched) {
    const std::string& path = linears[i].path;
    const auto expert = expert_path(path);
    if (!expert) continue;
    ++targeted[expert->parameter()];
    require(expert->name != "gate_up_proj", Code::kInvalid, "lora: the adapter targets ", path,
            ", which has no factor that share_expert_factors could share; name gate_proj and "
            "up_proj");
  }
  require(!targeted.empty(), Code::kInvalid,
          "lora: share_expert_factors is true, but no module of an expert is targeted; leave it "
          "out, or name gate_proj, up_proj and down_proj of a model with experts");
  for (const auto& [name, num] : targeted)
    require(num > 1 && num == experts.at(name), Code::kInvalid,
            "lora: share_expert_factors is true, but ", num, " of ", experts.at(name),
            " experts of ", name,
            " are targeted, it takes all, and two or more; leave it out, or name them all");
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
  std::vector<size_t> missing;
  std::ranges::copy_if(which, std::back_inserter(missing),
                       [&](size_t i) { return !grad(i).defined(); });
  // Memory that is freed before the rest is in blocks of its own.
  std::ranges::stable_partition(missing, [&](size_t i) { return holds(i); });
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
  const std::vector<LinearShape> shapes = shapes_of(linears);
  config_ = with_named_targets(config, shapes);
  const Sizes sizes(config_);
  std::vector<std::string> unused;
  const std::vector<size_t> matched = match_targets(config, shapes, &unused);
  for (const std::string& name : unused)
    TORCH_WARN("lora: target module '", name, "' matches nothing, and changes nothing");
  for (const std::string& filter : idle_filters(config, shapes))
    TORCH_WARN("lora: ", filter, " matches nothing, and changes nothing");
  check_sharing(config, shapes, matched);
  std::vector<std::string> paths;
  for (const size_t i : matched) paths.push_back(linears[i].path);
  if (const auto idle = idle_patterns(config, paths); !idle.empty())
    TORCH_WARN("lora: ", idle.size(),
               " patterns of rank_pattern and alpha_pattern match no module ",
               "that is adapted, and change nothing; the first is '", idle[0], "'");
  auto places = std::make_shared<Places>();
  places->factor_of.assign(linears.size(), -1);
  places->holders = holders(config, paths);
  for (size_t i = 0; i < places->holders.size(); ++i)
    if (places->holders[i] == i) places->held.push_back(i);
  for (const size_t i : matched) {
    require(linears[i].drops || config.dropout == 0, Code::kInvalid, "lora: lora_dropout is ",
            config.dropout, ", but ", linears[i].path,
            " has none: its input is that of every later token; set it to 0, or leave the module "
            "out of target_modules");
    const nn::Linear& linear = *linears[i].linear;
    const int64_t out = linear.weight.size(0), in = linear.weight.size(1),
                  r = sizes.rank(linears[i].path);
    const auto type = linear.weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    Factors entry{.path = linears[i].path};
    const size_t a = 2 * factors_.size();
    for (const size_t holder : {places->holders[a], places->holders[a + 1]}) {
      if (holder >= a) continue;
      const std::string& first = factors_[holder / 2].path;
      require(sizes.rank(first) == r, Code::kInvalid, "lora: ", first, " has rank ",
              sizes.rank(first), " and ", entry.path, " has ", r,
              ", but experts that share factors have one: correct rank_pattern");
    }
    if (places->holders[a] == a) {
      entry.f.a =
          drawn(key_of(key_of(seed, "lora_A"), entry.path), r, in).to(linear.weight.device(), type);
    }
    if (places->holders[a + 1] == a + 1)
      entry.f.b = at::zeros({out, r}, linear.weight.options().dtype(type));
    entry.f.scale = sizes.scale(entry.path);
    places->factor_of[i] = static_cast<int>(factors_.size());
    places->linears.push_back(i);
    factors_.push_back(std::move(entry));
  }
  places_ = std::move(places);
  link_shared();
}

void Adapter::link_shared() {
  for (size_t i = 0; i < places_->holders.size(); ++i) {
    const size_t holder = places_->holders[i];
    if (holder == i) continue;
    value(i) = value(holder);
    kernels::LoraFactors &mine = factors_[i / 2].f, &first = factors_[holder / 2].f;
    if (!mine.packed() || !first.packed()) continue;
    (i % 2 ? mine.b_rO : mine.a_rI) = i % 2 ? first.b_rO : first.a_rI;
  }
}

void Adapter::join_shared_grads() {
  for (size_t i = 0; i < places_->holders.size(); ++i) {
    const size_t holder = places_->holders[i];
    if (holder == i || !grad(i).defined()) continue;
    grad(holder).add_(grad(i));
    grad(i) = at::Tensor();
  }
}

void Adapter::check(const SavedAdapter& saved) const {
  std::vector<std::string> ours;
  for (const Factors& f : factors_) ours.push_back(f.path);
  check_fits(saved, config_, ours);
}

void Adapter::load(const SavedAdapter& saved) {
  check(saved);
  for (const size_t i : held()) {
    const SavedAdapter::Module& module = saved.modules[i / 2];
    model::assign(i % 2 ? module.b : module.a, value(i));
  }
  weights_changed();
}

std::vector<PeftEntry> Adapter::entries() const {
  std::vector<LinearShape> shapes;
  for (const Factors& f : factors_) shapes.push_back({f.path, f.f.a.size(1), f.f.b.size(0)});
  std::vector<PeftEntry> out;
  std::vector<bool> is_stacked(factors_.size());
  const auto add = [&](const StackedPair& stack, const Pair& all) {
    out.push_back({stack.module, owning_view("a", all.a), owning_view("b", all.b)});
    for (const size_t i : stack.linears) is_stacked[i] = true;
  };
  for (const StackedPair& stack : stacked_pairs(shapes, match_parameters(config_, shapes))) {
    std::vector<Pair> experts;
    for (const size_t i : stack.linears) experts.push_back({factors_[i].f.a, factors_[i].f.b});
    add(stack, joined_pair(experts));
  }
  if (config_.share_expert_factors) {
    for (const StackedPair& stack : tinkers_pairs(shapes)) {
      std::vector<at::Tensor> a, b;
      for (const size_t i : stack.linears) {
        if (holds(2 * i)) a.push_back(factors_[i].f.a);
        if (holds(2 * i + 1)) b.push_back(factors_[i].f.b);
      }
      add(stack, {at::stack(a), at::stack(b)});
    }
  }
  for (size_t i = 0; i < factors_.size(); ++i) {
    if (is_stacked[i]) continue;
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
  link_shared();
}

void Adapter::weights_changed() {
  for (Factors& entry : factors_) entry.f.unpack();
}

void Adapter::zero_grads() {
  for (Factors& entry : factors_) entry.grad_a = entry.grad_b = at::Tensor();
}

std::unique_ptr<Adapter> Adapter::fork() {
  std::unique_ptr<Adapter> out(new Adapter(*this));
  // The packed layouts stay shared: packing again makes new ones.
  for (const size_t i : held()) out->value(i) = out->value(i).clone();
  out->link_shared();
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
  for (const size_t i : held()) n += value(i).numel();
  return n;
}

int64_t Adapter::num_bytes() const {
  size_t n = 0;
  const auto add = [&n](const at::Tensor& t) { n += t.defined() ? t.nbytes() : 0; };
  for (const size_t i : held()) {
    const kernels::LoraFactors& f = factors_[i / 2].f;
    add(value(i));
    add(i % 2 ? f.b_rO : f.a_rI);
  }
  for (const Factors& e : factors_) add(e.grad_a), add(e.grad_b);
  return static_cast<int64_t>(n);
}

}  // namespace twinkle::lora
