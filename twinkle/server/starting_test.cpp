// As a peer on a socket sees a server whose service is not there yet.
#include "twinkle/server/starting.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "twinkle/server/http/peer_for_test.h"
#include "twinkle/server/http/server.h"

namespace twinkle::server {
namespace {

class StartingTest : public testing::Test {
 protected:
  StartingTest() {
    http_.serve({.admit = [this](const Head& head,
                                 const Admit& admit) { starting_.admit(head, head.path, admit); },
                 .handle =
                     [this](Request request, Reply reply) {
                       starting_.handle(std::move(request), std::move(reply));
                     }});
  }
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

}  // namespace
}  // namespace twinkle::server
