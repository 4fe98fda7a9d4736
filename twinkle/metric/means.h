// Means of numbers by name.
#pragma once
#include <ATen/ATen.h>

#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle::metric {

class Means {
 public:
  void add(std::string_view name, double sum, double count);
  void add(std::string_view name, const at::Tensor& values);  // numbers, or bools as 0 and 1
  // {name: mean} of those with a count other than 0, in the order in which they came.
  JsonObject told() const;
  void clear() { of_names_.clear(); }

 private:
  struct Mean {
    std::string name;
    double sum = 0, count = 0;
  };
  std::vector<Mean> of_names_;
};

}  // namespace twinkle::metric
