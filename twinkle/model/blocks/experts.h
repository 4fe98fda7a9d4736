// An MLP of which every token passes a few of many: routed experts, and where there is one a shared
// expert that all pass. On the CPU. (Shazeer et al. 2017; Dai et al. 2024, DeepSeekMoE)
#pragma once
#include "twinkle/model/blocks/block.h"
#include "twinkle/model/blocks/experts_spec.h"
#include "twinkle/model/blocks/parts.h"
#include "twinkle/nn/experts/experts.h"

namespace twinkle::model {

class RoutedExperts final : public Block {
 public:
  // Error kInvalid: a choice that kernels::check_route refuses; weights on a device.
  RoutedExperts(const DecoderSpec& decoder, const ExpertsSpec& spec, Parts& parts);

  at::Tensor forward(const at::Tensor& x_TD, const Context& context) const override;
  void prefetch() const override;
  int64_t saved_bytes(const nn::Rows& rows) const override;

 private:
  bool has_shared() const { return shared_down_.weight.defined(); }
  at::Tensor shared(const at::Tensor& x_TD, const nn::Rows& rows) const;

  nn::Router router_;
  nn::Experts experts_;
  nn::Linear shared_gate_, shared_up_, shared_down_;  // undefined weights: none
  nn::Linear shared_share_;                           // [1, D]: of the shared expert's sigmoid gate
};

}  // namespace twinkle::model
