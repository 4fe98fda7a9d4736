#include "twinkle/metric/means.h"

#include <algorithm>

namespace twinkle::metric {

void Means::add(std::string_view name, double sum, double count) {
  auto found = std::ranges::find(of_names_, name, &Mean::name);
  if (found == of_names_.end()) found = of_names_.insert(found, Mean{.name = std::string(name)});
  found->sum += sum;
  found->count += count;
}

void Means::add(std::string_view name, const at::Tensor& values) {
  add(name, values.sum().item<double>(), static_cast<double>(values.numel()));
}

JsonObject Means::told() const {
  JsonObject out;
  for (const Mean& mean : of_names_)
    if (mean.count != 0) out[mean.name] = mean.sum / mean.count;
  return out;
}

}  // namespace twinkle::metric
