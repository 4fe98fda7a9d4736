// The one thread of the service: all of its state is read and changed there, so that it needs no
// locks. The HTTP server's own thread in a server, a queue that the test runs in a test.
#pragma once
#include <chrono>
#include <functional>

namespace twinkle::server {

class Loop {
 public:
  virtual ~Loop() = default;
  // Runs it on the thread, after what was posted before. Any thread.
  virtual void post(std::function<void()> run) = 0;
  // Runs it on the thread, not before so many ms. Any thread.
  virtual void after(std::chrono::milliseconds time, std::function<void()> run) = 0;
  // Of a steady clock. Any thread.
  virtual std::chrono::milliseconds now() const = 0;
};

}  // namespace twinkle::server
