// The body of Tinker's POST /api/v1/forward_backward: a protobuf of package tinker_public (message
// ForwardBackwardRequest), as plain values. Knows no engine; docs/tinker.md has the schema.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace twinkle::server::tinker {

// Compressed sparse rows: of row r, the values from crow[r] to crow[r + 1] and their columns.
struct Csr {
  std::vector<int64_t> crow, col;

  bool operator==(const Csr&) const = default;
};

// Row-major. A sparse one has the values that it lists alone: a few bytes may tell of a shape that
// fills the memory, and who asks for its cells bounds them first.
struct Tensor {
  std::vector<int64_t> shape;  // of one dimension where the sender names none
  std::variant<std::vector<float>, std::vector<int64_t>> values;
  std::optional<Csr> sparse = {};

  int64_t num_values() const {
    return std::visit([](const auto& v) { return std::ssize(v); }, values);
  }
  // Of its shape: those of a sparse one that are not listed are 0.
  int64_t num_cells() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  bool operator==(const Tensor&) const = default;
};

// All cells of a tensor, each as of(value).
template <class T, class Of>
std::vector<T> cells_of(const Tensor& tensor, const Of& of) {
  std::vector<T> out(static_cast<size_t>(tensor.num_cells()));
  const auto fill = [&](const auto& values) {
    if (!tensor.sparse) {
      std::ranges::transform(values, out.begin(), of);
      return;
    }
    const auto& [crow, col] = *tensor.sparse;
    for (size_t r = 0; r + 1 < crow.size(); ++r)
      for (int64_t i = crow[r]; i < crow[r + 1]; ++i)
        out[r * tensor.shape[1] + col[i]] = of(values[i]);
  };
  std::visit(fill, tensor.values);
  return out;
}

struct Datum {
  std::vector<int32_t> tokens;  // of all chunks of text, one after the other
  std::map<std::string, Tensor> loss_fn_inputs;

  bool operator==(const Datum&) const = default;
};

using LossConfig = std::map<std::string, std::variant<double, std::string>>;

struct ForwardBackwardRequest {
  std::string model_id;
  int32_t seq_id = 0;  // >= 1
  std::vector<Datum> data;
  std::string loss_fn;
  LossConfig loss_fn_config;
  bool forward_only = false;
  bool disable_lora = false;  // as modelscope.h finds it; read_forward_backward does not

  bool operator==(const ForwardBackwardRequest&) const = default;
};

// Values that the tensors of one request may have, cells of sparse ones with them. What takes
// memory without values counts as some: kItemValues for each datum, input and option.
inline constexpr int64_t kMaxValues = int64_t{1} << 26;
inline constexpr int64_t kItemValues = 16;

// Error kInvalid: bytes that are no such message, a chunk that is no text, a tensor whose numbers
// do not fit its shape, sparse indices that are out of range or out of order, a seq_id below 1,
// more than kMaxValues; with the field and its place.
ForwardBackwardRequest read_forward_backward(std::string_view bytes);

// Whose request of which number the bytes are, as far as can be told where they are broken: empty
// and 0 where it cannot.
struct Address {
  std::string model_id;
  int32_t seq_id = 0;
  bool forward_only = false;
};
Address address_of(std::string_view bytes);
// And a message of that alone.
std::string bytes_of(const Address& address);

}  // namespace twinkle::server::tinker
