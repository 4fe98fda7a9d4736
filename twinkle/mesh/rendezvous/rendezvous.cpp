#include "twinkle/mesh/rendezvous/rendezvous.h"

#include <chrono>
#include <optional>
#include <regex>
#include <sstream>
#include <thread>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/parallel.h"
#include "twinkle/mesh/rendezvous/sockets.h"

namespace twinkle::mesh {
namespace {

constexpr std::chrono::milliseconds kLook{20};  // between two looks for who has come
constexpr const char* kAboutToMeet = "the making of an engine";

// Its keys end in the number of the rank that has not set one.
std::string with_rank(const std::string& error) {
  static const std::regex late(R"(wait timeout after \d+ms, keys: \S*/(\d+)\s*$)");
  std::smatch found;
  if (!std::regex_search(error, found, late)) return error;
  return "rank " + found[1].str() + " of the group has not come: " + error;
}

void require_all_live(const std::shared_ptr<Watch>& watch) {
  const std::string why = watch ? watch->why("") : std::string();
  require(why.empty(), Code::kInternal, why);
}

}  // namespace

Rendezvous::Rendezvous(c10::intrusive_ptr<c10d::Store> store, Options options)
    : store_(std::move(store)), options_(std::move(options)) {}

void Rendezvous::refuse(const std::string& error, const std::shared_ptr<Watch>& watch) const {
  // The watch hears whose end it was soon after a call has failed.
  const std::string why = watch ? watch->why_after("", "") : std::string();
  require(why.empty(), Code::kInternal, why);
  fail(Code::kNotFound, options_.failure, ": ", with_rank(error));
}

// The calls of the store and of the network, whatever they throw.
template <class Call>
void Rendezvous::reach(const std::shared_ptr<Watch>& watch, const Call& call) const {
  std::string error;
  try {
    return call();
  } catch (const std::exception& e) {
    error = e.what();
  }
  refuse(error.substr(0, error.find('\n')), watch);  // torch's have a backtrace behind
}

void Rendezvous::meet(const std::string& name, double most_s, const std::string& remedy,
                      const std::shared_ptr<Watch>& watch) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < options_.size; ++rank)
    keys.push_back(name + "/here/" + std::to_string(rank));
  const std::string& own = keys[static_cast<size_t>(options_.rank)];
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(most_s);
  std::optional<Watch::Waiting> waiting;
  if (watch) waiting.emplace(*watch, kAboutToMeet);
  reach(watch, [&] { store_->set(own, "1"); });
  // The store's own wait can't be left when a rank has gone.
  for (bool all_here = false; !all_here;) {
    std::string missing;
    reach(watch, [&] {
      all_here = store_->check(keys);
      if (all_here || std::chrono::steady_clock::now() < end) return;
      for (int rank = 0; rank < options_.size; ++rank)
        if (!store_->check({keys[static_cast<size_t>(rank)]}))
          missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      if (!missing.empty()) store_->deleteKey(own);
    });
    require(missing.empty(), Code::kNotFound, "infra: of a mesh of ", options_.size, " ranks [",
            missing, "] have not come within ", most_s, " s: ", remedy);
    if (all_here) return;
    require_all_live(watch);
    Interrupt::check();
    std::this_thread::sleep_for(kLook);
  }
}

std::shared_ptr<Watch> Rendezvous::watch(const std::string& name,
                                         const std::vector<std::string>& hosts) const {
  std::vector<Socket> sockets;
  reach(nullptr, [&] {
    if (options_.rank == 0) {
      const Listener listener(hosts);
      store_->set(name, listener.address());
      sockets = listener.accept(options_.size, options_.timeout_s);
    } else {
      const std::string address = store_->get_to_str(name);
      sockets.push_back(connected(address, options_.rank, options_.timeout_s));
    }
  });
  std::vector<int> numbers;
  for (Socket& socket : sockets) numbers.push_back(socket.release());
  return std::make_shared<Watch>(options_.rank, options_.size, numbers, options_.timeout_s);
}

}  // namespace twinkle::mesh
