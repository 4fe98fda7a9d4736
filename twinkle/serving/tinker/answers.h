// The answer of a future over Tinker's wire, from its result and the note that its request left.
#pragma once
#include <cstdint>
#include <string>

#include "twinkle/server/http/message.h"
#include "twinkle/server/tinker/forward_backward_request.h"
#include "twinkle/serving/domain/domain.h"

namespace twinkle::server::tinker {

// The note of a request with data: each datum's number of targets a token, where one has several.
std::string note_of(const ForwardBackwardRequest& request);
// The note of an asample.
std::string note_of(const sampler::SamplingParams& params);
int64_t num_samples_in(const std::string& note);

Response answer_of(const core::Future& future, const core::Ended& ended);

// Tinker's RequestFailedResponse.
Response failure(const std::string& text, bool is_users);

}  // namespace twinkle::server::tinker
