#include "twinkle/model/decoder.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/kernels/deterministic.h"
#include "twinkle/kernels/simd/team.h"
#include "twinkle/model/weights/weight_memory.h"

namespace twinkle::model {
namespace {

void go_on(const Batch& batch) {
  if (batch.stop && *batch.stop) throw Stopped();
}

constexpr const char* kEmbeddingName = "model.embed_tokens.weight";

// The pieces that Borders know: the head, which may be the embedding too, and the layers.
constexpr size_t kHeadPiece = 0;
size_t piece_of_layer(size_t index) { return index + 1; }

std::string layer_path(size_t index) { return "model.layers." + std::to_string(index) + "."; }

// True if the checkpoint has a head that is not a copy of the embedding in spite of
// tie_word_embeddings: transformers then ties nothing.
bool has_own_head(const WeightSource& source, const Layout& layout) {
  const std::string head = layout.name("lm_head.weight");
  return source.contains(head) && !source.equal(head, layout.name(kEmbeddingName));
}

constexpr const char* kValueWeight = "score.weight";

// A tensor that nobody asks for: a bias, say, or an expert too many. The model was trained with it,
// and a save would lose it. A head may be a copy of the embedding, or have a value head in its
// place.
void require_all_read(const Checkpoint& checkpoint, const DecoderSpec& spec,
                      const std::set<std::string>& read) {
  const std::string layers = spec.layout.name("model.layers") + ".",
                    head = spec.layout.name(std::string(kHead) + ".weight");
  for (const std::string& name : checkpoint.names()) {
    if (name == head || read.contains(name) || spec.layout.skips(name)) continue;
    const int64_t layer =
        name.starts_with(layers) ? std::strtoll(name.c_str() + layers.size(), nullptr, 10) : 0;
    const std::string what = "model: " + checkpoint.path().string() + " has tensor " + name;
    constexpr const char* kRemedy = "; they are not of one model: fetch both again";
    require(layer < spec.num_layers(), Code::kInvalid, what,
            ", config.json's num_hidden_layers is ", spec.num_layers(), kRemedy);
    fail(Code::kInvalid, what, ", which config.json does not ask for", kRemedy);
  }
}

}  // namespace

WeightSource weights_of(const DecoderSpec& spec, const Checkpoint& checkpoint,
                        at::ScalarType dtype) {
  std::vector<std::string> zeros;
  if (spec.value_head) zeros.emplace_back(kValueBias);  // transformers' classifiers have none
  if (spec.new_head) zeros.emplace_back(kValueWeight);
  return {checkpoint, dtype, std::move(zeros), spec.layout};
}

Decoder::Decoder(const DecoderSpec& spec, const Checkpoint& checkpoint, at::ScalarType dtype,
                 at::Device device, Borders& borders)
    : spec_(spec), dtype_(dtype), device_(device), borders_(borders) {
  keep_heap_pages();
  const WeightSource source = weights_of(spec, checkpoint, dtype);
  WeightMemory memory;  // on the host
  size_t piece = kHeadPiece;
  std::set<std::string> tensors;  // that were read
  const auto note = [&](const std::string& name, const std::vector<int64_t>& shape) {
    for (std::string& tensor : source.tensors_of(name, shape)) tensors.insert(std::move(tensor));
  };
  const auto read = [&](const std::string& name, const std::vector<int64_t>& shape) {
    note(name, shape);
    pieces_.push_back(piece);
    return borders.weight(source, {piece, name, shape}, device.is_cpu() ? &memory : nullptr)
        .to(device);
  };
  Parts parts(read, spec.layout, [&](const std::string& name, const std::vector<int64_t>& shape) {
    note(name, shape);
    kept_.push_back(name);
    return weights_of(spec, checkpoint, at::kFloat).read(name, shape).to(device);
  });
  const int64_t d = spec.hidden_size, v = spec.vocab_size;
  spec_.tied_head = spec.tied_head && !has_own_head(source, spec.layout);
  const bool is_head = spec_.tied_head && !spec.value_head;
  embedding_piece_ = is_head ? kHeadPiece : piece_of_layer(spec.layers.size());
  piece = embedding_piece_;
  parts.weight(kEmbeddingName, {v, d}, true, embedding_, embedding_grad_);
  for (const LayerSpec& layer : spec.layers) {
    piece = piece_of_layer(layers_.size());
    parts.path = layer_path(layers_.size());
    layers_.emplace_back(spec, layer, parts);
  }
  piece = kHeadPiece;
  parts.path.clear();
  parts.norm("model.norm", d, spec.norm, final_norm_);
  if (spec.value_head) {
    parts.weight(kValueWeight, {1, d}, true, head_.weight, head_.weight_grad);
    parts.weight(kValueBias, {1}, false, head_.bias, head_.bias_grad);
  } else if (spec_.tied_head) {
    head_.weight = embedding_;
    parts.linears.push_back({kHead, &head_});
  } else {
    parts.weight(std::string(kHead) + ".weight", {v, d}, true, head_.weight, head_.weight_grad);
    parts.linears.push_back({kHead, &head_});
  }
  if (!spec.value_head) head_.softcap = spec.softcap;
  embed_scale_ = at::scalar_tensor(spec.embed_scale, dtype).item<double>();
  weights_ = std::move(parts.weights);
  linears_ = std::move(parts.linears);
  borders.loaded(source);
  require_all_read(checkpoint, spec, tensors);
  // Rope's frequencies, which old checkpoints hold, follow from config.json.
  std::ranges::copy_if(source.names(), std::back_inserter(kept_), [&](const std::string& name) {
    return spec.layout.skips(name) && !name.ends_with(".rotary_emb.inv_freq");
  });
  make_ropes(std::min<int64_t>(spec.max_positions, 4096));
}

nn::RopeTable Decoder::rope_table(const nn::RopeSpec& spec, int64_t rows) const {
  const nn::RopeTable table = nn::make_rope_table(spec, spec.rotary_dim, rows);
  return {table.cos.to(device_), table.sin.to(device_), table.interleaved};
}

void Decoder::make_ropes(int64_t rows) {
  rope_ = rope_table(spec_.rope, rows);
  if (spec_.local_rope.rotary_dim > 0) local_rope_ = rope_table(spec_.local_rope, rows);
}

std::vector<StateSpec> Decoder::states() const {
  std::vector<StateSpec> out;
  for (const Layer& layer : layers_) out.push_back(layer.mixer->state());
  return out;
}

void Decoder::set_exact(bool exact) {
  std::vector<nn::Linear*> all{&head_};
  for (const NamedLinear& linear : linears_) {
    if (linear.linear != &head_) all.push_back(linear.linear);
  }
  for (nn::Linear* linear : all) {
    linear->exact = exact;
    if (!exact) continue;
    nn::row_plan(nn::Product::of(linear->weight, linear->bias));
    nn::row_plan(nn::Product::of(linear->weight.t(), {}));
  }
}

InUse Decoder::use_head(bool learns) const {
  const std::optional<size_t> last = layers_.size();  // its piece
  return {borders_, kHeadPiece, learns ? last : std::nullopt};
}

InUse Decoder::use_embedding() const { return {borders_, embedding_piece_, piece_of_layer(0)}; }

InUse Decoder::use_layer(size_t index, bool backward) const {
  const size_t piece = piece_of_layer(index);
  if (backward) return {borders_, piece, index > 0 ? std::optional(piece - 1) : std::nullopt};
  return {borders_, piece, index + 1 < layers_.size() ? piece + 1 : kHeadPiece};
}

void Decoder::walk_forward() {
  use_embedding();
  for (size_t i = 0; i < layers_.size(); ++i) use_layer(i, false);
}

void Decoder::walk_backward() {
  if (!embedding_is_head()) complete(kHeadPiece);
  for (size_t i = layers_.size(); i > 0; --i) {
    use_layer(i - 1, true);
    complete(piece_of_layer(i - 1));
  }
  complete(embedding_piece_);
}

bool Decoder::embedding_is_head() const { return embedding_piece_ == kHeadPiece; }

void Decoder::complete(size_t piece) const {
  if (completed_) completed_(piece);
}

bool Decoder::has_all() const {
  return std::ranges::all_of(pieces_, [&](size_t piece) { return borders_.has(piece); });
}

void Decoder::visit_weights(const std::function<void(const NamedWeight&)>& see) const {
  for (size_t i = 0; i < weights_.size();) {
    const size_t piece = pieces_[i];
    const InUse here(borders_, piece);
    for (; i < weights_.size() && pieces_[i] == piece; ++i) see(weights_[i]);
  }
}

at::Tensor Decoder::embed(const Batch& batch) const {
  const InUse here = use_embedding();
  at::Tensor x = embedding_.index_select(0, batch.input_ids);
  return embed_scale_ == 1 ? x : x.mul_(embed_scale_);
}

void Decoder::grow_rope(const Batch& batch) {
  // A model may allow a million positions; the table holds what has been asked for.
  if (!batch.rows.position_ids.is_cpu()) return;  // reserve_positions' business
  const int64_t needed = batch.rows.position_ids.max().item<int64_t>() + 1;
  reserve_positions(needed);
}

void Decoder::reserve_positions(int64_t needed) {
  if (needed <= rope_.num_rows()) return;
  const int64_t most = spec_.rope.num_rows(spec_.max_positions);
  require(needed <= most, Code::kInvalid, "model: position ",
          spec_.max_positions + needed - most - 1,
          " is beyond the model's max_position_embeddings, ", spec_.max_positions);
  make_ropes(std::min(most, 2 * needed));
}

// The host has looked at the batch by then.
void Decoder::to_device(Batch& batch) const {
  batch.input_ids = batch.input_ids.to(device_);
  batch.rows.position_ids = batch.rows.position_ids.to(device_, at::kLong);
}

Decoder::Residual Decoder::run_layer(size_t index, const at::Tensor& x, const at::Tensor& normed_x,
                                     const Batch& batch) {
  const Layer& layer = layers_[index];
  const Context context{.rows = batch.rows,
                        .rope = rope_,
                        .layer = index,
                        .kv = batch.kv,
                        .routing = batch.routing,
                        .local_rope = &local_rope_};
  at::Tensor mixed = layer.mixer->forward(normed_x, context);
  const auto post_normed = [&](const at::Tensor& y, const nn::RmsNorm& norm) {
    return norm.weight.defined() ? nn::rms_norm(y, norm, batch.rows) : y;
  };
  mixed = post_normed(mixed, layer.mixer_post_norm);
  layer.mlp->prefetch();
  const auto [middle, normed] = nn::add_rms_norm(x, mixed, layer.mlp_norm, batch.rows);
  const at::Tensor out = post_normed(layer.mlp->forward(normed, context), layer.mlp_post_norm);
  if (index + 1 < layers_.size()) {
    if (borders_.has(piece_of_layer(index + 1))) layers_[index + 1].mixer->prefetch();
  } else if (borders_.has(kHeadPiece)) {
    nn::prefetch(head_);
  }
  return {middle, out};
}

// The library's products would run on one thread of a team; those of kernels/linear share it.
bool Decoder::keeps_team() const { return device_.is_cpu() && dtype_ != at::kDouble; }

at::Tensor Decoder::forward(const Batch& from) {
  const at::NoGradGuard no_grad;
  grow_rope(from);
  std::optional<Batch> there;
  if (!device_.is_cpu()) to_device(there.emplace(from));
  const Batch& batch = there ? *there : from;
  at::Tensor x = embed(batch);
  const auto run = [&] {
    const auto norm_of = [&](size_t i) -> const nn::RmsNorm& {
      return i < layers_.size() ? layers_[i].mixer_norm : final_norm_;
    };
    at::Tensor normed = nn::rms_norm(x, norm_of(0), batch.rows);
    for (size_t i = 0; i < layers_.size(); ++i) {
      go_on(batch);
      const InUse here = use_layer(i, false);
      const auto [middle, out] = run_layer(i, x, normed, batch);
      auto next = nn::add_rms_norm(middle, out, norm_of(i + 1), batch.rows);
      x = std::move(next.sum), normed = std::move(next.normed);
    }
    x = normed;
  };
  if (keeps_team()) {
    kernels::with_team(run);
  } else {
    run();
  }
  return x;
}

at::Tensor Decoder::run_segment(size_t index, const at::Tensor& x, const Batch& batch) {
  const auto norm = [&](const nn::RmsNorm& n) { return nn::rms_norm(x, n, batch.rows); };
  if (index == layers_.size()) return norm(final_norm_);
  const auto [middle, out] = run_layer(index, x, norm(layers_[index].mixer_norm), batch);
  return middle + out;
}

int64_t Decoder::activation_bytes(const Batch& batch) const {
  int64_t bytes = input_bytes(batch) + backward_bytes(batch);
  for (size_t i = 0; i < layers_.size(); ++i) bytes += graph_bytes(i, batch);
  return bytes;
}

// One layer goes backward at a time.
int64_t Decoder::backward_bytes(const Batch& batch) const {
  int64_t most = 0;
  for (const Layer& layer : layers_)
    most = std::max(
        most, layer.mixer->backward_bytes(batch.rows) + layer.mlp->backward_bytes(batch.rows));
  return most;
}

int64_t Decoder::stream_bytes(const Batch& batch) const {
  return embedding_.size(1) * embedding_.element_size() * batch.rows.num_tokens();
}

int64_t Decoder::input_bytes(const Batch& batch) const {
  return (std::ssize(layers_) + 2) * stream_bytes(batch);  // and the last one's output
}

int64_t Decoder::graph_bytes(size_t index, const Batch& batch) const {
  const Layer& layer = layers_[index];
  const int64_t sums = spec_.sandwich ? 3 : 1;  // bytes of the second norm, and of those after it
  return sums * stream_bytes(batch) + layer.mixer->saved_bytes(batch.rows) +
         layer.mlp->saved_bytes(batch.rows);
}

// The last layers' graphs are kept: backward has freed them by the time it computes the others
// again, one at a time.
size_t Decoder::first_kept(const Batch& batch) const {
  if (activation_limit_ == 0) return 0;
  int64_t left = activation_limit_ - input_bytes(batch) - backward_bytes(batch);
  size_t first = layers_.size();
  while (first > 0 && (left -= graph_bytes(first - 1, batch)) >= 0) --first;
  return first;
}

at::Tensor Decoder::forward_train(Tape& tape) {
  grow_rope(tape.batch);
  if (!device_.is_cpu()) to_device(tape.batch);
  at::Tensor x = embed(tape.batch);
  tape.segments.clear();
  const size_t first = first_kept(tape.batch);
  const auto run = [&](size_t i) {
    const at::AutoGradMode grad(i >= first);
    const at::Tensor in = x.detach().requires_grad_(true);
    const at::Tensor out = run_segment(i, in, tape.batch);
    tape.segments.push_back({in, i >= first ? out : at::Tensor()});
    x = out.detach();
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    go_on(tape.batch);
    const InUse here = use_layer(i, false);
    run(i);
  }
  run(layers_.size());
  return x;
}

void Decoder::backward(Tape& tape, const at::Tensor& dhidden) {
  at::Tensor d = dhidden;
  const auto run = [&] {
    Tape::Segment segment = std::move(tape.segments.back());
    tape.segments.pop_back();
    if (!segment.out.defined()) {
      const at::AutoGradMode grad(true);
      segment.out = run_segment(tape.segments.size(), segment.in, tape.batch);
      ++num_recomputed_;
    }
    d = torch::autograd::grad({segment.out}, {segment.in}, {d})[0];
  };
  run();  // the final norm
  if (!embedding_is_head()) complete(kHeadPiece);
  while (!tape.segments.empty()) {
    go_on(tape.batch);
    const size_t layer = tape.segments.size() - 1;
    {
      const InUse here = use_layer(layer, true);
      run();
    }
    complete(piece_of_layer(layer));
  }
  if (embedding_grad_) add_embedding_grad(tape.batch, d);
  complete(embedding_piece_);
}

void Decoder::limit_activations(int64_t bytes) {
  require(bytes >= 0, Code::kInvalid, "model: activation_bytes is ", bytes,
          ", it must be at least 0, which means no limit");
  activation_limit_ = bytes;
}

void Decoder::add_embedding_grad(const Batch& batch, const at::Tensor& dx) {
  std::optional<kernels::Deterministic> in_order;
  if (!device_.is_cpu() && head_.exact) in_order.emplace();
  at::Tensor& sum = embedding_grad_->buffer(embedding_);
  for (int64_t s = 0; s < batch.rows.num_segments(); ++s) {
    if (!batch.rows.segments[static_cast<size_t>(s)].learn) continue;
    const int64_t begin = batch.rows.cu_seqlens[static_cast<size_t>(s)];
    const int64_t end = batch.rows.cu_seqlens[static_cast<size_t>(s) + 1];
    const bool scaled = embed_scale_ != 1;
    const at::Tensor slope =
        dx.slice(0, begin, end).to(sum.scalar_type(), /*non_blocking=*/false, /*copy=*/scaled);
    if (scaled) slope.mul_(embed_scale_);
    sum.index_add_(0, batch.input_ids.slice(0, begin, end), slope);
  }
}

nn::WeightGrad* Decoder::buffer() {
  buffers_.push_back(std::make_unique<nn::WeightGrad>());
  return buffers_.back().get();
}

void Decoder::train_all(Completed completed) {
  freeze();
  completed_ = std::move(completed);
  for (const NamedWeight& weight : weights_) *weight.grad = buffer();
  if (spec_.tied_head) head_.weight_grad = buffer();
}

void Decoder::freeze() {
  for (const NamedWeight& weight : weights_) *weight.grad = nullptr;
  head_.weight_grad = nullptr;
  buffers_.clear();
  completed_ = {};
}

std::vector<at::Tensor> Decoder::grads() {
  // buffers_ is in the order of weights(), the head's last. A tied weight's two parts are kept
  // apart until here: within one buffer their order would depend on how a batch was split.
  std::vector<at::Tensor> out;
  for (const auto& b : buffers_) out.push_back(b->sum);
  if (spec_.tied_head && !out.empty()) {
    const at::Tensor head = out.back();
    out.pop_back();
    if (head.defined()) out[0] = out[0].defined() ? out[0] + head : head;
  }
  return out;
}

at::Tensor Decoder::take_grad(size_t index) {
  at::Tensor out = std::move(buffers_.at(index)->sum);
  buffers_[index]->sum = at::Tensor();
  if (index > 0 || !spec_.tied_head) return out;
  const at::Tensor head = std::exchange(buffers_.back()->sum, at::Tensor());
  if (!out.defined()) return head;
  return head.defined() ? out.add_(head) : out;
}

void Decoder::zero_grads() {
  for (const auto& b : buffers_) b->sum = at::Tensor();
}

std::vector<at::Tensor> Decoder::buffers() const {
  std::vector<at::Tensor> out;
  for (const auto& b : buffers_) out.push_back(b->sum);
  return out;
}

void Decoder::set_buffers(const std::vector<at::Tensor>& sums) {
  require(sums.size() == buffers_.size(), Code::kInternal, "model: ", sums.size(),
          " gradient buffers for ", buffers_.size());
  for (size_t i = 0; i < sums.size(); ++i) buffers_[i]->sum = sums[i];
}

}  // namespace twinkle::model
