#include "twinkle/model/blocks/parts.h"

namespace twinkle::model {

void Parts::weight(const std::string& name, const std::vector<int64_t>& shape, bool decay,
                   at::Tensor& value, nn::WeightGrad*& grad) {
  value = read_(path + name, shape);
  weights.push_back({path + name, &value, decay, &grad});
}

void Parts::linear(const std::string& name, const LinearSize& size, nn::Linear& into) {
  weight(name + ".weight", {size.outputs, size.inputs}, true, into.weight, into.weight_grad);
  if (size.bias) weight(name + ".bias", {size.outputs}, false, into.bias, into.bias_grad);
  linears.push_back({path + name, &into});
}

void Parts::norm(const std::string& name, int64_t width, double eps, nn::RmsNorm& into) {
  into.eps = eps;
  weight(name + ".weight", {width}, false, into.weight, into.grad);
}

}  // namespace twinkle::model
