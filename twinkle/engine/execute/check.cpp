#include "twinkle/engine/execute/check.h"

#include <algorithm>
#include <cmath>

#include "twinkle/base/error.h"
#include "twinkle/engine/checkpoint/persist.h"
#include "twinkle/engine/execute/own_tokens.h"
#include "twinkle/engine/schedule/hooks.h"
#include "twinkle/engine/training/training_op.h"
#include "twinkle/optim/optimizer.h"
#include "twinkle/sampler/sequence.h"

namespace twinkle::engine {
namespace {

void check_temperature(double t) {
  require(t > 0 && std::isfinite(t), Code::kInvalid, "engine: temperature is ", t,
          ", it must be above 0");
}

void check_create(const Create& op, const model::DecoderSpec& spec) {
  require(!spec.value_head || (op.lora_json.empty() && op.directory.empty()), Code::kInvalid,
          "engine: tenant '", op.tenant,
          "' is an adapter, which has no value head; of a model with one all weights are trained");
  constexpr double kMin = 0.001, kMax = 1000;
  require(op.weight >= kMin && op.weight <= kMax, Code::kInvalid, "engine: weight of tenant '",
          op.tenant, "' is ", op.weight, ", it must be from ", kMin, " to ", kMax);
}

void check_sample(const Sample& op, const model::DecoderSpec& spec) {
  require(!spec.value_head, Code::kInvalid,
          "engine: sample: the model has a value head, which gives no tokens; sample from a causal "
          "model");
  require(!op.prompts.empty(), Code::kInvalid, "engine: sample: prompts is empty");
  require(op.params.size() == 1 || op.params.size() == op.prompts.size(), Code::kInvalid,
          "engine: sample: ", op.params.size(), " parameters for ", op.prompts.size(),
          " prompts; give one, or one for each");
  for (const auto& params : op.params) sampler::validate(params);
  const auto asks = [](const SamplingParams& p) { return p.routed_experts; };
  require(std::ranges::none_of(op.params, asks) || !spec.routed_layers().empty(), Code::kInvalid,
          "engine: sample: routed_experts is asked for, but the model has no routed experts; leave "
          "it out");
  require(op.version >= 0, Code::kInvalid, "engine: sample: version is ", op.version,
          ", it must be at least 1, or 0 for the present weights");
}

// Its options; what it does to the weights is known later alone.
void check_step(const Step& op) {
  optim::make(op.optimizer, op.options.empty() ? Json() : parse_json(op.options, "step options"));
}

void check_embedding_grad(const Example& s, size_t index, int64_t width) {
  const size_t n = s.embedding_grad.size();
  require(n == 0 || std::ssize(s.embedding_grad) == width, Code::kInvalid, "engine: sequence ",
          index, ": embedding_grad has ", n, " entries, the model's hidden_size is ", width);
  require(std::ranges::all_of(s.embedding_grad, [](float g) { return std::isfinite(g); }),
          Code::kInvalid, "engine: sequence ", index, ": embedding_grad is not finite");
}

void check_logits(const std::vector<Example>& sequences, const model::DecoderSpec& spec) {
  size_t tokens = 0;
  for (const Example& s : sequences) {
    tokens += s.input_ids.size();
    require(s.num_targets == 1, Code::kInvalid, "engine: logits are asked for with ", s.num_targets,
            " targets for each token; they come with one, leave one of the two out");
  }
  const double bytes = static_cast<double>(tokens) * static_cast<double>(spec.num_logits()) * 4;
  constexpr double kMiB = 1 << 20;
  require(bytes <= static_cast<double>(kMaxLogitBytes), Code::kInvalid, "engine: logits of ",
          tokens, " tokens and a vocabulary of ", spec.num_logits(), " take ",
          std::ceil(bytes / kMiB), " MiB, one operation may take ", kMaxLogitBytes >> 20,
          "; pass fewer sequences, or leave logits out");
}

bool has_logits_grad(const Example& s) { return !s.logits_grad.empty(); }

// The head adds what goes through labels before what goes through logits: one kind an operation, so
// that the order of sums does not depend on the batches.
void check_logits_grads(const std::vector<Example>& sequences, const model::DecoderSpec& spec) {
  if (std::ranges::none_of(sequences, has_logits_grad)) return;
  check_logits(sequences, spec);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Example& s = sequences[i];
    const int64_t tokens = std::ssize(s.input_ids), n = std::ssize(s.logits_grad);
    require(n == tokens * spec.num_logits(), Code::kInvalid, "engine: sequence ", i,
            ": logits_grad has ", n, " entries, it must have one per token and entry of the ",
            spec.value_head ? "value head (" : "vocabulary (", tokens, " x ", spec.num_logits(),
            "), in every sequence or in none");
    require(s.labels.empty(), Code::kInvalid, "engine: sequence ", i,
            " has a logits_grad and labels; leave the labels out");
    require(std::ranges::all_of(s.logits_grad, [](float g) { return std::isfinite(g); }),
            Code::kInvalid, "engine: sequence ", i, ": logits_grad is not finite");
  }
}

// Losses over the tokens that follow; a LinearLoss has a meaning that its caller gives it.
void check_shift(const std::vector<Example>& sequences, const loss::Loss* loss) {
  if (loss && loss->name != "linear") refuse_own_tokens(sequences);
}

void check_learns(const std::vector<Example>& sequences) {
  const auto learns = [](const Example& s) {
    return !s.embedding_grad.empty() || has_logits_grad(s) ||
           std::ranges::any_of(s.labels, [](int32_t label) { return label != kIgnored; });
  };
  require(
      std::ranges::any_of(sequences, learns), Code::kInvalid,
      "engine: the batch has no label to learn from, all are -100 (ignored) or missing; look at "
      "the template, and at what max_length cuts off");
}

// The experts of a token in a layer: all -1, or each expert once. `sorted`: ascending.
bool is_route(std::span<const int32_t> sorted, int64_t num_experts) {
  if (sorted.back() == -1 && sorted.front() == -1) return true;
  return sorted.front() >= 0 && sorted.back() < num_experts &&
         std::ranges::adjacent_find(sorted) == sorted.end();
}

[[noreturn]] void refuse_route(std::span<const int32_t> sorted, int64_t num_experts,
                               const std::string& place) {
  for (const int32_t id : sorted) {
    require(id >= 0 && id < num_experts, Code::kInvalid, place, " has expert ", id,
            ", the model's are 0 to ", num_experts - 1,
            "; where the router is to choose, all of a token's are -1");
  }
  fail(Code::kInvalid, place, " has expert ", *std::ranges::adjacent_find(sorted),
       " twice, each may come once");
}

void check_routes(const Example& s, size_t index, const model::DecoderSpec& spec) {
  if (s.routed_experts.empty()) return;
  const std::string place = "engine: sequence " + std::to_string(index) + ": routed_experts";
  const std::vector<size_t> layers = spec.routed_layers();
  require(!layers.empty(), Code::kInvalid, place,
          " is given, but the model has no routed experts; leave it out");
  const model::ExpertsSpec& experts = *spec.layers[layers.front()].experts();
  const auto k = static_cast<size_t>(experts.route.top_k);
  const size_t tokens = s.input_ids.size(), n = s.routed_experts.size();
  require(n == tokens * layers.size() * k, Code::kInvalid, place, " has ", n,
          " entries, it must have ", k, " for each token and layer with experts (", tokens, " x ",
          layers.size(), " x ", k, ")");
  for (size_t row = 0; row * k < n; ++row) {
    const auto ids = std::span(s.routed_experts).subspan(row * k, k);
    std::vector<int32_t> sorted(ids.begin(), ids.end());
    std::ranges::sort(sorted);
    if (is_route(sorted, experts.num_experts)) continue;
    refuse_route(sorted, experts.num_experts,
                 place + " of token " + std::to_string(row / layers.size()) + " in layer " +
                     std::to_string(layers[row % layers.size()]));
  }
}

void check_aux_loss(double coefficient, const model::DecoderSpec& spec) {
  require(coefficient >= 0 && std::isfinite(coefficient), Code::kInvalid,
          "engine: router_aux_loss_coef is ", coefficient,
          ", it must be at least 0 and finite; 0 means none");
  const auto has_one = [](const model::LayerSpec& layer) {
    return layer.experts() && layer.experts()->aux_loss != nn::AuxLoss::kNone;
  };
  require(coefficient == 0 || std::ranges::any_of(spec.layers, has_one), Code::kInvalid,
          "engine: router_aux_loss_coef is ", coefficient, ", but models of ", spec.family,
          " have no auxiliary loss of experts; leave it out");
}

void check_num_targets(const Example& s, size_t index, const loss::Loss* loss) {
  require(s.num_targets >= 1, Code::kInvalid, "engine: sequence ", index, ": num_targets is ",
          s.num_targets, ", it must be at least 1");
  if (s.num_targets == 1) return;
  require(!loss || loss->many_targets, Code::kInvalid, "engine: sequence ", index, " has ",
          s.num_targets, " targets for each token, ", loss ? loss->class_name : "",
          " takes one; CrossEntropyLoss takes several");
  require(s.extras.empty(), Code::kInvalid, "engine: sequence ", index, " has ", s.num_targets,
          " targets for each token and '", s.extras.empty() ? "" : s.extras.begin()->first,
          "', which is one number a token; leave it out");
}

constexpr double kVector = sizeof(std::vector<float>);

// Bytes of where a token went.
double route_bytes(const model::DecoderSpec& spec) {
  const std::vector<size_t> layers = spec.routed_layers();
  if (layers.empty()) return 0;
  return static_cast<double>(spec.layers[layers.front()].experts()->route.top_k) *
         static_cast<double>(layers.size()) * 4;
}

double forward_bytes(const std::vector<Example>& sequences, bool logits, bool embedding,
                     const model::DecoderSpec& spec) {
  double out = 0;
  for (const Example& s : sequences) {
    const auto tokens = static_cast<double>(s.input_ids.size());
    // log-probabilities and entropies
    out += 4 * kVector + std::max(tokens, static_cast<double>(s.labels.size())) * 8;
    if (logits || !s.logits_grad.empty())
      out += tokens * static_cast<double>(spec.num_logits()) * 4;
    if (embedding || !s.embedding_grad.empty()) out += static_cast<double>(spec.hidden_size) * 4;
  }
  return out;
}

double token_bytes(bool logprobs, int64_t top) {
  return (logprobs ? 4 : 0) + (top > 0 ? kVector + static_cast<double>(top) * 8 : 0);
}

double score_bytes(const SamplingParams& p, int64_t length) {
  const int64_t scored = p.prompt_logprobs_last_n > 0 ? p.prompt_logprobs_last_n : length;
  return static_cast<double>(std::min(scored, length)) *
             token_bytes(p.prompt_logprobs, p.top_prompt_logprobs) +
         static_cast<double>(length) * static_cast<double>(p.prompt_alt_tokens) *
             sizeof(sampler::TokenLogprob) +
         static_cast<double>(p.prompt_targets.size()) * 4;
}

double sample_bytes(const Sample& op, const model::DecoderSpec& spec, bool streams) {
  double out = 0;
  const double route = route_bytes(spec);
  for (size_t i = 0; i < op.prompts.size(); ++i) {
    const SamplingParams& p = op.params[op.params.size() == 1 ? 0 : i];
    const int64_t length = std::ssize(op.prompts[i]);
    const int64_t most = std::max<int64_t>(0, std::min(p.max_tokens, spec.max_positions - length));
    const double completion =
        sizeof(Completion) +
        static_cast<double>(most) * (4 + token_bytes(p.logprobs, p.top_logprobs));
    // While it is sampled: a copy of the prompt, and its tokens.
    const double sequence = sizeof(sampler::Sequence) + static_cast<double>(length + most) * 4;
    const double routes = p.routed_experts ? static_cast<double>(length + most) * route : 0;
    const double event =
        sizeof(TokenEvent) + static_cast<double>(p.top_logprobs) * sizeof(sampler::TokenLogprob);
    const double events = streams ? static_cast<double>(most) * event : 0;
    out += sizeof(sampler::PromptScores) + kVector +
           static_cast<double>(p.num_samples) * (completion + sequence + routes + events) +
           score_bytes(p, length);
  }
  return out;
}

}  // namespace

int64_t max_result_bytes(const Operation& operation, const model::DecoderSpec& spec, bool streams) {
  double out = sizeof(Result);
  if (const auto* f = std::get_if<Forward>(&operation)) {
    out += forward_bytes(f->sequences, f->logits, f->embedding, spec);
    for (const Example& s : f->sequences)
      if (f->routed_experts)
        out += kVector + static_cast<double>(s.input_ids.size()) * route_bytes(spec);
  }
  if (const auto* b = std::get_if<ForwardBackward>(&operation))
    out += forward_bytes(b->sequences, b->logits, false, spec);
  if (const auto* s = std::get_if<Sample>(&operation)) out += sample_bytes(*s, spec, streams);
  return static_cast<int64_t>(std::min(out, 1e18));
}

void check_sequences(const std::vector<Example>& sequences, const model::DecoderSpec& spec,
                     const loss::Loss* loss) {
  require(!sequences.empty(), Code::kInvalid,
          "engine: the batch is empty; give at least one sequence");
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Example& s = sequences[i];
    const size_t n = s.input_ids.size();
    require(n > 0, Code::kInvalid, "engine: sequence ", i, " is empty");
    require(static_cast<int64_t>(n) <= spec.max_positions, Code::kInvalid, "engine: sequence ", i,
            " has ", n, " tokens, the model's max_position_embeddings is ", spec.max_positions,
            "; truncate it");
    for (size_t t = 0; t < n; ++t) {
      require(s.input_ids[t] >= 0 && s.input_ids[t] < spec.vocab_size, Code::kInvalid,
              "engine: sequence ", i, ": token ", s.input_ids[t], " at position ", t,
              " is outside the vocabulary of ", spec.vocab_size);
    }
    check_num_targets(s, i, loss);
    const auto k = static_cast<size_t>(s.num_targets);
    const auto sized = [&](size_t size, std::string_view what) {
      require(size == 0 || size == n * k, Code::kInvalid, "engine: sequence ", i, " has ", n,
              " tokens", k > 1 ? " of " + std::to_string(k) + " targets" : "", " but ", size, " ",
              what);
    };
    sized(s.labels.size(), "labels");
    sized(s.weights.size(), "weights");
    check_embedding_grad(s, i, spec.hidden_size);
    check_routes(s, i, spec);
    for (const auto& [name, values] : s.extras) {
      if (loss && loss::per_sequence(*loss, name)) {
        require(values.size() == 1, Code::kInvalid, "engine: sequence ", i, " has ", values.size(),
                " values of '", name, "', of which ", loss->class_name, " reads one a sequence");
        continue;
      }
      require(values.size() == n, Code::kInvalid, "engine: sequence ", i, " has ", n,
              " tokens but ", values.size(), " values of '", name, "'");
    }
    for (size_t t = 0; t < s.labels.size(); ++t) {
      const int32_t label = s.labels[t];
      require(label == kIgnored || !spec.value_head, Code::kInvalid, "engine: sequence ", i,
              " has labels, but the model's value head gives them no log-probabilities; leave the "
              "labels out and ask for logits, which are the values");
      require(label == kIgnored || (label >= 0 && label < spec.vocab_size), Code::kInvalid,
              "engine: sequence ", i, ": label ", label, " at position ", t / k,
              " is outside the vocabulary of ", spec.vocab_size, " and is not -100");
    }
  }
}

void check_folder(const Operation& operation, const std::filesystem::path& base) {
  if (const auto* to = std::get_if<Save>(&operation)) check_target(to->directory, base);
}

void check(const Operation& operation, const model::DecoderSpec& spec) {
  require(!tenant_of(operation).empty(), Code::kInvalid, "engine: tenant is empty");
  if (const auto* f = std::get_if<Forward>(&operation)) {
    const loss::Loss* const loss = loss::look_up(f->loss);
    check_sequences(f->sequences, spec, loss);
    check_shift(f->sequences, loss);
    check_temperature(f->temperature);
    require(!f->loss.empty() || f->loss_options.empty(), Code::kInvalid,
            "engine: forward: loss_options is '", f->loss_options,
            "', but there is no loss; name it, or leave them out");
    if (f->logits) check_logits(f->sequences, spec);
    require(!f->routed_experts || !spec.routed_layers().empty(), Code::kInvalid,
            "engine: forward: routed_experts is asked for, but the model has no routed experts; "
            "leave it out");
    for (const Example& s : f->sequences) {
      require(
          s.embedding_grad.empty() && s.logits_grad.empty(), Code::kInvalid,
          "engine: a forward takes no embedding_grad and no logits_grad, forward_backward does");
    }
  } else if (const auto* b = std::get_if<ForwardBackward>(&operation)) {
    const loss::Loss* const loss = loss::look_up(b->loss);
    check_sequences(b->sequences, spec, loss);
    check_shift(b->sequences, loss);
    if (!loss || !loss->of_labels) check_learns(b->sequences);
    check_logits_grads(b->sequences, spec);
    check_temperature(b->temperature);
    check_aux_loss(b->router_aux_loss_coef, spec);
    if (b->logits) check_logits(b->sequences, spec);
  } else if (const auto* s = std::get_if<Sample>(&operation)) {
    check_sample(*s, spec);
  } else if (const auto* step = std::get_if<Step>(&operation)) {
    check_step(*step);
  } else if (const auto* to = std::get_if<Save>(&operation)) {
    require(to->max_shard_bytes >= 0, Code::kInvalid, "engine: save: max_shard_bytes is ",
            to->max_shard_bytes, ", it must be at least 0, which means 5 GiB");
    require(to->version >= 0 && (to->version == 0 || !to->optimizer), Code::kInvalid,
            "engine: save: version is ", to->version,
            ", it must be at least 0, and 0 with the optimizer, which is that of the present "
            "weights");
    require(to->expert_format.empty() || to->expert_format == kPerExpert, Code::kInvalid,
            "engine: save: expert_format is '", to->expert_format, "'; known: ", kPerExpert,
            ", and empty, which is the adapter's own");
    require(to->expert_format.empty() || !to->optimizer, Code::kInvalid,
            "engine: save: expert_format is '", to->expert_format,
            "' and optimizer true; the optimizer's state is of the adapter as it is: save it "
            "without expert_format, and the other form besides");
  } else if (const auto* from = std::get_if<Load>(&operation)) {
    require(from->optimizer || !from->exact, Code::kInvalid,
            "engine: load: exact is true and optimizer false; a replay needs the optimizer, load "
            "with both");
  } else if (const auto* c = std::get_if<Create>(&operation)) {
    check_create(*c, spec);
  } else if (const auto* r = std::get_if<Release>(&operation)) {
    require(r->version >= 1, Code::kInvalid, "engine: release: version is ", r->version,
            ", it must be at least 1");
  }
}

}  // namespace twinkle::engine
