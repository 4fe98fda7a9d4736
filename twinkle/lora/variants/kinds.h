// The tensors that an adapter has of each linear, by name, in the order of their numbers: A, B, and
// what a variant of LoRA adds. Whoever goes over an adapter's tensors (optimizers, files,
// snapshots, other processes) goes over this list.
#pragma once
#include <span>
#include <string>

#include "twinkle/io/peft/peft.h"

namespace twinkle::lora {

struct Kind {
  const char* suffix;  // the end of its name, behind the linear's path
  bool learns = true;
  bool is_b = false;

  std::string name(const std::string& path) const { return path + suffix; }
};

std::span<const Kind> kinds_of(const PeftConfig& config);

// PiSSA (Meng et al. 2024): A and B begin as the weight's principal part, and their first product
// is subtracted: y += scale * (B A - B0 A0) x. A0 and B0 are kept as kinds that don't learn.
bool is_pissa(const PeftConfig& config);

// Numbers of the kinds behind A and B: PiSSA's, and DoRA's.
constexpr size_t kInitialA = 0, kInitialB = 1, kMagnitude = 0;

// The field that makes the config's adapter more than A and B, with its value; empty: nothing does.
std::string variant_of(const PeftConfig& config);

// The config of an adapter's file: of PiSSA that of a LoRA of twice the rank, [A; A0] and
// [B, -B0], as peft's path_initial_model_for_weight_conversion makes one.
PeftConfig config_of_file(PeftConfig config);

}  // namespace twinkle::lora
