// Errors of the engine, which counts sequences, by the fields of the SDK's requests.
#pragma once
#include <string>

namespace twinkle::server::tinker {

// "engine: sequence 3: token 7 ..." as "server: data[3].model_input: token 7 ...", labels as
// target_tokens; all other texts as they are.
std::string by_field(const std::string& why);

}  // namespace twinkle::server::tinker
