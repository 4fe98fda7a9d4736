#include "twinkle/server/bodies/body_room.h"

#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/server/http/peer_for_test.h"
#include "twinkle/server/http/server.h"
#include "twinkle/server/service/loop_for_test.h"

namespace twinkle::server {
namespace {

constexpr std::chrono::seconds kPatience{20};

// Of 1000 bytes 400 are the reserve, and an owner's share is 300.
class BodyRoomTest : public testing::Test {
 protected:
  using Held = std::shared_ptr<HeldRoom>;
  using Said = std::shared_ptr<std::optional<int>>;

  Admission ask(int64_t bytes, const std::string& owner, const std::string& path = "/x") {
    Head head;
    head.path = path;
    head.content_length = bytes;
    return room_->admit(head, owner);
  }
  Held body(const std::string& owner) { return ask(400, owner).held; }
  // The room of a body of which so many bytes have come.
  Held body(const std::string& owner, int64_t bytes) {
    Held out = body(owner);
    EXPECT_TRUE(out->grow(bytes)) << owner;
    return out;
  }
  // What is said of one that waits: 200 that it has its room, or the refusal; nothing yet.
  static Said wait(const Held& held, int64_t bytes) {
    EXPECT_FALSE(held->grow(bytes));
    auto out = std::make_shared<std::optional<int>>();
    held->wait(bytes, [out](const std::optional<Response>& refused) {
      *out = refused ? refused->status : 200;
    });
    return out;
  }
  // One that has the reserve, so that others wait.
  Held in_reserve() {
    Held out = body("first", 300);
    EXPECT_EQ(*wait(out, 350), 200);
    return out;
  }

  LoopForTest loop_;
  std::optional<BodyRoom> room_{
      std::in_place, BodyRoomOptions{.max_bytes = 1000, .max_body_bytes = 400, .small_bytes = 10},
      loop_};
};

TEST_F(BodyRoomTest, WhatAHeadAnnouncesTakesNoRoomAndWhatComesDoes) {
  std::vector<Held> announced;
  for (int i = 0; i < 100; ++i) announced.push_back(body("one"));
  EXPECT_EQ(room_->num_bytes(), 0);
  const Held other = body("other", 200);
  EXPECT_EQ(room_->num_bytes(), 200);
  other->shrink(50);
  EXPECT_EQ(room_->num_bytes(), 50);
  EXPECT_EQ(ask(5000, "other").max_body_bytes, 400) << "the server refuses it by its length";
}

TEST_F(BodyRoomTest, AnOwnersBodiesWaitForEachOtherAndNobodyElse) {
  const Held reserve = in_reserve();
  Held held = body("one", 200);
  const Held more = body("one", 100);
  const Said waits = wait(more, 101);
  const Held other = body("two", 300);  // all of the owner's share, next to one that waits
  EXPECT_FALSE(*waits);
  held.reset();
  loop_.run();
  EXPECT_EQ(*waits, 200);
}

TEST_F(BodyRoomTest, ABodyWaitsUntilAnotherHasEnded) {
  const Held reserve = in_reserve();
  const Held one = body("one", 300);
  Held two = body("two", 290);
  const Held three = body("three", 10);
  const Said waits = wait(three, 20);
  loop_.pass(kPatience / 2);
  EXPECT_FALSE(*waits);
  two.reset();
  loop_.run();
  EXPECT_EQ(*waits, 200);
  EXPECT_EQ(room_->num_bytes(), 350 + 300 + 20);
  loop_.pass(kPatience);
  EXPECT_EQ(*waits, 200);
}

TEST_F(BodyRoomTest, LimitsThatAreSetLaterHoldForWhatComesAndServeWhoWaits) {
  const Held reserve = in_reserve();
  const Held one = body("one", 300);
  const Held two = body("two", 290);
  const Held three = body("three", 10);
  const Said waits = wait(three, 20);
  room_->set({.max_bytes = 2000, .max_body_bytes = 500, .small_bytes = 10});
  EXPECT_EQ(*waits, 200);
  EXPECT_EQ(ask(5000, "other").max_body_bytes, 500);
  room_->set({.max_bytes = 500, .max_body_bytes = 400, .small_bytes = 10});
  EXPECT_FALSE(body("four")->grow(20));
  EXPECT_EQ(room_->num_bytes(), 350 + 300 + 290 + 20) << "those keep theirs";
  EXPECT_NE(
      error_of([&] { room_->set({.max_bytes = 1, .max_body_bytes = 2}); }).find("max_bytes is 1"),
      std::string::npos);
}

TEST_F(BodyRoomTest, WhoWaitsIsNotPassedByOthersThatWantLess) {
  const Held reserve = in_reserve();
  const Held one = body("one", 300);
  Held two = body("two", 250);
  const Held three = body("three"), four = body("four");
  const Said waits = wait(three, 200);
  EXPECT_FALSE(four->grow(20));
  two->shrink(100);
  loop_.run();
  EXPECT_EQ(*waits, 200);
}

TEST_F(BodyRoomTest, WhoWaitedTooLongIsToldToComeAgainAndTheNextGoes) {
  const Held reserve = in_reserve();
  const Held one = body("one", 300), two = body("two", 250), three = body("three");
  std::optional<Response> refused;
  EXPECT_FALSE(three->grow(200));
  three->wait(200, [&](std::optional<Response> said) { refused = std::move(said); });
  loop_.pass(kPatience / 2);
  const Held four = body("four");
  const Said behind = wait(four, 20);
  loop_.pass(kPatience / 2 - std::chrono::milliseconds(1));
  EXPECT_FALSE(refused);
  loop_.pass(std::chrono::milliseconds(1));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  ASSERT_EQ(refused->headers.size(), 1);
  EXPECT_EQ(refused->headers[0].first, "Retry-After");
  EXPECT_EQ(*behind, 200);
  EXPECT_EQ(room_->num_waiting(), 0);
}

// Each would wait for what the others have, for ever.
TEST_F(BodyRoomTest, BodiesThatAreAllPartlyInComeToTheirEndOneAfterAnother) {
  struct Coming {
    Held held;
    int64_t bytes = 0;
    Said waits = nullptr;
  };
  std::vector<Coming> bodies;
  for (const char* owner : {"a", "a", "a", "b", "b", "c", "c", "d"})
    bodies.push_back({body(owner)});
  size_t num_ended = 0;
  for (int turn = 0; turn < 100 && num_ended < bodies.size(); ++turn) {
    for (Coming& b : bodies) {
      if (!b.held || (b.waits && !*b.waits)) continue;
      if (b.waits) {
        ASSERT_EQ(**b.waits, 200);
        b.waits = nullptr;
        b.bytes += 50;
      } else if (b.bytes == 400) {
        b.held = nullptr;
        ++num_ended;
      } else if (b.held->grow(b.bytes + 50)) {
        b.bytes += 50;
      } else {
        b.waits = wait(b.held, b.bytes + 50);
      }
      EXPECT_LE(room_->num_bytes(), 1000);
    }
    loop_.run();
  }
  EXPECT_EQ(num_ended, bodies.size());
  EXPECT_EQ(room_->num_bytes(), 0);
}

TEST_F(BodyRoomTest, SmallOnesAndThoseWithoutABodyNeverWait) {
  const Held reserve = in_reserve(), one = body("one", 300), two = body("two", 300);
  const Held three = body("three");
  const Said waits = wait(three, 20);
  EXPECT_TRUE(body("four")->grow(10));
  EXPECT_EQ(ask(-1, "four").max_body_bytes, 400);
  EXPECT_EQ(ask(-1, "four").held, nullptr);
  EXPECT_EQ(ask(10, "four", "/api/v1/asample").max_body_bytes, 400);
}

TEST_F(BodyRoomTest, ASampleIsNotHeldBackButTold429) {
  const std::string path = "/api/v1/asample";
  const Held reserve = in_reserve(), one = body("one", 300), two = body("two", 200);
  const Admission refused = ask(150, "three", path);
  EXPECT_EQ(refused.max_body_bytes, -1);
  EXPECT_EQ(refused.refused.status, 429);
  const Held longer = ask(100, "three", path).held;  // when it is decoded
  EXPECT_EQ(*wait(longer, 150), 429);
}

TEST_F(BodyRoomTest, ASampleHasTheReserveIfNobodyElseHas) {
  const Held one = body("one", 300), two = body("two", 300);
  const Held sample = ask(150, "three", "/api/v1/asample").held;
  ASSERT_TRUE(sample);
  EXPECT_EQ(*wait(sample, 150), 200);
}

TEST_F(BodyRoomTest, ASamplePassesByNobodyWhoWaitsForTheRoomOrTheReserveThatIsFreeNow) {
  const std::string path = "/api/v1/asample";
  Held reserve = in_reserve();
  const Held one = body("one", 300);
  Held two = body("two", 290);
  const Held first = body("three", 10), sample = ask(10, "four", path).held;
  const Said waits = wait(first, 200);
  two->shrink(200);
  EXPECT_EQ(*wait(sample, 50), 429) << "there is room, for whom it was made";
  EXPECT_EQ(ask(50, "four", path).refused.status, 429);
  reserve.reset();
  EXPECT_EQ(*wait(sample, 350), 429) << "so is the reserve";
  EXPECT_FALSE(*waits);
  loop_.run();
  EXPECT_EQ(*waits, 200);
  EXPECT_LE(room_->num_bytes(), 1000);
}

TEST_F(BodyRoomTest, WhoIsGoneWhileItWaitsIsForgotten) {
  const Held reserve = in_reserve(), one = body("one", 300);
  Held two = body("two", 290), three = body("three", 10);
  const Said waits = wait(three, 20);
  three.reset();
  two.reset();
  loop_.run();
  EXPECT_EQ(room_->num_waiting(), 0);
  EXPECT_FALSE(*waits);
  EXPECT_EQ(room_->num_bytes(), 350 + 300);
}

TEST_F(BodyRoomTest, ABodyMayOutliveTheRoom) {
  Held reserve = in_reserve(), one = body("one", 300), two = body("two", 300);
  const Held three = body("three");
  const Said waits = wait(three, 20);
  room_.reset();
  two.reset();
  loop_.pass(kPatience);
  EXPECT_FALSE(*waits);
}

TEST(BodyRoom, ItMustHoldTheLongestBody) {
  LoopForTest loop;
  EXPECT_EQ(error_of([&] { BodyRoom({.max_bytes = 5, .max_body_bytes = 6}, loop); }),
            "server: max_bytes is 5, it must be at least max_body_bytes, 6");
}

// Over sockets.
class BodyRoomOfAServer : public testing::Test {
 protected:
  void serve(const BodyRoomOptions& options) {
    room_.emplace(options, http_);
    http_.serve(
        {.admit = [this](const Head& head,
                         const Admit& admit) { admit(room_->admit(head, head.header("owner"))); },
         .handle =
             [this](Request request, const Reply& reply) {
               const std::lock_guard lock(mutex_);
               kept_.push_back(std::move(request));
               reply({});
             }});
  }
  ~BodyRoomOfAServer() override {
    kept_.clear();
    http_.drain(std::chrono::seconds(5));
    room_.reset();
  }
  static std::string head(const std::string& path, const std::string& owner, int64_t bytes) {
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\nOwner: " + owner +
           "\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n";
  }
  static std::string post(const std::string& path, const std::string& owner, int64_t bytes) {
    return head(path, owner, bytes) + std::string(static_cast<size_t>(bytes), 'x');
  }

  HttpServer http_{HttpOptions{}};
  std::optional<BodyRoom> room_;
  std::mutex mutex_;
  std::vector<Request> kept_;  // as work that is queued keeps them
};

TEST_F(BodyRoomOfAServer, AClientsBodyIsReadWhenThereIsRoomOrItIsTold503AndASample429) {
  serve({.max_bytes = 3 << 20, .max_body_bytes = 1 << 20, .patience = std::chrono::seconds(5)});
  const int64_t bytes = 700'000;
  Peer peers[3] = {Peer(http_.port()), Peer(http_.port()), Peer(http_.port())};
  Peer waits(http_.port()), refused(http_.port()), sample(http_.port());
  for (const Peer& peer : peers) peer.send(head("/train", "some", 1 << 20));  // and no more comes
  const char* const owners[] = {"a", "b", "a"};  // two have their shares, and the third the reserve
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(begins(Peer(http_.port()).ask(post("/train", owners[i], bytes)), "HTTP/1.1 200"));
  waits.send(post("/train", "c", bytes));
  EXPECT_TRUE(begins(sample.ask(post("/api/v1/asample", "c", bytes)), "HTTP/1.1 429"));
  {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(kept_.size(), 3);
    kept_.clear();
  }
  EXPECT_TRUE(begins(waits.receive(), "HTTP/1.1 200"));
  {
    const std::lock_guard lock(mutex_);
    kept_.clear();
  }
  for (const char* owner : owners)
    EXPECT_TRUE(begins(Peer(http_.port()).ask(post("/train", owner, bytes)), "HTTP/1.1 200"));
  const std::string told = refused.ask(post("/train", "c", bytes));
  EXPECT_TRUE(begins(told, "HTTP/1.1 503")) << told;
  EXPECT_NE(told.find("Retry-After: 5"), std::string::npos);
  EXPECT_NE(told.find("Content-Length: "), std::string::npos);
}

TEST_F(BodyRoomOfAServer, ThoseWhoAnnounceMuchAndSendLittleHoldNobodyUp) {
  serve({});
  std::vector<std::unique_ptr<Peer>> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(std::make_unique<Peer>(http_.port()));
    slow.back()->send(head("/train", "slow", 256 << 20) + std::string(100'000, 'x'));
  }
  for (const char* owner : {"slow", "other"})
    EXPECT_TRUE(begins(Peer(http_.port()).ask(post("/train", owner, 3 << 20)), "HTTP/1.1 200"))
        << owner;
}

}  // namespace
}  // namespace twinkle::server
