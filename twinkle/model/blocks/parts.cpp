#include "twinkle/model/blocks/parts.h"

namespace twinkle::model {

void Parts::weight(const std::string& name, const std::vector<int64_t>& shape, bool decay,
                   at::Tensor& value, nn::WeightGrad*& grad) {
  const std::string there = layout_.name(path + name);
  value = read_(there, shape);
  weights.push_back({there, &value, decay, &grad});
}

void Parts::linear(const std::string& name, const LinearSize& size, nn::Linear& into, bool drops) {
  weight(name + ".weight", {size.outputs, size.inputs}, true, into.weight, into.weight_grad);
  if (size.bias) weight(name + ".bias", {size.outputs}, false, into.bias, into.bias_grad);
  linears.push_back({layout_.path(path + name), &into, drops});
}

void Parts::norm(const std::string& name, int64_t width, const NormSpec& spec, nn::RmsNorm& into) {
  into.eps = spec.eps;
  into.zero_centred = spec.zero_centred;
  weight(name + ".weight", {width}, false, into.weight, into.grad);
}

void Parts::constant(const std::string& name, const std::vector<int64_t>& shape,
                     at::Tensor& value) {
  value = constants_(layout_.name(path + name), shape);
}

}  // namespace twinkle::model
