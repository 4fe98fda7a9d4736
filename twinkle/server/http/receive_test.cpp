// How bodies come in, as a peer on a socket sees it.
#include "twinkle/server/http/receive.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "twinkle/server/http/peer_for_test.h"

namespace twinkle::server {
namespace {

// `zstd` of "hello hello hello hello": a frame that does not tell its content's size.
const std::string kHellos(
    "\050\265\057\375\000\130\145\000\000\060\150\145\154\154\157\040\001\000\231\113\021", 21);

std::string framed(const std::string& content) {
  std::string out(ZSTD_compressBound(content.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), content.data(), content.size(), 3));
  return out;
}

std::string packed_frame(const std::string& frame, const std::string& encoding = "zstd") {
  return "POST /z HTTP/1.1\r\nHost: x\r\nContent-Encoding: " + encoding +
         "\r\nContent-Length: " + std::to_string(frame.size()) + "\r\n\r\n" + frame;
}

// Notes what a body asks for, and refuses what is more than it has.
struct RoomForTest : HeldRoom {
  struct Noted {
    std::mutex mutex;
    std::vector<int64_t> sizes;  // 0 at the end
  };
  RoomForTest(Noted& noted, int64_t most) : noted(noted), most(most) {}
  ~RoomForTest() override { note(0); }
  bool grow(int64_t bytes) override {
    if (bytes > most) return false;
    note(bytes);
    return true;
  }
  void wait(int64_t, Then then) override { then(refusal(503, "there is no room")); }
  void shrink(int64_t bytes) override { note(bytes); }
  void note(int64_t bytes) const {
    const std::lock_guard lock(noted.mutex);
    noted.sizes.push_back(bytes);
  }
  Noted& noted;
  const int64_t most;
};

class ReceiveTest : public testing::Test {
 protected:
  void start(const HttpOptions& options = {}) {
    server_.emplace(
        options, Handler{.admit = [this](const Head&, const Admit& admit) { admit(admission_()); },
                         .handle =
                             [this](const Request& request, const Reply& reply) {
                               ++num_handled_;
                               if (request.refused) {
                                 found_ = request.body;
                                 return reply(*request.refused);
                               }
                               reply({.body = "has " + request.body});
                             }});
  }
  uint16_t port() const { return server_->port(); }

  std::function<Admission()> admission_ = [] { return Admission{.max_body_bytes = 100}; };
  std::atomic<int> num_handled_ = 0;
  std::string found_;  // in the last that was not taken, before its answer
  std::optional<HttpServer> server_;
};

TEST_F(ReceiveTest, AZstdBodyComesDecodedAndAnotherEncodingIs422) {
  start();
  Peer peer(port());
  const auto encoded = [&](const std::string& encoding) {
    return peer.ask(packed_frame(kHellos, encoding));
  };
  EXPECT_NE(encoded("zstd").find("has hello hello hello hello"), std::string::npos);
  const std::string refused = encoded("br");
  EXPECT_TRUE(begins(refused, "HTTP/1.1 422")) << refused;
  EXPECT_NE(refused.find("the body cannot be read: its Content-Encoding is 'br', only zstd"),
            std::string::npos);
  EXPECT_NE(encoded("ZSTD").find("hello"), std::string::npos) << "the connection stays";
}

TEST_F(ReceiveTest, ABodyHoldsWhatCameThenWhatItDecodesToAndNothingWhenItsRequestEnds) {
  RoomForTest::Noted noted;
  admission_ = [&] {
    return Admission{.max_body_bytes = 100, .held = std::make_shared<RoomForTest>(noted, 100)};
  };
  start();
  Peer peer(port());
  EXPECT_TRUE(begins(peer.ask(post("/", "12345")), "HTTP/1.1 200"));
  // A frame that tells its content's size, one that does not, and two.
  const std::string content(30, 'x'), told = framed(content);
  EXPECT_NE(peer.ask(packed_frame(told)).find("has " + content), std::string::npos);
  EXPECT_NE(peer.ask(packed_frame(kHellos)).find("hello hello"), std::string::npos);
  EXPECT_NE(peer.ask(packed_frame(told + told)).find(content + content), std::string::npos);
  const int64_t size = std::ssize(told);
  const std::vector<int64_t> want{5,        5,
                                  0,  //
                                  size,     size + 30,
                                  30,       0,  //
                                  21,       100,
                                  23,       0,  //
                                  2 * size, 2 * size + 30,
                                  100,      60,
                                  0};
  const std::lock_guard lock(noted.mutex);
  EXPECT_EQ(noted.sizes, want);
}

TEST_F(ReceiveTest, WhatDecodesToMoreThanThereIsRoomForIsNotDecoded) {
  RoomForTest::Noted noted;
  admission_ = [&] {
    return Admission{.max_body_bytes = 1 << 20, .held = std::make_shared<RoomForTest>(noted, 1000)};
  };
  start();
  Peer peer(port());
  EXPECT_TRUE(begins(peer.ask(packed_frame(framed(std::string(5000, 'x')))), "HTTP/1.1 503"));
  EXPECT_EQ(num_handled_, 0);
  EXPECT_TRUE(begins(peer.ask(post("/", "1")), "HTTP/1.1 200")) << "the connection stays";
}

// Keeps what it is given, until that ends with an '!' or is `most` bytes.
struct Searching : Finder {
  explicit Searching(size_t most) : most(most) {}
  bool read(std::string_view more) override {
    text += more;
    return text.size() < most && !text.ends_with('!');
  }
  std::string found() const override {
    return text.size() >= most || text.ends_with('!') ? text : "";
  }
  const size_t most;
  std::string text;
};

TEST_F(ReceiveTest, ABodyThatIsTooLongIsSearchedToItsEndOrTheLimitAndNotKept) {
  RoomForTest::Noted noted;
  constexpr int64_t kMost = 10 << 20;
  const auto admission = [&](std::shared_ptr<Finder> finder) {
    return Admission{.max_body_bytes = 100,
                     .held = std::make_shared<RoomForTest>(noted, kMost),
                     .finder = std::move(finder),
                     .most_searched_bytes = kMost};
  };
  admission_ = [&] { return admission(std::make_shared<Searching>(kMost * 2)); };
  start();
  const auto chunked = [](const std::string& text) {
    const auto chunk = [](std::string_view part) {
      char size[20];
      std::snprintf(size, sizeof size, "%zx\r\n", part.size());
      return size + std::string(part) + "\r\n";
    };
    return "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
           chunk(std::string_view(text).substr(0, 80)) + chunk(std::string_view(text).substr(80)) +
           "0\r\n\r\n";
  };
  std::string text(9 << 20, 'x');
  text.back() = '!';
  for (const std::string& request : {post("/", text), chunked(text)}) {
    found_.clear();
    Peer peer(port());
    EXPECT_TRUE(begins(peer.ask(request), "HTTP/1.1 413"));
    EXPECT_TRUE(found_ == text) << found_.size();
  }
  {
    const std::lock_guard lock(noted.mutex);
    EXPECT_LE(*std::ranges::max_element(noted.sizes), (64 << 10) + 100);
  }
  EXPECT_EQ(num_handled_, 2);
  const std::string longer(kMost, 'x');
  Peer peer(port());
  EXPECT_TRUE(begins(peer.ask(post("/", longer + "!")), "HTTP/1.1 413")) << "beyond the limit";
  EXPECT_EQ(num_handled_, 2) << "nothing was found";
}

TEST_F(ReceiveTest, AnyLengthMayBeAnnouncedAndTakesNoMemory) {
  bool is_numbered = true;
  admission_ = [&] {
    return Admission{.max_body_bytes = 100,
                     .finder = is_numbered ? std::make_shared<Searching>(2) : nullptr,
                     .most_searched_bytes = 200};
  };
  start();
  for (const char* length : {"1000000000000", "1000000000000000", "9223372036854775807",
                             "9223372036854775808", "18446744073709551615"}) {
    is_numbered = !is_numbered;
    const std::string head = std::string("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ");
    EXPECT_TRUE(begins(Peer(port()).ask(head + length + "\r\n\r\nwell"), "HTTP/1.1 413")) << length;
  }
  EXPECT_EQ(num_handled_, 2);
  EXPECT_NE(Peer(port()).ask(post("/", "well")).find("has well"), std::string::npos);
}

TEST_F(ReceiveTest, WhatIsCompressedAndNotTakenIsSearchedAsItDecodes) {
  admission_ = [] {
    return Admission{.max_body_bytes = 100,
                     .finder = std::make_shared<Searching>(1 << 24),
                     .most_searched_bytes = 1 << 20};
  };
  start();
  std::string noise(5000, '\0');
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<char>(i * i * 31 / 7 + i % 11);
  noise.back() = '!';
  const std::string much = framed(noise), little = framed(std::string(5000, 'x') + "!");
  ASSERT_GT(much.size(), 100U);
  ASSERT_LT(little.size(), 100U);
  EXPECT_TRUE(begins(Peer(port()).ask(packed_frame(much)), "HTTP/1.1 413"));
  EXPECT_TRUE(found_ == noise);
  EXPECT_TRUE(begins(Peer(port()).ask(packed_frame(little)), "HTTP/1.1 422"));
  EXPECT_EQ(found_, std::string(5000, 'x') + "!");
  EXPECT_EQ(num_handled_, 2);
}

TEST_F(ReceiveTest, TheHandlerIsAskedWithWhatWasFoundInABodyThatIsNotTaken) {
  admission_ = [] {
    return Admission{.max_body_bytes = 100,
                     .finder = std::make_shared<Searching>(2),
                     .most_searched_bytes = 200};
  };
  start();
  const std::string text(150, 'x');
  const std::string chunked =
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n32\r\n" +
      text.substr(0, 50) + "\r\n60\r\n" + text.substr(0, 96) + "\r\n0\r\n\r\n";
  const std::string first =
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" +
      text.substr(0, 40);
  int num_handled = 0;
  for (const std::string& request :  // the second and the last are not all sent
       {post("/", text), post("/", text).substr(0, 100), chunked, first}) {
    found_.clear();
    Peer peer(port());
    EXPECT_TRUE(begins(peer.ask(request), "HTTP/1.1 413"));
    EXPECT_GE(found_.size(), 2U);
    EXPECT_EQ(found_, text.substr(0, found_.size()));
    EXPECT_EQ(peer.receive(), "") << "the connection ends";
    EXPECT_EQ(num_handled_, ++num_handled);
  }
  Peer peer(port());
  EXPECT_TRUE(begins(peer.ask(packed_frame(framed(text))), "HTTP/1.1 422"));
  EXPECT_EQ(found_, text.substr(0, found_.size())) << "decoded";
  EXPECT_FALSE(found_.empty());
  EXPECT_TRUE(begins(peer.ask(packed_frame("no frame")), "HTTP/1.1 422"));
  EXPECT_EQ(num_handled_, 5) << "nothing was found";
  Peer(port()).send(post("/", text.substr(0, 90)).substr(0, 100));  // and hangs up: it comes again
  EXPECT_NE(peer.ask(post("/", "well")).find("has well"), std::string::npos);
  EXPECT_EQ(num_handled_, 6);
}

TEST_F(ReceiveTest, ABodyThatComesSlowerThanItMayClosesItsConnection) {
  admission_ = [] { return Admission{.max_body_bytes = 10000}; };
  start({.body_time = std::chrono::milliseconds(100)});
  Peer peer(port());
  peer.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n");
  const auto begun = std::chrono::steady_clock::now();
  std::atomic<bool> is_closed = false;
  std::thread trickle([&] {
    for (int i = 0; i < 750 && !is_closed; ++i) {  // for 15 s at least
      peer.send("x");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  EXPECT_EQ(peer.receive(), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
  is_closed = true;
  trickle.join();
}

TEST_F(ReceiveTest, WhereAllConnectionsAreTakenTheOneWhoseBodyCameLastLongAgoGivesWay) {
  RoomForTest::Noted noted;
  admission_ = [&] {
    return Admission{.max_body_bytes = 100, .held = std::make_shared<RoomForTest>(noted, 100)};
  };
  start({.max_connections = 4, .patience = std::chrono::minutes(10)});  // one of them for probes
  const auto wait_for_reads = [&](size_t number) {
    for (size_t reads = 0; reads < number; std::this_thread::yield()) {
      const std::lock_guard lock(noted.mutex);
      reads = noted.sizes.size();
    }
  };
  Peer comes(port()), drips(port()), silent(port());
  size_t reads = 0;
  for (Peer* peer : {&comes, &drips, &silent}) {
    peer->send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n1");
    wait_for_reads(reads += 2);
  }
  comes.send("2");
  wait_for_reads(++reads);
  EXPECT_TRUE(Peer(port()).ask(post("/", "new")).ends_with("has new"));
  const std::string refused = drips.receive();
  EXPECT_TRUE(begins(refused, "HTTP/1.1 503")) << refused;
  EXPECT_NE(refused.find("Retry-After: 1\r\n"), std::string::npos) << refused;
  EXPECT_EQ(drips.receive(), "");
  comes.send("345");
  EXPECT_TRUE(comes.receive().ends_with("has 12345"));
  server_.reset();  // it holds room for the silent one's
}

}  // namespace
}  // namespace twinkle::server
