#include "twinkle/lora/adapter.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <boost/regex.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"
#include "twinkle/kernels/random/uniform.h"
#include "twinkle/model/tensors.h"

namespace twinkle::lora {
namespace {

bool ends_with_target(const std::string& path, const std::string& target) {
  return path == target || (path.size() > target.size() && path.ends_with(target) &&
                            path[path.size() - target.size() - 1] == '.');
}

// Boost's engine gives up on an expression whose search explodes, where std::regex would not come
// back.
bool matches(const std::string& path, const boost::regex& pattern) {
  try {
    return boost::regex_match(path, pattern);
  } catch (const std::runtime_error& e) {
    fail(Code::kInvalid, "lora: target_modules '", pattern.str(),
         "' cannot be matched: ", e.what());
  }
}

// The last names of the paths, each once: q_proj, k_proj, ...
std::vector<std::string> endings(const std::vector<model::NamedLinear>& linears) {
  std::vector<std::string> seen;
  for (const auto& linear : linears) {
    std::string name = linear.path.substr(linear.path.rfind('.') + 1);
    if (std::find(seen.begin(), seen.end(), name) == seen.end()) seen.push_back(std::move(name));
  }
  return seen;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void check(const PeftConfig& c) {
  require(c.rank >= 1, Code::kInvalid, "lora: rank is ", c.rank, ", it must be at least 1");
  require(c.rank <= 4096, Code::kInvalid, "lora: rank is ", c.rank, ", the limit is 4096");
  require(std::isfinite(c.alpha), Code::kInvalid, "lora: lora_alpha is ", c.alpha,
          ", it must be finite");
  require(c.dropout >= 0 && c.dropout < 1, Code::kInvalid, "lora: lora_dropout is ", c.dropout,
          ", it must be in [0, 1)");
}

// lora_A's first values, uniform in +-1/sqrt(inputs).
at::Tensor drawn(uint64_t key, int64_t rank, int64_t inputs) {
  at::Tensor out = at::empty({rank, inputs}, at::kFloat);
  kernels::fill_uniform(key, 1.0 / std::sqrt(static_cast<double>(inputs)),
                        {out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel())});
  return out;
}

}  // namespace

double scale_of(const PeftConfig& c) {
  const auto rank = static_cast<double>(c.rank);
  return c.alpha / (c.use_rslora ? std::sqrt(rank) : rank);
}

std::vector<size_t> match_targets(const PeftConfig& config,
                                  const std::vector<model::NamedLinear>& linears) {
  const auto* names = std::get_if<std::vector<std::string>>(&config.target_modules);
  const std::string text = names ? "" : std::get<std::string>(config.target_modules);
  require(names ? !names->empty() : !text.empty(), Code::kInvalid,
          "lora: target_modules is empty; name modules or use \"all-linear\"");
  std::optional<boost::regex> pattern;
  if (!names && text != "all-linear") {
    try {
      pattern.emplace(text, boost::regex::perl);
    } catch (const boost::regex_error& e) {
      fail(Code::kInvalid, "lora: target_modules '", text,
           "' is no regular expression: ", e.what());
    }
  }
  std::vector<size_t> out;
  std::vector<bool> used(names ? names->size() : 0, false);
  for (size_t i = 0; i < linears.size(); ++i) {
    bool hit = !names && (!pattern || matches(linears[i].path, *pattern));
    for (size_t t = 0; t < used.size(); ++t) {
      if (ends_with_target(linears[i].path, (*names)[t])) used[t] = hit = true;
    }
    if (hit) out.push_back(i);
  }
  for (size_t t = 0; t < used.size(); ++t) {
    require(used[t], Code::kInvalid, "lora: target module '", (*names)[t],
            "' matches nothing; there is: ", listed(endings(linears)));
  }
  require(!out.empty(), Code::kInvalid, "lora: target_modules '", text,
          "' matches nothing; there is: ", listed(endings(linears)));
  return out;
}

// In blocks of a few MiB, which the heap gives back whole: of gradients that come and go one by one
// among tensors that stay, it keeps holes. Larger ones would be mapped anew in every step.
void Adapter::make_grads() {
  constexpr int64_t kBlock = int64_t{2} << 20;  // elements
  const auto numel = [](const Factors& e) { return e.f.a.numel() + e.f.b.numel(); };
  const auto part = [](const at::Tensor& block, int64_t at, const at::Tensor& like) {
    return block.narrow(0, at, like.numel()).view(like.sizes());
  };
  for (auto first = factors_.begin(); first != factors_.end();) {
    auto last = first;
    int64_t total = 0;
    while (last != factors_.end() && total < kBlock) total += numel(*last++);
    const at::Tensor block = at::zeros({total}, first->f.a.options());
    for (int64_t at = 0; first != last; at += numel(*first++)) {
      if (!first->grad_a.defined()) first->grad_a = part(block, at, first->f.a);
      if (!first->grad_b.defined())
        first->grad_b = part(block, at + first->f.a.numel(), first->f.b);
    }
  }
}

Adapter::Adapter(const PeftConfig& config, std::vector<model::NamedLinear> linears, uint64_t seed)
    : config_(config), index_(linears.size(), -1) {
  check(config);
  // As peft writes it: the names of the modules that it stands for here.
  const auto* text = std::get_if<std::string>(&config_.target_modules);
  if (text != nullptr && *text == "all-linear") config_.target_modules = endings(linears);
  for (const size_t i : match_targets(config, linears)) {
    const nn::Linear& linear = *linears[i].linear;
    const int64_t out = linear.weight.size(0), in = linear.weight.size(1), r = config.rank;
    const auto type = linear.weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    Factors entry{.path = linears[i].path};
    entry.f.a =
        drawn(key_of(key_of(seed, "lora_A"), entry.path), r, in).to(linear.weight.device(), type);
    entry.f.b = at::zeros({out, r}, linear.weight.options().dtype(type));
    entry.f.scale = scale_of(config);
    index_[i] = static_cast<int>(factors_.size());
    factors_.push_back(std::move(entry));
  }
}

void Adapter::load(const PeftAdapter& saved) {
  require(saved.config.rank == config_.rank, Code::kInvalid, "lora: the saved adapter has rank ",
          saved.config.rank, ", this one ", config_.rank);
  require(scale_of(saved.config) == scale_of(config_), Code::kInvalid,
          "lora: the saved adapter is scaled by ", scale_of(saved.config), ", this one by ",
          scale_of(config_), ": give it the lora_alpha and use_rslora that it was saved with");
  std::vector<std::pair<at::Tensor, at::Tensor>> values(factors_.size());
  for (const StoredPeftEntry& entry : saved.entries) {
    const auto mine = std::find_if(factors_.begin(), factors_.end(),
                                   [&](const Factors& f) { return f.path == entry.module; });
    require(mine != factors_.end(), Code::kInvalid, "lora: the saved adapter has module ",
            entry.module,
            ", which this model does not have or the adapter's config does not target: is it of "
            "another base model?");
    const auto take = [&](const StoredTensor& stored, const at::Tensor& like, const char* half) {
      require(at::IntArrayRef(stored.shape) == like.sizes(), Code::kInvalid, "lora: ", half, " of ",
              entry.module, " has shape ", shape_text(stored.shape), ", this model's is ",
              shape_text(like.sizes().vec()), ": is it of another base model?");
      const at::Tensor t = model::to_float32(stored);
      require(at::isfinite(t).all().item<bool>(), Code::kInvalid, "lora: ", half, " of ",
              entry.module, " holds NaN or infinity");
      return t.to(like.scalar_type());
    };
    values[static_cast<size_t>(mine - factors_.begin())] = {take(entry.a, mine->f.a, "lora_A"),
                                                            take(entry.b, mine->f.b, "lora_B")};
  }
  for (size_t i = 0; i < values.size(); ++i) {
    require(values[i].first.defined(), Code::kInvalid, "lora: the saved adapter has no module ",
            factors_[i].path, ", which its config targets");
  }
  for (size_t i = 0; i < values.size(); ++i) {
    factors_[i].f.a.copy_(values[i].first);
    factors_[i].f.b.copy_(values[i].second);
  }
  weights_changed();
}

std::vector<PeftEntry> Adapter::entries() const {
  std::vector<PeftEntry> out;
  for (const Factors& f : factors_)
    out.push_back({f.path, model::view_of("a", f.f.a), model::view_of("b", f.f.b)});
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

void Adapter::add_grads_in(Adapter& shadow) {
  std::vector<at::Tensor> zeros, copies, sums;
  const auto take = [&](at::Tensor& mine, const at::Tensor& there) {
    if (mine.is_same(there)) return;
    (mine.defined() ? copies : zeros).push_back(there);
    if (mine.defined()) sums.push_back(mine);
  };
  for (size_t i = 0; i < factors_.size(); ++i) {
    take(factors_[i].grad_a, shadow.factors_[i].grad_a);
    take(factors_[i].grad_b, shadow.factors_[i].grad_b);
  }
  if (!zeros.empty()) at::_foreach_zero_(zeros);
  if (!copies.empty()) at::_foreach_copy_(copies, sums);
  for (size_t i = 0; i < factors_.size(); ++i) {
    factors_[i].grad_a = shadow.factors_[i].grad_a;
    factors_[i].grad_b = shadow.factors_[i].grad_b;
  }
}

int64_t Adapter::num_bytes() const {
  size_t n = 0;
  for (const Factors& e : factors_) {
    for (const at::Tensor* t : {&e.f.a, &e.f.b, &e.f.a_rI, &e.f.b_rO, &e.grad_a, &e.grad_b})
      if (t->defined()) n += t->nbytes();
  }
  return static_cast<int64_t>(n);
}

int64_t Adapter::num_parameters() const {
  int64_t n = 0;
  for (const Factors& entry : factors_) n += entry.f.a.numel() + entry.f.b.numel();
  return n;
}

}  // namespace twinkle::lora
