// A decoder as data: everything that distinguishes one model from another and that the one skeleton
// (decoder.h) and the blocks of its layers need. A family (family.h) makes it from config.json.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/nn/attention/rope.h"

namespace twinkle::model {

// What sampling keeps of a sequence in one layer: a key and a value of every token, for each head,
// or so many bytes whatever its length.
struct StateSpec {
  int64_t num_heads = 0, head_dim = 0;
  int64_t num_bytes = 0;     // of a state
  int64_t closed_bytes = 0;  // its first ones, which are all that counts at a multiple of 64 tokens

  int64_t token_size() const { return 2 * num_heads * head_dim; }  // numbers a token
};

struct AttentionSpec {
  int64_t num_heads = 0, num_kv_heads = 0;  // num_heads is a multiple of num_kv_heads
  int64_t head_dim = 0;
  bool qkv_bias = false, o_bias = false;
  bool qk_norm = false;  // RMSNorm of every head of q and k, before rope
  int64_t window = 0;    // tokens that a query sees, itself included; 0: all
};

struct GatedMlpSpec {
  int64_t intermediate_size = 0;
  bool bias = false;
};

// One struct of each kind of block: blocks/layer.cpp makes the block that its type stands for.
struct LayerSpec {
  AttentionSpec mixer;
  GatedMlpSpec mlp;
};

struct DecoderSpec {
  std::string family;  // "llama", "qwen2", "qwen3"
  int64_t vocab_size = 0, hidden_size = 0;
  int64_t max_positions = 0;  // longest sequence, tokens
  double norm_eps = 1e-6;
  nn::RopeSpec rope;       // its rotary_dim is not 0
  bool tied_head = false;  // the head is the embedding
  // The head is one row and its bias, a value of every position, in place of the vocabulary's.
  bool value_head = false;
  bool new_head = false;  // a value head that begins at zero: the checkpoint has none
  std::vector<LayerSpec> layers;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  int64_t num_logits() const { return value_head ? 1 : vocab_size; }  // of every position
};

// The first field, by its name in config.json, in which the other model computes otherwise, and
// both values: "rope_theta is 5E0, this model's is 1E4". Empty: there is none. Numbers are compared
// in float32, as GGUF files keep them.
std::string difference(const DecoderSpec& ours, const DecoderSpec& other);

}  // namespace twinkle::model
