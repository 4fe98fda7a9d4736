// How much an adapter on linears of one name has, of all of a model's.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace twinkle::engine {

struct AdapterSize {
  int64_t numbers = 0;  // for each of its rank
  int64_t linears = 0;
};
using AdapterSizes = std::map<std::string, AdapterSize>;  // by the name, "q_proj" or the like

}  // namespace twinkle::engine
