#include "twinkle/lora/saved_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <string_view>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/lora/expert_factors.h"
#include "twinkle/lora/labels/label_head.h"
#include "twinkle/lora/peft/form.h"
#include "twinkle/lora/per_expert.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::lora {
namespace {

[[noreturn]] void refuse_module(const std::string& path) {
  require(!path.ends_with(".mlp.gate") && !path.ends_with(".mlp.router"), Code::kInvalid,
          "lora: the saved adapter has module ", path,
          ", a router, which is not adapted here: train it with a list of names in target_modules "
          "(q_proj, ..., down_proj), which peft does not extend to routers, as it does "
          "\"all-linear\"");
  require(!path.ends_with("unembed_tokens"), Code::kInvalid, "lora: the saved adapter has module ",
          path,
          ", Tinker's name of the head, which is lm_head here: rename its tensors to lm_head "
          "and name lm_head in target_modules");
  fail(Code::kInvalid, "lora: the saved adapter has module ", path,
       ", which this model does not have or the adapter's config does not target: is it of another "
       "base model?");
}

// Checks the factors of one module.
void check_scale(const Sizes& saved, const Sizes& target, const std::string& path) {
  require(saved.rank(path) == target.rank(path), Code::kInvalid,
          "lora: the saved adapter has rank ", saved.rank(path), ", this one has ",
          target.rank(path), ": create it with the r and rank_pattern of the saved one");
  require(saved.scale(path) == target.scale(path), Code::kInvalid,
          "lora: the saved adapter has scale ", saved.scale(path), ", this one has ",
          target.scale(path), ": create it with the lora_alpha and use_rslora of the saved one");
}

void check_kinds(const PeftConfig& saved, const PeftConfig& target) {
  const auto said = [](const PeftConfig& config) {
    const std::string variant = variant_of(config);
    return variant.empty() ? "has A and B only" : "has " + variant;
  };
  require(is_pissa(saved) == is_pissa(target) && saved.use_dora == target.use_dora, Code::kInvalid,
          "lora: the saved adapter ", said(saved), ", this one ", said(target),
          ": create it from the saved one's directory");
}

void check_sharing(const PeftConfig& saved, const PeftConfig& target) {
  const auto said = [](bool shares) { return shares ? "share factors" : "have factors each"; };
  require(saved.share_expert_factors == target.share_expert_factors, Code::kInvalid,
          "lora: experts of the saved adapter ", said(saved.share_expert_factors), ", of this one ",
          said(target.share_expert_factors), ": create it with share_expert_factors ",
          saved.share_expert_factors ? "true" : "false");
}

void check_labels(const PeftConfig& saved, const PeftConfig& target) {
  require(saved.num_labels == target.num_labels, Code::kInvalid,
          "lora: the saved adapter has a head of ", saved.num_labels, " labels, this one of ",
          target.num_labels, " (0: none): create it with num_labels ", saved.num_labels);
}

// Judged by the file's tensors, and by its config, which need not know of it.
bool shares_factors(const PeftAdapter& saved) {
  const bool shares = std::ranges::any_of(saved.entries, [](const StoredPeftEntry& entry) {
    return is_tinkers(entry.module) && entry.a.shape[0] != entry.b.shape[0];
  });
  require(shares || !saved.config.share_expert_factors, Code::kInvalid,
          "lora: the saved adapter's config says share_expert_factors, but its file has factors of "
          "each expert: leave the field out");
  return shares;
}

void check_modules(std::span<const std::string_view> saved, std::set<std::string_view> wanted) {
  for (const std::string_view module : saved) {
    if (wanted.erase(module) > 0) continue;
    const std::string path(module);
    const auto expert = expert_path(path);
    const std::string stem = expert ? path.substr(0, path.rfind('.') + 1) : "";
    const bool is_both =
        expert && expert->name == "gate_up_proj" && wanted.contains(stem + "gate_proj");
    require(!is_both, Code::kInvalid, "lora: the saved adapter has module ", path,
            ", one pair for gate_proj and up_proj, as peft saves what it read of a save from here, "
            "and this one has one for each: create the adapter from that directory instead");
    const bool is_half = expert && (expert->name == "gate_proj" || expert->name == "up_proj");
    require(
        !is_half || !wanted.contains(stem + "gate_up_proj"), Code::kInvalid,
        "lora: the saved adapter has module ", path,
        ", a pair for gate_proj and one for up_proj, as expert_format='per_expert' writes them, "
        "and this one has one for both: create the adapter from that directory instead");
    refuse_module(path);
  }
  require(wanted.empty(), Code::kInvalid, "lora: the saved adapter has no module ",
          wanted.empty() ? "" : *wanted.begin(),
          ", which its config targets: is it of another base model?");
}

void check_shape(const StoredTensor& view, const std::vector<int64_t>& shape, const char* half,
                 const std::string& module) {
  require(view.shape == shape, Code::kInvalid, "lora: ", half, " of ", module, " has shape ",
          shape_text(view.shape), ", this model's is ", shape_text(shape),
          remedy_of(std::ranges::equal(view.shape, std::views::reverse(shape))));
}

at::Tensor read(const StoredTensor& view, const char* half, const std::string& module) {
  const at::Tensor t = model::to_float32(view);
  require(at::isfinite(t).all().item<bool>(), Code::kInvalid, "lora: ", half, " of ", module,
          " holds NaN or infinity: fetch or train it again");
  return t;
}

// Parts what config_of_file() has put together.
void take_initial(SavedAdapter::Module& module, int64_t rank) {
  const auto both = [rank](const at::Tensor& all, int64_t dim) {
    return std::pair(all.narrow(dim, 0, rank).contiguous(),
                     all.narrow(dim, rank, rank).contiguous());
  };
  auto [a, initial_a] = both(module.a, 0);
  auto [b, minus_initial_b] = both(module.b, 1);
  module = {module.path, a, b, {initial_a, minus_initial_b.neg()}};
}

// Before any tensor is read.
void check_score(const PeftAdapter& saved, std::span<const LinearShape> linears) {
  const auto head = std::ranges::find(linears, model::kHead, &LinearShape::path);
  require(head != linears.end(), Code::kInvalid, "lora: the saved adapter has a head of labels, ",
          "but the model has no ", model::kHead, ", whose place it takes");
  check_shape(*saved.score, {saved.config.num_labels, head->inputs}, "weight", "score");
}

// Where a linear's factors are in a file: an entry of its own, or its place in a stack's.
struct Source {
  const StoredPeftEntry* entry = nullptr;
  size_t stack = 0, expert = 0, part = 0;
};

struct Stack {
  const StoredPeftEntry* entry;
  StackLayout layout;
  const PeftStack* form = nullptr;  // that it has, where its experts' linears are put together
  std::vector<std::vector<Pair>> pairs = {};  // by part and expert, once they are read

  void read_pairs();
};

void Stack::read_pairs() {
  const std::string& module = entry->module;
  const Pair all{read(entry->a, "lora_A", module), read(entry->b, "lora_B", module)};
  if (form) {
    pairs = form->split(all);
    return;
  }
  if (!is_tinkers(module)) {
    pairs = {split_pair(all, layout)};
    return;
  }
  std::vector<Pair>& each = pairs.emplace_back();
  for (int64_t e = 0; e < layout.num_experts; ++e) {
    const auto mine = [&](const at::Tensor& of, const at::Tensor Pair::* half) {
      if (of.size(0) == 1 && e > 0) return each[0].*half;
      return of.select(0, e).clone();
    };
    each.push_back({mine(all.a, &Pair::a), mine(all.b, &Pair::b)});
  }
}

// The factors that a file has for a model's linears, checked before they are read.
class Reader {
 public:
  // `stacks`: of the form that the file has, where that is not the adapter's own.
  Reader(const PeftAdapter& saved, std::span<const LinearShape> linears,
         std::span<const PeftStack> stacks, const PeftConfig* target)
      : saved_(saved), linears_(linears), sizes_(saved.config) {
    if (target) {
      check_kinds(saved.config, *target);
      check_sharing(saved.config, *target);
      check_labels(saved.config, *target);
    }
    if (saved.score) {
      check_score(saved, linears);
      size_ += *num_elements(saved.score->shape);
    }
    for (const StoredPeftEntry& entry : saved.entries) entries_[entry.module] = &entry;
    for (const PeftStack& stack : stacks) add_put_together(stack);
    add_stacks();
    add_tinkers();
    add_modules();
    if (!entries_.empty()) refuse_module(std::string(entries_.begin()->first));
    std::vector<std::string_view> modules;
    std::set<std::string_view> wanted;
    for (const auto& [linear, source] : sources_) modules.push_back(linears[linear].path);
    for (const size_t i : match_targets(target ? *target : saved.config, linears))
      wanted.insert(linears[i].path);
    if (target) {
      const Sizes targets(*target);
      for (const std::string_view path : modules)
        if (wanted.contains(path)) check_scale(sizes_, targets, std::string(path));
    }
    check_modules(modules, std::move(wanted));
  }

  // Bytes of all factors.
  int64_t num_bytes() const { return size_ * static_cast<int64_t>(sizeof(float)); }

  std::vector<SavedAdapter::Module> modules() {
    std::vector<SavedAdapter::Module> out;
    for (const auto& [linear, source] : sources_) {
      const std::string& path = linears_[linear].path;
      if (source.entry) {
        out.push_back({path,
                       read(source.entry->a, "lora_A", path),
                       read(source.entry->b, "lora_B", path),
                       {}});
        if (const auto& magnitude = source.entry->magnitude)
          out.back().more.push_back(read(*magnitude, "lora_magnitude_vector", path));
        if (is_pissa(saved_.config)) take_initial(out.back(), sizes_.rank(path));
        continue;
      }
      Stack& stack = stacks_[source.stack];
      if (stack.pairs.empty()) stack.read_pairs();
      Pair& pair = stack.pairs[source.part][source.expert];
      out.push_back({path, std::move(pair.a), std::move(pair.b), {}});
    }
    return out;
  }

 private:
  using Entries = std::map<std::string_view, const StoredPeftEntry*>;

  int64_t rank_in_file(const std::string& path) const {
    return sizes_.rank(path) * (is_pissa(saved_.config) ? 2 : 1);
  }

  Entries::node_type taken(const std::string& module) {
    Entries::node_type node = entries_.extract(module);
    return node.empty() ? entries_.extract(other_path(module)) : std::move(node);
  }

  void add(size_t linear, const Source& source) {
    const std::string& path = linears_[linear].path;
    require(sources_.emplace(linear, source).second, Code::kInvalid,
            "lora: the saved adapter has factors of ", path,
            " twice, of its own and in those of all experts: leave one of them out");
    size_ += rank_in_file(path) * (linears_[linear].inputs + linears_[linear].outputs);
  }

  void add_put_together(const PeftStack& form) {
    const auto node = taken(form.module);
    if (node.empty()) return;
    const StackLayout layout{form.whole, form.num_experts(), form.rank(), {}};
    Stack stack{node.mapped(), layout, &form};
    check_stack(stack.entry->a.shape, stack.entry->b.shape, layout, form.module);
    for (size_t part = 0; part < form.parts.size(); ++part) {
      const auto& linears = form.parts[part].linears;
      for (size_t e = 0; e < linears.size(); ++e)
        if (linears[e]) add(*linears[e], {nullptr, stacks_.size(), e, part});
    }
    stacks_.push_back(std::move(stack));
  }

  void add_stacks() {
    for (StackedPair& pair : stacked_pairs(linears_, match_parameters(saved_.config, linears_))) {
      const auto node = taken(pair.module);
      if (node.empty()) continue;
      const LinearShape& expert = linears_[pair.linears[0]];
      Stack stack{
          node.mapped(),
          {expert, std::ssize(pair.linears), sizes_.rank(expert.path), saved_.peft_version}};
      check_stack(stack.entry->a.shape, stack.entry->b.shape, stack.layout, pair.module);
      for (size_t e = 0; e < pair.linears.size(); ++e)
        add(pair.linears[e], {nullptr, stacks_.size(), e});
      stacks_.push_back(std::move(stack));
    }
    std::optional<bool> turned;  // as peft writes all stacks of a file
    for (const Stack& stack : stacks_)
      if (!turned && !stack.form)
        turned = turned_by_shape(stack.entry->a.shape, stack.layout.expert);
    for (Stack& stack : stacks_) stack.layout.turned_round = turned;
  }

  void add_tinkers() {
    const bool shares = saved_.config.share_expert_factors;
    for (StackedPair& pair : tinkers_pairs(linears_)) {
      const auto node = taken(pair.module);
      if (node.empty()) continue;
      const LinearShape& first = linears_[pair.linears[0]];
      const int64_t rank = sizes_.rank(first.path), count = std::ssize(pair.linears);
      const Stack stack{node.mapped(), {first, count, rank, {}}};
      check_tinkers(stack.entry->a.shape, stack.entry->b.shape, stack.layout, shares, pair.module);
      for (size_t e = 0; e < pair.linears.size(); ++e)
        add(pair.linears[e], {nullptr, stacks_.size(), e});
      const int64_t width = shares_b(*expert_path(first.path)) ? first.outputs : first.inputs;
      if (shares) size_ -= (count - 1) * rank * width;
      stacks_.push_back(stack);
    }
  }

  void add_modules() {
    for (size_t i = 0; i < linears_.size(); ++i) {
      const LinearShape& linear = linears_[i];
      const auto node = taken(linear.path);
      if (node.empty()) continue;
      const StoredPeftEntry& entry = *node.mapped();
      add(i, {&entry});
      const int64_t rank = rank_in_file(linear.path);
      check_shape(entry.a, {rank, linear.inputs}, "lora_A", entry.module);
      check_shape(entry.b, {linear.outputs, rank}, "lora_B", entry.module);
      if (!entry.magnitude) continue;
      check_shape(*entry.magnitude, {linear.outputs}, "lora_magnitude_vector", entry.module);
      size_ += linear.outputs;
    }
  }

  const PeftAdapter& saved_;
  std::span<const LinearShape> linears_;
  const Sizes sizes_;
  Entries entries_;                   // that nobody has taken
  std::map<size_t, Source> sources_;  // by linear
  std::vector<Stack> stacks_;
  int64_t size_ = 0;  // numbers
};

PeftForm own_form(const PeftConfig& own, std::span<const LinearShape> linears) {
  try {
    return peft_form(own, linears);
  } catch (const Error& e) {
    fail(e.code, e.what(),
         "; that is what twinkle_adapter in the metadata of adapter_model.safetensors says: is it "
         "of another base model? If not, remove it, and the file is read as peft reads it");
  }
}

// The adapter's config instead of the file's, where it was written in another form, with the stacks
// of that. Of a file whose adapter_config.json is no longer what was written that one counts, as
// for peft.
std::vector<PeftStack> use_own_config(PeftAdapter& saved, std::span<const LinearShape> linears) {
  if (saved.own) {
    saved.own->base_model = saved.config.base_model;
    // As it is once it was written: numbers may differ in their last digit.
    const auto is_written = [&](PeftConfig config) {
      config.base_model = saved.config.base_model;
      const std::string text = boost::json::serialize(json_of(config_of_file(std::move(config))));
      return peft_config(parse_json(text, "lora"), "the adapter's config") == saved.config;
    };
    if (is_pissa(*saved.own) && is_written(*saved.own)) {
      saved.config = *saved.own;
      return {};
    }
    PeftForm form = own_form(*saved.own, linears);
    if (is_written(form.config)) {
      saved.config = *saved.own;
      return std::move(form.stacks);
    }
  }
  saved.config = resolved(saved, linears);
  return {};
}

// Without the folder in its errors.
SavedAdapter read_factors(PeftAdapter& saved, std::span<const LinearShape> linears,
                          const std::function<void(int64_t)>& reserve, const PeftConfig* target,
                          const IsBaseWeight& is_base_weight) {
  take_mixtrals_names(saved);
  saved.config.share_expert_factors = shares_factors(saved);
  const std::vector<PeftStack> stacks = use_own_config(saved, linears);
  Reader reader(saved, linears, stacks, target);
  for (const auto& [name, copy] : saved.base_weights) {
    require(is_base_weight && is_base_weight(name, copy), Code::kInvalid, "lora: tensor '",
            copy.name, "' is not this base model's ", name,
            ": it is of another base model, or was trained or resized; only LoRA's factors are "
            "loaded, save the adapter with save_embedding_layers=False");
  }
  if (reserve) reserve(reader.num_bytes());
  SavedAdapter out{saved.config, reader.modules(), {}};
  if (saved.score) out.score = read(*saved.score, "weight", "score");
  return out;
}

}  // namespace

SavedAdapter read_adapter(const std::filesystem::path& dir, std::span<const LinearShape> linears,
                          const std::function<void(int64_t)>& reserve, const PeftConfig* target,
                          const IsBaseWeight& is_base_weight) {
  PeftAdapter saved = read_peft(dir);
  try {
    return read_factors(saved, linears, reserve, target, is_base_weight);
  } catch (const Error& e) {
    const std::string text = e.what();
    if (!text.starts_with("lora: ")) throw;
    fail(e.code, "lora: ", dir.string(), text.substr(4));
  }
}

std::vector<size_t> SavedAdapter::held() const {
  std::vector<std::string> paths;
  for (const Module& module : modules) paths.push_back(module.path);
  const std::vector<size_t> holder = holders(config, paths);
  std::vector<size_t> out;
  for (size_t i = 0; i < holder.size(); ++i)
    if (holder[i] == i) out.push_back(i);
  if (score.defined()) out.push_back(holder.size());
  return out;
}

const Kind& SavedAdapter::kind(size_t i) const {
  const std::span<const Kind> kinds = kinds_of(config);
  return i == kinds.size() * modules.size() ? kLabelKind : kinds[i % kinds.size()];
}

const at::Tensor& SavedAdapter::value(size_t i) const {
  const size_t num = kinds_of(config).size();
  return i == num * modules.size() ? score : modules[i / num].value(i % num);
}

std::string SavedAdapter::name(size_t i) const {
  const size_t num = kinds_of(config).size();
  return i == num * modules.size() ? kLabelWeight : kind(i).name(modules[i / num].path);
}

void check_fits(const SavedAdapter& saved, const PeftConfig& target,
                std::span<const std::string> modules) {
  check_kinds(saved.config, target);
  const Sizes theirs(saved.config), ours(target);
  check_sharing(saved.config, target);
  check_labels(saved.config, target);
  for (const std::string& path : modules) check_scale(theirs, ours, path);
  std::vector<std::string_view> got;
  for (const auto& module : saved.modules) got.push_back(module.path);
  check_modules(got, {modules.begin(), modules.end()});
}

}  // namespace twinkle::lora
