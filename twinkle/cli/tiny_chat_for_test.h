// For tests: a model of a few thousand weights with the tiny tokenizer of the text folder's tests,
// adapters of it, and the program run with words and standard input.
#pragma once
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "twinkle/cli/program.h"
#include "twinkle/io/checkpoint.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::cli {

class TinyChat {
 public:
  explicit TinyChat(const JsonObject& changes = {}, const std::string& family = "llama") {
    JsonObject config = model::tiny_config(family);
    config["vocab_size"] = 300;
    config["eos_token_id"] = 259;
    for (const auto& change : changes) config[change.key()] = change.value();
    model::write_tiny(tokenizer_.directory(), config, model::tiny_weights(config));
  }

  std::string model() const { return tokenizer_.directory().string(); }
  std::string path(const std::string& name) const { return (scratch_ / name).string(); }
  const text::TinyModel& tokenizer() const { return tokenizer_; }

  // A PEFT directory with random factors of the modules with these names.
  std::string adapter(const std::string& name, const std::vector<std::string>& modules,
                      uint64_t seed = 1) const {
    at::manual_seed(seed);
    const Checkpoint base = Checkpoint::open(model());
    PeftConfig config{.rank = 4, .alpha = 8, .target_modules = modules, .base_model = model()};
    std::vector<at::Tensor> held;
    std::vector<PeftEntry> entries;
    for (const std::string& weight : base.names()) {
      const std::string path = weight.substr(0, weight.rfind('.'));
      const std::string last = path.substr(path.rfind('.') + 1);
      if (std::ranges::count(modules, last) == 0 || !weight.ends_with(".weight")) continue;
      add(path, base.at(weight).shape, held, entries);
    }
    if (std::ranges::count(modules, "lm_head") > 0 && !base.contains("lm_head.weight"))
      add("lm_head", base.at("model.embed_tokens.weight").shape, held, entries);
    std::filesystem::create_directory(scratch_ / name);
    write_peft(scratch_ / name, config, entries);
    return path(name);
  }

 private:
  static void add(const std::string& path, const std::vector<int64_t>& shape,
                  std::vector<at::Tensor>& held, std::vector<PeftEntry>& entries) {
    held.push_back(at::randn({4, shape[1]}) * 0.2);
    held.push_back(at::randn({shape[0], 4}) * 0.2);
    const size_t at = held.size() - 2;
    entries.push_back({path, model::view_of("", held[at]), model::view_of("", held[at + 1])});
  }

  const text::TinyModel tokenizer_;
  const ScratchDir scratch_;
};

struct Ran {
  int status;
  std::string out, error;
};

// The program with these words, and this text as standard input.
inline Ran ran(std::vector<std::string> words, const std::string& input = "") {
  const ScratchDir dir;
  write_text(dir / "input", input);
  words.insert(words.begin(), "twinkle");
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  const int kept = ::dup(STDIN_FILENO), file = ::open((dir / "input").c_str(), O_RDONLY);
  ::dup2(file, STDIN_FILENO);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int status = run_program(static_cast<int>(arguments.size()), arguments.data(), "1.2");
  Ran out{status, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
  ::dup2(kept, STDIN_FILENO);
  ::close(kept);
  ::close(file);
  return out;
}

}  // namespace twinkle::cli
