// Responses that are sent in pieces, as a peer on a socket sees them.
#include "twinkle/server/bodies/stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "twinkle/base/error.h"
#include "twinkle/server/bodies/source.h"
#include "twinkle/server/http/server_for_test.h"

namespace twinkle::server {
namespace {

const std::string kGet = " /s HTTP/1.1\r\nHost: x\r\n\r\n";

class StreamTest : public HttpServerTest {
 protected:
  StreamTest() {
    handle_ = [this](const Request& request, const Reply& reply) {
      if (request.path != "/s") return reply({.body = "plain"});
      writer_ = std::make_unique<StreamWriter>();
      writer_->when_gone([this] { ++num_gone_; });
      reply({.content_type = "text/event-stream", .stream = writer_->stream()});
    };
  }
  // The thread of the server ends what is kept there.
  ~StreamTest() override {
    if (server_) on_loop([this] { writer_.reset(); });
  }

  // Returns when it has run, on the service's thread.
  void on_loop(const std::function<void()>& run) {
    std::atomic<bool> done = false;
    server_->post([&] {
      run();
      done = true;
    });
    while (!done) std::this_thread::yield();
  }
  bool write(const std::string& piece) {
    bool is_taken = false;
    on_loop([&] { is_taken = writer_->write(piece); });
    return is_taken;
  }
  void end() {
    on_loop([&] { writer_->end(); });
  }
  // Those that ended, as the log tells them.
  std::string told() {
    server_->drain(std::chrono::seconds(20));
    const std::lock_guard lock(told_mutex_);
    return told_.empty() ? "" : told_.back();
  }

  std::unique_ptr<StreamWriter> writer_;
  std::atomic<int> num_gone_ = 0;
};

TEST_F(StreamTest, EachPieceIsSentAsItComesAndTheNextRequestIsAnsweredBehindTheEnd) {
  start();
  Peer peer(port());
  peer.send("GET" + kGet + post("/next", ""));  // both at once
  const std::string head = peer.read_until("\r\n\r\n");
  EXPECT_TRUE(begins(head, "HTTP/1.1 200 OK\r\n")) << head;
  EXPECT_NE(head.find("Content-Type: text/event-stream\r\n"), std::string::npos) << head;
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos) << head;
  EXPECT_EQ(head.find("Content-Length"), std::string::npos) << head;
  for (const char* piece : {"one\n\n", "zwei"}) {  // each is there before the next is written
    EXPECT_TRUE(write(piece));
    EXPECT_EQ(peer.read_until(std::string(piece) + "\r\n"),
              std::to_string(std::string(piece).size()) + "\r\n" + piece + "\r\n");
  }
  end();
  EXPECT_EQ(peer.read_until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_TRUE(peer.receive().ends_with("plain"));
  EXPECT_FALSE(write("late"));
  EXPECT_EQ(num_gone_, 0);
}

TEST_F(StreamTest, AllOfALongOneComesInOrderHoweverItIsWritten) {
  const auto piece = [](int i) {
    return std::string(static_cast<size_t>(i % 50), static_cast<char>('a' + i % 26));
  };
  constexpr int kPieces = 100'000;
  handle_ = [&](const Request&, const Reply& reply) {
    StreamWriter writer;
    for (int i = 0; i < kPieces; ++i) {
      if (i == 3) reply({.stream = writer.stream()});
      writer.write(piece(i));
    }
    writer.end();
  };
  start();
  std::string all;
  for (int i = 0; i < kPieces; ++i) all += piece(i);
  Peer peer(port());
  for (int i = 0; i < 2; ++i) {
    peer.send("GET" + kGet);
    const auto [head, body, is_whole] = peer.receive_chunks();
    EXPECT_TRUE(is_whole);
    EXPECT_TRUE(body == all);
  }
}

TEST_F(StreamTest, OneThatBreaksOffHasNoLastChunkAndEndsTheConnection) {
  start();
  for (const bool drops : {false, true}) {
    Peer peer(port());
    peer.send("GET" + kGet + post("/next", ""));
    peer.read_until("\r\n\r\n");
    on_loop([&] {
      writer_->write("begun");
      drops ? writer_.reset() : writer_->cut();
    });
    EXPECT_EQ(peer.read_until("never"), "5\r\nbegun\r\n") << drops;
  }
  EXPECT_EQ(num_gone_, 0);
  EXPECT_EQ(told(), "/s 200 cut");
}

TEST_F(StreamTest, AnOldPeerGetsItWithoutChunksUntilTheConnectionEnds) {
  start();
  Peer peer(port());
  peer.send("GET /s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const std::string head = peer.read_until("\r\n\r\n");
  EXPECT_EQ(head.find("Transfer-Encoding"), std::string::npos) << head;
  write("all ");
  write("of it");
  end();
  EXPECT_EQ(peer.read_until("never"), "all of it");
}

TEST_F(StreamTest, AHeadHasNoBodyAndItsWriterIsTold) {
  start();
  Peer peer(port());
  peer.send("HEAD" + kGet + post("/next", ""));
  EXPECT_NE(peer.read_until("\r\n\r\n").find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_TRUE(peer.receive().ends_with("plain"));
  EXPECT_FALSE(write("a"));
  EXPECT_EQ(num_gone_, 1);
}

TEST_F(StreamTest, AWriterIsToldWhenItsClientHangsUpAlsoOneThatHasSentMore) {
  start({.patience = std::chrono::minutes(10), .keep_alive = std::chrono::minutes(10)});
  for (const std::string& more : {std::string(), post("/next", "")}) {
    auto peer = std::make_unique<Peer>(port());
    peer->send("GET" + kGet);
    peer->read_until("\r\n\r\n");
    peer->send(more);  // when the head has been read
    EXPECT_TRUE(write("a"));
    peer->read_until("a\r\n");
    const int before = num_gone_;
    peer.reset();
    while (num_gone_ == before) std::this_thread::yield();
    EXPECT_FALSE(write("b"));
    bool is_told = false;
    on_loop([&] { writer_->when_gone([&] { is_told = true; }); });
    EXPECT_TRUE(is_told) << "who asks late is told at once";
  }
  EXPECT_EQ(num_gone_, 2);
  EXPECT_EQ(told(), "/s 200 client gone");
}

TEST_F(StreamTest, AClientThatReadsNothingIsCutWhenItsPatienceEnds) {
  start({.patience = std::chrono::milliseconds(100)});
  Peer peer(port(), 4096);
  peer.send("GET" + kGet);
  peer.read_until("\r\n\r\n");
  write(std::string(16 << 20, 'x'));
  while (num_gone_ == 0) std::this_thread::yield();
  EXPECT_FALSE(write("more"));
}

TEST_F(StreamTest, ThatNothingIsWrittenForLongTakesNobodysPatience) {
  start({.patience = std::chrono::milliseconds(50), .body_time = std::chrono::milliseconds(50)});
  Peer peer(port());
  peer.send("GET" + kGet);
  peer.read_until("\r\n\r\n");
  std::atomic<bool> is_over = false;
  server_->after(std::chrono::milliseconds(200), [&] { is_over = true; });
  while (!is_over) std::this_thread::yield();
  EXPECT_TRUE(write("late"));
  EXPECT_EQ(peer.read_until("late\r\n"), "4\r\nlate\r\n");
}

TEST_F(StreamTest, WhereItsWriterIsTooFarAheadItIsCut) {
  start({.max_sending_bytes = 1 << 20,
         .patience = std::chrono::minutes(10),
         .body_time = std::chrono::minutes(10)});
  Peer peer(port(), 4096);
  peer.send("GET" + kGet);
  peer.read_until("\r\n\r\n");
  const std::string piece(100'000, 'x');
  int num_written = 0;
  while (write(piece) && num_written < 1000) ++num_written;
  EXPECT_LT(num_written, 1000);
  EXPECT_EQ(num_gone_, 1);
}

TEST_F(StreamTest, AWriterMayOutliveTheServer) {
  start();
  Peer peer(port());
  peer.send("GET" + kGet);
  peer.read_until("\r\n\r\n");
  server_.reset();
  EXPECT_EQ(peer.read_until("never"), "");
  EXPECT_FALSE(writer_->write("a"));
  writer_.reset();
  EXPECT_EQ(num_gone_, 0);
}

class SourceTest : public HttpServerTest {
 protected:
  SourceTest() {
    handle_ = [this](const Request& request, const Reply& reply) {
      if (request.path != "/s") return reply({.body = "plain"});
      reply({.content_type = "application/x-tar", .source = source_});
    };
  }
  std::shared_ptr<const BodySource> source_;
};

TEST_F(SourceTest, AFileIsSentWithItsLengthAlsoToOldPeersAndWhenItsNameIsGone) {
  start();
  const std::string path = testing::TempDir() + "source_test_" + std::to_string(::getpid());
  std::string bytes(1'000'003, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 7);
  for (const std::string& text : {bytes, std::string("short"), std::string()}) {
    std::ofstream(path, std::ios::binary) << text;
    source_ = std::make_shared<const FileSource>(path);
    std::filesystem::remove(path);
    const std::string length = "Content-Length: " + std::to_string(text.size()) + "\r\n";
    Peer peer(port());
    for (int i = 0; i < 2; ++i) {
      const std::string all = peer.ask("GET" + kGet);
      EXPECT_NE(all.find(length), std::string::npos) << all.substr(0, 300);
      EXPECT_TRUE(all.substr(all.find("\r\n\r\n") + 4) == text);
    }
    peer.send("HEAD" + kGet);
    EXPECT_NE(peer.read_until("\r\n\r\n").find(length), std::string::npos);
    EXPECT_TRUE(peer.ask(post("/next", "")).ends_with("plain"));
    Peer old(port());
    old.send("GET /s HTTP/1.0\r\n\r\n");
    EXPECT_NE(old.read_until("\r\n\r\n").find(length), std::string::npos);
    EXPECT_TRUE(old.read_until("never that text") == text);
  }
  EXPECT_THROW(FileSource(path + "/none"), Error);
}

// Fails behind its first bytes.
class Broken : public BodySource {
 public:
  int64_t size() const override { return 1 << 20; }
  void read_at(int64_t offset, std::span<std::byte> out) const override {
    if (offset > 0) throw std::runtime_error("the disk is gone");
    std::ranges::fill(out, std::byte{'x'});
  }
};

TEST_F(SourceTest, OneThatCannotBeReadEndsTheConnectionAndTheLogSaysWhy) {
  source_ = std::make_shared<const Broken>();
  start();
  Peer peer(port());
  peer.send("GET" + kGet + post("/next", ""));
  peer.read_until("\r\n\r\n");
  EXPECT_EQ(peer.read_until("never"), std::string(256 << 10, 'x'));
  server_->drain(std::chrono::seconds(20));
  EXPECT_EQ(told_.back(), "/s 200 cut: the disk is gone");
}

// Counts how much of it was read.
class Counted : public BodySource {
 public:
  int64_t size() const override { return int64_t{1} << 32; }
  void read_at(int64_t, std::span<std::byte> out) const override {
    num_read += std::ssize(out);
    std::ranges::fill(out, std::byte{'x'});
  }
  mutable std::atomic<int64_t> num_read = 0;
};

TEST_F(SourceTest, ASlowReaderKeepsNoMoreThanAPieceInMemoryAndIsCutWhenItsTimeEnds) {
  const auto source = std::make_shared<const Counted>();
  source_ = source;
  start({.body_time = std::chrono::milliseconds(200)});
  Peer peer(port(), 4096);
  peer.send("GET" + kGet);
  peer.read_until("\r\n\r\n");
  while (server_->num_connections() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    peer.take(1000);  // less than a MiB a second
  }
  EXPECT_LT(source->num_read, 32 << 20) << "it is read as it is taken";
}

}  // namespace
}  // namespace twinkle::server
