// The Python code of a model whose family transformers does not have. It is read and never run.
#pragma once
#include <filesystem>
#include <set>
#include <string>

namespace twinkle {

// The names of the files in a folder that an auto_map of its configs names, and of those beside
// them that these import ("from .x import y"), as far as they are there. Any thread. Error
// kInvalid: one of them cannot be read.
std::set<std::string> model_code_in(const std::filesystem::path& folder);

}  // namespace twinkle
