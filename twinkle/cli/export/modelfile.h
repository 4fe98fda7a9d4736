// The Modelfile from which `ollama create` makes a model of a GGUF file.
#pragma once
#include <string>
#include <vector>

#include "twinkle/text/template.h"

namespace twinkle::cli {

// `gguf`: the file's name, beside the Modelfile; `stops`: texts that end a reply. TEMPLATE and
// SYSTEM say what the chat template renders for system, user and assistant messages; of a template
// whose messages are not one after the other, each between two texts of its role, they are left to
// ollama, which knows some by the GGUF's own template.
std::string modelfile(const std::string& gguf, const text::Template& tmpl,
                      const std::vector<std::string>& stops);

}  // namespace twinkle::cli
