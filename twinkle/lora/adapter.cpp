#include "twinkle/lora/adapter.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <boost/regex.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "twinkle/base/error.h"
#include "twinkle/base/random.h"
#include "twinkle/kernels/random/uniform.h"
#include "twinkle/lora/targets.h"
#include "twinkle/model/weights/tensors.h"

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
std::vector<std::string> endings(std::span<const LinearShape> linears) {
  std::vector<std::string> seen;
  for (const LinearShape& linear : linears) {
    std::string name = linear.path.substr(linear.path.rfind('.') + 1);
    if (std::find(seen.begin(), seen.end(), name) == seen.end()) seen.push_back(std::move(name));
  }
  return seen;
}

// True if "all-linear" stands for it, too: as peft has it, for all but the output layer.
bool is_among_all(const LinearShape& linear) { return linear.path != model::kHead; }

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void check_options(const PeftConfig& c) {
  require(c.rank >= 1, Code::kInvalid, "lora: rank is ", c.rank, ", it must be at least 1");
  require(c.rank <= 4096, Code::kInvalid, "lora: rank is ", c.rank, ", the limit is 4096");
  require(std::isfinite(c.alpha), Code::kInvalid, "lora: lora_alpha is ", c.alpha,
          ", it must be finite");
  require(c.dropout >= 0 && c.dropout < 1, Code::kInvalid, "lora: lora_dropout is ", c.dropout,
          ", it must be in [0, 1)");
}

[[noreturn]] void refuse_module(const std::string& path) {
  fail(Code::kInvalid, "lora: the saved adapter has module ", path,
       ", which this model does not have or the adapter's config does not target: is it of another "
       "base model?");
}

void check_scale(const PeftConfig& saved, const PeftConfig& target) {
  require(saved.rank == target.rank, Code::kInvalid, "lora: the saved adapter has rank ",
          saved.rank, ", this one has ", target.rank);
  require(scale_of(saved) == scale_of(target), Code::kInvalid, "lora: the saved adapter has scale ",
          scale_of(saved), ", this one has ", scale_of(target),
          ": create it with the lora_alpha and use_rslora of the saved one");
}

void check_modules(std::span<const std::string_view> saved, std::set<std::string_view> wanted) {
  for (const std::string_view module : saved) {
    if (wanted.erase(module) == 0) refuse_module(std::string(module));
  }
  require(wanted.empty(), Code::kInvalid, "lora: the saved adapter has no module ",
          wanted.empty() ? "" : *wanted.begin(), ", which its config targets");
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

std::vector<size_t> match_targets(const PeftConfig& config, std::span<const LinearShape> linears) {
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
           "' is not a regular expression: ", e.what());
    }
  }
  std::vector<size_t> out;
  std::vector<bool> used(names ? names->size() : 0, false);
  for (size_t i = 0; i < linears.size(); ++i) {
    bool hit = !names && (pattern ? matches(linears[i].path, *pattern) : is_among_all(linears[i]));
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

bool targets_head(const PeftConfig& config) {
  if (const auto* names = std::get_if<std::vector<std::string>>(&config.target_modules)) {
    return std::ranges::any_of(
        *names, [](const std::string& name) { return ends_with_target(model::kHead, name); });
  }
  const auto& text = std::get<std::string>(config.target_modules);
  try {
    return text != "all-linear" && matches(model::kHead, boost::regex(text, boost::regex::perl));
  } catch (const std::exception&) {
    return false;  // such an adapter is refused when it is made
  }
}

PeftConfig with_named_targets(PeftConfig config, std::span<const LinearShape> linears) {
  const auto* text = std::get_if<std::string>(&config.target_modules);
  if (text == nullptr || *text != "all-linear") return config;
  std::vector<LinearShape> all;
  std::ranges::copy_if(linears, std::back_inserter(all), is_among_all);
  config.target_modules = endings(all);
  return config;
}

Adapter::Adapter(const PeftConfig& config, std::vector<model::NamedLinear> linears, uint64_t seed)
    : index_(linears.size(), -1) {
  check_options(config);
  const std::vector<LinearShape> shapes = shapes_of(linears);
  config_ = with_named_targets(config, shapes);
  for (const size_t i : match_targets(config, shapes)) {
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

std::vector<LinearShape> shapes_of(const std::vector<model::NamedLinear>& linears) {
  std::vector<LinearShape> out;
  for (const auto& l : linears)
    out.push_back({l.path, l.linear->weight.size(1), l.linear->weight.size(0)});
  return out;
}

SavedAdapter read_adapter(const std::filesystem::path& dir, std::span<const LinearShape> linears,
                          const std::function<void(int64_t)>& reserve, const PeftConfig* target,
                          const IsBaseWeight& is_base_weight) {
  const PeftAdapter saved = read_peft(dir);
  check_options(saved.config);
  if (target) check_scale(saved.config, *target);
  std::map<std::string_view, const StoredPeftEntry*> entries;
  for (const StoredPeftEntry& entry : saved.entries) entries[entry.module] = &entry;
  const auto check_shape = [](const StoredTensor& view, const std::vector<int64_t>& shape,
                              const char* half, const std::string& module) {
    require(view.shape == shape, Code::kInvalid, "lora: ", half, " of ", module, " has shape ",
            shape_text(view.shape), ", this model's is ", shape_text(shape),
            ": is it of another base model?");
  };
  std::vector<const StoredPeftEntry*> known;
  int64_t size = 0;  // of all, in numbers
  for (const LinearShape& linear : linears) {
    const auto node = entries.extract(linear.path);
    if (node.empty()) continue;
    const StoredPeftEntry& entry = *known.emplace_back(node.mapped());
    check_shape(entry.a, {saved.config.rank, linear.inputs}, "lora_A", entry.module);
    check_shape(entry.b, {linear.outputs, saved.config.rank}, "lora_B", entry.module);
    size += saved.config.rank * (linear.inputs + linear.outputs);
  }
  if (!entries.empty()) refuse_module(std::string(entries.begin()->first));
  std::vector<std::string_view> modules;
  for (const StoredPeftEntry* entry : known) modules.push_back(entry->module);
  std::set<std::string_view> wanted;
  for (const size_t i : match_targets(target ? *target : saved.config, linears))
    wanted.insert(linears[i].path);
  check_modules(modules, std::move(wanted));
  for (const auto& [name, copy] : saved.base_weights) {
    require(is_base_weight && is_base_weight(name, copy), Code::kInvalid, "lora: ", dir.string(),
            ": tensor '", copy.name, "' is not this base model's ", name,
            ": it is of another base model, or was trained or resized; only LoRA's factors are "
            "loaded, save the adapter with save_embedding_layers=False");
  }
  const auto read = [](const StoredTensor& view, const char* half, const std::string& module) {
    const at::Tensor t = model::to_float32(view);
    require(at::isfinite(t).all().item<bool>(), Code::kInvalid, "lora: ", half, " of ", module,
            " holds NaN or infinity");
    return t;
  };
  if (reserve) reserve(size * static_cast<int64_t>(sizeof(float)));
  SavedAdapter out{saved.config, {}};
  for (const StoredPeftEntry* entry : known) {
    out.modules.push_back({entry->module, read(entry->a, "lora_A", entry->module),
                           read(entry->b, "lora_B", entry->module)});
  }
  return out;
}

void Adapter::check(const SavedAdapter& saved) const {
  check_scale(saved.config, config_);
  std::vector<std::string_view> modules;
  for (const auto& module : saved.modules) modules.push_back(module.path);
  std::set<std::string_view> wanted;
  for (const Factors& f : factors_) wanted.insert(f.path);
  check_modules(modules, std::move(wanted));
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
