#include "twinkle/engine/training/batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "twinkle/base/error.h"
#include "twinkle/engine/training/split.h"
#include "twinkle/nn/head/head.h"
#include "twinkle/nn/head/pooling.h"

namespace twinkle::engine {

// The packed batch of a pass, and which scored rows are whose.
struct PackedBatch {
  model::Tape tape;
  nn::Targets targets;
  std::vector<int64_t> cu_targets{0};   // [pieces + 1]
  std::vector<size_t> cu_sequences{0};  // [pieces + 1]
  // Logits of a head of labels [pieces][sequences x labels], and d loss / d them.
  std::vector<std::vector<float>> label_logits, label_grads;

  bool has_rows() const { return tape.batch.rows.num_tokens() > 0; }  // false: other ranks have all
};

namespace {

void pack_rows(PackedBatch& pass, std::span<const OpSlice> pieces) {
  std::vector<int64_t> lengths, ids;
  std::vector<nn::Segment> segments;
  bool tempered = false;
  for (const OpSlice& piece : pieces) {
    const TrainingOp& op = *piece.op;
    const Forward* forward = op.forward();
    const auto temperature = static_cast<float>(op.temperature());
    tempered = tempered || op.temperature() != 1.0;
    for (size_t s = piece.first; s < piece.last; ++s) {
      const Example& sequence = op.sequences()[s];
      for (size_t t = 0; t < sequence.labels.size(); ++t) {
        if (sequence.labels[t] == kIgnored) continue;
        pass.targets.rows.push_back(
            static_cast<int64_t>(ids.size() + t / static_cast<size_t>(sequence.num_targets)));
        pass.targets.ids.push_back(sequence.labels[t]);
        pass.targets.temperature.push_back(temperature);
      }
      ids.insert(ids.end(), sequence.input_ids.begin(), sequence.input_ids.end());
      lengths.push_back(std::ssize(sequence.input_ids));
      const bool random = !forward || forward->train;
      segments.push_back(
          {.slot = forward && forward->disable_lora ? -1 : op.tenant().slot(),
           .key = random ? op.tenant().stream(static_cast<int64_t>(s), piece.later) : 0,
           .learn = piece.learns});
    }
    pass.cu_targets.push_back(std::ssize(pass.targets.rows));
    pass.cu_sequences.push_back(lengths.size());
  }
  if (!tempered) pass.targets.temperature.clear();
  if (lengths.empty()) return;
  pass.tape.batch.rows = nn::pack(lengths);
  pass.tape.batch.rows.segments = std::move(segments);
  pass.tape.batch.input_ids = at::empty({std::ssize(ids)}, at::kLong);
  std::copy(ids.begin(), ids.end(), pass.tape.batch.input_ids.mutable_data_ptr<int64_t>());
}

// f(piece, index in its operation, number in the pass) of all sequences.
template <class F>
void for_sequences(std::span<const OpSlice> pieces, const F& f) {
  size_t number = 0;
  for (const OpSlice& piece : pieces) {
    for (size_t s = piece.first; s < piece.last; ++s) f(piece, s, number++);
  }
}

// [T, k] of each routed layer, -1 where the router chooses.
std::map<size_t, at::Tensor> given_routes(std::span<const OpSlice> pieces, const nn::Rows& rows,
                                          const model::DecoderSpec& spec) {
  std::map<size_t, at::Tensor> out;
  const std::vector<size_t> layers = spec.routed_layers();
  std::vector<int32_t*> to;
  const int64_t k = spec.layers[layers.front()].experts()->route.top_k;
  for (const size_t layer : layers) {
    out[layer] = at::full({rows.num_tokens(), k}, -1, at::kInt);
    to.push_back(out[layer].mutable_data_ptr<int32_t>());
  }
  for_sequences(pieces, [&](const OpSlice& piece, size_t s, size_t number) {
    const std::vector<int32_t>& ids = piece.op->sequences()[s].routed_experts;
    const int32_t *from = ids.data(), *const end = from + ids.size();
    for (int64_t row = rows.cu_seqlens[number]; from < end; ++row) {
      for (int32_t* const of_layer : to) {
        std::copy_n(from, k, of_layer + row * k);
        std::sort(of_layer + row * k, of_layer + (row + 1) * k);
        from += k;
      }
    }
  });
  return out;
}

// The pass's orders to its routers, and their answers; null: none.
std::shared_ptr<nn::Routing> routing_of(std::span<const OpSlice> pieces, const nn::Rows& rows,
                                        const model::DecoderSpec& spec) {
  bool balanced = false, given = false, asked = false;
  std::vector<double> coefficients;
  for_sequences(pieces, [&](const OpSlice& piece, size_t s, size_t) {
    const TrainingOp& op = *piece.op;
    balanced = balanced || op.wants_aux_loss();
    given = given || !op.sequences()[s].routed_experts.empty();
    asked = asked || op.wants_routes();
    coefficients.push_back(piece.learns ? op.aux_coefficient(s) : 0);
  });
  if (!balanced && !given && !asked) return nullptr;
  auto out = std::make_shared<nn::Routing>();
  if (balanced) out->balance.emplace(rows.cu_seqlens, std::move(coefficients));
  if (given) out->given = given_routes(pieces, rows, spec);
  out->keeps = asked;
  return out;
}

// The rows of rope's table that go with each sequence's length.
void choose_rope(nn::Rows& rows, const nn::RopeSpec& rope) {
  auto* position = rows.position_ids.mutable_data_ptr<int64_t>();
  for (size_t s = 0; s < rows.segments.size(); ++s) {
    const int64_t begin = rows.cu_seqlens[s], end = rows.cu_seqlens[s + 1];
    const int64_t first = rope.first_row(end - begin);
    for (int64_t row = begin; first > 0 && row < end; ++row) position[row] += first;
  }
}

void pack_pass(PackedBatch& pass, std::span<const OpSlice> pieces, const model::Decoder& decoder) {
  pack_rows(pass, pieces);
  if (!pass.has_rows()) return;
  choose_rope(pass.tape.batch.rows, decoder.spec().rope);
  pass.tape.batch.routing = routing_of(pieces, pass.tape.batch.rows, decoder.spec());
}

// Where the tokens of a sequence went.
std::vector<int32_t> routes_of(const PackedBatch& pass, size_t sequence) {
  const auto& cu = pass.tape.batch.rows.cu_seqlens;
  std::vector<int32_t> out;
  for (int64_t row = cu[sequence]; row < cu[sequence + 1]; ++row)
    pass.tape.batch.routing->add_row(row, out);
  return out;
}

nn::LogitsOf logits_of(const PackedBatch& pass, size_t sequence, const TrainingOp& op) {
  return {static_cast<float>(op.temperature()), pass.tape.batch.rows.segments[sequence]};
}

// The values of `of_sequence` for each sequence of a piece.
template <class F>
auto of_sequences(const PackedBatch& pass, size_t piece, const F& of_sequence) {
  std::vector<decltype(of_sequence(size_t{0}))> out;
  for (size_t s = pass.cu_sequences[piece]; s < pass.cu_sequences[piece + 1]; ++s)
    out.push_back(of_sequence(s));
  return out;
}

std::vector<float> embedding_of(const at::Tensor& hidden, int64_t last) {
  const at::Tensor pooled = nn::pool_last(hidden, {last}).to(at::kFloat);
  return {pooled.const_data_ptr<float>(), pooled.const_data_ptr<float>() + pooled.numel()};
}

// The rows of the last tokens of a piece's sequences.
std::vector<int64_t> last_rows(const PackedBatch& pass, size_t piece) {
  const auto& cu = pass.tape.batch.rows.cu_seqlens;
  return of_sequences(pass, piece, [&](size_t s) { return cu[s + 1] - 1; });
}

void run_label_heads(std::span<const OpSlice> pieces, PackedBatch& pass, const at::Tensor& hidden) {
  pass.label_logits.assign(pieces.size(), {});
  pass.label_grads.assign(pieces.size(), {});
  for (size_t i = 0; pass.has_rows() && i < pieces.size(); ++i) {
    const TrainingOp& op = *pieces[i].op;
    if (op.num_labels() == 0) continue;
    pass.label_logits[i] =
        lora::label_logits(op.tenant().adapter().label_head(), hidden, last_rows(pass, i));
  }
}

// The outcome of each piece. Borrows from `out` and the pass.
std::vector<PieceOutputs> outputs_of(std::span<const OpSlice> pieces, const PackedBatch& pass,
                                     const at::Tensor& hidden, const nn::Linear& head,
                                     const nn::HeadOutput& out) {
  std::vector<PieceOutputs> all(pieces.size());
  const auto& cu = pass.tape.batch.rows.cu_seqlens;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TrainingOp& op = *pieces[i].op;
    const auto begin = static_cast<size_t>(pass.cu_targets[i]),
               n = static_cast<size_t>(pass.cu_targets[i + 1]) - begin;
    TrainingOp::Outputs& part = all[i].outputs;
    part.logprobs = std::span(out.logprobs).subspan(begin, n);
    if (op.num_labels() > 0) part.logprobs = pass.label_logits[i];
    if (op.wants_entropy()) part.entropies = std::span(out.entropies).subspan(begin, n);
    if (op.wants_logits())
      part.logits = of_sequences(pass, i, [&](size_t s) {
        const at::Tensor rows = hidden.slice(0, cu[s], cu[s + 1]);
        std::vector<float> logits(static_cast<size_t>(rows.size(0) * head.weight.size(0)));
        nn::head_logits(rows, head, logits_of(pass, s, op), logits);
        return logits;
      });
    if (op.wants_embedding())
      part.embeddings =
          of_sequences(pass, i, [&](size_t s) { return embedding_of(hidden, cu[s + 1] - 1); });
    if (op.wants_aux_loss())
      part.aux_losses = of_sequences(pass, i, [&](size_t s) {
        return static_cast<float>(pass.tape.batch.routing->balance->loss(s));
      });
    if (op.wants_routes())
      part.routed_experts = of_sequences(pass, i, [&](size_t s) { return routes_of(pass, s); });
  }
  return all;
}

Split::Widths widths_of(const model::Decoder& decoder) {
  const nn::Linear& head = decoder.head();
  const std::vector<size_t> routed = decoder.spec().routed_layers();
  const int64_t k =
      routed.empty() ? 0 : decoder.spec().layers[routed.front()].experts()->route.top_k;
  return {.embedding = head.weight.size(1),
          .vocabulary = head.weight.size(0),
          .routes = std::ssize(routed) * k};
}

// d loss / d embedding of the sequences that have one goes into their last rows.
void add_embedding_grads(std::span<const OpSlice> pieces, const PackedBatch& pass,
                         const at::Tensor& hidden, at::Tensor& dhidden) {
  std::vector<int64_t> last;
  std::vector<float> grads;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t s = 0; s < pieces[i].last - pieces[i].first; ++s) {
      const auto& grad = pieces[i].op->sequences()[pieces[i].first + s].embedding_grad;
      if (grad.empty()) continue;
      last.push_back(pass.tape.batch.rows.cu_seqlens[pass.cu_sequences[i] + s + 1] - 1);
      grads.insert(grads.end(), grad.begin(), grad.end());
    }
  }
  if (last.empty()) return;
  const at::Tensor given =
      at::from_blob(grads.data(), {std::ssize(last), hidden.size(1)}, at::kFloat).to(at::kDouble);
  nn::add_pool_last_grad(dhidden, hidden, last, given);
}

// d loss / d logits of labels goes into the sequences' last rows. The heads' weights learn when it
// is known that all of it is finite.
void derive_labels(std::span<const OpSlice> pieces, PackedBatch& pass, at::Tensor& dhidden,
                   std::vector<char>& finite) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TrainingOp& op = *pieces[i].op;
    if (op.num_labels() == 0 || op.error) continue;
    std::vector<float>& grads = pass.label_grads[i];
    grads.resize(pass.label_logits[i].size());
    op.derive(pieces[i].first, 0, pass.label_logits[i], grads);
    const auto is_finite = [](float x) { return std::isfinite(x); };
    if (!std::ranges::all_of(pass.label_logits[i], is_finite) ||
        !std::ranges::all_of(grads, is_finite))
      finite[i] = 0;
    lora::add_label_grads(op.tenant().adapter().label_head(), last_rows(pass, i), grads, dhidden);
  }
}

void add_label_weight_grads(const TrainingOp& op, const PackedBatch& pass, size_t piece,
                            const at::Tensor& hidden, lora::Pool& pool) {
  const auto labels = static_cast<size_t>(op.num_labels());
  std::span<const float> grads = pass.label_grads[piece];
  for (size_t s = pass.cu_sequences[piece]; labels > 0 && s < pass.cu_sequences[piece + 1]; ++s) {
    lora::Adapter& adapter = pool.at(pass.tape.batch.rows.segments[s].slot);
    const size_t number = adapter.label_parameter();
    adapter.make_grads({&number, 1});
    lora::add_weight_grad(adapter.label_head(), hidden, pass.tape.batch.rows.cu_seqlens[s + 1] - 1,
                          grads.first(labels));
    grads = grads.subspan(labels);
  }
}

bool any_wants_entropy(std::span<const OpSlice> pieces) {
  return std::any_of(pieces.begin(), pieces.end(),
                     [](const OpSlice& p) { return p.op->wants_entropy(); });
}

// d loss / d entropy of all scored rows; empty: 0.
std::vector<float> entropy_grads(std::span<const OpSlice> pieces, const PackedBatch& pass) {
  if (!any_wants_entropy(pieces)) return {};
  std::vector<float> out(pass.targets.rows.size(), 0.0f);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto of_piece = pieces[i].op->entropy_grad(pieces[i].first, pieces[i].last);
    std::copy(of_piece.begin(), of_piece.end(), out.begin() + pass.cu_targets[i]);
  }
  return out;
}

// d loss / d logits of the sequences that have one goes through the head.
void add_logits_grads(std::span<const OpSlice> pieces, const PackedBatch& pass,
                      const at::Tensor& hidden, const nn::Linear& head, at::Tensor& dhidden) {
  const auto& cu = pass.tape.batch.rows.cu_seqlens;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TrainingOp& op = *pieces[i].op;
    for (size_t s = 0; s < pieces[i].last - pieces[i].first; ++s) {
      const std::vector<float>& grad = op.sequences()[pieces[i].first + s].logits_grad;
      const size_t at = pass.cu_sequences[i] + s;
      if (grad.empty()) continue;
      nn::head_logits_backward(hidden.slice(0, cu[at], cu[at + 1]), head, logits_of(pass, at, op),
                               grad, dhidden.slice(0, cu[at], cu[at + 1]));
    }
  }
}

// The derivatives of all pieces' losses, and whether they are `finite`, one for each piece.
nn::HeadOutput run_head(std::span<const OpSlice> pieces, const PackedBatch& pass,
                        const at::Tensor& hidden, const nn::Linear& head,
                        std::vector<char>& finite) {
  const auto grad = [&](int64_t begin, std::span<const float> logprobs, std::span<float> out) {
    // A chunk of the head may span pieces: each asks its own loss for its own rows.
    const int64_t end = begin + std::ssize(logprobs);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t lo = std::max(begin, pass.cu_targets[i]),
                    hi = std::min(end, pass.cu_targets[i + 1]);
      if (lo >= hi) continue;
      const auto from = static_cast<size_t>(lo - begin), n = static_cast<size_t>(hi - lo);
      if (pieces[i].op->error) {
        std::ranges::fill(out.subspan(from, n), 0.0f);
        continue;
      }
      pieces[i].op->derive(pieces[i].first, lo - pass.cu_targets[i], logprobs.subspan(from, n),
                           out.subspan(from, n));
      for (size_t k = from; k < from + n; ++k) {
        if (!std::isfinite(logprobs[k]) || !std::isfinite(out[k])) finite[i] = 0;
      }
    }
  };
  const std::vector<float> of_entropies = entropy_grads(pieces, pass);
  nn::HeadOutput out = nn::head_backward(hidden, head, pass.targets, grad, pass.tape.batch.rows,
                                         {.entropy_grad = of_entropies});
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto of_piece = pieces[i].op->entropy_grad(pieces[i].first, pieces[i].last);
    if (!std::ranges::all_of(of_piece, [](float g) { return std::isfinite(g); })) finite[i] = 0;
  }
  return out;
}

// Log-probabilities, and entropies if they are wanted, of this rank's rows of a piece.
Split::Scores scores_of(const PackedBatch& pass, size_t piece, const TrainingOp& op,
                        const at::Tensor& hidden, const nn::Linear& head) {
  if (op.num_labels() > 0) return {pass.label_logits[piece], {}};
  if (pass.cu_targets[piece] == pass.cu_targets[piece + 1]) return {};
  const auto part = [&](const auto& all) {
    if (all.empty()) return all;
    return std::decay_t<decltype(all)>(all.begin() + pass.cu_targets[piece],
                                       all.begin() + pass.cu_targets[piece + 1]);
  };
  nn::HeadOutput out = nn::head_forward(hidden, head,
                                        {.rows = part(pass.targets.rows),
                                         .ids = part(pass.targets.ids),
                                         .temperature = part(pass.targets.temperature)},
                                        pass.tape.batch.rows, {.entropy = op.wants_entropy()});
  return {std::move(out.logprobs), std::move(out.entropies)};
}

// The work of a pass: pieces, and of each the sequences that are this rank's.
struct Pieces {
  Pieces(std::span<OpSlice> pieces, const PassContext& with)
      : all(pieces), cut(with.split.cut(pieces)), mine(with.split.mine(cut)), with(with) {}

  std::span<OpSlice> all;
  Split::Cut cut;
  std::vector<OpSlice> mine;
  const PassContext& with;
};

// The derivatives of losses that need all of an operation's log-probabilities, of operations that
// are here as a whole: their rows are scored twice, but by one pass of the decoder.
void prepare_whole(const Pieces& of, const PackedBatch& pass, const at::Tensor& hidden) {
  for (size_t i = 0; i < of.all.size(); ++i) {
    TrainingOp& op = *of.all[i].op;
    if (op.derives()) continue;
    const Split::Scores scores =
        of.with.split.gather(i, of.cut, scores_of(pass, i, op, hidden, of.with.decoder.head()));
    try {
      op.prepare(scores.logprobs, scores.entropies);
    } catch (const Error&) {
      op.error = std::current_exception();
    }
  }
}

// The sequences of piece `i` learn nothing.
void mute(PackedBatch& pass, size_t i, at::Tensor& dhidden) {
  const size_t first = pass.cu_sequences[i], last = pass.cu_sequences[i + 1];
  for (size_t s = first; s < last; ++s) pass.tape.batch.rows.segments[s].learn.end();
  const auto& cu = pass.tape.batch.rows.cu_seqlens;
  dhidden.slice(0, cu[first], cu[last]).zero_();
}

// The operations that have failed, and those that are to run again after them.
void end_pieces(std::span<OpSlice> pieces, const std::vector<bool>& finite) {
  std::set<const Tenant*> failed;
  for (size_t i = 0; i < pieces.size(); ++i) {
    TrainingOp& op = *pieces[i].op;
    if (!finite[i]) op.error = not_finite(op.tenant());
    pieces[i].again = failed.contains(&op.tenant());
    if (!pieces[i].again && !op.error && op.complete()) {
      try {
        op.finish();
      } catch (const Error&) {
        op.error = std::current_exception();
      }
    }
    if (op.error || pieces[i].again) failed.insert(&op.tenant());
  }
}

// The part after the decoder's forward: the pieces' operations keep their rows. Returns d loss / d
// hidden, for the decoder's backward; undefined where this rank has no rows.
at::Tensor learn(Pieces& of, PackedBatch& pass, const at::Tensor& hidden) {
  const model::InUse here = of.with.decoder.use_head(true);
  const nn::Linear& head = of.with.decoder.head();
  for (const OpSlice& piece : of.all) {
    if (piece.later == 0) piece.op->mark();  // now: a head adds its gradients at once
  }
  run_label_heads(of.mine, pass, hidden);
  prepare_whole(of, pass, hidden);
  nn::HeadOutput out;
  std::vector<char> finite(of.all.size(), 1);
  if (pass.has_rows()) {
    out = run_head(of.mine, pass, hidden, head, finite);
    add_embedding_grads(of.mine, pass, hidden, out.dhidden);
    add_logits_grads(of.mine, pass, hidden, head, out.dhidden);
    derive_labels(of.mine, pass, out.dhidden, finite);
  }
  std::vector<PieceOutputs> outputs = outputs_of(of.mine, pass, hidden, head, out);
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].finite = finite[i] != 0;
  end_pieces(of.all, of.with.split.append(of.cut, std::move(outputs), widths_of(of.with.decoder)));
  if (!pass.has_rows()) return {};
  for (size_t i = 0; i < of.all.size(); ++i) {
    if (of.all[i].op->error || of.all[i].again)
      mute(pass, i, out.dhidden);
    else
      add_label_weight_grads(*of.all[i].op, pass, i, hidden, of.with.pool);
  }
  return out.dhidden;
}

// The hidden states' rows, which the pieces' operations keep.
void score(const Pieces& of, PackedBatch& pass, const at::Tensor& hidden) {
  const at::NoGradGuard no_grad;
  const model::InUse here = of.with.decoder.use_head();
  const nn::Linear& head = of.with.decoder.head();
  nn::HeadOutput out;
  run_label_heads(of.mine, pass, hidden);
  if (pass.has_rows())
    out = nn::head_forward(hidden, head, pass.targets, pass.tape.batch.rows,
                           {.entropy = any_wants_entropy(of.mine)});
  of.with.split.append(of.cut, outputs_of(of.mine, pass, hidden, head, out),
                       widths_of(of.with.decoder));
}

}  // namespace

std::exception_ptr not_finite(const Tenant& tenant) noexcept {
  try {
    fail(Code::kInvalid, "engine: the log-probabilities or the gradient of tenant '", tenant.name(),
         "' are not finite (NaN or infinity): nothing was changed; look at its learning rate, its "
         "weights and its extras");
  } catch (...) {
    return std::current_exception();
  }
}

void forward_pass(std::span<OpSlice> pieces, const PassContext& with, const Stop& stop) {
  const Pieces of(pieces, with);
  PackedBatch pass;
  pass.tape.batch.stop = &stop;
  pack_pass(pass, of.mine, with.decoder);
  at::Tensor hidden;
  if (pass.has_rows())
    hidden = with.decoder.forward(pass.tape.batch);
  else
    with.decoder.walk_forward();
  score(of, pass, hidden);
}

void backward_pass(std::span<OpSlice> pieces, const PassContext& with, const Stop& stop) {
  Pieces of(pieces, with);
  PackedBatch pass;
  pass.tape.batch.stop = &stop;
  pack_pass(pass, of.mine, with.decoder);
  const Partials partials(with.split, with.pool, with.decoder.dtype(), pass.tape.batch.rows);
  at::Tensor hidden;
  if (pass.has_rows())
    hidden = with.graphs.forward(pass.tape);
  else
    with.decoder.walk_forward();
  const at::NoGradGuard no_grad;
  const at::Tensor dhidden = learn(of, pass, hidden);
  if (pass.has_rows())
    with.graphs.backward(pass.tape, dhidden);
  else
    with.decoder.walk_backward();
  partials.add(pieces, of.cut);
}

KeptPass keep_pass(OpSlice& piece, const PassContext& with, const Stop& stop) {
  OpSlice learning = piece;
  learning.learns = true;
  auto pass = std::make_shared<PackedBatch>();
  pass->tape.batch.stop = &stop;
  pack_pass(*pass, {&learning, 1}, with.decoder);
  const int64_t bytes = with.decoder.activation_bytes(pass->tape.batch);
  score({{&piece, 1}, with}, *pass, with.decoder.forward_train(pass->tape));
  return {piece.first, piece.last, bytes, std::move(pass)};
}

void backward_kept(TrainingOp& op, const KeptPass& kept, const PassContext& with,
                   const Stop& stop) {
  OpSlice piece{&op, kept.first, kept.last, true};
  PackedBatch& pass = *kept.packed;
  pass.tape.batch.stop = &stop;
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = pass.tape.segments.back().out.detach();
  Pieces of({&piece, 1}, with);
  with.decoder.backward(pass.tape, learn(of, pass, hidden));
}

}  // namespace twinkle::engine
