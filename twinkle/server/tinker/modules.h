// The groups of modules that a run trains, as Tinker counts them.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace twinkle::server::tinker {

inline const std::map<std::string, std::vector<const char*>>& module_groups() {
  static const std::map<std::string, std::vector<const char*>> kGroups{
      {"train_attn", {"q_proj", "k_proj", "v_proj", "o_proj"}},
      {"train_mlp", {"gate_proj", "up_proj", "down_proj"}},
      {"train_unembed", {"lm_head"}}};
  return kGroups;
}

}  // namespace twinkle::server::tinker
