#include "twinkle/cli/serve/build_id.h"

#include <gtest/gtest.h>

#include <string>

#include "twinkle/base/file.h"

namespace twinkle::cli {
namespace {

// The program's own file has the note as it is in memory: "GNU" and the bytes of the id.
TEST(BuildId, IsTheNoteOfThisProgramsFile) {
  const std::string id = build_id();
  ASSERT_EQ(id.size(), 40u) << id << ": link with --build-id";
  std::string note = std::string("GNU\0", 4);
  for (size_t i = 0; i < id.size(); i += 2)
    note += static_cast<char>(std::stoi(id.substr(i, 2), nullptr, 16));
  EXPECT_NE(read_file("/proc/self/exe", "test", int64_t{1} << 32).find(note), std::string::npos);
}

}  // namespace
}  // namespace twinkle::cli
