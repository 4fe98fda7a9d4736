// Everything that the engine does is one of these values: what a script, the server or a journal
// submits. An operation that fails changes nothing. Errors of all: kInvalid, an empty tenant;
// kNotFound, but of Create, no tenant of this name. They hold no tensors and no pointers, and turn
// into bytes and back (to_bytes, from_bytes), as results do, so that they can be stored, sent and
// replayed. A new field gets the next tag of its struct; bytes that were written before then have
// its default.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fields.h"
#include "twinkle/sampler/params.h"

namespace twinkle::engine {

// One sequence of a forward. Vectors have one entry per token, where nothing else is said; labels
// and weights have num_targets.
struct Example {
  std::vector<int32_t> input_ids;  // 0 <= id < vocabulary
  std::vector<int32_t> labels;  // already shifted: labels[t] is the token after t; -100 = ignored.
                                // Empty: nothing is scored (a plain forward)
  std::vector<float> weights;   // weight of each label in the loss; empty: 1
  std::map<std::string, std::vector<float>>
      extras;                         // inputs that the loss asks for: old_logps, advantages, ...
  std::vector<float> embedding_grad;  // [width] d loss / d embedding, for a LinearLoss; empty: 0
  // [tokens x vocabulary] d loss / d logits, as a Forward gives them, for a LinearLoss. All
  // sequences of an operation have it, and then no labels, or none has it.
  std::vector<float> logits_grad;
  // Labels of each token, a token's one after the other; more than 1 for a loss of many_targets, or
  // for a Forward without one. The sequence has no extras then.
  int32_t num_targets = 1;
  // [tokens x layers with routed experts x k] the experts that tokens go to, each once, in place of
  // those that the router chooses: a sampler's, say. k times -1: the router chooses. Empty: always.
  std::vector<int32_t> routed_experts;

  bool operator==(const Example&) const = default;
  static constexpr auto fields() {
    return std::tuple{field(1, "input_ids", &Example::input_ids),
                      field(2, "labels", &Example::labels),
                      field(3, "weights", &Example::weights),
                      field(4, "extras", &Example::extras),
                      field(5, "embedding_grad", &Example::embedding_grad),
                      field(6, "logits_grad", &Example::logits_grad),
                      field(7, "num_targets", &Example::num_targets),
                      field(8, "routed_experts", &Example::routed_experts)};
  }
};

// Creates a tenant: its adapter, or, with an empty `lora_json`, the right to train every
// weight of the base model (alone on the engine), or, with `frozen`, the base model as it is.
// Error kConflict: the name is taken, or a tenant trains or would share the base model's weights;
// kInvalid: a LoRA option or target that the model does not have, a damaged directory, a weight out
// of its range; kNotFound: no such directory.
struct Create {
  std::string tenant;
  std::string lora_json;  // PEFT's adapter_config.json as text: r, lora_alpha, target_modules,
                          // lora_dropout, use_rslora
  std::string directory;  // non-empty: read adapter and config from this PEFT directory instead
  uint64_t seed = 0;      // for the initial weights and for dropout
  bool frozen = false;
  double weight = 1.0;  // its share of every training batch, and of the sequences that are sampled,
                        // among tenants of its priority; 0.001 to 1000
  int32_t priority = 0;  // higher first: lower ones get what is left over

  bool operator==(const Create&) const = default;
  static constexpr std::string_view kName = "create";
  static constexpr auto fields() {
    return std::tuple{
        field(1, "tenant", &Create::tenant),       field(2, "lora_json", &Create::lora_json),
        field(3, "directory", &Create::directory), field(4, "seed", &Create::seed),
        field(5, "frozen", &Create::frozen),       field(6, "weight", &Create::weight),
        field(7, "priority", &Create::priority)};
  }
};

// Forgets the tenant after its earlier operations; what it samples goes on. The base model's
// weights are read again from their files when it trained them: errors of a Load then.
struct Delete {
  std::string tenant;

  bool operator==(const Delete&) const = default;
  static constexpr std::string_view kName = "delete";
  static constexpr auto fields() { return std::tuple{field(1, "tenant", &Delete::tenant)}; }
};

// Limit of all logits that one operation may ask for.
inline constexpr int64_t kMaxLogitBytes = int64_t{1} << 30;

// log p(label) of every token, in nats, and a loss of them, without touching any state. Error
// kInvalid: an empty batch, a token or label outside the vocabulary, labels of a loss that are
// their own tokens (execute/own_tokens.h), a sequence beyond the model's positions, more logits
// than kMaxLogitBytes; what the loss refuses, a loss that is not finite; disable_lora of a tenant
// that trains all weights.
struct Forward {
  std::string tenant;
  std::vector<Example> sequences;
  bool disable_lora = false;  // score with the base model
  double temperature = 1.0;   // logits are divided by it; > 0
  bool entropy = false;       // also return the entropy of every scored token
  bool train = false;         // with the dropout of the tenant's next ForwardBackward
  bool logits = false;        // also return the logits of every token
  bool embedding = false;     // also return every sequence's embedding
  std::string loss;  // the loss whose value to return, as a ForwardBackward does; empty: none
  std::string loss_options;     // JSON object as text; empty: defaults
  bool routed_experts = false;  // also return where routers sent every token

  bool operator==(const Forward&) const = default;
  static constexpr std::string_view kName = "forward";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &Forward::tenant),
                      field(2, "sequences", &Forward::sequences),
                      field(3, "disable_lora", &Forward::disable_lora),
                      field(4, "temperature", &Forward::temperature),
                      field(5, "entropy", &Forward::entropy),
                      field(6, "train", &Forward::train),
                      field(7, "logits", &Forward::logits),
                      field(8, "embedding", &Forward::embedding),
                      field(9, "loss", &Forward::loss),
                      field(10, "loss_options", &Forward::loss_options),
                      field(11, "routed_experts", &Forward::routed_experts)};
  }
};

// Adds the loss's gradient to the tenant's accumulated gradients and its token count to the
// tenant's. Errors as of Forward; kInvalid: what the loss refuses, a loss or a gradient that is not
// finite; kConflict: what is accumulated has been clipped. It then stays as it was.
struct ForwardBackward {
  std::string tenant;
  std::vector<Example> sequences;
  std::string loss = "CrossEntropyLoss";
  std::string loss_options;  // JSON object as text; empty: defaults
  double temperature = 1.0;  // logits are divided by it; > 0
  bool logits = false;       // also return the logits of every token
  // For a model with routed experts: this times their auxiliary loss (nn/experts/balance.h), each
  // sequence's alone and their mean by tokens, is added to the loss for each token that a step
  // divides by. The loss's own value is told without it. At least 0; 0: none.
  double router_aux_loss_coef = 0;

  bool operator==(const ForwardBackward&) const = default;
  static constexpr std::string_view kName = "forward_backward";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &ForwardBackward::tenant),
                      field(2, "sequences", &ForwardBackward::sequences),
                      field(3, "loss", &ForwardBackward::loss),
                      field(4, "loss_options", &ForwardBackward::loss_options),
                      field(5, "temperature", &ForwardBackward::temperature),
                      field(6, "logits", &ForwardBackward::logits),
                      field(7, "router_aux_loss_coef", &ForwardBackward::router_aux_loss_coef)};
  }
};

// Divides the accumulated gradients by the accumulated token count, unless told not to, clips them,
// takes one optimizer step, zeroes them. Weights may become so large (beyond 1e18) that no forward
// pass is finite; a Save then refuses them, unless it is as_is. Error kConflict: nothing was
// accumulated, unless that is told to be gradients of 0, or, undivided, a ClipGradNorm has divided
// it; kInvalid: bad options, a step that would leave NaN or infinity, a frozen tenant.
struct Step {
  std::string tenant;
  std::string optimizer = "AdamW";
  std::string options;  // JSON object as text: lr, weight_decay, betas, eps, ...; empty: defaults
  double max_grad_norm = 0.0;  // 0 and infinity: no clipping
  double norm_type = 2.0;
  bool divide = true;  // false: gradients as they were summed, of which losses make their own means
  bool none_is_zero = false;  // true: without accumulated gradients it is a step by gradients of 0

  bool operator==(const Step&) const = default;
  static constexpr std::string_view kName = "step";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &Step::tenant),
                      field(2, "optimizer", &Step::optimizer),
                      field(3, "options", &Step::options),
                      field(4, "max_grad_norm", &Step::max_grad_norm),
                      field(5, "norm_type", &Step::norm_type),
                      field(6, "divide", &Step::divide),
                      field(7, "none_is_zero", &Step::none_is_zero)};
  }
};

// Norm of (accumulated gradients / token count), clipped in place unless max_grad_norm is 0 or
// infinite. A Step takes them as they are, and no more are added before it. Errors as of Step.
struct ClipGradNorm {
  std::string tenant;
  double max_grad_norm = 1.0;
  double norm_type = 2.0;

  bool operator==(const ClipGradNorm&) const = default;
  static constexpr std::string_view kName = "clip_grad_norm";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &ClipGradNorm::tenant),
                      field(2, "max_grad_norm", &ClipGradNorm::max_grad_norm),
                      field(3, "norm_type", &ClipGradNorm::norm_type)};
  }
};

// Forgets the accumulated gradients and their token count, if there are any.
struct ZeroGrad {
  std::string tenant;

  bool operator==(const ZeroGrad&) const = default;
  static constexpr std::string_view kName = "zero_grad";
  static constexpr auto fields() { return std::tuple{field(1, "tenant", &ZeroGrad::tenant)}; }
};

using sampler::SamplingParams;

// Continues prompts. Error kInvalid: no prompt, an empty one, a token outside the vocabulary,
// parameters outside their ranges or of another number than 1 or the prompts', more tokens than the
// model's positions or the cache hold; kNotFound: no such version.
struct Sample {
  std::string tenant;
  std::vector<std::vector<int32_t>> prompts;  // each of at least one token, 0 <= id < vocabulary
  std::vector<SamplingParams> params;         // one for all prompts, or one each
  int64_t version = 0;    // version of the weights: a published one; 0: as they are at the Sample's
                          // place in the tenant's order. Training goes on meanwhile
  std::string tokenizer;  // in whose text stop strings are found, as the engine's Decoders knows it

  bool operator==(const Sample&) const = default;
  static constexpr std::string_view kName = "sample";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &Sample::tenant), field(2, "prompts", &Sample::prompts),
                      field(3, "params", &Sample::params), field(4, "version", &Sample::version),
                      field(5, "tokenizer", &Sample::tokenizer)};
  }
};

// Keeps the weights of an adapter as they are at its place in the tenant's order, for Samples that
// name their number. Costs nothing before the weights change, then a copy of them. Error kInvalid:
// a tenant without an adapter.
struct Publish {
  std::string tenant;

  bool operator==(const Publish&) const = default;
  static constexpr std::string_view kName = "publish";
  static constexpr auto fields() { return std::tuple{field(1, "tenant", &Publish::tenant)}; }
};

// Lets a published version go. Samples that have begun with it keep it to their end. Error
// kNotFound: no such version.
struct Release {
  std::string tenant;
  int64_t version = 0;

  bool operator==(const Release&) const = default;
  static constexpr std::string_view kName = "release";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &Release::tenant), field(2, "version", &Release::version)};
  }
};

// Save::expert_format.
inline constexpr const char* kPerExpert = "per_expert";

// Writes adapter (PEFT) or full model (Hugging Face), and the optimizer's state when asked; the
// directory appears whole or not at all, in place of an older one. Error kInvalid: weights that are
// not finite or that no forward can use, a name that no folder can have, a disk that is full or
// cannot be written, a max_shard_bytes for an adapter, a version with the optimizer's state, an
// expert_format that is not known, of a model, or with the optimizer's state; kNotFound: no such
// version.
struct Save {
  std::string tenant;
  std::string directory;
  bool optimizer = false;
  std::string extra_json;  // kept in trainer_state.json
  int64_t max_shard_bytes =
      0;                // limit of a full model's files; 0: 5 GiB. A larger tensor has its own
  int64_t version = 0;  // an adapter's version: a published one, without the optimizer; 0: as it is
  bool as_is = false;  // also weights that no forward can use, which are finite: to go on from what
                       // is there, whatever it is
  bool gradients = true;      // with the optimizer: the accumulated ones, too
  std::string expert_format;  // an adapter's form: kPerExpert, factors of each expert's linears,
                              // whatever it has; empty: as its config says, stacks as peft has them

  bool operator==(const Save&) const = default;
  static constexpr std::string_view kName = "save";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &Save::tenant),
                      field(2, "directory", &Save::directory),
                      field(3, "optimizer", &Save::optimizer),
                      field(4, "extra_json", &Save::extra_json),
                      field(5, "max_shard_bytes", &Save::max_shard_bytes),
                      field(6, "version", &Save::version),
                      field(7, "as_is", &Save::as_is),
                      field(8, "gradients", &Save::gradients),
                      field(9, "expert_format", &Save::expert_format)};
  }
};

// Takes the weights of a saved directory of the same shapes, and the optimizer's state and the
// accumulated gradients when asked; without, both are forgotten. An adapter's is read when it is
// submitted. Error kNotFound: no such directory; kInvalid: another model, a damaged file or state.
struct Load {
  std::string tenant;
  std::string directory;
  bool optimizer = false;
  bool exact = false;  // with the optimizer: to replay what followed the save. Refused in an engine
                       // that computes by other means than the one that saved

  bool operator==(const Load&) const = default;
  static constexpr std::string_view kName = "load";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &Load::tenant), field(2, "directory", &Load::directory),
                      field(3, "optimizer", &Load::optimizer), field(4, "exact", &Load::exact)};
  }
};

// Checksums of the tenant's state, for tests and reports. Of a frozen tenant: the base model's
// weights, and nothing else.
struct Inspect {
  std::string tenant;
  bool tensors = false;  // also return the tensors (weights, gradients, optimizer), as float32

  bool operator==(const Inspect&) const = default;
  static constexpr std::string_view kName = "inspect";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &Inspect::tenant), field(2, "tensors", &Inspect::tensors)};
  }
};

// Moves an adapter's state into a file of the engine's park_directory until the tenant's next
// operation, which brings it back, bit for bit. A hint, whose result does not depend on whether it
// could be followed: nothing moves while a Sample or a Save that has begun reads the state, without
// a park_directory or an adapter, or where the disk refuses, which is counted.
struct Park {
  std::string tenant;

  bool operator==(const Park&) const = default;
  static constexpr std::string_view kName = "park";
  static constexpr auto fields() { return std::tuple{field(1, "tenant", &Park::tenant)}; }
};

// Shows the tenant's weights to the reader that this process has under this number, and to nobody
// else: Engine::read_weights submits it. Error: what the reader throws.
struct ReadWeights {
  std::string tenant;
  int64_t number = 0;

  bool operator==(const ReadWeights&) const = default;
  static constexpr std::string_view kName = "read_weights";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &ReadWeights::tenant),
                      field(2, "number", &ReadWeights::number)};
  }
};

// Puts the weights that this process has under this number in the place of the tenant's adapter's,
// and of the base model's where it has some, between two batches: Engine::replace_weights submits
// it. An adapter's Samples that have begun end with the weights that they began with. The base
// model waits until every Sample that has begun has ended, and what comes meanwhile waits for it.
// Error kInvalid: other names, shapes or types, a tenant that trains all weights.
struct ReplaceWeights {
  std::string tenant;
  int64_t number = 0;

  bool operator==(const ReplaceWeights&) const = default;
  static constexpr std::string_view kName = "replace_weights";
  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &ReplaceWeights::tenant),
                      field(2, "number", &ReplaceWeights::number)};
  }
};

using Operation =
    std::variant<Create, Delete, Forward, ForwardBackward, Step, ClipGradNorm, ZeroGrad, Sample,
                 Save, Load, Inspect, Publish, Release, Park, ReadWeights, ReplaceWeights>;

// Limit of one operation as bytes; in memory it takes a small multiple.
inline constexpr size_t kMaxOperationBytes = size_t{4} << 30;

const std::string& tenant_of(const Operation& operation);
int64_t num_bytes(const Operation& operation);  // that it takes in memory
std::string to_bytes(const Operation& operation);
// Error kInvalid: of another format, truncated, of an unknown kind, a field or name twice, too
// long.
Operation from_bytes(std::span<const char> bytes);

}  // namespace twinkle::engine
