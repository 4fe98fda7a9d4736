#include "twinkle/cli/export/export.h"

#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/base/file.h"
#include "twinkle/cli/export/gguf_model.h"
#include "twinkle/cli/tiny_chat_for_test.h"
#include "twinkle/engine/engine.h"
#include "twinkle/model/config.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {
namespace {

// log p of fixed tokens, by the model, with an adapter or without.
std::vector<float> logps_of(const std::string& model, const std::string& adapter = "") {
  engine::EngineOptions options;
  options.model.path = model;
  options.model.mixed_precision = "no";
  engine::Engine engine(options);
  engine.run<engine::Done>(
      engine::Create{.tenant = "me", .directory = adapter, .frozen = adapter.empty()});
  engine::Example example;
  for (int32_t t = 0; t < 24; ++t) {
    example.input_ids.push_back(t * 37 % 300);
    example.labels.push_back((t + 1) * 37 % 300);
  }
  return engine.run<engine::ForwardResult>(engine::Forward{.tenant = "me", .sequences = {example}})
      .logps[0];
}

double mean_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double out = 0;
  for (size_t i = 0; i < a.size(); ++i) out += std::abs(double{a[i]} - b[i]);
  return out / static_cast<double>(a.size());
}

class Export : public testing::TestWithParam<const char*> {
 protected:
  const std::vector<std::string> modules_{"q_proj", "k_proj", "o_proj", "down_proj"};
};

TEST_P(Export, AMergedFolderComputesAsTheAdapterDoes) {
  const TinyChat tiny({}, GetParam());
  const std::string adapter = tiny.adapter("one", modules_);
  const std::vector<float> before = logps_of(tiny.model());
  const Ran got = ran({"export", adapter, "--output", tiny.path("merged")});
  ASSERT_EQ(got.status, 0) << got.error;
  EXPECT_EQ(got.out, "saved " + tiny.path("merged") + "\ntry it:  twinkle chat " +
                         tiny.path("merged") + "\n");
  const std::vector<float> with = logps_of(tiny.model(), adapter);
  EXPECT_LT(mean_difference(logps_of(tiny.path("merged")), with), 1e-4);
  EXPECT_GT(mean_difference(before, with), 1e-2);
  EXPECT_EQ(logps_of(tiny.model()), before) << "the base's own bits";
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "config.json"})
    EXPECT_TRUE(is_there(tiny.path("merged") + "/" + file)) << file;
  const Ran same = ran({"merge", tiny.model(), adapter, tiny.path("again")});
  ASSERT_EQ(same.status, 0) << same.error;
  EXPECT_EQ(read_file(tiny.path("again") + "/model.safetensors"),
            read_file(tiny.path("merged") + "/model.safetensors"));
}

TEST_P(Export, AGgufFileIsReadBackAsTheMergedModel) {
  // Widths that Q8_0's blocks of 32 fit.
  const TinyChat tiny({{"hidden_size", 64}, {"head_dim", 16}, {"intermediate_size", 96}},
                      GetParam());
  const std::string adapter = tiny.adapter("one", modules_);
  const std::vector<float> expected = logps_of(tiny.model(), adapter);
  for (const auto& [type, bound] : {std::pair{"f16", 0.01}, {"q8_0", 0.2}}) {
    const std::string folder = tiny.path(type);
    const Ran got = ran({"export", adapter, "--to", "gguf", "--type", type, "--output", folder});
    ASSERT_EQ(got.status, 0) << got.error;
    EXPECT_NE(got.error.find("MB/s"), std::string::npos) << got.error;
    const std::string file = folder + "/model-" + type + ".gguf";
    EXPECT_LT(mean_difference(logps_of(file), expected), bound) << type;
    const Checkpoint read = Checkpoint::open(file), base = Checkpoint::open(tiny.model());
    EXPECT_EQ(read.names(), base.names()) << "a tied head has no tensor";
    EXPECT_EQ(model::difference(model::spec_of(read), model::spec_of(base)), "");
    const JsonObject metadata = GgufFile(file).metadata();
    const auto text = [&](const char* key) { return std::string(metadata.at(key).as_string()); };
    EXPECT_EQ(text("tokenizer.ggml.model"), "gpt2");
    EXPECT_EQ(text("tokenizer.ggml.pre"), "gpt-2");
    EXPECT_EQ(text("tokenizer.chat_template"), text::kTinyChat);
    EXPECT_EQ(metadata.at("tokenizer.ggml.bos_token_id"), Json(258));
    EXPECT_EQ(metadata.at("tokenizer.ggml.eos_token_id"), Json(259));
    EXPECT_EQ(metadata.at("tokenizer.ggml.add_bos_token"), Json(false));
    const JsonArray& tokens = metadata.at("tokenizer.ggml.tokens").as_array();
    ASSERT_EQ(tokens.size(), 300U);
    EXPECT_EQ(tokens[97], Json("a"));
    EXPECT_EQ(tokens[259], Json("</s>"));
    EXPECT_EQ(tokens[299], Json("[PAD299]"));
    const JsonArray& types = metadata.at("tokenizer.ggml.token_type").as_array();
    EXPECT_EQ(types[97], Json(1));
    EXPECT_EQ(types[259], Json(3));
    EXPECT_EQ(types[299], Json(5));
    EXPECT_EQ(metadata.at("tokenizer.ggml.merges").as_array().at(1),
              Json(text::byte_letter(' ') + " a"));
    EXPECT_EQ(read_file(folder + "/Modelfile"),
              std::string("FROM ./model-") + type +
                  ".gguf\nTEMPLATE \"\"\"{{- range .Messages }}{{ if eq .Role \"system\" }}"
                  "<s>system\n{{ .Content }}</s>\n{{ else if eq .Role \"user\" }}<s>user\n"
                  "{{ .Content }}</s>\n{{ else if eq .Role \"assistant\" }}<s>assistant\n"
                  "{{ .Content }}</s>\n{{ end }}{{ end }}<s>assistant\n\"\"\"\n"
                  "PARAMETER stop \"</s>\"\n");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Export, testing::Values("llama", "qwen2", "qwen3"),
                         [](const auto& of) { return std::string(of.param); });

TEST(ExportFiles, ATargetedTiedHeadIsUntied) {
  const TinyChat tiny({{"hidden_size", 64}, {"head_dim", 16}, {"intermediate_size", 96}});
  const std::string adapter = tiny.adapter("one", {"q_proj", "lm_head"});
  const std::vector<float> expected = logps_of(tiny.model(), adapter);
  for (const char* to : {"merged", "gguf"}) {
    const Ran got = ran({"export", adapter, "--to", to, "--output", tiny.path(to)});
    ASSERT_EQ(got.status, 0) << got.error;
    EXPECT_LT(mean_difference(logps_of(tiny.path(to)), expected), 0.01) << to;
  }
  EXPECT_FALSE(get<bool>(read_json(tiny.path("merged") + "/config.json"), "tie_word_embeddings"));
}

TEST(ExportFiles, Llama3sRopeScalingIsReadBack) {
  const TinyChat tiny({{"hidden_size", 64},
                       {"head_dim", 16},
                       {"intermediate_size", 96},
                       {"rope_theta", 500000.0},
                       {"rope_scaling", JsonObject{{"rope_type", "llama3"},
                                                   {"factor", 8.0},
                                                   {"low_freq_factor", 1.0},
                                                   {"high_freq_factor", 4.0},
                                                   {"original_max_position_embeddings", 8192}}}});
  const std::string adapter = tiny.adapter("one", {"q_proj"});
  const Ran got = ran({"export", adapter, "--to", "gguf", "--output", tiny.path("out")});
  ASSERT_EQ(got.status, 0) << got.error;
  const Checkpoint read = Checkpoint::open(tiny.path("out"));
  EXPECT_EQ(model::difference(model::spec_of(read), model::spec_of(Checkpoint::open(tiny.model()))),
            "");
}

TEST(ExportFiles, AWholeModelBecomesAGgufFileAndHasNothingToMerge) {
  const TinyChat tiny({{"hidden_size", 64}, {"head_dim", 16}, {"intermediate_size", 96}});
  const std::vector<std::string> words{"export", tiny.model(), "--output", tiny.path("out")};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return ran(all);
  };
  EXPECT_EQ(with({}).error, "twinkle: cli: " + tiny.model() +
                                " holds a whole model, so there is nothing to merge: use it as it "
                                "is, or make a GGUF file of it, twinkle export " +
                                tiny.model() + " --to gguf\n");
  EXPECT_EQ(with({"--to", "gguf", "--model", "smollm2"}).error,
            "twinkle: cli: --model is the base of an adapter, and " + tiny.model() +
                " holds a whole model; leave it out\n");
  EXPECT_FALSE(is_there(tiny.path("out")));
  const Ran got = with({"--to", "gguf"});
  ASSERT_EQ(got.status, 0) << got.error;
  EXPECT_LT(mean_difference(logps_of(tiny.path("out/model-f16.gguf")), logps_of(tiny.model())),
            0.01);
  EXPECT_TRUE(is_there(tiny.path("out/Modelfile")));
}

TEST(ExportFiles, WhatCannotBeExportedIsNamedAndNothingIsWritten) {
  const TinyChat tiny;
  const std::string adapter = tiny.adapter("one", {"q_proj"});
  const auto error = [&](std::vector<std::string> words, int status = 1) {
    words.insert(words.begin(), "export");
    const Ran got = ran(words);
    EXPECT_EQ(got.status, status);
    EXPECT_FALSE(is_there(tiny.path("out")));
    return got.error.substr(std::min(got.error.rfind("twinkle: "), got.error.size()));
  };
  EXPECT_EQ(error({tiny.path("none")}),
            "twinkle: cli: ADAPTER " + tiny.path("none") +
                " does not exist; name a directory that 'twinkle train' or peft saved an adapter "
                "to\n");
  EXPECT_EQ(error({adapter, "--to", "gguf", "--type", "q8_0", "--output", tiny.path("out")}),
            "twinkle: io: tensor 'token_embd.weight': rows of shape [300, 48] are no multiple of "
            "32 values, as Q8_0 has them; write F16\n");
  EXPECT_EQ(error({adapter, "--type", "f16"}, 2),
            "twinkle: cli: --type is of a GGUF file; leave it out, or give --to gguf\n");
  const TinyChat other({}, "mistral");
  EXPECT_EQ(error({adapter, "--model", other.model(), "--output", tiny.path("out")}),
            "twinkle: cli: the model " + other.model() +
                " is of the family mistral; merge and export know llama, qwen2 and qwen3: merge "
                "others with peft (docs/training.md), and make GGUF files of them with llama.cpp's "
                "converter\n");
  const TinyChat wide({{"hidden_size", 64}});
  EXPECT_NE(error({adapter, "--model", wide.model(), "--output", tiny.path("out")})
                .find("lora_A of model.layers.0.self_attn.q_proj has shape [4, 48], this model's "
                      "is [4, 64]"),
            std::string::npos);
  std::filesystem::create_directory(tiny.path("mine"));
  write_text(tiny.path("mine/thesis.txt"), "text");
  for (const char* to : {"merged", "gguf"})
    EXPECT_NE(error({adapter, "--to", to, "--output", tiny.path("mine")})
                  .find("holds 'thesis.txt', which is not "),
              std::string::npos);
  ASSERT_EQ(ran({"export", adapter, "--output", tiny.path("done")}).status, 0);
  EXPECT_EQ(error({adapter, "--output", tiny.path("done")}),
            "twinkle: cli: --output " + tiny.path("done") +
                " is not empty; name another directory, or give --overwrite to replace it\n");
  EXPECT_EQ(ran({"export", adapter, "--output", tiny.path("done"), "--overwrite"}).status, 0);
  Json config = read_json(adapter + "/adapter_config.json");
  config.as_object()["base_model_name_or_path"] = "";
  write_text(adapter + "/adapter_config.json", pretty(config));
  EXPECT_EQ(
      error({adapter, "--output", tiny.path("out")}),
      "twinkle: cli: " + adapter +
          "/adapter_config.json names no base_model_name_or_path; give the base as --model\n");
}

TEST(ExportFiles, RopesThatLlamaCppHasNotAreRefused) {
  JsonObject config = model::tiny_config();
  model::DecoderSpec spec = model::read_spec(config);
  spec.rope.kind = nn::RopeKind::kYarn;
  spec.rope.factor = 4;
  spec.rope.original_max_position = 64;
  const GgufMetadata known = gguf_sizes(spec, "m", GgufType::kF16);
  EXPECT_EQ(known.back().first, "llama.rope.scaling.original_context_length");
  spec.rope.attention_factor = 2;
  expect_error("cli: --to gguf: the model's rope is yarn with factors of its own",
               [&] { gguf_sizes(spec, "m", GgufType::kF16); });
  spec.rope = {.rotary_dim = 12};
  spec.layers[1].attention().window = 8;
  expect_error("cli: --to gguf: layer 1 has a sliding window of 8 tokens",
               [&] { gguf_sizes(spec, "m", GgufType::kF16); });
  expect_error("cli: --to gguf: the model has the tensor 'score.weight'", [&] {
    gguf_tensors(model::read_spec(config), {{.name = "score.weight", .shape = {1, 48}}},
                 GgufType::kF16);
  });
}

TEST(ExportFiles, AModelfileLeavesATemplateItCannotSayToOllama) {
  const TinyChat tiny({{"hidden_size", 64}});
  const std::string adapter = tiny.adapter("one", {"q_proj"});
  const auto modelfile_with = [&](const std::string& chat) {
    tiny.tokenizer().write("chat_template.jinja", chat);
    const Ran got =
        ran({"export", adapter, "--to", "gguf", "--output", tiny.path("out"), "--overwrite"});
    EXPECT_EQ(got.status, 0) << got.error;
    return read_file(tiny.path("out") + "/Modelfile");
  };
  const std::string with_default =
      "{% if messages[0]['role'] != 'system' %}{{ '<s>system\\nBe kind.</s>\\n' }}{% endif %}" +
      std::string(text::kTinyChat);
  EXPECT_NE(modelfile_with(with_default).find("SYSTEM \"\"\"Be kind.\"\"\"\n"), std::string::npos);
  EXPECT_EQ(modelfile_with("{{ messages | length }}{{ messages[-1].content }}"),
            "FROM ./model-f16.gguf\n# The chat template is that of the GGUF file, where ollama "
            "knows it.\nPARAMETER stop \"</s>\"\n");
}

}  // namespace
}  // namespace twinkle::cli
