#include "twinkle/server/http/body_room.h"

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

class BodyRoomTest : public testing::Test {
 protected:
  // What is said of a request of so many bytes, once it is said; -1: none are told, and it is
  // chunked.
  std::shared_ptr<std::optional<Admission>> ask(int64_t bytes, const std::string& path = "/x") {
    Head head;
    head.path = path;
    head.content_length = bytes;
    if (bytes < 0) head.headers["transfer-encoding"] = "chunked";
    auto out = std::make_shared<std::optional<Admission>>();
    room_->admit(head, [out](Admission admission) { *out = std::move(admission); });
    return out;
  }
  static int status(const std::shared_ptr<std::optional<Admission>>& said) {
    if (!*said) return 0;
    return (*said)->max_body_bytes < 0 ? (*said)->refused.status : 200;
  }

  LoopForTest loop_;
  std::optional<BodyRoom> room_{
      std::in_place, BodyRoomOptions{.max_bytes = 1000, .max_body_bytes = 600, .small_bytes = 10},
      loop_};
};

TEST_F(BodyRoomTest, ARequestWaitsUntilAnotherHasEnded) {
  const auto first = ask(600), second = ask(600);
  EXPECT_EQ(status(first), 200);
  EXPECT_EQ((*first)->max_body_bytes, 600);
  loop_.pass(kPatience / 2);
  EXPECT_EQ(status(second), 0);
  first->reset();
  loop_.run();
  EXPECT_EQ(status(second), 200);
  EXPECT_EQ(room_->num_bytes(), 600);
  loop_.pass(kPatience);
  EXPECT_EQ(status(second), 200);
}

TEST_F(BodyRoomTest, WhoWaitedTooLongIsToldToComeAgain) {
  const auto first = ask(600), second = ask(600);
  loop_.pass(kPatience - std::chrono::milliseconds(1));
  EXPECT_EQ(status(second), 0);
  loop_.pass(std::chrono::milliseconds(1));
  EXPECT_EQ(status(second), 503);
  const auto& headers = (*second)->refused.headers;
  ASSERT_EQ(headers.size(), 1);
  EXPECT_EQ(headers[0].first, "Retry-After");
  EXPECT_EQ(room_->num_waiting(), 0);
}

TEST_F(BodyRoomTest, ThoseWhoWaitAreServedInTurn) {
  const auto first = ask(600), second = ask(500), third = ask(100);
  EXPECT_EQ(status(third), 0) << "it must not pass the second by";
  (*first)->held->resize(100);
  loop_.run();
  EXPECT_EQ(status(second), 200);
  EXPECT_EQ(status(third), 200);
}

TEST_F(BodyRoomTest, AShorterOneGoesWhenTheOneBeforeItGaveUp) {
  const auto first = ask(600), second = ask(500);
  loop_.pass(kPatience / 2);
  const auto third = ask(100);
  loop_.pass(kPatience / 2);
  EXPECT_EQ(status(second), 503);
  EXPECT_EQ(status(third), 200);
}

TEST_F(BodyRoomTest, SmallOnesAndThoseWithoutABodyNeverWait) {
  const auto first = ask(600), second = ask(600);
  Head get;
  get.content_length = -1;
  std::optional<Admission> said;
  room_->admit(get, [&](Admission admission) { said = std::move(admission); });
  EXPECT_EQ(said->max_body_bytes, 600);
  EXPECT_EQ(status(ask(10)), 200);
  EXPECT_EQ(status(second), 0);
}

TEST_F(BodyRoomTest, ASampleIsNotHeldBackButTold429) {
  const auto first = ask(600);
  EXPECT_EQ(status(ask(500, "/api/v1/asample")), 429);
  EXPECT_EQ(status(ask(400, "/api/v1/asample")), 200);
}

TEST_F(BodyRoomTest, AnUntoldLengthTakesTheMostThatItMayBe) {
  const auto first = ask(-1);
  EXPECT_EQ(room_->num_bytes(), 600);
  (*first)->held->resize(5);
  EXPECT_EQ(room_->num_bytes(), 5);
  EXPECT_EQ(status(ask(5000)), 200);  // the server refuses it by its length
}

TEST_F(BodyRoomTest, ABodyMayOutliveTheRoom) {
  const auto first = ask(600), second = ask(600);
  room_.reset();
  first->reset();
  loop_.pass(kPatience);
  EXPECT_EQ(status(second), 0);
}

TEST(BodyRoom, ItMustHoldTheLongestBody) {
  LoopForTest loop;
  EXPECT_EQ(error_of([&] { BodyRoom({.max_bytes = 5, .max_body_bytes = 6}, loop); }),
            "server: max_bytes is 5, it must be at least max_body_bytes, 6");
}

// Over sockets: what is handled is kept, as work that is queued keeps it.
TEST(BodyRoom, AClientsBodyIsReadWhenThereIsRoomOrItIsTold503AndASample429) {
  HttpServer http({});
  std::optional<BodyRoom> room(std::in_place,
                               BodyRoomOptions{.max_bytes = 1 << 20,
                                               .max_body_bytes = 1 << 20,
                                               .patience = std::chrono::milliseconds(500)},
                               http);
  std::mutex mutex;
  std::vector<Request> kept;
  http.serve({.admit = [&](const Head& head, const Admit& admit) { room->admit(head, admit); },
              .handle =
                  [&](Request request, const Reply& reply) {
                    const std::lock_guard lock(mutex);
                    kept.push_back(std::move(request));
                    reply({});
                  }});
  const std::string body(700'000, 'x');
  Peer first(http.port()), second(http.port()), third(http.port()), sample(http.port());
  EXPECT_TRUE(begins(first.ask(post("/train", body)), "HTTP/1.1 200"));
  second.send(post("/train", body));
  EXPECT_TRUE(begins(sample.ask(post("/api/v1/asample", body)), "HTTP/1.1 429"));
  {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(kept.size(), 1);
    kept.clear();
  }
  EXPECT_TRUE(begins(second.receive(), "HTTP/1.1 200"));
  const std::string refused = third.ask(post("/train", body));
  EXPECT_TRUE(begins(refused, "HTTP/1.1 503")) << refused;
  EXPECT_NE(refused.find("Retry-After: 5"), std::string::npos);
  EXPECT_NE(refused.find("Content-Length: "), std::string::npos);
  http.drain(std::chrono::seconds(5));
  room.reset();
}

}  // namespace
}  // namespace twinkle::server
