// Messages between the ranks of one group, in bytes. Every rank makes the same calls in the same
// order. One thread at a time, but for close(). Knows no tensors.
//
// Error kInternal of every call: a rank has gone, or has not come within the group's timeout; the
// group is closed then, and every later call ends at once with the first error's text.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace twinkle::mesh {

class Channel {
 public:
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Strings of any lengths, in the order of ranks.
  virtual std::vector<std::string> all_gather(const std::string& bytes) = 0;
  // The root's, on every rank.
  virtual std::string broadcast(std::string bytes, int root) = 0;
  // From here on every call fails, on every rank: those that wait are woken. Any thread; once.
  virtual void close(const std::string& why) noexcept = 0;

 protected:
  Channel(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

// Channels of ranks that are threads of one process, one for each rank: for tests. `timeout_s`: how
// long a call waits for the others.
std::vector<std::unique_ptr<Channel>> thread_channels(int size, double timeout_s = 60);

}  // namespace twinkle::mesh
