// A server all of whose connections are taken, as peers see it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/server/http/server_for_test.h"

namespace twinkle::server {
namespace {

using FullServerTest = HttpServerTest;

TEST_F(FullServerTest, AConnectionBeyondTheMostWaitsUntilAnotherCloses) {
  std::promise<Reply> asked;
  handle_ = [&](const Request& request, Reply reply) {
    if (request.path == "/second") return reply({.body = "second"});
    asked.set_value(std::move(reply));
  };
  start({.max_connections = 1});
  Peer first(port());
  first.send(post("/first", ""));
  Reply reply = asked.get_future().get();
  Peer second(port());  // the system takes it
  ASSERT_TRUE(second.connected());
  second.send(post("/second", ""));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(server_->num_connections(), 1);
  {
    const std::lock_guard lock(told_mutex_);
    EXPECT_TRUE(told_.empty());
  }
  reply({.body = "first"});
  EXPECT_TRUE(first.receive().ends_with("first"));
  EXPECT_TRUE(second.receive().ends_with("second")) << "the first idles, and gives way";
}

TEST_F(FullServerTest, AConnectionThatWaitsIsTakenWhenTheLimitIsRaised) {
  std::promise<Reply> asked;
  handle_ = [&](const Request& request, Reply reply) {
    if (request.path == "/second") return reply({.body = "second"});
    asked.set_value(std::move(reply));
  };
  start({.max_connections = 1});
  Peer first(port()), second(port());
  first.send(post("/first", ""));
  Reply reply = asked.get_future().get();
  second.send(post("/second", ""));
  server_->set({.max_connections = 3});
  EXPECT_TRUE(second.receive().ends_with("second")) << "the first is not answered yet";
  reply({.body = "first"});
  EXPECT_TRUE(first.receive().ends_with("first"));
}

TEST_F(FullServerTest, WhereAllConnectionsAreTakenTheLongestIdleOneOfWhoHasMostGivesWay) {
  admit_ = [](const Head& head, const Admit& admit) {
    admit({.max_body_bytes = 100, .tenant = head.header("tenant")});
  };
  std::promise<Reply> polled;
  handle_ = [&](const Request& request, Reply reply) {
    if (request.path == "/poll") return polled.set_value(std::move(reply));
    reply({.body = std::to_string(request.beyond)});
  };
  start({.max_connections = 7});  // one of them for probes
  const auto asks = [](Peer& peer, const std::string& tenant, const std::string& path = "/") {
    peer.send("GET " + path + " HTTP/1.1\r\nHost: x\r\nTenant: " + tenant + "\r\n\r\n");
  };
  Peer poll(port()), first(port()), second(port()), other(port()), silent(port()), head(port());
  asks(poll, "a", "/poll");
  Reply reply = polled.get_future().get();
  for (Peer* peer : {&first, &second}) {
    asks(*peer, "a");
    EXPECT_TRUE(peer->receive().ends_with("0"));
  }
  asks(other, "b");
  EXPECT_TRUE(other.receive().ends_with("0"));
  head.send("GET / HT");
  for (int i = 0; server_->num_connections() < 6; ++i) std::this_thread::yield();
  std::vector<std::unique_ptr<Peer>> more;  // one for each tenant
  for (Peer* closed : {&first, &silent}) {  // "a" had three, and two peers were without a tenant
    more.push_back(std::make_unique<Peer>(port()));
    asks(*more.back(), "c" + std::to_string(more.size()));
    EXPECT_TRUE(more.back()->receive().ends_with("0"));
    EXPECT_EQ(closed->receive(), "");
  }
  reply({.body = "polled"});
  EXPECT_TRUE(poll.receive().ends_with("polled"));
}

TEST_F(FullServerTest, WhereAllConnectionsAreTakenOneWhosePeerTakesNoResponseGivesWay) {
  const auto large = std::make_shared<const std::string>(size_t{16} << 20, 'x');
  handle_ = [&](const Request& request, const Reply& reply) {
    if (request.path == "/large") return reply({.shared = large});
    reply({.body = std::to_string(request.beyond)});
  };
  start({.max_connections = 7});  // one of them for probes
  std::vector<std::unique_ptr<Peer>> slow;
  for (int i = 0; i < 6; ++i) {
    slow.push_back(std::make_unique<Peer>(port(), 4096));
    slow.back()->send(post("/large", ""));
    slow.back()->take(1);  // it is being sent
  }
  EXPECT_TRUE(Peer(port()).ask(post("/", "")).ends_with("0"));
  EXPECT_TRUE(slow[0]->receive().empty()) << "longest at it";
  EXPECT_TRUE(slow[5]->receive().ends_with("xx"));
}

TEST_F(FullServerTest, WhereAllConnectionsAreTakenAPollThatIsHeldGivesWay) {
  std::atomic<int> num_held = 0, num_gone = 0;
  std::vector<Reply> held;
  handle_ = [&](const Request& request, Reply reply) {
    if (request.path != "/poll") return reply({.body = std::to_string(request.beyond)});
    request.when_gone([&] { ++num_gone; });
    held.push_back(std::move(reply));
    ++num_held;
  };
  start({.max_connections = 7});  // one of them for probes
  std::vector<std::unique_ptr<Peer>> polls;
  for (int i = 0; i < 6; ++i) {
    polls.push_back(std::make_unique<Peer>(port()));
    polls.back()->send(post("/poll", ""));
    while (num_held <= i) std::this_thread::yield();
  }
  EXPECT_TRUE(Peer(port()).ask(post("/", "")).ends_with("0"));
  const std::string first = polls[0]->receive();
  EXPECT_TRUE(begins(first, "HTTP/1.1 429")) << first;
  EXPECT_NE(first.find("Connection: close"), std::string::npos) << first;
  EXPECT_EQ(num_gone, 1) << "nobody answers it any more";
  held[5]({.body = "late"});
  EXPECT_TRUE(polls[5]->receive().ends_with("late"));
}

TEST_F(FullServerTest, ARequestThatHasComeAsItsConnectionGivesWayIsRefused) {
  admit_ = [](const Head& head, const Admit& admit) {
    admit(head.beyond > 0 ? Admission{-1, refusal(503, "full")} : Admission{100});
  };
  std::promise<Reply> asked;
  handle_ = [&](const Request& request, Reply reply) {
    if (request.path == "/second") return reply({.body = "second"});
    asked.set_value(std::move(reply));
  };
  start({.max_connections = 1});
  Peer first(port());
  first.send(post("/first", ""));
  Reply reply = asked.get_future().get();
  Peer second(port());
  second.send(post("/second", ""));
  first.send(post("/third", ""));  // is there when the first is answered
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  reply({.body = "first"});
  EXPECT_TRUE(first.receive().ends_with("first"));
  const std::string refused = first.receive();
  EXPECT_TRUE(begins(refused, "HTTP/1.1 503")) << refused;
  EXPECT_NE(refused.find("Connection: close"), std::string::npos) << refused;
  EXPECT_EQ(first.receive(), "");
  EXPECT_TRUE(second.receive().ends_with("second"));
}

TEST_F(FullServerTest, HalfAHeadThatHasComeAsItsConnectionGivesWayIsNotWaitedFor) {
  std::promise<Reply> asked;
  handle_ = [&](const Request& request, Reply reply) {
    if (request.path == "/second") return reply({.body = "second"});
    asked.set_value(std::move(reply));
  };
  start({.max_connections = 1, .patience = std::chrono::minutes(10)});
  Peer first(port());
  first.send(post("/first", ""));
  Reply reply = asked.get_future().get();
  Peer second(port());
  second.send(post("/second", ""));
  first.send("POST /third HT");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  reply({.body = "first"});
  EXPECT_TRUE(first.receive().ends_with("first"));
  EXPECT_EQ(first.receive(), "");
  EXPECT_TRUE(second.receive().ends_with("second"));
}

}  // namespace
}  // namespace twinkle::server
