// For tests: a service whose journal gives way to states, and the points at which it may fail.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "twinkle/server/service_for_test.h"

namespace twinkle::server {

// What reach_fault_point() calls from here on, on any thread; defined in truncation_test.cpp.
void set_fault_point(std::function<void(std::string_view name)> then);

class TruncationTest : public ServiceTest {
 protected:
  TruncationTest() { serve_with(1); }
  ~TruncationTest() override {
    close();
    set_fault_point({});
  }

  void serve_with(int64_t journal_bytes) {
    options_.truncation.journal_bytes = journal_bytes;
    restart();
  }
  void restart() {
    open();
    go_on();
  }
  // Until what the engine was given has ended, and is written down and done.
  void settle() {
    EXPECT_TRUE(loop_->run_until([&] { return services_->operations.num_running() == 0; }));
    loop_->run();
  }
  bool truncate() {
    settle();
    return ServiceTest::truncate();
  }
  // Of what is now: it is written when the runs' snapshots are there. Behind the first record of
  // the new segment, which the journal's thread begins when it comes to it.
  void write_until_a_state_is_taken() {
    const uint64_t segment = services_->history.last_segment();
    for (int i = 0; i < 1000 && services_->history.last_segment() == segment; ++i) session();
    ASSERT_NE(services_->history.last_segment(), segment);
    for (int i = 0; i < 4; ++i) session();
  }
  Response poll(const std::string& request_id) {
    return post("/api/v1/retrieve_future", {{"request_id", request_id}});
  }
};

}  // namespace twinkle::server
