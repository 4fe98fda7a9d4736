#include "twinkle/optim/params.h"

#include <set>

namespace twinkle::optim {
namespace {

void check_tensor(const Param& param, std::string_view what, const at::Tensor& t,
                  const at::Device& device) {
  require(t.defined() && t.scalar_type() == at::kFloat && t.device() == device && t.is_contiguous(),
          Code::kInvalid, "optim: ", what, " of ", param.name, " is ",
          t.defined() ? t.toString() : "missing", " with ",
          t.defined() && !t.is_contiguous() ? "strides" : "shape", " ",
          !t.defined()        ? at::IntArrayRef{}
          : t.is_contiguous() ? t.sizes()
                              : t.strides(),
          ", it must be contiguous float32 on ",
          device.is_cpu() ? "the CPU" : "the others' device, " + device.str());
}

}  // namespace

void check(std::span<const Param> params) {
  std::set<std::string_view> names;
  const bool known = !params.empty() && params.front().value.defined();
  const at::Device device = known ? params.front().value.device() : at::Device(at::kCPU);
  for (const Param& param : params) {
    check_tensor(param, "value", param.value, device);
    require(names.insert(param.name).second, Code::kInvalid, "optim: two parameters are named ",
            param.name);
    if (!param.grad.defined()) continue;
    check_tensor(param, "gradient", param.grad, device);
    require(param.grad.sizes() == param.value.sizes(), Code::kInvalid, "optim: gradient of ",
            param.name, " has shape ", param.grad.sizes(), ", the parameter has ",
            param.value.sizes());
  }
}

}  // namespace twinkle::optim
