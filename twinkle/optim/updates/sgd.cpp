// Stochastic gradient descent with momentum (Sutskever et al. 2013), torch.optim.SGD's form: the
// first update's momentum buffer is the gradient itself.
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/optim/update.h"
#include "twinkle/optim/optimizer.h"
#include "twinkle/optim/options.h"

namespace twinkle::optim {
namespace {

struct SgdOptions {
  double lr = 1e-5;
  double momentum = 0;
  double dampening = 0;  // the gradient enters the momentum with 1 - dampening
  double weight_decay = 0.01;
  bool nesterov = false;
  bool maximize = false;
};

SgdOptions parse(const Json& json) {
  check_known(
      json, "SGD",
      {"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach", "fused"});
  SgdOptions o;
  o.lr = number_in(json, "SGD", "lr", o.lr);
  o.momentum = number_in(json, "SGD", "momentum", o.momentum);
  o.dampening = number_in(json, "SGD", "dampening", o.dampening, {.high = 1});
  o.weight_decay = number_in(json, "SGD", "weight_decay", o.weight_decay);
  o.nesterov = get_or<bool>(json, "nesterov", false);
  o.maximize = get_or<bool>(json, "maximize", false);
  require(!o.nesterov || (o.momentum > 0 && o.dampening == 0), Code::kInvalid,
          "optim: nesterov of SGD is true with momentum ", o.momentum, " and dampening ",
          o.dampening, ", it needs a momentum above 0 and no dampening");
  return o;
}

class Sgd : public Optimizer {
 public:
  std::string_view name() const override { return "SGD"; }

  void configure(const Json& options) override {
    const SgdOptions o = parse(options);
    factors(o, {.lr = o.lr, .grad_scale = 1, .step = 1, .fresh = true, .decay = true});
    o_ = o;
    lr_ = o.lr;
  }

  std::vector<std::string> buffers() const override {
    return o_.momentum > 0 ? std::vector<std::string>{"momentum_buffer"}
                           : std::vector<std::string>{};
  }

 protected:
  void check_terms(const Terms& terms) const override { factors(o_, terms); }

  bool is_ordinary(const Terms& terms, double largest_grad) const override {
    const kernels::SgdFactors f = factors(o_, terms);
    return f.rate <= 1 && f.l2 <= 1 && f.momentum <= 1 && largest_grad <= 1e9;
  }

  void update(const Run& run) const override {
    kernels::sgd_update(factors(o_, run.terms), {run.grad, run.value, run.buffers[0]}, run.size);
  }

  void update(std::span<const Whole> all) const override {
    std::vector<kernels::cuda::SgdTensors> rows;
    for (const Whole& p : all)
      rows.push_back({factors(o_, p.terms), p.grad, p.value, p.buffers[0]});
    kernels::cuda::sgd_update(rows);
  }

 private:
  static kernels::SgdFactors factors(const SgdOptions& o, const Terms& of) {
    const auto narrow = [](double value, std::string_view what) {
      return to_float32(value, "SGD", what);
    };
    const float rate = narrow(of.lr, "lr"), momentum = narrow(o.momentum, "momentum");
    const double decay = of.decay ? o.weight_decay : 0;
    const float l2 = narrow(decay, "weight_decay");
    narrow(of.lr * decay, "lr * weight_decay");  // factor of a weight in the end
    return {
        .scale = narrow(o.maximize ? -of.grad_scale : of.grad_scale, "grad_scale"),
        .l2 = l2,
        .momentum = momentum,
        .share = static_cast<float>(of.fresh ? 1 : 1 - o.dampening),
        .own = o.momentum == 0 || o.nesterov ? 1.0F : 0.0F,
        .of_buffer = o.nesterov || o.momentum == 0 ? momentum : 1.0F,
        .rate = rate,
    };
  }

  SgdOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> sgd() { return std::make_unique<Sgd>(); }

}  // namespace twinkle::optim
