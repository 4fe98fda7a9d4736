// A decoder as data: everything that distinguishes one model from another and that the one skeleton
// (decoder.h) needs. A family (family.h) makes it from config.json.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/nn/attention/rope.h"

namespace twinkle::model {

struct AttentionSpec {
  int64_t num_heads = 0, num_kv_heads = 0;  // num_heads is a multiple of num_kv_heads
  int64_t head_dim = 0;
  bool qkv_bias = false, o_bias = false;
  bool qk_norm = false;          // RMSNorm of every head of q and k, before rope
  std::vector<int64_t> windows;  // per layer: tokens that a query sees, itself included; 0: all
  nn::RopeSpec rope;
};

struct DecoderSpec {
  std::string family;  // "llama", "qwen2", "qwen3"
  int64_t vocab_size = 0, hidden_size = 0, num_layers = 0;
  int64_t intermediate_size = 0;  // of the MLP
  int64_t max_positions = 0;      // longest sequence, tokens
  double norm_eps = 1e-6;
  bool mlp_bias = false;
  bool tied_head = false;  // the head is the embedding
  // The head is one row and its bias, a value of every position, in place of the vocabulary's.
  bool value_head = false;
  bool new_head = false;  // a value head that begins at zero: the checkpoint has none
  AttentionSpec attention;

  int64_t num_logits() const { return value_head ? 1 : vocab_size; }  // of every position
};

}  // namespace twinkle::model
