// A decoder as data: everything that distinguishes one model from another and that the one skeleton
// (decoder.h) and the blocks of its layers need. A family (family.h) makes it from config.json.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "twinkle/model/blocks/experts_spec.h"
#include "twinkle/model/weights/layout.h"
#include "twinkle/nn/attention/rope.h"
#include "twinkle/nn/mlp.h"

namespace twinkle::model {

// The state that sampling keeps of a sequence in one layer: a key and a value of every token, for
// each head, or so many bytes whatever its length.
struct StateSpec {
  int64_t num_heads = 0, head_dim = 0;
  int64_t num_bytes = 0;     // bytes of a state
  int64_t closed_bytes = 0;  // its first ones, which are all that counts at a multiple of 64 tokens
  bool latent = false;       // a key is its own value, and is kept once

  int64_t token_size() const { return (latent ? 1 : 2) * num_heads * head_dim; }  // numbers a token
};

struct NormSpec {
  double eps = 1e-6;
  bool zero_centred = false;  // multiplies by 1 + weight
};

// How the rows of q, k and v are stored.
enum class Projections {
  kSeparate,  // three linears
  kStacked,   // one, "self_attn.qkv_proj": all of q, all of k, all of v
  kGrouped,   // one: of each key head its queries, its key and its value
};

struct AttentionSpec {
  int64_t num_heads = 0, num_kv_heads = 0;  // num_heads is a multiple of num_kv_heads
  int64_t head_dim = 0;
  bool qkv_bias = false, o_bias = false;
  bool qk_norm = false;     // RMSNorm of every head of q and k, before rope
  int64_t window = 0;       // tokens that a query sees, itself included; 0: all
  double scale = 0;         // scale of scores; 0: 1 / sqrt(head_dim)
  double softcap = 0;       // cap of scaled scores, on the CPU; 0: none
  bool local_rope = false;  // turns by the decoder's local_rope
  Projections projections = Projections::kSeparate;
  // q_proj has twice the rows, of each head its query and then the gate of its output, which is
  // multiplied by the gate's sigmoid. Separate projections only.
  bool output_gate = false;
  bool sinks = false;  // a number of each head, "self_attn.sinks", among its scores
};

// Latent attention: keys and values of all heads are linear in one vector a token, and one rotated
// key part is shared by the heads. (DeepSeek-V2, section 2.1)
struct LatentSpec {
  int64_t num_heads = 0;
  int64_t q_rank = 0;     // width of the queries' latent; 0: one linear, "q_proj"
  int64_t kv_rank = 0;    // width of the latent
  int64_t nope_dim = 0;   // width of a head's query and key, without rope
  int64_t rope_dim = 0;   // with it: all of the decoder's rotary_dim
  int64_t value_dim = 0;  // width of a head's value
  bool bias = false;      // biases of q_a_proj, kv_a_proj_with_mqa and o_proj
  double scale = 1;       // scale of the scores
};

// The gated delta rule, with a convolution of four taps.
struct DeltaSpec {
  int64_t num_key_heads = 0, num_value_heads = 0;  // a multiple of num_key_heads
  int64_t key_dim = 0, value_dim = 0;
  // Two linears, of each key head side by side: "in_proj_qkvz" has its query and its key, and of
  // its value heads the values and then z; "in_proj_ba" has their b and then their a. Else four:
  // all of q, of k, of v in "in_proj_qkv", and z, b and a.
  bool by_key_head = false;
};

struct GatedMlpSpec {
  int64_t intermediate_size = 0;
  bool bias = false;
  bool fused = false;  // gate's rows and then up's in one linear, "mlp.gate_up_proj"
  nn::Activation activation = nn::Activation::kSilu;
};

// One struct of each kind of block: blocks/layer.cpp makes the block that its type stands for.
using MixerSpec = std::variant<AttentionSpec, DeltaSpec, LatentSpec>;
using MlpSpec = std::variant<GatedMlpSpec, ExpertsSpec>;

struct LayerSpec {
  MixerSpec mixer;
  MlpSpec mlp;

  // Only for a layer that has it.
  AttentionSpec& attention() { return std::get<AttentionSpec>(mixer); }
  const AttentionSpec& attention() const { return std::get<AttentionSpec>(mixer); }
  GatedMlpSpec& gated_mlp() { return std::get<GatedMlpSpec>(mlp); }
  const GatedMlpSpec& gated_mlp() const { return std::get<GatedMlpSpec>(mlp); }
  const ExpertsSpec* experts() const { return std::get_if<ExpertsSpec>(&mlp); }  // null: none
};

struct DecoderSpec {
  std::string family;  // its name: "llama"
  int64_t vocab_size = 0, hidden_size = 0;
  int64_t max_positions = 0;  // longest sequence, tokens
  NormSpec norm;              // the layers' norms and the final one, and those of heads
  // Two more norms a layer, of what each block returns: "post_self_attn_layernorm" and
  // "post_mlp_layernorm". The one before the MLP is "post_attention_layernorm", as without them.
  bool sandwich = false;
  nn::RopeSpec rope;             // its rotary_dim is not 0
  nn::RopeSpec local_rope = {};  // rope of the layers that ask for it; no longrope
  double embed_scale = 1;        // factor of embeddings, rounded to their type
  double softcap = 0;            // cap of the logits; 0: none
  bool tied_head = false;        // the head is the embedding
  // The head is one row and its bias, a value of every position, in place of the vocabulary's.
  bool value_head = false;
  bool new_head = false;  // a value head that begins at zero: the checkpoint has none
  std::vector<LayerSpec> layers;
  Layout layout = {};  // the checkpoint's names

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  int64_t num_logits() const { return value_head ? 1 : vocab_size; }  // at every position
  // The layers with routed experts, which choose as many for a token from as many.
  std::vector<size_t> routed_layers() const;
};

// The first field, by its name in config.json, in which the other model computes otherwise, and
// both values: "rope_theta is 5E0, this model's is 1E4". Empty: there is none. Numbers are compared
// in float32, as GGUF files keep them.
std::string difference(const DecoderSpec& ours, const DecoderSpec& other);

}  // namespace twinkle::model
