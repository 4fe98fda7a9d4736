#include "twinkle/optim/params.h"

#include <set>

namespace twinkle::optim {
namespace {

void check_tensor(const Param& param, std::string_view what, const at::Tensor& t) {
  require(t.defined() && t.scalar_type() == at::kFloat && t.device().is_cpu() && t.is_contiguous(),
          Code::kInvalid, "optim: ", what, " of ", param.name, " is ",
          t.defined() ? t.toString() : "missing", " with ",
          t.defined() && !t.is_contiguous() ? "strides" : "shape", " ",
          !t.defined()        ? at::IntArrayRef{}
          : t.is_contiguous() ? t.sizes()
                              : t.strides(),
          ", it must be contiguous float32 on the CPU");
}

}  // namespace

void check(std::span<const Param> params) {
  std::set<std::string_view> names;
  for (const Param& param : params) {
    check_tensor(param, "value", param.value);
    require(names.insert(param.name).second, Code::kInvalid, "optim: two parameters are named ",
            param.name);
    if (!param.grad.defined()) continue;
    check_tensor(param, "gradient", param.grad);
    require(param.grad.sizes() == param.value.sizes(), Code::kInvalid, "optim: gradient of ",
            param.name, " has shape ", param.grad.sizes(), ", the parameter has ",
            param.value.sizes());
  }
}

}  // namespace twinkle::optim
