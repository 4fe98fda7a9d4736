// Routes that belong to no protocol: health, metrics, usage and the hub's files.
#pragma once
#include <span>
#include <string>

#include "twinkle/serving/api/call.h"
#include "twinkle/serving/api/router.h"

namespace twinkle::server::api {

std::span<const Route> operator_routes();

// Counts of requests, queues and futures, in Prometheus' text form.
std::string metrics_text(core::Core& core, const Service& service);

// Tokenizer and configuration of a served model, as Hugging Face's hub gives them.
Task<Response> hub(Call& call);

}  // namespace twinkle::server::api
