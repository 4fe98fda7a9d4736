// Parallel loops. Alone, parallel_for is at::parallel_for. Within with_team, a forward's hundreds
// of loops find the other threads awake: waking one through the library costs more than a short
// loop, and a long one waits for the slower half of an even split. The threads are the library's
// own, held for that long, so library products within run on the calling thread alone. Which thread
// runs a piece must not matter.
#pragma once
#include <cstdint>
#include <functional>

namespace twinkle::kernels {

// Runs `body` on the calling thread while the other intra-op threads wait, awake, for its loops.
// Within another team, or with one thread: just body(). Its exceptions, and those of its loops, are
// thrown here.
void with_team(const std::function<void()>& body);

// True on the thread that runs a team's body, where starting a loop takes about one microsecond in
// place of ten.
bool in_team();

// Calls run(first, last) for pieces of [begin, end), about `grain` or more each, on any threads.
void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t first, int64_t last)>& run);

// Says what the team's next loop will read, spread evenly over its pieces: until it begins, threads
// that wait fetch their part. Without a team: nothing.
void will_read(const void* first, int64_t bytes);

}  // namespace twinkle::kernels
