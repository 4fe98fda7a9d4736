// The decision of a call, as a text that the ranks compare.
#pragma once
#include <string>

#include "twinkle/engine/schedule/executor.h"

namespace twinkle::engine {

inline std::string decided(const BatchOutcome& outcome) {
  std::string out;
  for (const Ended& e : outcome.ended) out += std::to_string(e.id) + (e.error ? "e " : "c ");
  for (const Rewound& r : outcome.rewound) out += std::to_string(r.id) + (r.alone ? "a " : "r ");
  return out;
}

}  // namespace twinkle::engine
