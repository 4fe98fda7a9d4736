#include "twinkle/engine/batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "twinkle/base/error.h"
#include "twinkle/loss/loss.h"
#include "twinkle/nn/head.h"

namespace twinkle::engine {
namespace {

constexpr int32_t kIgnored = -100;

const std::vector<Sequence>& sequences_of(const Part& part) {
  return std::visit([](const auto* op) -> const std::vector<Sequence>& { return op->sequences; },
                    part.operation);
}

at::Tensor copy_of(const std::vector<float>& values) {
  at::Tensor out = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<float>());
  return out;
}

// The scored rows of one part, over all of its sequences, and its loss.
struct Scored {
  std::vector<int64_t> cu{0};   // [S + 1] scored rows of each sequence
  std::vector<float> logprobs;  // [N], in order, as far as it has got
  std::vector<float> entropies;
  loss::Inputs inputs;
  Json options = JsonObject{};
  const loss::Loss* loss = nullptr;
  loss::TokenGrad grad;
};

// A run of sequences of one part inside one pass.
struct Piece {
  size_t part;
  size_t first, last;  // sequences
};

Scored score_plan(const Part& part) {
  Scored out;
  std::vector<float> weights;
  std::map<std::string, std::vector<float>> extras;
  for (const Sequence& s : sequences_of(part)) {
    for (size_t t = 0; t < s.labels.size(); ++t) {
      if (s.labels[t] == kIgnored) continue;
      weights.push_back(s.weights.empty() ? 1.0f : s.weights[t]);
      for (const auto& [name, values] : s.extras) extras[name].push_back(values[t]);
    }
    out.cu.push_back(static_cast<int64_t>(weights.size()));
  }
  const auto* op = std::get_if<const ForwardBackward*>(&part.operation);
  if (!op) return out;
  out.loss = &loss::find((*op)->loss);
  if (!(*op)->loss_options.empty()) out.options = parse_json((*op)->loss_options, "loss options");
  out.inputs.weights = copy_of(weights);
  out.inputs.cu_seqlens = out.cu;
  for (const auto& [name, values] : extras) {
    require(values.size() == weights.size(), Code::kInvalid, "engine: extra '", name,
            "' must be given for every sequence of a forward_backward, or for none");
    out.inputs.extras[name] = copy_of(values);
  }
  if (out.loss->separable()) out.grad = loss::prepare(*out.loss, out.inputs, out.options);
  return out;
}

std::vector<std::vector<Piece>> split(const std::vector<Part>& parts, int64_t budget) {
  std::vector<std::vector<Piece>> passes;
  int64_t used = budget;
  for (size_t p = 0; p < parts.size(); ++p) {
    if (parts[p].error) continue;
    const auto& sequences = sequences_of(parts[p]);
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto n = static_cast<int64_t>(sequences[s].input_ids.size());
      if (used + n > budget || passes.empty()) {
        passes.emplace_back();
        used = 0;
      }
      auto& pieces = passes.back();
      if (pieces.empty() || pieces.back().part != p) pieces.push_back({p, s, s});
      pieces.back().last = s + 1;
      used += n;
    }
  }
  return passes;
}

// One pass: the packed batch of its pieces, and which scored rows are whose.
struct Pass {
  model::Tape tape;
  nn::Targets targets;
  std::vector<int64_t> cu_targets{0};  // [pieces + 1]
};

void pack_pass(Pass& pass, const std::vector<Piece>& pieces, const std::vector<Part>& parts) {
  std::vector<int64_t> lengths, ids;
  nn::Owners& owners = pass.tape.batch.owners;
  bool tempered = false;
  for (const Piece& piece : pieces) {
    const Part& part = parts[piece.part];
    const auto* forward = std::get_if<const Forward*>(&part.operation);
    const double temperature =
        std::visit([](const auto* op) { return op->temperature; }, part.operation);
    const bool base = forward && (*forward)->disable_lora;
    tempered = tempered || temperature != 1.0;
    for (size_t s = piece.first; s < piece.last; ++s) {
      const Sequence& sequence = sequences_of(part)[s];
      for (size_t t = 0; t < sequence.labels.size(); ++t) {
        if (sequence.labels[t] == kIgnored) continue;
        pass.targets.rows.push_back(static_cast<int64_t>(ids.size() + t));
        pass.targets.ids.push_back(sequence.labels[t]);
        pass.targets.temperature.push_back(static_cast<float>(temperature));
      }
      ids.insert(ids.end(), sequence.input_ids.begin(), sequence.input_ids.end());
      lengths.push_back(static_cast<int64_t>(sequence.input_ids.size()));
      owners.slot.push_back(base ? -1 : part.tenant->slot());
      const bool random = !forward || (*forward)->train;
      owners.key.push_back(random ? part.tenant->stream(static_cast<int64_t>(s)) : 0);
      owners.learn.push_back(forward ? 0 : 1);
    }
    pass.cu_targets.push_back(static_cast<int64_t>(pass.targets.rows.size()));
  }
  if (!tempered) pass.targets.temperature.clear();
  pass.tape.batch.packing = nn::pack(lengths);
  pass.tape.batch.input_ids = at::empty({static_cast<int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), pass.tape.batch.input_ids.mutable_data_ptr<int64_t>());
}

void keep(std::vector<Scored>& scored, const std::vector<Piece>& pieces, const Pass& pass,
          const nn::HeadOutput& out) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    Scored& to = scored[pieces[i].part];
    const auto begin = pass.cu_targets[i], end = pass.cu_targets[i + 1];
    to.logprobs.insert(to.logprobs.end(), out.logprobs.begin() + begin, out.logprobs.begin() + end);
    if (out.entropies.empty()) continue;
    to.entropies.insert(to.entropies.end(), out.entropies.begin() + begin,
                        out.entropies.begin() + end);
  }
}

void forward_pass(const std::vector<Piece>& pieces, std::vector<Part>& parts,
                  std::vector<Scored>& scored, model::Decoder& decoder, bool entropy) {
  Pass pass;
  pack_pass(pass, pieces, parts);
  const at::Tensor hidden = decoder.forward(pass.tape.batch);
  const at::NoGradGuard no_grad;
  keep(scored, pieces, pass,
       nn::head_forward(hidden, decoder.head().weight, pass.targets, {.entropy = entropy}));
}

// Marks the part failed, and its sequences in this pass as not learning.
void drop(Part& part, const Piece& piece, size_t first_sequence, Pass& pass, at::Tensor& dhidden) {
  auto& owners = pass.tape.batch.owners;
  const auto& cu = pass.tape.batch.packing.cu_seqlens;
  const size_t n = piece.last - piece.first;
  std::fill_n(owners.learn.begin() + static_cast<ptrdiff_t>(first_sequence), n, uint8_t{0});
  dhidden.slice(0, cu[first_sequence], cu[first_sequence + n]).zero_();
  if (!part.error) {
    part.error = std::make_exception_ptr(Error(
        Code::kInvalid,
        "engine: the log-probabilities or the gradient of tenant '" + part.tenant->name() +
            "' are not finite (NaN or infinity): nothing was changed; look at its learning rate, "
            "its weights and its extras"));
  }
}

void backward_pass(const std::vector<Piece>& pieces, std::vector<Part>& parts,
                   std::vector<Scored>& scored, model::Decoder& decoder) {
  Pass pass;
  pack_pass(pass, pieces, parts);
  const at::Tensor hidden = decoder.forward_train(pass.tape);
  const at::NoGradGuard no_grad;
  std::vector<bool> finite(pieces.size(), true);
  const auto grad = [&](int64_t begin, std::span<const float> logprobs, std::span<float> out) {
    // A chunk of the head may span pieces: each asks its own loss for its own rows.
    const auto end = begin + static_cast<int64_t>(logprobs.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t lo = std::max(begin, pass.cu_targets[i]),
                    hi = std::min(end, pass.cu_targets[i + 1]);
      if (lo >= hi) continue;
      const auto from = static_cast<size_t>(lo - begin), n = static_cast<size_t>(hi - lo);
      const Scored& mine = scored[pieces[i].part];
      const int64_t row = mine.cu[pieces[i].first] + lo - pass.cu_targets[i];
      mine.grad(row, logprobs.subspan(from, n), out.subspan(from, n));
      for (size_t k = from; k < from + n; ++k) {
        if (!std::isfinite(logprobs[k]) || !std::isfinite(out[k])) finite[i] = false;
      }
    }
  };
  nn::HeadOutput out = nn::head_backward(hidden, decoder.head(), pass.targets, grad,
                                         pass.tape.batch.packing, pass.tape.batch.owners);
  keep(scored, pieces, pass, out);
  size_t sequence = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!finite[i] || parts[pieces[i].part].error)
      drop(parts[pieces[i].part], pieces[i], sequence, pass, out.dhidden);
    sequence += pieces[i].last - pieces[i].first;
  }
  decoder.backward(pass.tape, out.dhidden);
}

// Losses whose derivative needs the whole operation's log-probabilities: a forward first, then the
// loss.
void prepare_whole_losses(std::vector<Part>& parts, std::vector<Scored>& scored,
                          model::Decoder& decoder, int64_t budget) {
  for (size_t p = 0; p < parts.size(); ++p) {
    Scored& s = scored[p];
    if (parts[p].error || !s.loss || s.grad) continue;
    std::vector<Part> one{parts[p]};
    std::vector<Scored> plan{s};
    for (const auto& pieces : split(one, budget)) forward_pass(pieces, one, plan, decoder, false);
    s.inputs.logprobs = copy_of(plan[0].logprobs);
    const loss::Output out = loss::run(*s.loss, s.inputs, s.options);
    const float* values = out.grad.const_data_ptr<float>();
    s.grad = [kept = out.grad, values](int64_t begin, std::span<const float>,
                                       std::span<float> grad) {
      std::copy_n(values + begin, grad.size(), grad.begin());
    };
  }
}

std::vector<std::vector<float>> spread(const std::vector<Sequence>& sequences,
                                       const std::vector<float>& scored) {
  std::vector<std::vector<float>> out;
  size_t next = 0;
  for (const Sequence& s : sequences) {
    std::vector<float> row(s.input_ids.size(), 0.0f);
    for (size_t t = 0; t < s.labels.size(); ++t) {
      if (s.labels[t] != kIgnored) row[t] = scored[next++];
    }
    out.push_back(std::move(row));
  }
  return out;
}

void finish(Part& part, Scored& scored) {
  part.result.logps = spread(sequences_of(part), scored.logprobs);
  if (!scored.entropies.empty())
    part.result.entropies = spread(sequences_of(part), scored.entropies);
  part.result.num_tokens = static_cast<double>(scored.logprobs.size());
  for (const float logp : scored.logprobs) {
    require(std::isfinite(logp), Code::kInvalid, "engine: a log-probability of tenant '",
            part.tenant->name(), "' is ", logp, "; look at its weights");
  }
  if (!scored.loss) return;
  scored.inputs.logprobs = copy_of(scored.logprobs);
  const loss::Output out = loss::run(*scored.loss, scored.inputs, scored.options);
  require(loss::finite(out), Code::kInvalid, "engine: the loss of tenant '", part.tenant->name(),
          "' is ", out.loss,
          ": nothing was changed; look at its learning rate, its weights and its extras");
  part.result.loss = out.loss;
  part.result.num_tokens = out.num_tokens;
}

template <class F>
void guard(Part& part, F&& run) {
  if (part.error) return;
  try {
    run();
  } catch (const Error&) {
    part.error = std::current_exception();
  }
}

}  // namespace

int64_t num_tokens(const std::vector<Sequence>& sequences) {
  int64_t n = 0;
  for (const Sequence& s : sequences) n += static_cast<int64_t>(s.input_ids.size());
  return n;
}

void check_sequences(const std::vector<Sequence>& sequences, const model::DecoderSpec& spec) {
  require(!sequences.empty(), Code::kInvalid,
          "engine: the batch is empty; give at least one sequence");
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
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
    const auto sized = [&](size_t size, std::string_view what) {
      require(size == 0 || size == n, Code::kInvalid, "engine: sequence ", i, " has ", n,
              " tokens but ", size, " ", what);
    };
    sized(s.labels.size(), "labels");
    sized(s.weights.size(), "weights");
    for (const auto& [name, values] : s.extras) {
      require(values.size() == n, Code::kInvalid, "engine: sequence ", i, " has ", n,
              " tokens but ", values.size(), " values of '", name, "'");
    }
    for (size_t t = 0; t < s.labels.size(); ++t) {
      const int32_t label = s.labels[t];
      require(label == kIgnored || (label >= 0 && label < spec.vocab_size), Code::kInvalid,
              "engine: sequence ", i, ": label ", label, " at position ", t,
              " is outside the vocabulary of ", spec.vocab_size, " and is not -100");
    }
  }
}

void check_labels(const std::vector<Sequence>& sequences) {
  const auto scored = [](const Sequence& s) {
    return std::any_of(s.labels.begin(), s.labels.end(), [](int32_t l) { return l != kIgnored; });
  };
  require(
      std::any_of(sequences.begin(), sequences.end(), scored), Code::kInvalid,
      "engine: the batch has no label to learn from, all are -100 (ignored) or missing; look at "
      "the template, and at what max_length cuts off");
}

int64_t run_parts(std::vector<Part>& parts, model::Decoder& decoder, int64_t token_budget) {
  std::vector<Scored> scored(parts.size());
  std::vector<Tenant::Snapshot> before(parts.size());
  bool entropy = false, backward = false;
  for (size_t p = 0; p < parts.size(); ++p) {
    guard(parts[p], [&] { scored[p] = score_plan(parts[p]); });
    if (const auto* op = std::get_if<const Forward*>(&parts[p].operation))
      entropy = entropy || (*op)->entropy;
    else
      backward = true;
  }
  if (backward) {
    prepare_whole_losses(parts, scored, decoder, token_budget);
    for (size_t p = 0; p < parts.size(); ++p) before[p] = parts[p].tenant->snapshot();
  }
  // In reverse, so that two operations of one tenant go back to the state before the first.
  const auto restore = [&](bool all) {
    for (size_t p = parts.size(); backward && p-- > 0;) {
      if (all || parts[p].error) parts[p].tenant->restore(before[p]);
    }
  };
  int64_t passes = 0;
  try {
    for (const auto& pieces : split(parts, token_budget)) {
      ++passes;
      if (backward)
        backward_pass(pieces, parts, scored, decoder);
      else
        forward_pass(pieces, parts, scored, decoder, entropy);
    }
  } catch (...) {
    restore(true);
    throw;
  }
  for (size_t p = 0; p < parts.size(); ++p) guard(parts[p], [&] { finish(parts[p], scored[p]); });
  restore(false);
  for (const Part& part : parts) {
    if (backward && !part.error) part.tenant->count(part.result.num_tokens);
  }
  return passes;
}

}  // namespace twinkle::engine
