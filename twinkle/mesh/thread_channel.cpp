#include <utility>

#include "twinkle/mesh/channel.h"
#include "twinkle/mesh/meeting.h"

namespace twinkle::mesh {
namespace {

struct ChannelRoom {
  ChannelRoom(int size, double timeout_s)
      : meeting(size, timeout_s), brought(static_cast<size_t>(size)) {}

  Meeting meeting;
  std::vector<std::string> brought, result;  // parts of this round, and of the last one
};

class ThreadChannel : public Channel {
 public:
  ThreadChannel(int rank, int size, std::shared_ptr<ChannelRoom> room)
      : Channel(rank, size), room_(std::move(room)) {}
  ~ThreadChannel() override { close("mesh: rank " + std::to_string(rank()) + " has gone"); }

  std::vector<std::string> all_gather(const std::string& bytes) override {
    std::vector<std::string> out;
    const auto mine = [&] { room_->brought[static_cast<size_t>(rank())] = bytes; };
    room_->meeting.meet(rank(), mine, [this] { room_->result = room_->brought; });
    // Nobody begins the next round before all have read this one's.
    room_->meeting.meet(rank(), [&] { out = room_->result; }, [] {});
    return out;
  }

  std::string broadcast(std::string bytes, int root) override {
    return std::move(all_gather(bytes)[static_cast<size_t>(root)]);
  }

  void close(const std::string& why) noexcept override { room_->meeting.close(why); }

 private:
  std::shared_ptr<ChannelRoom> room_;
};

}  // namespace

std::vector<std::unique_ptr<Channel>> thread_channels(int size, double timeout_s) {
  const auto room = std::make_shared<ChannelRoom>(size, timeout_s);
  std::vector<std::unique_ptr<Channel>> out;
  for (int r = 0; r < size; ++r) out.push_back(std::make_unique<ThreadChannel>(r, size, room));
  return out;
}

}  // namespace twinkle::mesh
