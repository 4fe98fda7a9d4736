// The server as a peer on a socket sees it.
#include "twinkle/server/http/server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"
#include "twinkle/server/http/server_for_test.h"

namespace twinkle::server {
namespace {

TEST(Refusal, QuotesAnyBytesWithinAFewThousandAndIsJson) {
  const auto detail = [](const std::string& text) {
    return std::string(parse_json(refusal(422, text).body, "it").at("detail").as_string());
  };
  EXPECT_EQ(detail("a \xc3\xbc"), "a \xc3\xbc");
  EXPECT_EQ(detail("a \xff\xfe"), "a ??");
  EXPECT_EQ(detail(std::string(5000, 'x')), std::string(4096, 'x') + "...");
  EXPECT_EQ(detail(std::string(4095, 'x') + "\xc3\xbc"), std::string(4095, 'x') + "?...");
}

TEST_F(HttpServerTest, AnswersRequestsOfOneConnectionInTurn) {
  start();
  Peer peer(port());
  EXPECT_NE(peer.ask(post("/a/b%20c?d=1", "hello")).find("POST /a/b%20c?d=1 hello"),
            std::string::npos);
  peer.send(post("/1", "x") + post("/2", "y"));  // both at once
  EXPECT_NE(peer.receive().find("POST /1? x"), std::string::npos);
  EXPECT_NE(peer.receive().find("POST /2? y"), std::string::npos);
}

TEST_F(HttpServerTest, AnAnswerMayComeLaterAndFromAnotherThread) {
  std::thread later;
  handle_ = [&](Request, Reply reply) {
    later = std::thread([reply] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      reply({.body = "late"});
      reply({.body = "too late"});
    });
  };
  start();
  Peer peer(port());
  EXPECT_NE(peer.ask(post("/", "")).find("late"), std::string::npos);
  later.join();
}

TEST_F(HttpServerTest, ARefusedRequestWhoseBodyHasComeLeavesItsConnectionOpen) {
  admit_ = [](const Head& head, const Admit& admit) {
    admit(head.path == "/no" ? Admission{-1, refusal(401, "no")} : Admission{100});
  };
  start();
  Peer peer(port());
  peer.send(post("/no", "secret") + post("/yes", "x"));
  EXPECT_TRUE(begins(peer.receive(), "HTTP/1.1 401"));
  EXPECT_NE(peer.receive().find("POST /yes? x"), std::string::npos);
}

TEST_F(HttpServerTest, EveryAnswerTellsTheRequestsIdWhichTheLogHas) {
  std::vector<std::string> ids;
  handle_ = [&](const Request& request, const Reply& reply) {
    ids.push_back(request.id);
    reply({});
  };
  start();
  Peer peer(port());
  for (int i = 0; i < 2; ++i) {
    const std::string answer = peer.ask(post("/", ""));
    EXPECT_NE(answer.find("X-Request-Id: " + ids.back() + "\r"), std::string::npos) << answer;
  }
  EXPECT_NE(ids[0], ids[1]);
}

TEST_F(HttpServerTest, ADroppedRequestIsAnsweredAndSoIsOneWhoseHandlerThrows) {
  handle_ = [](Request request, Reply) {
    if (request.path == "/throw") throw std::runtime_error("no");
  };
  start();
  Peer peer(port());
  EXPECT_TRUE(begins(peer.ask(post("/", "")), "HTTP/1.1 500"));
  EXPECT_TRUE(begins(peer.ask(post("/throw", "")), "HTTP/1.1 500"));
}

TEST_F(HttpServerTest, WhatIsBetweenChunksIsBoundedAndEndsTheConnection) {
  admit_ = [](const Head&, const Admit& admit) { admit({.max_body_bytes = 1 << 20}); };
  start();
  const std::string much(20'000, '1'),
      head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& junk : {"1;a=" + much, "1;a=\"" + much, std::string(20'000, '0'),
                                  "0\r\na: " + much, "3\r\nabc\r\n1;a=" + much}) {
    Peer peer(port());
    peer.send(head + junk);  // and nothing more: it is refused without its end
    const std::string answer = peer.receive();
    EXPECT_TRUE(begins(answer, "HTTP/1.1 431")) << junk.substr(0, 10) << answer;
    EXPECT_EQ(peer.receive(), "") << junk.substr(0, 10);
  }
  Peer peer(port());
  EXPECT_NE(peer.ask(head + "1;a=b\r\nx\r\n0\r\na: b\r\n\r\n").find("? x"), std::string::npos);
}

TEST_F(HttpServerTest, AHeadThatCanBeReadInTwoWaysIsRefusedAndEndsTheConnection) {
  start();
  for (const char* lines :
       {"Host: x\r\nHost: y", "Host: x\r\nA: b\r\n c: d", "Host: x\r\nA:\r\n\tb",
        "Host: x\r\nContent-Length: 2, 2", "Host: x\r\nContent-Length: 2\r\nContent-Length: 2"}) {
    Peer peer(port());
    peer.send("POST /1 HTTP/1.1\r\n" + std::string(lines) + "\r\n\r\n" + post("/2", "y"));
    const std::string answer = peer.receive();
    EXPECT_TRUE(begins(answer, "HTTP/1.1 422")) << lines << answer;
    EXPECT_EQ(peer.receive(), "") << lines;
  }
  Peer whole(port());  // the folded line is the body's
  EXPECT_NE(whole.ask(post("/", "a\r\n b")).find("a\r\n b"), std::string::npos);
  Peer old(port());
  EXPECT_NE(
      old.ask("POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
              "1\r\nx\r\n0\r\n\r\n")
          .find("? x"),
      std::string::npos);
  EXPECT_EQ(old.receive(), "") << "HTTP/1.0 knows no chunks";
}

TEST_F(HttpServerTest, ABodyThatIsTooLongIsRefusedBeforeItIsReadChunkedOrNot) {
  admit_ = [](const Head&, const Admit& admit) {
    admit({.max_body_bytes = 100, .why_most = ", so it is cut"});
  };
  start();
  Peer told(port());
  const std::string refused = told.ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n");
  EXPECT_TRUE(begins(refused, "HTTP/1.1 413")) << refused;
  EXPECT_NE(refused.find(R"({"detail":"the body is longer than 100 bytes, so it is cut"})"),
            std::string::npos)
      << refused;
  EXPECT_EQ(told.receive(), "");
  Peer chunked(port());
  EXPECT_TRUE(begins(chunked.ask("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                                 "65\r\n" +
                                 std::string(101, 'x') + "\r\n0\r\n\r\n"),
                     "HTTP/1.1 413"));
}

TEST_F(HttpServerTest, WhatIsNoHttpIsRefusedWithJsonNeverWith400) {
  start({.max_header_bytes = 4096});
  for (const std::string& text :
       {std::string("nonsense\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n")}) {
    Peer peer(port());
    const std::string answer = peer.ask(text);
    EXPECT_TRUE(begins(answer, "HTTP/1.1 422")) << text << answer;
    EXPECT_NE(answer.find("{\"detail\":"), std::string::npos);
  }
  Peer chunk(port());
  EXPECT_TRUE(begins(chunk.ask("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"),
                     "HTTP/1.1 422"));
  Peer peer(port());
  EXPECT_TRUE(begins(peer.ask("GET / HTTP/1.1\r\nX: " + std::string(9000, 'x') + "\r\n\r\n"),
                     "HTTP/1.1 431"));
}

TEST_F(HttpServerTest, ABodyIsNotReadBeforeThereIsRoomForIt) {
  std::mutex mutex;
  std::vector<Admit> waiting;
  admit_ = [&](const Head& head, Admit admit) {
    EXPECT_EQ(head.content_length, 5);
    const std::lock_guard lock(mutex);
    waiting.push_back(std::move(admit));
  };
  std::atomic<int> handled = 0;
  handle_ = [&](Request, Reply reply) {
    ++handled;
    reply({});
  };
  start();
  Peer first(port()), second(port());
  const auto wait_for = [&](size_t number) {
    const auto is_there = [&] {
      const std::lock_guard lock(mutex);
      return waiting.size() == number;
    };
    while (!is_there()) std::this_thread::yield();
  };
  first.send(post("/", "12345"));
  wait_for(1);
  second.send(post("/", "12345"));
  wait_for(2);
  EXPECT_EQ(handled, 0);
  waiting[0]({.max_body_bytes = 5});
  EXPECT_TRUE(begins(first.receive(), "HTTP/1.1 200"));
  waiting[1]({-1, refusal(503, "there is no room")});
  EXPECT_TRUE(begins(second.receive(), "HTTP/1.1 503"));
  EXPECT_EQ(handled, 1);
  waiting.clear();
}

TEST_F(HttpServerTest, ARefusedPeerReadsWhyAlthoughItStillSends) {
  admit_ = [](const Head&, const Admit& admit) { admit({-1, refusal(503, "there is no room")}); };
  start();
  Peer peer(port());
  const std::string body(4 << 20, 'x');  // more than sockets buffer
  peer.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
            "\r\n\r\n");
  peer.send(body);
  EXPECT_TRUE(begins(peer.receive(), "HTTP/1.1 503"));
  EXPECT_EQ(peer.receive(), "");
}

TEST_F(HttpServerTest, ATransferThatIsMoreThanChunkedIsRefused) {
  start();
  for (const char* codings :
       {"gzip, chunked", "chunked, chunked", "gzip\r\nTransfer-Encoding: chunked"})
    EXPECT_TRUE(begins(Peer(port()).ask("POST /1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " +
                                        std::string(codings) + "\r\n\r\n0\r\n\r\n"),
                       "HTTP/1.1 422"))
        << codings;
}

TEST_F(HttpServerTest, ABodyIsAskedForInAnyCaseOfLettersAndOfNoOldPeer) {
  start();
  const auto ask = [&](const std::string& version, const std::string& expect) {
    return Peer(port()).ask("POST /1 HTTP/" + version + "\r\nHost: x\r\nExpect: " + expect +
                            "\r\nContent-Length: 1\r\n\r\nx");
  };
  EXPECT_TRUE(begins(ask("1.1", "100-Continue"), "HTTP/1.1 100 "));
  const std::string old = ask("1.0", "100-continue");
  EXPECT_FALSE(old.empty());
  EXPECT_EQ(old.find(" 100 "), std::string::npos) << old;
}

TEST_F(HttpServerTest, ARefusedHeadHasNoBody) {
  start();
  Peer peer(port());
  peer.send("HEAD /1 HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nConnection: close\r\n\r\n");
  peer.take(1 << 16);
  const std::string head = peer.taken();
  EXPECT_TRUE(begins(head, "HTTP/1.1 422")) << head;
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
}

TEST_F(HttpServerTest, AnUnknownTransferEncodingEndsTheConnection) {
  start();
  Peer peer(port());
  peer.send("POST /1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: x\r\n\r\n" + post("/2", "y"));
  const std::string answer = peer.receive();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 422")) << answer;
  EXPECT_NE(answer.find("only chunked"), std::string::npos) << answer;
  EXPECT_EQ(peer.receive(), "");  // the second is not answered
}

TEST_F(HttpServerTest, APeerThatSendsTooSlowlyIsClosed) {
  start({.patience = std::chrono::milliseconds(50), .keep_alive = std::chrono::milliseconds(50)});
  Peer silent(port()), head(port()), body(port());
  head.send("POST / HT");
  body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12");
  EXPECT_EQ(silent.receive(), "");
  EXPECT_EQ(head.receive(), "");
  EXPECT_EQ(body.receive(), "");
}

TEST_F(HttpServerTest, AnAnswerThatOthersShareIsSentAsItIs) {
  const auto shared = std::make_shared<const std::string>(3 << 20, 'x');
  handle_ = [&](const Request&, const Reply& reply) { reply({.shared = shared}); };
  start();
  Peer peer(port());
  for (int i = 0; i < 2; ++i) {
    const std::string answer = peer.ask(post("/", ""));
    EXPECT_EQ(answer.substr(answer.find("\r\n\r\n") + 4), *shared);
  }
}

TEST_F(HttpServerTest, WhoTakesAnAnswerTooSlowlyIsClosed) {
  std::atomic<bool> has_it = false;
  handle_ = [&](const Request&, const Reply& reply) {
    reply({.body = std::string(64 << 20, 'x')});
    has_it = true;
  };
  start({.body_time = std::chrono::milliseconds(200)});
  Peer peer(port(), 4096);
  peer.send(post("/", ""));
  while (!has_it || server_->num_connections() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    peer.take(1000);  // less than a MiB a second
  }
}

TEST_F(HttpServerTest, TwoHundredThatReadNothingHoldNobodyUp) {
  const auto large = std::make_shared<const std::string>(size_t{16} << 20, 'x');
  handle_ = [&](const Request& request, const Reply& reply) {
    if (request.path == "/large")
      reply({.shared = large});
    else
      reply({.body = "small"});
  };
  start({.patience = std::chrono::minutes(10), .body_time = std::chrono::minutes(10)});
  std::vector<std::unique_ptr<Peer>> slow;
  for (int i = 0; i < 200; ++i) {
    slow.push_back(std::make_unique<Peer>(port(), 4096));
    slow.back()->send(post("/large", ""));
    slow.back()->take(1);  // it is being sent
  }
  Peer quick(port());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(quick.ask(post("/", "")).ends_with("small"));
  EXPECT_EQ(server_->num_connections(), 201) << "they have their patience";
  EXPECT_TRUE(Peer(port()).ask(post("/large", "")).ends_with("xx"));
}

TEST_F(HttpServerTest, WhereSlowReadersKeepTooMuchTheOldestIsClosed) {
  handle_ = [](const Request&, const Reply& reply) { reply({.body = std::string(32 << 20, 'x')}); };
  start({.max_sending_bytes = 100 << 20});
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < 5; ++i) {
    peers.push_back(std::make_unique<Peer>(port()));
    peers.back()->send(post("/", ""));
    peers.back()->take(1);  // it is being sent
  }
  EXPECT_EQ(peers[0]->receive(), "");
  EXPECT_EQ(peers[1]->receive(), "");
  EXPECT_GT(peers[4]->receive().size(), size_t{32} << 20);
}

TEST_F(HttpServerTest, ManyWaitForAnAnswerAtOnceAndDrainingLetsThemHaveIt) {
  std::mutex mutex;
  std::vector<Reply> waiting;
  handle_ = [&](Request, Reply reply) {
    const std::lock_guard lock(mutex);
    waiting.push_back(std::move(reply));
  };
  start();
  constexpr size_t kPeers = 200;
  std::vector<std::unique_ptr<Peer>> peers;
  for (size_t i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<Peer>(port()));
    peers.back()->send(post("/", ""));
  }
  Peer idle(port());
  for (bool all = false; !all; std::this_thread::yield()) {
    const std::lock_guard lock(mutex);
    all = waiting.size() == kPeers;
  }
  std::thread draining([&] { server_->drain(std::chrono::seconds(20)); });
  EXPECT_EQ(idle.receive(), "");  // it has asked for nothing
  for (const Reply& reply : waiting) reply({.body = "done"});
  waiting.clear();
  for (const auto& peer : peers) {
    const std::string answer = peer->receive();
    EXPECT_NE(answer.find("done"), std::string::npos);
    EXPECT_NE(answer.find("Connection: close"), std::string::npos);
  }
  draining.join();
  EXPECT_EQ(server_->num_connections(), 0);
  EXPECT_FALSE(Peer(port()).connected());
}

TEST_F(HttpServerTest, AClientThatHangsUpBeforeItsAnswerIsForgottenIfTheHandlerAsksForThat) {
  std::vector<Reply> kept;
  std::atomic<int> num_gone = 0, num_asked = 0;
  handle_ = [&](const Request& request, Reply reply) {
    request.when_gone([&] { ++num_gone; });
    kept.push_back(std::move(reply));
    ++num_asked;
  };
  start();
  auto stays = std::make_unique<Peer>(port()), goes = std::make_unique<Peer>(port());
  stays->send(post("/stays", ""));
  goes->send(post("/goes", ""));
  while (num_asked < 2) std::this_thread::yield();
  goes.reset();
  while (server_->num_connections() > 1) std::this_thread::yield();
  EXPECT_EQ(num_gone, 1);
  for (const Reply& reply : kept) reply({.body = "late"});
  EXPECT_NE(stays->receive().find("late"), std::string::npos);
  stays->send(post("/again", ""));  // watched again
  while (num_asked < 3) std::this_thread::yield();
  stays.reset();
  while (server_->num_connections() > 0) std::this_thread::yield();
  EXPECT_EQ(num_gone, 2);
  kept.clear();
  EXPECT_EQ(told_, (std::vector<std::string>{"/goes 499", "/stays 200", "/again 499"}));
}

TEST_F(HttpServerTest, AnAnswerMayOutliveTheServer) {
  Reply kept;
  std::atomic<bool> has_it = false;
  handle_ = [&](Request, Reply reply) {
    kept = std::move(reply);
    has_it = true;
  };
  start();
  Peer peer(port());
  peer.send(post("/", ""));
  while (!has_it) std::this_thread::yield();
  server_.reset();
  EXPECT_EQ(peer.receive(), "");
  kept({});
}

TEST_F(HttpServerTest, TellsOfEveryRequestHowItWasAnswered) {
  admit_ = [](const Head& head, const Admit& admit) {
    admit({head.path == "/full" ? -1 : 5, refusal(503, "there is no room")});
  };
  start();
  Peer(port()).ask(post("/well", "12345"));
  Peer(port()).ask(post("/full", "12345"));
  Peer(port()).ask(post("/long", "123456"));
  Peer(port()).ask("POST /code HTTP/1.1\r\nContent-Encoding: br\r\nContent-Length: 0\r\n\r\n");
  server_->drain(std::chrono::seconds(20));
  std::ranges::sort(told_);  // a refused peer may linger
  EXPECT_EQ(told_, (std::vector<std::string>{"/code 422", "/full 503", "/long 413", "/well 200"}));
}

TEST_F(HttpServerTest, AnAddressThatCannotBeHadIsNamed) {
  start();
  const auto text = [](const HttpOptions& options) -> std::string {
    try {
      HttpServer server(options, {});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(text({.port = port()})
                .find("Address already in use; end what listens there, or "
                      "give another --port"),
            std::string::npos);
  EXPECT_NE(text({.address = "somewhere"}).find("is no IP address"), std::string::npos);
}

TEST(HttpServer, RunsWhatIsPostedAndWhatWaitsOnOneThreadInOrder) {
  HttpServer server({});
  std::mutex mutex;
  std::vector<std::pair<int, std::thread::id>> ran;
  std::promise<void> all;
  const auto note = [&](int number) {
    return [&, number] {
      const std::lock_guard lock(mutex);
      ran.emplace_back(number, std::this_thread::get_id());
      if (ran.size() == 4) all.set_value();
    };
  };
  server.after(std::chrono::milliseconds(60), note(4));
  server.after(std::chrono::milliseconds(10), note(3));
  server.post(note(1));
  server.post(note(2));
  all.get_future().wait();
  const std::lock_guard lock(mutex);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(ran[i].first, i + 1);
    EXPECT_EQ(ran[i].second, ran[0].second);
    EXPECT_NE(ran[i].second, std::this_thread::get_id());
  }
}

TEST(HttpServer, AConnectionThatCameBeforeItServesWaits) {
  HttpServer server({});
  Peer peer(server.port());
  ASSERT_TRUE(peer.connected());
  peer.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  server.serve({.admit = [](const Head&, const Admit& admit) { admit({.max_body_bytes = 9}); },
                .handle = [](const Request&, const Reply& reply) { reply({.body = "late"}); }});
  EXPECT_NE(peer.receive().find("late"), std::string::npos);
}

}  // namespace
}  // namespace twinkle::server
