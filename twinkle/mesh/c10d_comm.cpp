// Gloo's manners shape this file: a call whose sizes differ between ranks ends the process; a rank
// that has gone is noticed at once by some of the others only, the rest wait out the group's
// timeout, and are woken before when the others let go of their sockets; abort() does nothing but
// for sends and receives, and a group's end waits for its calls.
#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/guarded.h"
#include "twinkle/base/parallel.h"
#include "twinkle/mesh/watched_comm.h"

namespace twinkle::mesh {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;

Group group_named(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    fail(Code::kNotFound, "mesh: no process group is registered as '", name, "'");
  }
}

// The objects of an abandoned call: Gloo's thread is in it until its peers come, or have gone.
void abandon(Group group, Work work) {
  static Mutex mutex;
  static auto& all = *new std::vector<std::pair<Group, Work>>;  // outlives every thread
  const Lock lock(mutex);
  all.emplace_back(std::move(group), std::move(work));
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

class C10dComm : public Comm {
 public:
  C10dComm(const std::string& name, Group group, std::shared_ptr<Watch> watch)
      : Comm(group->getRank(), group->getSize()),
        name_(name),
        scope_(name.substr(0, name.rfind('/'))),
        process_(getpid()),
        watch_(std::move(watch)),
        group_(std::move(group)) {}
  ~C10dComm() override {
    if (getpid() != process_) {  // in a fork, which has no thread of either
      if (guard_.joinable()) guard_.detach();
      group_.release();
      return;
    }
    release("mesh: closed");
    if (guard_.joinable()) guard_.join();
  }

  at::Tensor all_to_all(const at::Tensor& in, Counts to, Counts from) override {
    std::vector<int64_t> in_sizes(to.begin(), to.end()), out_sizes(from.begin(), from.end());
    int64_t count = 0;
    for (const int64_t n : out_sizes) count += n;
    at::Tensor input = in.contiguous(), out = at::empty({count}, in.options());
    run("all_to_all", [&](Group& g) { return g->alltoall_base(out, input, out_sizes, in_sizes); });
    return out;
  }

  void gather_into(at::Tensor& all, const at::Tensor& x) override {
    at::Tensor input = x;
    run("gather", [&](Group& g) { return g->_allgather_base(all, input); });
  }

  void broadcast(at::Tensor& x, int root) override {
    std::vector<at::Tensor> one{x};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    run("broadcast", [&](Group& g) { return g->broadcast(one, options); });
  }

  std::unique_ptr<Transfer> start_send(const at::Tensor& x, int to) override {
    std::vector<at::Tensor> one{x};
    return begun("send", [&](Group& g) { return g->send(one, to, 0); });
  }

  std::unique_ptr<Transfer> start_recv(const at::Tensor& x, int from) override {
    std::vector<at::Tensor> one{x};
    return begun("recv", [&](Group& g) { return g->recv(one, from, 0); });
  }

  void close(const std::string& why) noexcept override {
    // Before the sockets are let go, which wakes the others: they ask why.
    if (watch_ && is_open()) watch_->fail(scope_, cant_go_on(why));
    release(why);
  }

 private:
  std::string cant_go_on(const std::string& why) const {
    const int rank_of_all = watch_ ? watch_->rank() : rank();
    return "mesh: rank " + std::to_string(rank_of_all) + " can't go on: " + why;
  }

  void release(const std::string& why) noexcept {
    Group last;
    {
      const Lock lock(mutex_);
      if (!group_) return;
      why_ = why;
      last.swap(group_);
      for (const Work& work : waits_) work->abort();
    }
    try {
      c10d::unregister_process_group(name_);
    } catch (const std::exception&) {
      // Whoever made it has taken its name away already.
    }
  }

  Group open_group() {
    const Lock lock(mutex_);
    require(group_ != nullptr, Code::kInternal, why_);
    return group_;
  }

  bool is_open() {
    const Lock lock(mutex_);
    return group_ != nullptr;
  }

  // True if a call that begins, or waits, has to continue to wait.
  bool goes_on() {
    std::string why = watch_ ? watch_->why(scope_) : std::string();
    if (why.empty() && Interrupt::asked()) {
      why = cant_go_on(Interrupted::kText);  // the text of its own later calls, too
      if (watch_) watch_->fail(scope_, why);
    }
    if (!why.empty()) close(why);
    return is_open();
  }

  // While it lives, a send or receive that waits is left when its group ends.
  class Guarded {
   public:
    Guarded(C10dComm& comm, Work work) : comm_(comm), work_(std::move(work)) {
      if (!comm_.watch_) return;
      const Lock lock(comm_.mutex_);
      require(comm_.group_ != nullptr, Code::kInternal, comm_.why_);  // the others have been left
      if (!comm_.guard_.joinable()) comm_.guard_ = std::thread([&comm] { comm.guard(); });
      comm_.waits_.push_back(work_);
    }
    ~Guarded() {
      const Lock lock(comm_.mutex_);
      std::erase(comm_.waits_, work_);
    }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

   private:
    C10dComm& comm_;
    const Work work_;
  };

  // A thread's, from the first such wait on, for as long as the group is open. Others ask between
  // their slices: what arrives within one counts.
  void guard() {
    while (is_open()) {
      std::this_thread::sleep_for(kSlice);
      if (has_waits()) goes_on();
    }
  }
  bool has_waits() {
    const Lock lock(mutex_);
    return !waits_.empty();
  }

  class Begun : public Transfer {
   public:
    Begun(C10dComm& comm, const char* what, Work work)
        : comm_(comm), what_(what), work_(std::move(work)) {}
    // Not in slices, nor for as long as its sockets wait, which is the timeout that the group was
    // made with: a wait that has timed out closes them.
    void wait() override {
      const Guarded now(comm_, work_);
      comm_.guarded(what_, [&] { work_->wait(comm_.watch_ ? kForever : kNoTimeout); });
    }

   private:
    C10dComm& comm_;
    const char* what_;
    const Work work_;
  };

  template <class Start>
  std::unique_ptr<Transfer> begun(const char* what, const Start& start) {
    Work work;
    guarded(what, [&] {
      Group group = open_group();
      work = start(group);
    });
    return std::make_unique<Begun>(*this, what, std::move(work));
  }

  // In slices: a wait that has timed out leaves such a call as it is. The watch is asked before the
  // call starts, since a rank that can't go on may still take part in it, and before each further
  // slice, since a rank may leave as soon as it has its part: what arrives within one counts.
  template <class Start>
  void run(const char* what, const Start& start) {
    guarded(what, [&] {
      Group group;
      Work work;
      bool has_ended = false;
      while (!has_ended && goes_on()) {
        if (!work) {
          group = open_group();
          work = start(group);
        }
        has_ended = waited(*work);
      }
      if (has_ended) return;
      // Without a watch the others wait for its sockets' end.
      if (watch_ && work) abandon(std::move(group), work);
      Interrupt::check();
    });
  }

  // The first error closes the group.
  template <class Call>
  void guarded(const char* what, const Call& call) {
    std::string error;
    try {
      call();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      error = first_line(e.what());
    }
    if (!error.empty()) {
      std::ostringstream text;
      text << "mesh: " << what << " of rank " << rank() << " of " << size() << " in group '"
           << name_ << "': " << error;
      close(watch_ ? watch_->why_after(text.str(), scope_) : text.str());
    }
    open_group();  // another thread may have closed it meanwhile
  }

  // False: it has not ended yet. Throws what it has failed with.
  static bool waited(c10d::Work& work) {
    try {
      work.wait(kSlice);
      return true;
    } catch (const std::exception&) {
      if (!work.isCompleted()) return false;
      if (work.exception()) std::rethrow_exception(work.exception());
      return true;
    }
  }

  static constexpr auto kSlice = std::chrono::milliseconds(100);
  static constexpr std::chrono::milliseconds kForever = std::chrono::days(20);

  const std::string name_, scope_;
  const int process_;
  const std::shared_ptr<Watch> watch_;
  Mutex mutex_;
  Group group_ GUARDED_BY(mutex_);  // none: closed
  std::string why_ GUARDED_BY(mutex_);
  std::vector<Work> waits_ GUARDED_BY(mutex_);  // sends and receives that a thread is in
  std::thread guard_;                           // where there is a watch
};

}  // namespace

std::unique_ptr<Comm> c10d_comm(const std::string& name) { return c10d_comm(name, nullptr); }

std::unique_ptr<Comm> c10d_comm(const std::string& name, std::shared_ptr<Watch> watch) {
  return std::make_unique<C10dComm>(name, group_named(name), std::move(watch));
}

}  // namespace twinkle::mesh
