#include "twinkle/lora/variants/kinds.h"

#include <array>
#include <cmath>

namespace twinkle::lora {
namespace {

constexpr Kind kA{".lora_A.weight"}, kB{".lora_B.weight", true, true};
constexpr std::array kPlain{kA, kB};
constexpr std::array kPissa{kA, kB, Kind{".initial_A.weight", false},
                            Kind{".initial_B.weight", false}};

constexpr std::array kDora{kA, kB, Kind{".lora_magnitude_vector"}};

}  // namespace

std::string variant_of(const PeftConfig& config) {
  if (is_pissa(config)) return "init_lora_weights '" + config.init + "'";
  return config.use_dora ? "use_dora true" : "";
}

bool is_pissa(const PeftConfig& config) { return config.init.starts_with("pissa"); }

std::span<const Kind> kinds_of(const PeftConfig& config) {
  if (is_pissa(config)) return kPissa;
  if (config.use_dora) return kDora;
  return kPlain;
}

PeftConfig config_of_file(PeftConfig config) {
  if (is_pissa(config)) {
    const double more = config.use_rslora ? std::sqrt(2.0) : 2;  // the scale stays as it is
    config.rank *= 2;
    config.alpha *= more;
    for (auto& [pattern, rank] : config.rank_pattern) rank *= 2;
    for (auto& [pattern, alpha] : config.alpha_pattern) alpha *= more;
  }
  config.init.clear();
  return config;
}

}  // namespace twinkle::lora
