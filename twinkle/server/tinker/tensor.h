// Tinker's tensors as plain values: dense, or in compressed sparse rows.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "twinkle/base/error.h"

namespace twinkle::server::tinker {

// Compressed sparse rows: of row r, the values from crow[r] to crow[r + 1] and their columns.
struct Csr {
  std::vector<int64_t> crow, col;

  bool operator==(const Csr&) const = default;
};

// Row-major. A sparse one has the values that it lists alone: a few bytes may tell of a shape that
// fills the memory, and who asks for its cells bounds them first.
struct Tensor {
  std::vector<int64_t> shape;  // one dimension where the sender names none
  std::variant<std::vector<float>, std::vector<int64_t>> values;
  std::optional<Csr> sparse = {};

  int64_t num_values() const {
    return std::visit([](const auto& v) { return std::ssize(v); }, values);
  }
  // As its shape says: those of a sparse one that are not listed are 0.
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

// Error kInvalid: row pointers that do not cut the columns of a tensor of two dimensions into its
// rows, or columns that do not rise within a row. `prefix` comes before their names in the text:
// "forward_backward: data[0].weights.".
inline void require_rows(const Tensor& tensor, const std::string& prefix) {
  const auto& [crow, col] = *tensor.sparse;
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  const auto check = [&](bool ok, const auto&... parts) {
    require(ok, Code::kInvalid, prefix, parts...);
  };
  check(std::ssize(crow) == rows + 1, "crow_indices has ", crow.size(), " numbers, it must have ",
        rows + 1);
  check(crow.front() == 0 && crow.back() == std::ssize(col), "crow_indices is from ", crow.front(),
        " to ", crow.back(), ", it must be from 0 to ", col.size());
  for (size_t r = 0; r + 1 < crow.size(); ++r) {
    check(crow[r] <= crow[r + 1] && crow[r + 1] <= crow.back(), "crow_indices[", r + 1, "] is ",
          crow[r + 1], " behind ", crow[r]);
    for (int64_t i = crow[r], last = -1; i < crow[r + 1]; last = col[i++])
      check(col[i] > last && col[i] < cols, "col_indices[", i, "] is ", col[i],
            ", it must be above ", last, " and below ", cols);
  }
}

}  // namespace twinkle::server::tinker
