#include "twinkle/mesh/thread_comm.h"

#include <ATen/ATen.h>

#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/mesh/meeting.h"

namespace twinkle::mesh {
namespace {

// The call of a rank.
struct Call {
  std::string name;
  at::Tensor in;            // none: it only listens
  std::vector<int64_t> to;  // elements of `in` for each rank
  at::Tensor out;           // the parts that it expects, one rank's after the other
  std::vector<int64_t> from;
};

struct Room {
  Room(int size, double timeout_s) : meeting(size, timeout_s), calls(static_cast<size_t>(size)) {}

  Meeting meeting;
  std::vector<Call> calls;                                        // parts of this round
  std::map<std::pair<int, int>, std::deque<at::Tensor>> letters;  // by sender and receiver
};

at::Tensor part(const Call& call, size_t rank) {
  int64_t begin = 0;
  for (size_t r = 0; r < rank; ++r) begin += call.to[r];
  return call.in.slice(0, begin, begin + call.to[rank]);
}

void copy(std::vector<Call>& calls) {
  const size_t n = calls.size();
  for (size_t r = 1; r < n; ++r)
    require(calls[r].name == calls[0].name, Code::kInternal, "mesh: rank 0 calls ", calls[0].name,
            ", rank ", r, " ", calls[r].name);
  for (size_t r = 0; r < n; ++r) {
    int64_t at = 0;
    for (size_t s = 0; s < n; ++s) {
      const int64_t count = calls[r].from[s];
      require(count == calls[s].to[r], Code::kInternal, "mesh: ", calls[r].name, ": rank ", s,
              " sends ", calls[s].to[r], " elements to rank ", r, ", which expects ", count);
      if (count > 0) calls[r].out.slice(0, at, at + count).copy_(part(calls[s], r));
      at += count;
    }
  }
  for (Call& call : calls) call = {};
}

// The rest of the work when somebody waits.
class Later : public Transfer {
 public:
  explicit Later(std::function<void()> rest) : rest_(std::move(rest)) {}
  void wait() override { rest_(); }

 private:
  std::function<void()> rest_;
};

class ThreadComm : public Comm {
 public:
  ThreadComm(int rank, int size, std::shared_ptr<Room> room)
      : Comm(rank, size), room_(std::move(room)) {}
  ~ThreadComm() override { close("mesh: rank " + std::to_string(rank()) + " has gone"); }

  at::Tensor all_to_all(const at::Tensor& in, Counts to, Counts from) override {
    int64_t count = 0;
    for (const int64_t n : from) count += n;
    at::Tensor out = at::empty({count}, in.options());
    call({"all_to_all", in, {to.begin(), to.end()}, out, {from.begin(), from.end()}});
    return out;
  }

  void broadcast(at::Tensor& x, int root) override {
    const auto n = static_cast<size_t>(size());
    at::Tensor flat = x.view({-1});
    Call mine{"broadcast from rank " + std::to_string(root),
              {},
              std::vector<int64_t>(n),
              flat,
              std::vector<int64_t>(n)};
    if (rank() == root) {
      // Every rank's part is the whole of it; copied, since the parts lie one after the other.
      mine.in = flat.repeat({size()});
      mine.to.assign(n, flat.numel());
      mine.out = at::empty_like(flat);
    }
    mine.from[static_cast<size_t>(root)] = flat.numel();
    call(std::move(mine));
  }

  std::unique_ptr<Transfer> start_send(const at::Tensor& x, int to) override {
    room_->meeting.change([&] { room_->letters[{rank(), to}].push_back(x.clone()); });
    return std::make_unique<Later>([] {});
  }

  std::unique_ptr<Transfer> start_recv(const at::Tensor& x, int from) override {
    return std::make_unique<Later>([this, x, from] { take(x, from); });
  }

  void close(const std::string& why) noexcept override { room_->meeting.close(why); }

 private:
  void take(const at::Tensor& x, int from) {
    at::Tensor got;
    auto& letters = room_->letters;
    const std::pair key(from, rank());
    room_->meeting.wait(
        rank(), [&] { return !letters[key].empty(); },
        [&] {
          got = letters[key].front();
          letters[key].pop_front();
        });
    require(got.numel() == x.numel(), Code::kInternal, "mesh: rank ", from, " sends ", got.numel(),
            " elements, rank ", rank(), " expects ", x.numel());
    x.copy_(got.view_as(x));
  }

  void call(Call mine) {
    const auto bring = [&] { room_->calls[static_cast<size_t>(rank())] = std::move(mine); };
    room_->meeting.meet(rank(), bring, [this] { copy(room_->calls); });
  }

  std::shared_ptr<Room> room_;
};

}  // namespace

std::vector<std::unique_ptr<Comm>> thread_comms(int size, double timeout_s) {
  require(size >= 1, Code::kInvalid, "mesh: size is ", size, ", it must be at least 1");
  const auto room = std::make_shared<Room>(size, timeout_s);
  std::vector<std::unique_ptr<Comm>> out;
  for (int r = 0; r < size; ++r) out.push_back(std::make_unique<ThreadComm>(r, size, room));
  return out;
}

}  // namespace twinkle::mesh
