// For tests: a server with handlers that a test may replace, and what it reported.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/server/http/peer_for_test.h"
#include "twinkle/server/http/server.h"

namespace twinkle::server {

class HttpServerTest : public testing::Test {
 protected:
  void start(HttpOptions options = {}) {
    server_.emplace(options,
                    Handler{[this](const Head& head, Admit admit) { admit_(head, admit); },
                            [this](Request request, Reply reply) {
                              handle_(std::move(request), std::move(reply));
                            },
                            [this](const Head& head, const Told& told) {
                              const std::lock_guard lock(told_mutex_);
                              told_.push_back(head.path + " " + std::to_string(told.status) +
                                              (told.reason.empty() ? "" : " " + told.reason));
                            }});
  }
  uint16_t port() const { return server_->port(); }

  std::function<void(const Head&, Admit)> admit_ = [](const Head&, Admit admit) {
    admit({.max_body_bytes = 100});
  };
  std::function<void(Request, Reply)> handle_ = [](Request request, Reply reply) {
    reply({.body = request.method + " " + request.path + "?" + request.query + " " + request.body});
  };
  std::mutex told_mutex_;
  std::vector<std::string> told_;
  std::optional<HttpServer> server_;
};

}  // namespace twinkle::server
