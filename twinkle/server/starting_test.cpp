// As a peer on a socket sees a server whose service is not there yet, and the connections that are
// kept for probes.
#include "twinkle/server/starting.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "twinkle/server/http/peer_for_test.h"
#include "twinkle/server/http/server.h"

namespace twinkle::server {
namespace {

Handler by(Starting& starting) {
  return {.admit = [&starting](const Head& head,
                               const Admit& admit) { starting.admit(head, head.path, admit); },
          .handle = [&starting](
                        Request request,
                        Reply reply) { starting.handle(std::move(request), std::move(reply)); }};
}

class StartingTest : public testing::Test {
 protected:
  StartingTest() { http_.serve(by(starting_)); }
  void end_start() {
    http_.post([this] {
      starting_.end({.admit = [](const Head&, const Admit& admit) { admit({100}); },
                     .handle =
                         [](const Request& request, const Reply& reply) {
                           reply({.body = "done: " + request.path + " " + request.body});
                         }});
    });
  }
  static std::string get(const std::string& path) {
    return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  uint16_t port() const { return http_.port(); }

  Starting starting_{3};
  HttpServer http_{HttpOptions{.max_connections = 6}};
};

TEST_F(StartingTest, ProbesAreAnsweredThatTheProcessLivesAndIsNotReady) {
  Peer peer(port());
  for (const char* path : {"/healthz", "/api/v1/healthz"}) {
    const std::string alive = peer.ask(get(path));
    EXPECT_TRUE(begins(alive, "HTTP/1.1 200")) << alive;
    EXPECT_NE(alive.find("{\"status\":\"ok\"}"), std::string::npos) << alive;
  }
  const std::string ready = peer.ask(get("/readyz"));
  EXPECT_TRUE(begins(ready, "HTTP/1.1 503")) << ready;
  EXPECT_NE(ready.find("Retry-After: 1\r\n"), std::string::npos) << ready;
  EXPECT_NE(ready.find("server: it starts, and does again what its journal holds"),
            std::string::npos);
  http_.post([this] { starting_.tell([] { return 0; }); });
  EXPECT_EQ(peer.ask(get("/readyz")).find("operations left"), std::string::npos)
      << "it does not know yet";
  http_.post([this] { starting_.tell([] { return 7; }); });
  EXPECT_NE(peer.ask(get("/readyz")).find("; operations left: 7"), std::string::npos);
  end_start();
  EXPECT_NE(peer.ask(get("/readyz")).find("done: /readyz"), std::string::npos)
      << "which the service answers from here on";
}

TEST_F(StartingTest, OtherRequestsWaitForTheServiceWithTheirBodies) {
  Peer early(port()), probe(port());
  early.send(post("/api/v1/optim_step", "it"));
  EXPECT_TRUE(begins(probe.ask(get("/healthz")), "HTTP/1.1 200"));
  end_start();
  EXPECT_NE(early.receive().find("done: /api/v1/optim_step it"), std::string::npos);
  EXPECT_NE(probe.ask(post("/late", "too")).find("done: /late too"), std::string::npos);
}

TEST_F(StartingTest, WhoHangsUpWhileItWaitsLeavesItsConnectionToOthers) {
  const std::string part = "POST /late HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\npart";
  for (int round = 0; round < 3; ++round) {
    for (const std::string& sent : {post("/early", "whole"), part}) {
      Peer one(port()), two(port()), three(port());
      for (Peer* peer : {&one, &two, &three}) peer->send(sent);
      EXPECT_TRUE(begins(Peer(port()).ask(get("/healthz")), "HTTP/1.1 200"));
    }
  }
  // Connections and places of those that wait are there again, once it has looked.
  for (int i = 0; i < 500 && http_.num_connections() > 0; ++i) ::usleep(10000);
  EXPECT_EQ(http_.num_connections(), 0);
  Peer waits(port());
  waits.send(post("/late", "it"));
  end_start();
  EXPECT_NE(waits.receive().find("done: /late it"), std::string::npos);
}

TEST_F(StartingTest, BeyondSomeThatWaitTheNextAreToldToComeAgain) {
  std::vector<std::unique_ptr<Peer>> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(std::make_unique<Peer>(port()));
    waiting.back()->send(post("/early", std::to_string(i)));
    EXPECT_TRUE(begins(Peer(port()).ask(get("/healthz")), "HTTP/1.1 200"));
  }
  for (int i = 0; i < 9; ++i) {
    Peer late(port());
    const std::string told = late.ask(post("/early", "late"));
    EXPECT_TRUE(begins(told, "HTTP/1.1 503")) << told;
    EXPECT_NE(told.find("Retry-After: 1\r\n"), std::string::npos) << told;
    EXPECT_NE(told.find("server: it starts, and 3 requests wait for it"), std::string::npos);
    EXPECT_EQ(late.receive(), "") << "its connection is for others";
  }
  for (const char* path : {"/api/v1/retrieve_future", "/api/v1/asample"})
    EXPECT_TRUE(begins(Peer(port()).ask(post(path, "late")), "HTTP/1.1 429")) << path;
  EXPECT_TRUE(begins(Peer(port()).ask(get("/readyz")), "HTTP/1.1 503"));
  end_start();
  for (int i = 0; i < 3; ++i)
    EXPECT_NE(waiting[i]->receive().find("done: /early " + std::to_string(i)), std::string::npos);
}

TEST_F(StartingTest, AServerThatEndsBeforeItsServiceWasThereEnds) {
  Peer peer(port());
  peer.send(post("/api/v1/optim_step", "it"));
  EXPECT_TRUE(begins(Peer(port()).ask(get("/healthz")), "HTTP/1.1 200"));
}

// A server whose polls are held until a test answers them.
class ForProbesTest : public testing::Test {
 protected:
  static constexpr int64_t kMost = 16, kOthers = 14;  // connections

  ForProbesTest() { http_.serve(by(starting_)); }
  void end_start() {
    http_.post([this] {
      starting_.end({.admit = [](const Head&, const Admit& admit) { admit({100}); },
                     .handle =
                         [this](const Request& request, Reply reply) {
                           if (request.path != "/api/v1/retrieve_future")
                             return reply({.body = "done: " + request.path});
                           const std::lock_guard lock(mutex_);
                           held_.push_back(std::move(reply));
                         }});
    });
  }
  // All connections that serve everything are taken by held polls.
  void hold_all() {
    end_start();
    while (std::ssize(polls_) < kOthers) {
      polls_.push_back(std::make_unique<Peer>(port()));
      polls_.back()->send(post("/api/v1/retrieve_future", "{}"));
    }
    wait_for(kOthers);
  }
  void wait_for(int64_t num_held) {
    const auto are_there = [&] {
      const std::lock_guard lock(mutex_);
      return std::ssize(held_) == num_held;
    };
    while (!are_there()) std::this_thread::yield();
  }
  void answer(size_t poll) {
    const std::lock_guard lock(mutex_);
    held_[poll]({.body = "told"});
  }
  static std::string get(const std::string& path) {
    return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  uint16_t port() const { return http_.port(); }

  std::mutex mutex_;
  std::vector<Reply> held_;
  Starting starting_{kOthers};
  HttpServer http_{HttpOptions{.max_connections = kMost,
                               .patience = std::chrono::minutes(10),
                               .keep_alive = std::chrono::minutes(10)}};
  std::vector<std::unique_ptr<Peer>> polls_;
};

TEST(ForProbes, AnEighthIsKeptOfSeveralConnections) {
  for (const auto& [all, kept] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 0}, {2, 1}, {15, 1}, {16, 2}, {512, 64}, {10000, 64}})
    EXPECT_EQ(connections_for_probes(all), kept) << all;
}

TEST_F(ForProbesTest, AreAnsweredWhilePollsHoldAllOtherConnections) {
  hold_all();
  for (int i = 0; i < 3; ++i) {
    for (const char* path : {"/healthz", "/readyz", "/api/v1/healthz", "/metrics"}) {
      Peer probe(port());
      const std::string told = probe.ask(get(path));
      EXPECT_TRUE(begins(told, "HTTP/1.1 200")) << path << told;
      EXPECT_NE(told.find("Connection: close\r\n"), std::string::npos) << told;
      EXPECT_EQ(probe.receive(), "") << "its connection is for others";
    }
  }
}

TEST_F(ForProbesTest, OtherRequestsAreToldToComeAgainAndAreTakenOnceAConnectionIsFree) {
  hold_all();
  const std::string part =
      "POST /api/v1/asample HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\npart";
  const std::string long_probe = "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n";
  for (const auto& [sent, status] : std::vector<std::pair<std::string, std::string>>{
           {post("/api/v1/optim_step", "{}"), "503"},
           {post("/healthz", ""), "503"},
           {get("/hf/m/config.json"), "503"},
           {long_probe, "503"},
           {post("/api/v1/retrieve_future", "{}"), "429"},
           {part, "429"}}) {
    Peer late(port());
    const std::string told = late.ask(sent);
    EXPECT_TRUE(begins(told, "HTTP/1.1 " + status)) << sent << told;
    EXPECT_NE(told.find("Retry-After: 1\r\n"), std::string::npos) << told;
    EXPECT_NE(told.find("Connection: close\r\n"), std::string::npos) << told;
    EXPECT_NE(told.find(R"({"detail":"server: 14 connections are open, and the rest of )"
                        R"(max_connections is for probes)"),
              std::string::npos)
        << told;
  }
  answer(0);
  EXPECT_NE(polls_[0]->receive().find("told"), std::string::npos);
  EXPECT_NE(polls_[0]->ask(post("/again", "")).find("done: /again"), std::string::npos)
      << "a connection that serves everything goes on";
  polls_.erase(polls_.begin());
  while (http_.num_connections() >= kOthers) std::this_thread::yield();
  Peer next(port());
  for (int i = 0; i < 2; ++i)
    EXPECT_NE(next.ask(post("/next", "")).find("done: /next"), std::string::npos);
}

TEST_F(ForProbesTest, TheServiceThatIsNotThereYetIsWaitedForOnOtherConnectionsAlone) {
  while (std::ssize(polls_) < kOthers) {
    polls_.push_back(std::make_unique<Peer>(port()));
    polls_.back()->send(post("/early", ""));
  }
  while (http_.num_connections() < kOthers) std::this_thread::yield();
  EXPECT_TRUE(begins(Peer(port()).ask(get("/healthz")), "HTTP/1.1 200"));
  EXPECT_TRUE(begins(Peer(port()).ask(get("/metrics")), "HTTP/1.1 503")) << "it would wait";
  end_start();
  for (const auto& poll : polls_)
    EXPECT_NE(poll->receive().find("done: /early"), std::string::npos);
}

TEST_F(ForProbesTest, WhoSaysNothingOnOneIsClosedAfterTwoSeconds_slow) {
  hold_all();
  Peer silent(port()), head(port());
  head.send("GET /hea");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(silent.receive(), "");
  EXPECT_EQ(head.receive(), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_TRUE(begins(Peer(port()).ask(get("/healthz")), "HTTP/1.1 200"));
}

}  // namespace
}  // namespace twinkle::server
