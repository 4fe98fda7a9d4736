// The MLP of a model with routed experts, as data.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "twinkle/kernels/experts/route.h"
#include "twinkle/kernels/experts/routed_rows.h"
#include "twinkle/nn/experts/balance.h"

namespace twinkle::model {

struct ExpertsSpec {
  int64_t num_experts = 0;
  int64_t intermediate_size = 0;  // width of each
  kernels::RouteOptions route;
  // The checkpoint has a number of every expert that is added to its score for the choice:
  // gate.e_score_correction_bias.
  bool correction = false;
  // The auxiliary loss that its code has, for those who ask for it.
  nn::AuxLoss aux_loss = nn::AuxLoss::kNone;
  // An MLP that sees every token, of this width; 0: there is none.
  int64_t shared_size = 0;
  std::string_view shared_name =
      "shared_expert";       // a literal; in the checkpoint, or "shared_experts"
  bool shared_gate = false;  // its output is multiplied by the sigmoid of a linear of one output
  // gpt-oss's form of experts (nn/experts/experts.h), whose router has a bias, too.
  std::optional<kernels::ClampedSwiglu> clamped = {};

  bool operator==(const ExpertsSpec&) const = default;
};

}  // namespace twinkle::model
