// Names of modules and parameters, as adapters' configs have them: a name stands for every path
// that it ends, from one of its dots on.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace twinkle::lora {

// The path's ends, from the shortest on, the path itself last.
std::vector<std::string> ends_of(const std::string& path);
bool ends_in(const std::string& path, const std::string& name);
// "down_proj" of "model.layers.0.mlp.down_proj".
std::string last_name(const std::string& path);

// The shortest names, of at least so many parts, that stand for all of the chosen paths and for
// none of the others.
std::vector<std::string> shortest_names(std::span<const std::string> chosen,
                                        std::span<const std::string> others,
                                        size_t least_parts = 1);

}  // namespace twinkle::lora
