// Ranks that are threads, and a store in memory. The sockets are real ones.
#include "twinkle/mesh/rendezvous/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <iterator>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/mesh/rendezvous/sockets.h"

namespace twinkle::mesh {
namespace {

const std::vector<std::string> kHere{"127.0.0.1"};

// The finds of `size` ranks, which do the same at the same time.
template <class Work>
auto of_ranks(int size, const Work& work) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  using Found = decltype(work(std::declval<const Rendezvous&>()));
  std::vector<std::future<Found>> all;
  for (int rank = 0; rank < size; ++rank)
    all.push_back(std::async(std::launch::async, [&, rank] {
      const std::string failure = "test: rank " + std::to_string(rank);
      return work(Rendezvous(store, {.rank = rank, .size = size, .failure = failure}));
    }));
  std::vector<Found> out;
  for (auto& each : all) out.push_back(each.get());
  return out;
}

template <class Call>
void expect_failure(Code code, const std::string& text, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), text);
    EXPECT_EQ(error.code, code) << text;
  }
}

Rendezvous first_of(int size) {
  return {c10::make_intrusive<c10d::HashStore>(), {.size = size, .failure = "test: rank 0"}};
}

// A stranger, who says that and goes.
void say_to(const std::string& address, const std::string& said) {
  std::istringstream parts(address);
  std::string host;
  uint16_t port = 0;
  parts >> host >> port;
  const Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  inet_pton(AF_INET, host.c_str(), &to.sin_addr);
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  ASSERT_EQ(::send(socket.get(), said.data(), said.size(), 0), std::ssize(said));
}

TEST(Rendezvous, EveryRankComesAndHearsOfTheOthersFromThenOn) {
  auto watches = of_ranks(4, [](const Rendezvous& ranks) {
    ranks.meet("a", 20, "come", nullptr);
    return ranks.watch("a/watch", kHere);
  });
  watches[2]->fail("", "rank 2 is ill");
  for (const auto& watch : watches) EXPECT_EQ(watch->why_after("nothing", ""), "rank 2 is ill");
}

TEST(Rendezvous, ARankThatHasNotComeIsNamedAndOneThatComesLaterFindsNobody) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto rank = [&](int number) {
    return Rendezvous(store, {.rank = number, .size = 3, .failure = "test"});
  };
  expect_failure(Code::kNotFound,
                 "infra: of a mesh of 3 ranks [1, 2] have not come within 0.1 s: come in time",
                 [&] { rank(0).meet("a", 0.1, "come in time", nullptr); });
  expect_failure(Code::kNotFound,
                 "infra: of a mesh of 3 ranks [0, 2] have not come within 0.1 s: come in time",
                 [&] { rank(1).meet("a", 0.1, "come in time", nullptr); });
}

TEST(Rendezvous, AMeetingIsLeftWhereTheWatchHearsThatARankHasGone) {
  const auto watches = of_ranks(2, [](const Rendezvous& r) { return r.watch("w", kHere); });
  watches[1]->fail("", "mesh: rank 1 has gone");
  expect_failure(Code::kInternal, "mesh: rank 1 has gone",
                 [&] { first_of(2).meet("a", 20, "come", watches[0]); });
}

TEST(Rendezvous, TheWatchIsAskedWhyACallHasFailed) {
  const auto watches = of_ranks(2, [](const Rendezvous& r) { return r.watch("w", kHere); });
  expect_failure(Code::kNotFound, "test: rank 0: Connection reset by peer",
                 [&] { first_of(2).refuse("Connection reset by peer", watches[0]); });
  watches[1]->fail("", "mesh: rank 1 has gone");
  expect_failure(Code::kInternal, "mesh: rank 1 has gone",
                 [&] { first_of(2).refuse("Connection reset by peer", watches[0]); });
}

TEST(Rendezvous, ARankWhoseKeyHasNotComeIsNamed) {
  const std::string text = "wait timeout after 5000ms, keys: /twinkle/0/1/door/cpu/0/2";
  expect_failure(Code::kNotFound, "test: rank 0: rank 2 of the group has not come: " + text,
                 [&] { first_of(3).refuse(text, nullptr); });
}

TEST(Rendezvous, ARankThatDoesNotConnectIsWaitedForNoLongerThanTheTimeout) {
  Rendezvous ranks(c10::make_intrusive<c10d::HashStore>(),
                   {.size = 3, .timeout_s = 0.1, .failure = "test: rank 0"});
  expect_failure(Code::kNotFound,
                 "test: rank 0: of 2 ranks 0 have connected, and no other within 0.1 s",
                 [&] { ranks.watch("w", kHere); });
}

TEST(Rendezvous, StrangersAreSentAway) {
  const Listener listener(kHere);
  const std::string& address = listener.address();
  const std::string secret = address.substr(address.rfind(' ') + 1);
  for (const std::string& said : {std::string(), std::string("1\n"), std::string(99, 'x'),
                                  secret + "0\n", secret + "3\n", secret + "\n"})
    say_to(address, said);
  const Socket second = connected(address, 2, 20);
  say_to(address, secret + "2\n");  // there is one already
  const Socket first = connected(address, 1, 20);
  auto found = listener.accept(3, 20);
  ASSERT_EQ(found.size(), 2U);
  ASSERT_EQ(::send(second.get(), "2", 1, 0), 1);
  char got = 0;
  ASSERT_EQ(recv(found[1].get(), &got, 1, 0), 1);
  EXPECT_EQ(got, '2');
}

TEST(Rendezvous, TheFirstHostOfThisMachineIsListenedAt) {
  const Listener listener({"192.0.2.1", "127.0.0.1"});
  EXPECT_TRUE(listener.address().starts_with("127.0.0.1 "));
  expect_failure(Code::kNotFound, "nowhere to listen: 192.0.2.1: Cannot assign requested address",
                 [&] { Listener({"192.0.2.1"}); });
}

TEST(Rendezvous, AConnectionThatNobodyTakesIsRefused) {
  std::string address;
  {
    const Listener listener(kHere);
    address = listener.address();
  }
  const std::string port = address.substr(10, address.rfind(' ') - 10);
  expect_failure(Code::kNotFound,
                 "no connection to rank 0 at 127.0.0.1:" + port + ": Connection refused",
                 [&] { connected(address, 1, 20); });
}

}  // namespace
}  // namespace twinkle::mesh
