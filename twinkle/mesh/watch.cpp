#include "twinkle/mesh/watch.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <sstream>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::mesh {
namespace {

// A frame: the length of what follows, a letter of what it says, the rank that it is about, a text.
enum Kind : char { kAlive = 'a', kFailed = 'f', kEnded = 'e', kLate = 'l' };
constexpr size_t kLength = sizeof(uint32_t);
constexpr size_t kHead = 1 + sizeof(int32_t);
constexpr uint32_t kMaxFrame = 1 << 20;
// Others may be at a place for so long which a rank has left.
constexpr auto kLeft = std::chrono::seconds(2);

std::string frame_of(Kind kind, int32_t rank, const std::string& text) {
  const std::string shown = text.substr(0, kMaxFrame / 2);
  const auto length = static_cast<uint32_t>(kHead + shown.size());
  std::string out(kLength + kHead, kind);
  std::memcpy(out.data(), &length, kLength);
  std::memcpy(out.data() + kLength + 1, &rank, sizeof(rank));
  return out + shown;
}

// The connections of this process's watches. A fork has copies, which would keep them open when
// this process has ended, and nobody would hear of its end: it closes them before anything else.
class Connections {
 public:
  static Connections& of_process() {
    static auto& all = *new Connections;  // outlives every fork
    return all;
  }

  void add(const std::vector<int>& sockets) {
    const std::scoped_lock lock(mutex_);
    sockets_.insert(sockets_.end(), sockets.begin(), sockets.end());
  }

  void close(int fd) {
    const std::scoped_lock lock(mutex_);
    std::erase(sockets_, fd);
    ::close(fd);
  }

 private:
  // Locked while the process forks, so that no number in a fork's list is another file's by then.
  // What is done in the fork takes no memory, and no lock that another thread may have held.
  Connections() {
    const int error =
        pthread_atfork([] { of_process().mutex_.lock(); }, [] { of_process().mutex_.unlock(); },
                       [] { of_process().close_copies(); });
    if (error != 0) throw std::bad_alloc();
  }

  void close_copies() {
    for (const int fd : sockets_) ::close(fd);
    sockets_.clear();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<int> sockets_;
};

bool waits_at(const std::map<int64_t, std::string>& places, const std::string& place) {
  return std::ranges::any_of(places, [&](const auto& p) { return p.second == place; });
}

}  // namespace

Watch::Watch(int rank, int size, const std::vector<int>& sockets, double timeout_s)
    : rank_(rank),
      size_(size),
      process_(getpid()),
      timeout_s_(timeout_s),
      wake_(eventfd(0, EFD_CLOEXEC)) {
  for (size_t i = 0; i < sockets.size(); ++i)
    peers_.push_back({rank == 0 ? static_cast<int>(i) + 1 : 0, sockets[i], {}});
  {
    const Lock lock(mutex_);
    known_[rank];
    for (const Peer& peer : peers_) known_[peer.rank];
  }
  Connections::of_process().add(sockets);
  thread_ = std::thread([this] { loop(); });
}

Watch::~Watch() {
  // In a fork, which has neither the thread nor a say, nor the sockets: other files may have their
  // numbers.
  if (getpid() != process_) {
    thread_.detach();
    return;
  }
  {
    const Lock lock(mutex_);
    ends_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
  thread_.join();
  for (const Peer& peer : peers_) Connections::of_process().close(peer.socket);
  close(wake_);
}

// ---- what is said

void Watch::send(int except, const std::string& frame) {
  // A frame is smaller than a socket's buffer, which is full only if nobody has read for long.
  for (const Peer& peer : peers_)
    if (peer.rank != except)
      (void)!::send(peer.socket, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Watch::say_so(int except, const std::string& scope, const std::string& why) {
  if (!why_.try_emplace(scope, why).second) return;
  send(except, frame_of(kFailed, rank_, scope + '\n' + why));
  changed_.notify_all();
}

void Watch::fail(const std::string& scope, const std::string& why) {
  if (getpid() != process_) return;
  const Lock lock(mutex_);
  say_so(-1, scope, why);
}

void Watch::end() {
  if (getpid() != process_) return;
  const Lock lock(mutex_);
  known_[rank_].has_ended = true;
  send(-1, frame_of(kAlive, rank_, alive()));  // where it waited a second ago it waits no more
  send(-1, frame_of(kEnded, rank_, ""));
}

Watch::Waiting::Waiting(Watch& watch, std::string place) : watch_(watch) {
  const Lock lock(watch.mutex_);
  id_ = ++watch.num_places_;
  watch.threads_.insert(gettid());
  Known& mine = watch.known_[watch.rank_];
  mine.places[id_] = std::move(place);
  mine.since = Clock::now();
}

Watch::Waiting::~Waiting() {
  const Lock lock(watch_.mutex_);
  Known& mine = watch_.known_[watch_.rank_];
  mine.places.erase(id_);
  mine.since = Clock::now();
}

// ---- what is known

std::string Watch::known_why(const std::string& scope) const {
  for (const std::string& of : {scope, std::string()}) {
    const auto it = why_.find(of);
    if (it != why_.end()) return it->second;
  }
  return {};
}

std::string Watch::why(const std::string& scope) const {
  const Lock lock(mutex_);
  return known_why(scope);
}

std::string Watch::why_after(const std::string& error, const std::string& scope) const {
  const auto end = Clock::now() + std::chrono::seconds(1);
  Lock lock(mutex_);
  while (known_why(scope).empty() && lock.wait_until(changed_, end)) {
  }
  const std::string why = known_why(scope);
  if (!why.empty()) return why;
  return ended_.empty() ? error : ended_;
}

std::string Watch::late() const {
  const Lock lock(mutex_);
  return late_;
}

// The rank that has waited longest for others: the text stays while it does.
std::string Watch::find_late() const {
  auto oldest = Clock::now() - std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(timeout_s_));
  std::string out;
  for (const auto& [rank, known] : known_) {
    if (known.places.empty() || known.since > oldest) continue;
    const std::string& place = known.places.begin()->second;
    std::ostringstream text;
    const char* sign = "";
    for (const auto& [other, its] : known_) {
      if (waits_at(its.places, place) || its.has_ended) continue;
      text << sign << "rank " << other;
      sign = ", ";
    }
    if (*sign == '\0') continue;  // all are there, and move data
    text << " has not come to " << place << ", where rank " << rank << " has waited for "
         << timeout_s_ << " s or more; its process lives, so this goes on waiting";
    out = text.str();
    oldest = known.since;
  }
  return out;
}

void Watch::tell_late() {
  std::string text = find_late();
  if (text == late_) return;
  late_ = std::move(text);
  send(-1, frame_of(kLate, rank_, late_));
}

// ---- the thread

void Watch::loop() {
  const auto period = std::chrono::duration<double>(std::min(timeout_s_ / 4, 1.0));
  auto next = Clock::now();
  std::vector<bool> is_open(peers_.size(), true);
  while (true) {
    {
      const Lock lock(mutex_);
      if (ends_) return;
      if (Clock::now() >= next) {
        send(-1, frame_of(kAlive, rank_, alive()));
        if (rank_ == 0) tell_late();
        next = Clock::now() + std::chrono::duration_cast<Clock::duration>(period);
      }
    }
    std::vector<pollfd> fds{{wake_, POLLIN, 0}};
    for (size_t i = 0; i < peers_.size(); ++i)  // poll leaves out what is negative
      fds.push_back({is_open[i] ? peers_[i].socket : -1, POLLIN, 0});
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
    if (poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(left.count(), 0)) + 1) < 0)
      continue;  // a signal
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (fds[i + 1].revents == 0 || read(peers_[i])) continue;
      is_open[i] = false;
      lost(peers_[i]);
    }
    find_silent();
  }
}

bool Watch::read(Peer& peer) {
  std::array<char, 4096> bytes{};
  const ssize_t n = recv(peer.socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) return false;
  peer.unread.append(bytes.data(), static_cast<size_t>(n));
  while (peer.unread.size() >= kLength) {
    uint32_t length = 0;
    std::memcpy(&length, peer.unread.data(), kLength);
    if (length < kHead || length > kMaxFrame) return false;
    if (peer.unread.size() < kLength + length) break;
    take(peer.rank, peer.unread.substr(kLength, length));
    peer.unread.erase(0, kLength + length);
  }
  return true;
}

void Watch::take(int from, const std::string& frame) {
  int32_t about = 0;
  std::memcpy(&about, frame.data() + 1, sizeof(about));
  const std::string text = frame.substr(kHead);
  const Lock lock(mutex_);
  known_[from].heard = Clock::now();
  if (frame[0] == kAlive) {
    note(from, text);
  } else if (frame[0] == kEnded) {
    if (about == from) known_[from].has_ended = true;
    if (ended_.empty())
      ended_ = "mesh: rank " + std::to_string(about) + " has ended its script, and can't be asked";
    if (rank_ == 0) send(from, frame_of(kEnded, about, ""));
    changed_.notify_all();
  } else if (frame[0] == kLate) {
    late_ = text;
  } else {
    const size_t cut = text.find('\n');
    say_so(from, text.substr(0, cut), text.substr(std::min(cut, text.size() - 1) + 1));
  }
}

// How many of its threads are busy, and "number place" of each that waits, each a line.
std::string Watch::alive() {
  std::erase_if(threads_, [](int thread) {
    return access(("/proc/self/task/" + std::to_string(thread)).c_str(), F_OK) != 0;
  });
  Known& mine = known_[rank_];
  mine.num_busy = threads_.size() - std::min(threads_.size(), mine.places.size());
  std::string out = std::to_string(mine.num_busy) + '\n';
  for (const auto& [id, place] : mine.places) out += std::to_string(id) + ' ' + place + '\n';
  return out;
}

void Watch::note(int rank, const std::string& alive) {
  std::istringstream in(alive);
  size_t num_busy = 0;
  in >> num_busy;
  Places places;
  int64_t id = 0;
  for (std::string place; in >> id && in.get() && std::getline(in, place);) places[id] = place;
  Known& known = known_[rank];
  if (known.places != places || known.num_busy != num_busy) known.since = Clock::now();
  known.places = std::move(places);
  known.num_busy = num_busy;
}

void Watch::lost(const Peer& peer) {
  const Lock lock(mutex_);
  if (std::exchange(known_[peer.rank].has_ended, true)) return;
  say_so(-1, "",
         "mesh: rank " + std::to_string(peer.rank) +
             " has gone: its process has ended without a word, as one that is killed does");
}

void Watch::find_silent() {
  const Lock lock(mutex_);
  const auto now = Clock::now();
  for (const Peer& peer : peers_) {
    const Known& known = known_[peer.rank];
    if (known.has_ended || now - known.heard < std::chrono::duration<double>(timeout_s_)) continue;
    std::ostringstream text;
    text << "mesh: rank " << peer.rank << " has been silent for " << timeout_s_
         << " s: its process is stopped, or its machine is out of reach";
    say_so(-1, "", text.str());
  }
  find_apart();
}

// Ranks all of whose threads wait, but not all at one place, wait for ever, and so do those that
// wait for one that has ended.
void Watch::find_apart() {
  const auto now = Clock::now();
  for (const auto& [rank, known] : known_) {
    if (known.places.empty() || now - known.since < kLeft) continue;
    for (const auto& [other, its] : known_) {
      const std::string& place = known.places.begin()->second;
      if (its.has_ended && place != kEnd && !waits_at(its.places, place))
        say_so(-1, "",
               "mesh: rank " + std::to_string(other) + " has ended its script, rank " +
                   std::to_string(rank) + " waits for it at " + place);
    }
  }
  if (rank_ > 0) return;  // knows itself and the first one, whose end nobody else can tell
  for (const auto& [rank, known] : known_) {
    if (known.places.empty() || known.num_busy > 0 ||
        now - known.since < std::chrono::duration<double>(timeout_s_))
      return;
  }
  for (const auto& [id, place] : known_[rank_].places)
    if (std::ranges::all_of(known_,
                            [&](const auto& k) { return waits_at(k.second.places, place); }))
      return;
  std::ostringstream text;
  text << "mesh: the ranks wait for each other:";
  const char* sign = " rank ";
  for (const auto& [rank, known] : known_) {
    text << sign << rank << " at " << known.places.begin()->second;
    sign = ", rank ";
  }
  text << ": all ranks must call the same methods in the same order";
  say_so(-1, "", text.str());
}

}  // namespace twinkle::mesh
