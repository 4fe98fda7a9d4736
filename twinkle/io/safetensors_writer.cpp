#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "twinkle/base/json.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/safetensors.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

void check(std::span<const TensorView> tensors) {
  std::vector<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    const std::optional<int64_t> count = num_elements(tensor.shape);
    int64_t expected = 0;
    require(count && !__builtin_mul_overflow(*count, size_of(tensor.dtype), &expected) &&
                expected == std::ssize(tensor.bytes),
            Code::kInvalid, "io: tensor '", tensor.name, "': shape ", shape_text(tensor.shape),
            " of ", name_of(tensor.dtype), " does not fit its ", tensor.bytes.size(), " bytes");
    require(tensor.name != "__metadata__", Code::kInvalid,
            "io: a tensor cannot be named '__metadata__'");
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  require(twice == names.end(), Code::kInvalid, "io: tensor '", twice == names.end() ? "" : *twice,
          "' is given twice");
}

// Largest elements first keeps every tensor aligned to its element.
std::vector<const TensorView*> in_file_order(std::span<const TensorView> tensors) {
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    return std::pair(-size_of(a->dtype), std::string_view(a->name)) <
           std::pair(-size_of(b->dtype), std::string_view(b->name));
  });
  return order;
}

JsonArray json_of(std::span<const int64_t> values) {
  return JsonArray(values.begin(), values.end());
}

std::string header_of(std::span<const TensorView* const> order,
                      const std::map<std::string, std::string>& metadata) {
  JsonObject header;
  if (!metadata.empty()) {
    JsonObject& into = header["__metadata__"].emplace_object();
    for (const auto& [key, value] : metadata) into[key] = value;
  }
  int64_t end = 0;
  for (const TensorView* tensor : order) {
    const int64_t begin = end;
    end += std::ssize(tensor->bytes);
    header[tensor->name] = JsonObject{{"dtype", name_of(tensor->dtype)},
                                      {"shape", json_of(tensor->shape)},
                                      {"data_offsets", JsonArray{begin, end}}};
  }
  std::string text = boost::json::serialize(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

int64_t bytes_of(std::span<const TensorView> tensors) {
  return std::accumulate(
      tensors.begin(), tensors.end(), int64_t{0},
      [](int64_t sum, const TensorView& tensor) { return sum + std::ssize(tensor.bytes); });
}

// Consecutive tensors, each group within the limit unless it is a single tensor.
std::vector<std::span<const TensorView>> shards_of(std::span<const TensorView> tensors,
                                                   int64_t max_bytes) {
  std::vector<std::span<const TensorView>> shards;
  size_t begin = 0;
  int64_t held = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t size = std::ssize(tensors[i].bytes);
    if (i > begin && held + size > max_bytes) {
      shards.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      held = 0;
    }
    held += size;
  }
  shards.push_back(tensors.subspan(begin));
  return shards;
}

std::string five_digits(size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

}  // namespace

void write_safetensors(const fs::path& file, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata) {
  check(tensors);
  const std::vector<const TensorView*> order = in_file_order(tensors);
  const std::string header = header_of(order, metadata);
  const uint64_t length = header.size();
  AtomicFile out(file);
  out.write(std::as_bytes(std::span(&length, 1)));
  out.write(header);
  for (const TensorView* tensor : order) out.write(tensor->bytes);
  out.commit();
}

void write_model(const fs::path& dir, std::span<const TensorView> tensors,
                 const SafetensorsOptions& options) {
  check(tensors);
  const int64_t total = bytes_of(tensors);
  require(options.max_shard_bytes >= 0, Code::kInvalid, "io: max_shard_bytes is ",
          options.max_shard_bytes, ", it must be at least 0");
  if (options.max_shard_bytes == 0 || total <= options.max_shard_bytes) {
    write_safetensors(dir / "model.safetensors", tensors, options.metadata);
    return;
  }
  const auto shards = shards_of(tensors, options.max_shard_bytes);
  JsonObject weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        "model-" + five_digits(i + 1) + "-of-" + five_digits(shards.size()) + ".safetensors";
    write_safetensors(dir / name, shards[i], options.metadata);
    for (const TensorView& tensor : shards[i]) weight_map[tensor.name] = name;
  }
  write_file_atomically(
      dir / "model.safetensors.index.json",
      pretty(JsonObject{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}));
}

}  // namespace twinkle
