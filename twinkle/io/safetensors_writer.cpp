#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "twinkle/base/json.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/safetensors.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

// A tensor to write, wherever its bytes are.
struct Item {
  std::string_view name;
  Dtype dtype;
  std::span<const int64_t> shape;
  int64_t num_bytes;
  std::function<void(AtomicFile&)> write;
};

std::vector<Item> items_of(std::span<const TensorView> tensors) {
  std::vector<Item> items;
  for (const TensorView& tensor : tensors) {
    items.push_back({tensor.name, tensor.dtype, tensor.shape, std::ssize(tensor.bytes),
                     [&tensor](AtomicFile& out) { out.write(tensor.bytes); }});
  }
  return items;
}

void copy(const StoredTensor& tensor, AtomicFile& out) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  const int64_t size = tensor.num_bytes();
  std::vector<std::byte> chunk;
  for (int64_t at = 0; at < size; at += kChunk) {
    chunk.resize(static_cast<size_t>(std::min(size - at, kChunk)));
    tensor.read(chunk, at);
    out.write(chunk);
  }
}

std::vector<Item> items_of(std::span<const StoredTensor> tensors) {
  std::vector<Item> items;
  for (const StoredTensor& tensor : tensors) {
    items.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.num_bytes(),
                     [&tensor](AtomicFile& out) { copy(tensor, out); }});
  }
  return items;
}

void check(std::span<const Item> tensors) {
  std::vector<std::string_view> names;
  for (const Item& tensor : tensors) {
    require(bytes_of(tensor.dtype, tensor.shape) == tensor.num_bytes, Code::kInvalid,
            "io: tensor '", tensor.name, "': shape ", shape_text(tensor.shape), " of ",
            name_of(tensor.dtype), " does not fit its ", tensor.num_bytes, " bytes");
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
std::vector<const Item*> in_file_order(std::span<const Item> tensors) {
  std::vector<const Item*> order;
  for (const Item& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    return std::pair(-size_of(a->dtype), a->name) < std::pair(-size_of(b->dtype), b->name);
  });
  return order;
}

JsonArray json_of(std::span<const int64_t> values) {
  return JsonArray(values.begin(), values.end());
}

std::string header_of(std::span<const Item* const> order,
                      const std::map<std::string, std::string>& metadata) {
  JsonObject header;
  if (!metadata.empty()) {
    JsonObject& into = header["__metadata__"].emplace_object();
    for (const auto& [key, value] : metadata) into[key] = value;
  }
  int64_t end = 0;
  for (const Item* tensor : order) {
    const int64_t begin = end;
    end += tensor->num_bytes;
    header[tensor->name] = JsonObject{{"dtype", name_of(tensor->dtype)},
                                      {"shape", json_of(tensor->shape)},
                                      {"data_offsets", JsonArray{begin, end}}};
  }
  std::string text = boost::json::serialize(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

// Consecutive tensors, each group within the limit unless it is a single tensor.
std::vector<std::span<const Item>> shards_of(std::span<const Item> tensors, int64_t max_bytes) {
  std::vector<std::span<const Item>> shards;
  size_t begin = 0;
  int64_t held = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t size = tensors[i].num_bytes;
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

void write_file(const fs::path& file, std::span<const Item> tensors,
                const std::map<std::string, std::string>& metadata, Commits how) {
  const std::vector<const Item*> order = in_file_order(tensors);
  const std::string header = header_of(order, metadata);
  const uint64_t length = header.size();
  AtomicFile out(file, how);
  out.write(std::as_bytes(std::span(&length, 1)));
  out.write(header);
  for (const Item* tensor : order) tensor->write(out);
  out.commit();
}

void write_items(const fs::path& dir, std::span<const Item> tensors,
                 const SafetensorsOptions& options) {
  check(tensors);
  int64_t total = 0;
  for (const Item& tensor : tensors) total += tensor.num_bytes;
  require(options.max_shard_bytes >= 0, Code::kInvalid, "io: max_shard_bytes is ",
          options.max_shard_bytes, ", it must be at least 0");
  if (options.max_shard_bytes == 0 || total <= options.max_shard_bytes) {
    write_file(dir / "model.safetensors", tensors, options.metadata, Commits::kWithFolder);
    return;
  }
  const auto shards = shards_of(tensors, options.max_shard_bytes);
  JsonObject weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        "model-" + five_digits(i + 1) + "-of-" + five_digits(shards.size()) + ".safetensors";
    write_file(dir / name, shards[i], options.metadata, Commits::kWithFolder);
    for (const Item& tensor : shards[i]) weight_map[tensor.name] = name;
  }
  write_file_atomically(
      dir / "model.safetensors.index.json",
      pretty(JsonObject{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}),
      Commits::kWithFolder);
}

}  // namespace

void write_safetensors(const fs::path& file, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata, Commits how) {
  const std::vector<Item> items = items_of(tensors);
  check(items);
  write_file(file, items, metadata, how);
}

void write_model(const fs::path& dir, std::span<const TensorView> tensors,
                 const SafetensorsOptions& options, std::span<const StoredTensor> more) {
  std::vector<Item> items = items_of(tensors);
  std::ranges::move(items_of(more), std::back_inserter(items));
  write_items(dir, items, options);
}

void copy_model(const fs::path& dir, std::span<const StoredTensor> tensors,
                const SafetensorsOptions& options) {
  write_items(dir, items_of(tensors), options);
}

}  // namespace twinkle
