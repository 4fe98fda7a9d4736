#include "twinkle/loss/loss.h"

#include <algorithm>
#include <cmath>

#include "twinkle/base/fields/options.h"
#include "twinkle/loss/options.h"
#include "twinkle/loss/reduce.h"

namespace twinkle::loss {

#define LOSS(name) Loss name();
#include "twinkle/loss/losses.def"
#undef LOSS

namespace {

void check_vector(const Loss& loss, std::string_view field, const at::Tensor& t,
                  bool doubles = false) {
  const bool fits =
      t.defined() && (t.scalar_type() == at::kFloat || (doubles && t.scalar_type() == at::kDouble));
  require(fits && t.dim() == 1 && t.device().is_cpu() && t.is_contiguous(), Code::kInvalid,
          "loss: ", loss.name, ": ", field, " is ", t.defined() ? t.toString() : "missing",
          ", it must be a contiguous one-dimensional float32 tensor on the CPU");
}

// One that is not read would be dropped without a word.
const Extra& check_read(const Loss& loss, const std::string& name) {
  if (const Extra* extra = loss.extra(name)) return *extra;
  std::string known;
  for (const Extra& extra : loss.extras)
    known += (known.empty() ? "it reads " : ", ") + std::string(extra.name);
  fail(Code::kInvalid, "loss: ", loss.class_name, " does not read '", name, "', ",
       known.empty() ? "it reads none" : known);
}

void check_extras(const Loss& loss, const Inputs& in, int64_t n) {
  for (const Extra& extra : loss.extras)
    require(n == 0 || extra.optional || in.extras.contains(std::string(extra.name)), Code::kInvalid,
            "loss: ", loss.name, " needs '", extra.name, "', pass it with the batch");
  const auto sequences = static_cast<int64_t>(in.cu_seqlens.size()) - 1;
  for (const auto& [name, t] : in.extras) {
    const Extra& extra = check_read(loss, name);
    check_vector(loss, name, t, loss.doubles);
    const int64_t must = extra.per_sequence ? sequences : n;
    require(t.numel() == must, Code::kInvalid, "loss: ", loss.name, ": ", name, " has ", t.numel(),
            " entries, it must have one per ", extra.per_sequence ? "sequence" : "row", " (", must,
            ")");
  }
}

void check_inputs(const Loss& loss, const Inputs& in, bool with_logprobs) {
  check_vector(loss, "weights", in.weights);
  const int64_t n = in.weights.numel();
  if (with_logprobs) {
    check_vector(loss, "logprobs", in.logprobs, loss.doubles);
    require(in.logprobs.numel() == n, Code::kInvalid, "loss: ", loss.name, ": logprobs has ",
            in.logprobs.numel(), " rows, weights has ", n, ", they must be equally many");
  }
  require(!in.cu_seqlens.empty() && in.cu_seqlens.front() == 0 && in.cu_seqlens.back() == n &&
              std::is_sorted(in.cu_seqlens.begin(), in.cu_seqlens.end()),
          Code::kInvalid, "loss: ", loss.name, ": cu_seqlens must rise from 0 to the ", n,
          " rows of weights");
  check_extras(loss, in, n);
}

}  // namespace

const std::vector<Loss>& all() {
  static const std::vector<Loss> losses = {
#define LOSS(name) name(),
#include "twinkle/loss/losses.def"
#undef LOSS
  };
  return losses;
}

const Extra* Loss::extra(std::string_view name) const {
  const auto it = std::ranges::find(extras, name, &Extra::name);
  return it == extras.end() ? nullptr : &*it;
}

bool per_sequence(const Loss& loss, std::string_view extra) {
  const Extra* found = loss.extra(extra);
  return found && found->per_sequence;
}

const Loss* look_up(std::string_view name) {
  for (const Loss& loss : all()) {
    if (loss.name == name || loss.class_name == name) return &loss;
  }
  return nullptr;
}

const Loss& find(std::string_view name) {
  if (const Loss* loss = look_up(name)) return *loss;
  std::vector<std::string> names;
  std::string known = "cross_entropy";  // by the name that requests use most
  for (const Loss& loss : all()) {
    names.insert(names.end(), {std::string(loss.name), std::string(loss.class_name)});
    known.append(", ").append(loss.class_name);
  }
  const std::string nearest = nearest_of(name, names);
  fail(Code::kInvalid, "loss: unknown loss '", name, "'",
       nearest.empty() ? "; known" : "; did you mean '" + nearest + "'? Known", " are ", known);
}

Output run(const Loss& loss, const Inputs& inputs, const Json& options) {
  loss.check(options);
  check_inputs(loss, inputs, true);
  if (entropy_grad(loss, inputs, options).defined()) {
    check_vector(loss, "entropies", inputs.entropies, loss.doubles);
    require(inputs.entropies.numel() == inputs.weights.numel(), Code::kInvalid, "loss: ", loss.name,
            ": entropies has ", inputs.entropies.numel(), " rows, weights has ",
            inputs.weights.numel(), ", they must be equally many");
  }
  return loss.run(inputs, options);
}

TokenGrad prepare(const Loss& loss, const Inputs& inputs, const Json& options) {
  require(loss.separable(), Code::kInvalid, "loss: ", loss.name,
          " needs the log-probabilities of all rows before its gradient is known, use run()");
  loss.check(options);
  check_inputs(loss, inputs, false);
  return loss.prepare(inputs, options);
}

at::Tensor entropy_grad(const Loss& loss, const Inputs& inputs, const Json& options) {
  if (!loss.entropy_grad) return {};
  loss.check(options);
  check_inputs(loss, inputs, false);
  return loss.entropy_grad(inputs, options);
}

double num_tokens(const Loss& loss, Inputs inputs, const Json& options) {
  inputs.logprobs = inputs.entropies = at::zeros_like(inputs.weights);
  return run(loss, inputs, options).num_tokens;
}

bool finite(const Output& output) {
  return std::isfinite(output.loss) && output.grad.isfinite().all().item<bool>();
}

void set_options(std::span<const AnyOption> options, const Json& json, std::string_view loss) {
  if (json.is_null()) return;
  require(json.is_object(), Code::kInvalid, "loss: options of ", loss, " must be a JSON object");
  for (const auto& [key, value] : json.get_object()) {
    const auto found = std::ranges::find(options, std::string_view(key), &AnyOption::name);
    if (found != options.end()) {
      std::string shown = told(value);
      if (value.is_string()) shown.insert(0, 1, '\'').push_back('\'');
      if (!value.is_null()) set_option(*found, value, "loss: ", shown);
      continue;
    }
    std::string names;
    for (const AnyOption& one : options) names.append(names.empty() ? "" : ", ").append(one.name);
    fail(Code::kInvalid, "loss: ", loss, " has no option '", std::string_view(key), "', it has ",
         names.empty() ? "none" : names);
  }
}

Json described(std::span<const AnyOption> options) {
  constexpr std::string_view kKinds[] = {"flag", "integer", "number", "text"};
  const auto limit = [](double value) {
    if (!std::isfinite(value)) return Json();
    return value == std::trunc(value) ? Json(static_cast<int64_t>(value)) : Json(value);
  };
  JsonArray out;
  for (const AnyOption& one : options) {
    JsonArray texts;
    for (const std::string_view text : one.limits.one_of)
      if (!text.empty()) texts.emplace_back(text);
    const Json value = one.get();
    out.push_back(JsonObject{{"name", one.name},
                             {"help", one.help},
                             {"kind", kKinds[static_cast<size_t>(one.kind)]},
                             {"default", one.allows(value) ? value : Json()},
                             {"least", limit(one.limits.least)},
                             {"most", limit(one.limits.most)},
                             {"open", one.limits.open},
                             {"one_of", texts}});
  }
  return out;
}

}  // namespace twinkle::loss
