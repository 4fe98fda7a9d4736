// Orders to the routers of one pass, and their answers. One thread, the decoder's. T rows of
// the pass, k experts of each; layers are numbered as the decoder does.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "twinkle/nn/experts/balance.h"

namespace twinkle::nn {

struct Routing {
  std::optional<Balance> balance = {};  // where an auxiliary loss is asked for
  // By layer, [T, k] int32: the experts that rows go to in place of those that the router would
  // choose, each once and ascending; a row of -1 goes where the router says.
  std::map<size_t, at::Tensor> given = {};
  bool keeps = false;                        // true: `chosen` is asked for
  std::map<size_t, at::Tensor> chosen = {};  // by layer, [T, k] int32: where rows went

  // Adds where the row went, a layer behind the other: [layers with experts x k].
  void add_row(int64_t row, std::vector<int32_t>& to) const {
    for (const auto& [layer, ids] : chosen) {
      const int32_t* from = ids.const_data_ptr<int32_t>() + row * ids.size(1);
      to.insert(to.end(), from, from + ids.size(1));
    }
  }
};

// The part of a layer; null: no orders and no questions.
struct RoutingOf {
  std::shared_ptr<Routing> pass = nullptr;
  size_t layer = 0;
};

}  // namespace twinkle::nn
