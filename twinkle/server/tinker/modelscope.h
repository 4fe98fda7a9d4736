// The words that the server of ModelScope's Twinkle adds to Tinker's forward_backward, in which its
// clients ask for DPO. Knows no engine.
#pragma once
#include "twinkle/server/tinker/forward_backward_request.h"

namespace twinkle::server::tinker {

// In a request of importance_sampling with ref_logps among its inputs the loss becomes DPOLoss, and
// an option dpo_NAME its NAME. In one without gradients disable_lora is no option of the loss: the
// base model is to score. Error kInvalid: a disable_lora that is neither 0 nor 1.
void translate(ForwardBackwardRequest& request);

}  // namespace twinkle::server::tinker
