#include "twinkle/lora/adapter.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"
#include "twinkle/lora/expert_factors.h"
#include "twinkle/lora/saved_adapter.h"
#include "twinkle/lora/variants/start.h"
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

// Error kInvalid: the variant does not work on the linear.
void check_variant(const PeftConfig& config, const model::NamedLinear& linear) {
  require(linear.drops || config.dropout == 0, Code::kInvalid, "lora: lora_dropout is ",
          config.dropout, ", but ", linear.path,
          " has none: its input is that of every later token; set it to 0, or leave the module "
          "out of target_modules");
  const std::string variant = variant_of(config);
  if (variant.empty()) return;
  const auto refuse_unless = [&](bool ok, const auto&... why) {
    require(ok, Code::kInvalid, "lora: with ", variant, " ", why...);
  };
  refuse_unless(!is_pissa(config) || !config.use_dora,
                "use_dora is true, and the two are not there together: take one of them");
  refuse_unless(config.dropout == 0, "lora_dropout is ", config.dropout,
                ", and what it adds to A and B has none: set it to 0");
  refuse_unless(!expert_path(linear.path), linear.path,
                " is targeted, an expert's, which has A and B only: leave it out of "
                "target_modules");
  refuse_unless(!config.use_dora || (linear.drops && linear.path != model::kHead), linear.path,
                " is targeted, whose rows are not scaled here: leave it out of target_modules");
  refuse_unless(linear.linear->weight.is_cpu(), "the model is on ", linear.linear->weight.device(),
                ", where it is not there yet: take device 'cpu', or leave it out");
}

}  // namespace

void Factors::pack(at::ScalarType type) {
  if (f.more_rank == 0)
    f.repack(type);
  else
    f.repack(type, {more[kInitialA], more[kInitialB]});
}

PeftEntry Factors::entry() const {
  if (f.more_rank == 0) {
    PeftEntry out{path, model::view_of("a", f.a), model::view_of("b", f.b)};
    if (!more.empty()) out.magnitude = model::view_of("m", more[kMagnitude]);
    return out;
  }
  return {path, owning_view("a", at::cat({f.a, more[kInitialA]})),
          owning_view("b", at::cat({f.b, more[kInitialB].neg()}, 1))};
}

void Adapter::make_grads() {
  std::vector<size_t> all;
  for (size_t i = 0; i < num_tensors(); ++i)
    if (kind(i).learns) all.push_back(i);
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

Factors Adapter::made(const model::NamedLinear& linear, const Sizes& sizes,
                      std::optional<uint64_t> seed) {
  const at::Tensor& weight = linear.linear->weight;
  const int64_t rank = sizes.rank(linear.path);
  Factors out{.path = linear.path, .grads = std::vector<at::Tensor>(kinds_.size())};
  out.f.scale = sizes.scale(linear.path);
  const size_t first = kinds_.size() * factors_.size();
  const std::vector<size_t>& holders = places_->holders;
  for (const size_t holder : {holders[first], holders[first + 1]}) {
    if (holder >= first) continue;
    const std::string& shared = factors_[holder / kinds_.size()].path;
    require(sizes.rank(shared) == rank, Code::kInvalid, "lora: ", shared, " has rank ",
            sizes.rank(shared), " and ", out.path, " has ", rank,
            ", but experts that share factors have one: correct rank_pattern");
  }
  std::optional<uint64_t> key;
  if (seed) key = key_of(key_of(*seed, "lora_A"), out.path);
  std::vector<at::Tensor> values =
      start_of(config_, key, weight, {.rank = rank, .scale = out.f.scale});
  if (is_pissa(config_)) out.f.more_rank = rank;
  out.more.resize(kinds_.size() - 2);
  for (size_t k = 0; k < values.size(); ++k)
    if (holds(first + k)) out.value(k) = std::move(values[k]);
  return out;
}

Adapter::Adapter(const PeftConfig& config, std::vector<model::NamedLinear> linears,
                 std::optional<uint64_t> seed) {
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
  kinds_ = kinds_of(config_);
  auto places = std::make_shared<Places>();
  places->factor_of.assign(linears.size(), -1);
  places->holders = holders(config_, paths);
  for (size_t i = 0; i < places->holders.size(); ++i)
    if (places->holders[i] == i) places->held.push_back(i);
  std::ranges::copy_if(places->held, std::back_inserter(places->learned),
                       [this](size_t i) { return kind(i).learns; });
  for (const size_t i : matched) {
    check_variant(config_, linears[i]);
    places->factor_of[i] = static_cast<int>(places->linears.size());
    places->linears.push_back(i);
  }
  add_label_head(linears, seed, *places);
  places_ = std::move(places);
  for (const size_t i : matched) factors_.push_back(made(linears[i], sizes, seed));
  link_shared();
}

void Adapter::add_label_head(const std::vector<model::NamedLinear>& linears,
                             std::optional<uint64_t> seed, Places& places) {
  if (config_.num_labels == 0) return;
  const auto head = std::ranges::find(linears, model::kHead, &model::NamedLinear::path);
  require(config_.num_labels > 0 && head != linears.end(), Code::kInternal, "lora: a head of ",
          config_.num_labels, " labels has no place");
  const at::Tensor& weight = head->linear->weight;
  const auto type = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t width = weight.size(1);
  label_head_.weight = (seed ? new_label_weight(config_.num_labels, width, *seed)
                             : at::zeros({config_.num_labels, width}))
                           .to(weight.device(), type);
  const size_t last = places.holders.size();
  for (auto* numbers : {&places.holders, &places.held, &places.learned}) numbers->push_back(last);
}

void Adapter::link_shared() {
  for (size_t i = 0; i < places_->holders.size(); ++i) {
    const size_t holder = places_->holders[i];
    if (holder == i) continue;
    value(i) = value(holder);
    const size_t num = kinds_.size();
    kernels::LoraFactors &mine = factors_[i / num].f, &first = factors_[holder / num].f;
    if (!mine.packed() || !first.packed()) continue;
    (i % num ? mine.b_rO : mine.a_rI) = i % num ? first.b_rO : first.a_rI;
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
  for (const size_t i : held()) model::assign(saved.value(i), value(i));
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
        const size_t first = kinds_.size() * i;
        if (holds(first)) a.push_back(factors_[i].f.a);
        if (holds(first + 1)) b.push_back(factors_[i].f.b);
      }
      add(stack, {at::stack(a), at::stack(b)});
    }
  }
  for (size_t i = 0; i < factors_.size(); ++i) {
    if (!is_stacked[i]) out.push_back(factors_[i].entry());
  }
  return out;
}

void Adapter::pack(at::ScalarType type) {
  at::parallel_for(0, static_cast<int64_t>(factors_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Factors& factors = factors_[static_cast<size_t>(i)];
      if (!factors.f.packed()) factors.pack(type);
    }
  });
  link_shared();
}

void Adapter::weights_changed() {
  for (Factors& entry : factors_) {
    entry.f.unpack();
    entry.row_norms = at::Tensor();
  }
}

void Adapter::zero_grads() {
  for (Factors& entry : factors_) std::ranges::fill(entry.grads, at::Tensor());
  label_head_.grad = at::Tensor();
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
  kernels::lora_add_part(grad(i), flat, kind(i).is_b ? factors_[i / kinds_.size()].f.scale : 1);
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
  for (size_t i = 0; i < num_tensors(); ++i) take(grad(i), recorded_copy.grad(i));
  if (!zeros.empty()) at::_foreach_zero_(zeros);
  if (!copies.empty()) at::_foreach_copy_(copies, sums);
  for (size_t i = 0; i < num_tensors(); ++i) grad(i) = recorded_copy.grad(i);
}

int64_t Adapter::num_parameters() const {
  int64_t n = 0;
  for (const size_t i : learned()) n += value(i).numel();
  return n;
}

int64_t Adapter::num_bytes() const {
  size_t n = 0;
  const auto add = [&n](const at::Tensor& t) { n += t.defined() ? t.nbytes() : 0; };
  for (const size_t i : held()) {
    add(value(i));
    if (i == label_parameter()) continue;
    const kernels::LoraFactors& f = factors_[i / kinds_.size()].f;
    if (kind(i).learns) add(kind(i).is_b ? f.b_rO : f.a_rI);
  }
  for (const Factors& e : factors_) {
    std::ranges::for_each(e.grads, add);
    add(e.row_norms);
  }
  add(label_head_.grad);
  return static_cast<int64_t>(n);
}

}  // namespace twinkle::lora
