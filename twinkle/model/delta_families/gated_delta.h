// Shared by the families whose layers mix by the gated delta rule or by gated attention: how
// their config.json gives the mixers.
#pragma once
#include "twinkle/model/family.h"

namespace twinkle::model {

// llama_like() with these mixers, zero-centred norms, rope on a share of each head's dims, and the
// layout's lists of what is skipped and of what stays float32. `config`: the text model's. Error
// kInvalid: a size that is missing or impossible, or a field whose value would change the
// arithmetic.
DecoderSpec delta_like(const Json& config);

// Where config.json is of a model with pictures: the text model's names in its checkpoint, and the
// flag of a tied head, of which the outer one counts. `whole`: all of config.json.
void nest(DecoderSpec& spec, const Json& whole);

}  // namespace twinkle::model
