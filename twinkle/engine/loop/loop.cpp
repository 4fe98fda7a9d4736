#include "twinkle/engine/loop/loop.h"

#include <utility>

#include "twinkle/base/file.h"
#include "twinkle/optim/optimizer.h"

namespace twinkle::engine {
namespace {

struct Counter {
  const char* name;
  int64_t least;
};
constexpr const char* kAccumulation = "gradient_accumulation_steps";
constexpr const char* kConsumed = "consumed_train_samples";
constexpr Counter kCounters[] = {{"cur_step", 0}, {"accumulated", 0}, {"iters", 0},
                                 {"lr_step", 0},  {kConsumed, 0},     {kAccumulation, 1}};

int64_t count_in(const Json& state, const char* name) {
  const Json* value = find(state, name);
  return value ? value->as_int64() : 0;
}

// As Python writes what errors show.
std::string shown(const Json* value) {
  if (!value || value->is_null()) return "None";
  if (value->is_string()) return "'" + std::string(value->get_string()) + "'";
  return boost::json::serialize(*value);
}

// A missing one is null here, and a number is itself whatever its type.
bool same(const Json* one, const Json* other) {
  if (!one || !other) return !one && !other;
  if (one->is_number() && other->is_number())
    return *one == *other || one->to_number<double>() == other->to_number<double>();
  if (one->is_array() && other->is_array()) {
    const JsonArray &a = one->get_array(), &b = other->get_array();
    for (size_t i = 0; i < a.size() && i < b.size(); ++i)
      if (!same(&a[i], &b[i])) return false;
    return a.size() == b.size();
  }
  if (one->is_object() && other->is_object()) {
    const JsonObject &a = one->get_object(), &b = other->get_object();
    for (const auto& [key, value] : a)
      if (const Json* found = b.if_contains(key); !found || !same(&value, found)) return false;
    return a.size() == b.size();
  }
  return *one == *other;
}

Json object_or_empty(const Json& options) {
  return options.is_null() ? Json(JsonObject()) : options;
}

void check_optimizer(const std::string& name, const Json& options) {
  for (const char* option : {"lr", "betas", "eps", "weight_decay", "momentum"}) {
    const Json* value = options.is_object() ? options.get_object().if_contains(option) : nullptr;
    require(!value || !value->is_null(), Code::kInvalid, "model: optimizer: ", option,
            " is None, it must be a number, or left out");
  }
  optim::make(name, options);
}

void check_counters(const Json& state, const std::string& where) {
  for (const auto& [name, least] : kCounters) {
    const Json* value = state.get_object().if_contains(name);
    require(!value || (value->is_int64() && value->get_int64() >= least), Code::kInvalid, where,
            " ", name, " is ", shown(value), ", it must be an integer of at least ", least);
  }
}

Json object_of(const std::string& text, const std::string& where) {
  size_t used = 0;
  std::string cause;
  Json out = parse_json_prefix(text, used, cause);
  if (cause.empty() && used < text.size()) cause = "more follows it";
  require(cause.empty(), Code::kInvalid, where, " it is not JSON (", cause, ")");
  require(out.is_object(), Code::kInvalid, where, " it is no object but ",
          out.is_array() ? "list" : to_string(out.kind()).data());
  return out;
}

}  // namespace

Loop::Loop()
    : optimizer_("AdamW"),
      options_(JsonObject{{"lr", kDefaultLr}}),
      schedule_options_(JsonObject()) {}

void Loop::set_optimizer(const std::string& name, const Json& options) {
  Json all = object_or_empty(options);
  if (all.is_object() && !all.get_object().contains("lr")) all.get_object()["lr"] = kDefaultLr;
  check_optimizer(name, all);
  optimizer_ = name;
  options_ = std::move(all);
}

void Loop::set_schedule(const std::string& name, const Json& options) {
  set_schedule(name, options, optim::make_schedule(name, options));
}

void Loop::set_schedule(const std::string& name, const Json& options, optim::Schedule rate) {
  schedule_ = name;
  schedule_options_ = object_or_empty(options);
  rate_ = std::move(rate);
  progress_.lr_step = 0;
}

void Loop::set_accumulation(int64_t micro_batches) {
  require(micro_batches >= 1, Code::kInvalid, "model: ", kAccumulation, " is ", micro_batches,
          ", it must be an integer of at least 1");
  accumulation_ = micro_batches;
}

double Loop::lr() const {
  const double base = options_.at("lr").to_number<double>();
  return rate_ ? rate_(base, progress_.lr_step) : base;
}

double Loop::lr(const Json& given) const {
  const Json* own = find(given, "lr");
  return own ? own->to_number<double>() : lr();
}

Step Loop::step(const Json& given) const {
  Json all = options_;
  if (given.is_object())
    for (const auto& [name, value] : given.get_object()) all.get_object()[name] = value;
  check_optimizer(optimizer_, all);
  all.get_object()["lr"] = lr(given);
  Step out;
  out.optimizer = optimizer_;
  out.options = boost::json::serialize(all);
  return out;
}

void Loop::add_micro_batch() {
  ++progress_.cur_step;
  ++progress_.accumulated;
  progress_.just_stepped = false;
  progress_.clipped_norm.reset();
}

void Loop::add_clip(double norm) { progress_.clipped_norm = progress_.grad_norm = norm; }

void Loop::add_step(const Json& given, double norm, int64_t schedule_steps) {
  if (given.is_object()) {
    for (const auto& [name, value] : given.get_object())
      if (name != "lr" || !rate_) options_.get_object()[name] = value;
  }
  progress_.accumulated = 0;
  progress_.just_stepped = true;
  ++progress_.iters;
  progress_.lr_step += schedule_steps;
  // A ClipGradNorm has found the norm before it clipped.
  progress_.grad_norm = progress_.clipped_norm.value_or(norm);
}

void Loop::add_lr_step() { progress_.lr_step += progress_.just_stepped ? 1 : 0; }

void Loop::forget_gradients() {
  progress_.accumulated = 0;
  progress_.clipped_norm.reset();
}

void Loop::forget_all() { progress_ = {}; }

void Loop::load_weights() {
  forget_gradients();
  progress_.just_stepped = false;
}

Json Loop::state(int64_t consumed_samples) const {
  require(consumed_samples >= 0, Code::kInvalid, "model: ", kConsumed, " is ", consumed_samples,
          ", it must be an integer of at least 0");
  return JsonObject{{"checkpoint_version", kStateVersion},
                    {"cur_step", progress_.cur_step},
                    {"accumulated", progress_.accumulated},
                    {"iters", progress_.iters},
                    {"lr_step", progress_.lr_step},
                    {kAccumulation, accumulation_},
                    {kConsumed, consumed_samples},
                    {"optimizer", optimizer_},
                    {"options", options_},
                    {"scheduler", schedule_.empty() ? Json() : Json(schedule_)},
                    {"scheduler_options", schedule_options_}};
}

void Loop::check(const Json& state) const {
  if (state.get_object().empty()) return;
  const Json ours = this->state(0);
  static constexpr std::pair<const char*, const char*> kSetters[] = {
      {"optimizer", "set_optimizer"},
      {"scheduler", "set_lr_scheduler"},
      {"scheduler_options", "set_lr_scheduler"}};
  for (const auto& [name, setter] : kSetters) {
    const Json *mine = find(ours, name), *saved = find(state, name);
    require(same(saved, mine), Code::kInvalid, "model: ", name, " is ", shown(mine),
            ", but the checkpoint was saved with ", shown(saved), ": call ", setter,
            " as for the saved run before, or load weights alone (resume_only_model=True, or "
            "load_optimizer=False)");
  }
  const Json* options = find(state, "options");
  require(options && options->is_object(), Code::kInvalid, "model: options of the checkpoint is ",
          shown(options), ", it must be a dict with names as keys");
  check_optimizer(optimizer_, *options);
}

void Loop::load(const Json& state) {
  if (const Json* options = find(state, "options")) options_ = *options;
  if (!options_.get_object().contains("lr")) options_.get_object()["lr"] = kDefaultLr;
  progress_.cur_step = count_in(state, "cur_step");
  progress_.accumulated = count_in(state, "accumulated");
  progress_.iters = count_in(state, "iters");
  progress_.lr_step = count_in(state, "lr_step");
  progress_.just_stepped = false;
  progress_.clipped_norm.reset();
}

Json loop_state_in(const std::filesystem::path& directory, LoopFormat format) {
  const auto file = directory / "trainer_state.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return JsonObject();
  const std::string where = "model: " + file.string() + ":";
  const Json whole = object_of(read_file(file, "model"), where);
  const Json* extra = whole.get_object().if_contains("extra");
  if (!extra) return JsonObject();
  require(extra->is_string(), Code::kInvalid, where, " extra is ", shown(extra),
          ", it must be a text");
  if (extra->get_string().empty()) return JsonObject();
  Json state = object_of(std::string(extra->get_string()), where + " extra:");
  check_counters(state, where + " extra:");
  const Json* version = find(state, "checkpoint_version");
  if (!state.get_object().contains("checkpoint_version")) return JsonObject();
  require(format == LoopFormat::kAny || (version && *version == Json(Loop::kStateVersion)),
          Code::kInvalid, where, " the loop's state is of format ", shown(version),
          ", this version reads format ", Loop::kStateVersion,
          ": load only the weights (resume_only_model=True, or load_optimizer=False)");
  return state;
}

}  // namespace twinkle::engine
