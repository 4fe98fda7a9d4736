#include "twinkle/cli/options/reference.h"

#include <gtest/gtest.h>

#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::cli {
namespace {

TEST(OptionsReference, IsTheDocumentThatTheDeclarationsMake) {
  EXPECT_EQ(read_text("docs/options.md"), options_reference())
      << "tools/options_reference.py writes it anew";
}

}  // namespace
}  // namespace twinkle::cli
