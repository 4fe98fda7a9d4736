#include "twinkle/io/safetensors.h"

#include "tests/fuzz/fuzz.h"

namespace twinkle::fuzz {
namespace {

std::string file(const std::string& header, size_t num_bytes = 0) {
  return raw<uint64_t>(header.size()) + header + std::string(num_bytes, 'x');
}

void read(const std::string& bytes) {
  const SafetensorsFile opened(file_of(bytes, "x.safetensors"));
  for (const StoredTensor& tensor : opened.tensors()) {
    const TensorView view = tensor.load();
    if (tensor.num_bytes() > 0) {
      std::vector<std::byte> last(static_cast<size_t>(size_of(tensor.dtype)));
      tensor.read(last, tensor.num_bytes() - std::ssize(last));
    }
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
          .read = read};
}

}  // namespace twinkle::fuzz
