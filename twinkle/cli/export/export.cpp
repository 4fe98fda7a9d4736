#include "twinkle/cli/export/export.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "twinkle/base/file.h"
#include "twinkle/cli/command.h"
#include "twinkle/cli/export/gguf_model.h"
#include "twinkle/cli/export/modelfile.h"
#include "twinkle/cli/model_path.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/cli/progress/bar.h"
#include "twinkle/engine/checkpoint/persist.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/folder/eos.h"
#include "twinkle/io/peft/peft.h"
#include "twinkle/lora/merge/merge.h"
#include "twinkle/lora/targets.h"
#include "twinkle/model/config.h"
#include "twinkle/text/rust/tokenizer.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShardBytes = int64_t{5} << 30;

// A base, or a whole model, that is open, and what its config says.
struct Base {
  Checkpoint checkpoint;
  model::DecoderSpec spec;
  Json config;
  std::vector<int32_t> eos_ids;

  explicit Base(const std::string& path)
      : checkpoint(Checkpoint::open(path)),
        spec(model::spec_of(checkpoint)),
        config(checkpoint.config()),
        eos_ids(read_eos(path, config, spec.vocab_size)) {
    const std::vector<std::string> known{"llama", "qwen2", "qwen3"};
    require(std::ranges::count(known, spec.family) > 0, Code::kInvalid, "cli: the model ", path,
            " is of the family ", spec.family,
            "; merge and export know llama, qwen2 and qwen3: merge others with peft "
            "(docs/training.md), and make GGUF files of them with llama.cpp's converter");
  }

  // The tokenizer's files are here.
  fs::path folder() const {
    const fs::path& path = checkpoint.path();
    return fs::is_directory(path) ? path : path.parent_path();
  }
};

// A folder as `twinkle train --full` saves one.
bool is_model(const fs::path& folder) {
  return is_there(folder / "config.json") && !is_adapter(folder);
}

void check_source(const std::string& source, const ExportFiles& files) {
  if (!is_model(source)) return check_adapter(source, "ADAPTER");
  require(
      files.to == "gguf", Code::kInvalid, "cli: ", source,
      " holds a whole model, so there is nothing to merge: use it as it is, or make a GGUF file "
      "of it, twinkle export ",
      source, " --to gguf");
  require(files.model.empty(), Code::kInvalid, "cli: --model is the base of an adapter, and ",
          source, " holds a whole model; leave it out");
}

std::string base_of(const std::string& adapter, const PeftConfig& config,
                    const std::string& given) {
  require(!given.empty() || !config.base_model.empty(), Code::kInvalid, "cli: ", adapter,
          "/adapter_config.json names no base_model_name_or_path; give the base as --model");
  return model_path(given.empty() ? config.base_model : given);
}

void check_output_folder(const std::string& output, const ExportFiles& files,
                         const fs::path& base) {
  std::error_code error;
  const std::vector<std::string> names = names_in(output, error);
  if (files.to == "merged") {
    engine::check_target(output, base, "cli: --output");
  } else {
    check_writable(output, "cli: --output");
    for (const std::string& name : names)
      require(name == "Modelfile" || name.ends_with(".gguf"), Code::kConflict, "cli: --output ",
              output, " holds '", name, "', which is not of an export; name a new directory");
  }
  require(names.empty() || files.overwrite, Code::kConflict, "cli: --output ", output,
          " is not empty; name another directory, or give --overwrite to replace it");
}

// The tensors, whose reading moves the bar on. `bar` outlives them.
std::vector<StoredTensor> shown(std::vector<StoredTensor> tensors, Bar& bar) {
  const auto done = std::make_shared<int64_t>(0);
  for (StoredTensor& tensor : tensors) {
    tensor.reader = [read = std::move(tensor.reader), done, &bar](int64_t offset,
                                                                  std::span<std::byte> out) {
      read(offset, out);
      bar.show(static_cast<double>(*done += std::ssize(out)) / 1e6);
    };
  }
  return tensors;
}

double megabytes(const std::vector<StoredTensor>& tensors) {
  int64_t out = 0;
  for (const StoredTensor& tensor : tensors) out += tensor.num_bytes();
  return static_cast<double>(out) / 1e6;
}

void write_folder(const Base& base, const std::vector<StoredTensor>& tensors, bool tied,
                  const fs::path& staging) {
  Json config = base.config;
  config.as_object()["tie_word_embeddings"] = tied;
  copy_model(staging, tensors, {.max_shard_bytes = kShardBytes});
  write_file_atomically(staging / "config.json", pretty(config), Commits::kWithFolder);
  const engine::BaseModel model{
      .directory = base.checkpoint.path(), .config = base.config, .eos_ids = base.eos_ids};
  engine::CarriedFiles().write(model, staging, true);
}

void write_gguf_folder(const Base& base, const std::vector<StoredTensor>& tensors,
                       const ExportFiles& files, const fs::path& staging) {
  const text::Tokenizer tokenizer(base.checkpoint.path());  // says what is wrong with the files
  const GgufType type = files.type == "q8_0" ? GgufType::kQ8_0 : GgufType::kF16;
  GgufMetadata metadata = gguf_sizes(base.spec, base.folder().filename().string(), type);
  std::ranges::move(gguf_tokenizer(base.folder(), base.spec.vocab_size),
                    std::back_inserter(metadata));
  const std::string name = "model-" + files.type + ".gguf";
  write_gguf(staging / name, metadata, gguf_tensors(base.spec, tensors, type));
  const bool chats = std::ranges::any_of(
      metadata, [](const auto& entry) { return entry.first == "tokenizer.chat_template"; });
  std::vector<std::string> stops;
  for (const int32_t id : base.eos_ids) {
    const std::optional<std::string> token = tokenizer.token(id);
    if (token) stops.push_back(*token);
  }
  const std::string text =
      chats ? modelfile(name, text::Template(base.checkpoint.path(), {.max_length = 0}), stops)
            : "FROM ./" + name + "\nTEMPLATE \"{{ .Prompt }}\"\n";
  write_file_atomically(staging / "Modelfile", text, Commits::kWithFolder);
}

std::string output_of(const ExportFiles& files) {
  return files.output.empty() ? "outputs/" + files.to : files.output;
}

void say_exported(const ExportFiles& files, const std::string& program) {
  const std::string output = output_of(files);
  if (files.to == "merged") {
    std::printf("saved %s\ntry it:  %s chat %s\n", output.c_str(), program.c_str(), output.c_str());
    return;
  }
  std::printf(
      "saved %s/model-%s.gguf and %s/Modelfile\ntry it:  llama-cli -m "
      "%s/model-%s.gguf\n     or:  ollama create mine -f %s/Modelfile && ollama run mine\n",
      output.c_str(), files.type.c_str(), output.c_str(), output.c_str(), files.type.c_str(),
      output.c_str());
}

}  // namespace

void run_export(const std::string& source, const ExportFiles& files) {
  check_source(source, files);
  const std::string output = output_of(files);
  const bool gguf = files.to == "gguf", whole = is_model(source);
  const PeftConfig config = whole ? PeftConfig() : read_peft(source).config;
  const Base base(whole ? source : base_of(source, config, files.model));
  check_output_folder(output, files, base.checkpoint.path());
  std::vector<StoredTensor> tensors;
  if (whole)
    for (const std::string& name : base.checkpoint.names())
      tensors.push_back(base.checkpoint.at(name));
  else
    tensors = lora::merged(base.checkpoint, source,
                           gguf ? lora::MergedType::kFloat32 : lora::MergedType::kStored);
  const bool tied = base.spec.tied_head && (whole || !lora::targets_head(config));
  if (tied)
    std::erase_if(tensors, [](const StoredTensor& t) { return t.name == "lm_head.weight"; });
  AtomicDirectory target(output);
  Bar bar(gguf ? "writing" : "merging", megabytes(tensors), "MB");
  tensors = shown(std::move(tensors), bar);
  if (gguf)
    write_gguf_folder(base, tensors, files, target.staging());
  else
    write_folder(base, tensors, tied, target.staging());
  target.commit();
}

// `export` is a word of C++.
void export_model(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "export", "Merge an adapter into its base: for transformers, or llama.cpp and ollama");
  auto adapter = std::make_shared<std::string>();
  auto files = std::make_shared<ExportFiles>();
  command
      ->add_option("adapter", *adapter,
                   "PEFT directory, or for --to gguf a whole model's, of a llama, qwen2 or qwen3")
      ->required();
  add_options(*command, *files);
  command->callback([adapter, files, command, &action] {
    require(files->to == "gguf" || command->count("--type") == 0, Code::kInvalid,
            "cli: --type is of a GGUF file; leave it out, or give --to gguf");
    action = [adapter, files](const std::string& program) {
      run_export(*adapter, *files);
      say_exported(*files, program);
    };
  });
}

void merge(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "merge", "Merge an adapter into a copy of its base, as export --to merged");
  auto adapter = std::make_shared<std::string>();
  auto files = std::make_shared<ExportFiles>();
  command->add_option("model", files->model, "smollm2, directory, .gguf file or hub id")
      ->required();
  command->add_option("adapter", *adapter, "PEFT directory, of a llama, qwen2 or qwen3")
      ->required();
  command->add_option("output", files->output, "directory to write")->required();
  command->add_flag("--overwrite", files->overwrite, "replace an earlier export");
  command->callback([adapter, files, &action] {
    action = [adapter, files](const std::string& program) {
      run_export(*adapter, *files);
      say_exported(*files, program);
    };
  });
}

}  // namespace twinkle::cli
