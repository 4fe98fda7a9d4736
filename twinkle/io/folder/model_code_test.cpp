#include "twinkle/io/folder/model_code.h"

#include <gtest/gtest.h>

#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {
namespace {

using Names = std::set<std::string>;

TEST(ModelCode, IsWhatAnAutoMapNamesAndWhatThatImportsFromBesideIt) {
  const ScratchDir dir;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "train", "os"})
    write_text(dir / (std::string(name) + ".py"), "import os\n");
  EXPECT_EQ(model_code_in(dir.path()), Names());
  std::filesystem::create_directory(dir / "me");
  write_text(dir / "me/train--train.py", "");
  write_text(dir / "config.json", R"({"auto_map": {"AutoModel": "a.Model", "AutoConfig": "x.C"},
      "_name_or_path": "train.v2"})");
  write_text(dir / "tokenizer_config.json",
             "\xEF\xBB\xBF"
             R"({"auto_map": ["b.Tokenizer", null]})");
  write_text(dir / "processor_config.json", R"({"auto_map": {"P": "me/train--train.P"}})");
  write_text(dir / "a.py",
             "from .c import train\r\n"
             "import train, torch\n"
             "from train import x\n"
             "# from .train import x\n"
             "from ..train import x\n"
             "from .gone import x\n"
             "fromage = .1\n"
             "from .a import itself");
  write_text(dir / "c.py", "  from .d import (\n  train)\nfrom . import e as train, f\nfrom");
  write_text(dir / "f.py",
             "from . import (  # two (2)\r\n    h as train,\r\n    i,\r\n)\nfrom . import (");
  EXPECT_EQ(model_code_in(dir.path()),
            (Names{"a.py", "b.py", "c.py", "d.py", "e.py", "f.py", "h.py", "i.py"}));
}

TEST(ModelCode, OfAFolderThatIsNoneOrHasBrokenConfigsThereIsNone) {
  const ScratchDir dir;
  write_text(dir / "a.py", "");
  write_text(dir / "config.json", R"({"auto_map": {"A": "a.)");
  EXPECT_EQ(model_code_in(dir.path()), Names());
  EXPECT_EQ(model_code_in(dir / "a.py"), Names());
  std::filesystem::create_directory(dir / "in");
  write_text(dir / "in/config.json", R"({"auto_map": {"A": ["../a.M", "a", 3, null]}})");
  EXPECT_EQ(model_code_in(dir / "in"), Names());
  // Names that C's functions take for the weights' name.
  write_text(dir / "in/model.safetensors", "");
  write_text(dir / "in/config.json", R"({"auto_map": {"A": "model.safetensors\u0000.M"}})");
  EXPECT_EQ(model_code_in(dir / "in"), Names());
}

}  // namespace
}  // namespace twinkle
