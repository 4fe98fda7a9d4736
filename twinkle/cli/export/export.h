// A model for other programs: an adapter merged into its base, as a folder of Hugging Face's or as
// a GGUF file, or a whole model as the latter. Knows no command line.
#pragma once
#include <string>

#include "twinkle/base/fields/options.h"

namespace twinkle::cli {

struct ExportFiles {
  std::string to = "merged";
  std::string type = "f16";
  std::string model;   // empty: the base that the adapter's config names
  std::string output;  // empty: outputs/merged, outputs/gguf
  bool overwrite = false;

  static constexpr auto fields() {
    using F = ExportFiles;
    return std::tuple{
        option(
            "to", &F::to, one_of("merged", "gguf"),
            "merged: a folder that transformers and vLLM read; gguf: a file for llama.cpp, and a "
            "Modelfile for ollama"),
        option("type", &F::type, one_of("f16", "q8_0"), "of the matrices of a GGUF file"),
        option("model", &F::model, any(), "the base model [as the adapter's config names it]"),
        option("output", &F::output, any(), "directory to write [outputs/merged or outputs/gguf]"),
        option("overwrite", &F::overwrite, any(), "replace an earlier export")};
  }
};

// `source` is an adapter's folder, or a model's. Writes the output as a whole, progress goes to
// standard error. Error kInvalid, kNotFound: no adapter and no model, no base, one that is no
// llama, qwen2 or qwen3 or that the adapter does not fit, a whole model that is to be merged, one
// that GGUF cannot say; kConflict: the output holds something. They change nothing.
void run_export(const std::string& source, const ExportFiles& files);

}  // namespace twinkle::cli
