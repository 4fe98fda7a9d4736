// For tests: ranks of one group that count what they send over each of its channels.
#pragma once
#include <algorithm>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "twinkle/engine/group/groups_for_test.h"

namespace twinkle::engine {

// Bytes that a rank sends. base: to those that share its base; nothing where each holds all of it.
struct Channels {
  const mesh::SentBytes &door, &control, &data, &saves, &base;
};

inline constexpr int64_t kFrame = 256, kInFrame = 248;
// A message of so many bytes, to each other rank.
inline int64_t framed(int64_t bytes) { return kFrame + std::max<int64_t>(0, bytes - kInFrame); }

// Runs `script` of every rank in a thread of its own.
using CountedScript = std::function<void(Engine&, int rank, const Channels&)>;
inline void on_counted_ranks(const Mesh& of, EngineOptions options, const CountedScript& script) {
  options.model.gathered_bytes = of.gathered_bytes;
  std::vector<Group> of_ranks = groups(of);
  std::vector<std::thread> threads;
  for (int r = 0; r < of.size(); ++r) {
    threads.emplace_back([&, r] {
      Group group = std::move(of_ranks[static_cast<size_t>(r)]);
      const mesh::SentBytes none;
      const Channels sent{count(group.door), count(group.control), count(group.data),
                          count(group.saves), group.base ? count(group.base) : none};
      Engine engine(options, in_letters, std::move(group));
      script(engine, r, sent);
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace twinkle::engine
