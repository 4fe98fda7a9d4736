#include "twinkle/store/keys/audit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::store {
namespace {

TEST(Audit, LinesOfManyAreWholeAndHaveTheirTime) {
  const ScratchDir dir;
  {
    std::vector<std::jthread> writers;
    for (int i = 0; i < 4; ++i)
      writers.emplace_back([&, i] {
        for (int n = 0; n < 20; ++n)
          append_audit(dir.path(), {{"action", std::string(500, 'a')}, {"key", i}});
      });
  }
  std::istringstream in(read_text(dir / "audit.jsonl"));
  int num = 0;
  for (std::string line; std::getline(in, line); ++num) {
    const Json read = parse_json(line, "line");
    EXPECT_EQ(get<std::string>(read, "action").size(), 500u);
    const auto time = get<std::string>(read, "time");
    EXPECT_TRUE(time.size() == 20 && time[10] == 'T' && time.back() == 'Z') << time;
  }
  EXPECT_EQ(num, 80);
}

TEST(Audit, WhatCannotBeWrittenIsBusy) {
  const ScratchDir dir;
  try {
    append_audit(dir / "none", {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kBusy);
    EXPECT_STREQ(e.what(), "store: cannot write the audit log: No such file or directory");
  }
}

TEST(Audit, WhatAFullDiskTookAPartOfIsRefusedAndTheNextLineIsWhole) {
  const ScratchDir dir;
  append_audit(dir.path(), {{"action", "first"}});
  const auto size = std::filesystem::file_size(dir / "audit.jsonl");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{.rlim_cur = size + 20, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &full);
  EXPECT_EQ(error_of([&] { append_audit(dir.path(), {{"action", "second"}}); }),
            "store: cannot write the audit log: No space left on device");
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  append_audit(dir.path(), {{"action", "third"}});
  std::istringstream in(read_text(dir / "audit.jsonl"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[1].size(), 20);
  EXPECT_EQ(get<std::string>(parse_json(lines[2], "line"), "action"), "third");
}

}  // namespace
}  // namespace twinkle::store
