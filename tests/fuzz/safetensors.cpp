// Safetensors; and as a checkpoint's with a config.json that says how they are quantised: a case is
// that up to the first zero, and the file behind it.
#include "twinkle/io/safetensors.h"

#include <algorithm>
#include <stdexcept>

#include "tests/fuzz/fuzz.h"
#include "twinkle/io/checkpoint.h"

namespace twinkle::fuzz {
namespace {

std::string file(const std::string& header, size_t num_bytes = 0) {
  return raw<uint64_t>(header.size()) + header + std::string(num_bytes, 'x');
}

void read_all(const StoredTensor& tensor) {
  const TensorView view = tensor.load();
  if (tensor.num_bytes() == 0) return;
  std::vector<std::byte> last(static_cast<size_t>(size_of(tensor.dtype)));
  tensor.read(last, tensor.num_bytes() - std::ssize(last));
  if (!std::ranges::equal(last, view.bytes.last(last.size())))
    throw std::logic_error("in pieces a tensor is another");
}

void read_safetensors(const std::string& bytes) {
  const SafetensorsFile opened(file_of(bytes, "x.safetensors"));
  for (const StoredTensor& tensor : opened.tensors()) read_all(tensor);
}

std::string config_of(const std::string& family, const std::string& method) {
  return R"({"model_type": ")" + family + R"(", "quantization_config": {"quant_method": ")" +
         method + R"(", "weight_block_size": [2, 2]}})" + '\0';
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   int begin, int end) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

std::vector<std::string> quantised_corpus() {
  const std::string mxfp4 = config_of("gpt_oss", "mxfp4"), fp8 = config_of("llama", "fp8");
  const std::string blocks = tensor("w_blocks", "U8", "[2,1,3,16]", 0, 96),
                    scales = tensor("w_scales", "U8", "[2,1,3]", 96, 102),
                    bias = tensor("w_bias", "F32", "[1]", 102, 106),
                    weight = tensor("w", "F8_E4M3", "[3,5]", 0, 15),
                    factors = tensor("w_scale_inv", "F32", "[2,3]", 15, 39);
  const auto of = [](const std::vector<std::string>& tensors, size_t num_bytes) {
    std::string header;
    for (const std::string& one : tensors) header += (header.empty() ? "{" : ",") + one;
    return file(header + "}", num_bytes);
  };
  return {mxfp4 + of({blocks, scales, bias}, 106), mxfp4 + of({blocks, scales}, 102),
          // Cut; without the one and the other; a scale too many; of other shapes and types; twice.
          mxfp4 + of({blocks, scales}, 101), mxfp4 + of({blocks}, 96),
          mxfp4 + of({tensor("w_scales", "U8", "[2,1,3]", 0, 6)}, 6),
          mxfp4 + of({blocks, scales, tensor("v_scales", "U8", "[1]", 102, 103)}, 103),
          mxfp4 + of({blocks, tensor("w_scales", "U8", "[2,3,1]", 96, 102)}, 102),
          mxfp4 + of({blocks, tensor("w_scales", "I8", "[2,1,3]", 96, 102)}, 102),
          mxfp4 + of({tensor("w_blocks", "U8", "[2,3,16]", 0, 96), scales}, 102),
          mxfp4 + of({tensor("w_blocks", "U8", "[0,1,3,16]", 0, 0),
                      tensor("w_scales", "U8", "[0,1,3]", 0, 0)},
                     0),
          mxfp4 + of({blocks, scales, tensor("w", "F32", "[1]", 102, 106)}, 106),
          config_of("mixtral", "mxfp4") + of({blocks, scales}, 102),
          fp8 + of({weight, factors}, 39), fp8 + of({weight}, 15),
          fp8 + of({weight, tensor("w_scale_inv", "BF16", "[2,3]", 15, 27)}, 27)};
}

void read_quantised(const std::string& bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const auto config = file_of(bytes.substr(0, end), "config.json");
  file_of(bytes.substr(std::min(end + 1, bytes.size())), "model.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(config.parent_path());
  for (const std::string& name : checkpoint.names()) read_all(checkpoint.at(name));
  const Json given = read_json(config);
  const Json* method = find(given, "quantization_config");
  if (!method || get_or<std::string>(*method, "quant_method", "") != "mxfp4" ||
      get_or<std::string>(given, "model_type", "") != "gpt_oss")
    return;
  for (const std::string& name : checkpoint.names()) {
    if (name.ends_with("_blocks") || name.ends_with("_scales"))
      throw std::logic_error("half of a pair is left");
  }
}

}  // namespace

Reader safetensors() {
  return {.name = "safetensors",
          .corpus = {file(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],)"
                          R"("data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[5],)"
                          R"("data_offsets":[24,34]},"c":{"dtype":"BOOL","shape":[],)"
                          R"("data_offsets":[34,35]}})",
                          35),
                     file("{}"),
                     file(R"({"w":{"dtype":"F32","shape":[0,4611686018427387904],)"
                          R"("data_offsets":[0,0]}})"),
                     file(R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],)"
                          R"("data_offsets":[0,8]}})",
                          8)},
          .words = {"\"dtype\":", "\"shape\":", "\"data_offsets\":[0,0]", "__metadata__", "\"F64\"",
                    "\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},", "[[", "{\"",
                    "\\u0000", "\\ud800"},
          .read = read_safetensors};
}

Reader quantised() {
  return {
      .name = "quantised",
      .corpus = quantised_corpus(),
      .words = {"_blocks", "_scales", "_scale_inv", "\"w_scales\":", "\"w_blocks\":", "\"F8_E4M3\"",
                "\"U8\"", "\"quantization_config\": ", "\"weight_block_size\": ", "[2,1,3]",
                "\xff\xff\xff\xff", std::string(1, '\0')},
      .read = read_quantised};
}

}  // namespace twinkle::fuzz
