// Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019, algorithm 2), with
// torch.optim's formulas: the bias corrections in double, the elements in float32.
#include <array>
#include <cmath>
#include <limits>

#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/optim/update.h"
#include "twinkle/optim/optimizer.h"
#include "twinkle/optim/options.h"

namespace twinkle::optim {
namespace {

struct AdamOptions {
  double lr = 1e-5;
  double beta1 = 0.9, beta2 = 0.999;  // decay of the first and the second moment's running means
  double eps = 1e-8;                  // added to the root of the second moment
  double weight_decay = 0.01;
  bool maximize = false;
};

AdamOptions parse(const Json& json, std::string_view name) {
  check_known(json, name,
              {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "fused"});
  AdamOptions o;
  o.lr = number_in(json, name, "lr", o.lr);
  o.eps = number_in(json, name, "eps", o.eps);
  // Without it a weight whose gradient is 0 is divided by 0.
  constexpr double kMin = std::numeric_limits<float>::min();
  require(o.eps >= kMin, Code::kInvalid, "optim: eps of ", name, " is ", o.eps,
          ", which is 0 in float32, it must be at least ", kMin);
  o.weight_decay = number_in(json, name, "weight_decay", o.weight_decay);
  o.maximize = get_or<bool>(json, "maximize", false);
  require(!get_or<bool>(json, "amsgrad", false), Code::kInvalid, "optim: amsgrad of ", name,
          " is true, only false is supported");
  std::array<double, 2> betas = {o.beta1, o.beta2};
  numbers_in(json, name, "betas", betas);
  o.beta1 = betas[0], o.beta2 = betas[1];
  check_range(o.beta1, name, "betas[0]", {.high = 1, .below_high = true});
  check_range(o.beta2, name, "betas[1]", {.high = 1, .below_high = true});
  return o;
}

class Adam : public Optimizer {
 public:
  explicit Adam(bool decoupled) : decoupled_(decoupled) {}

  std::string_view name() const override { return decoupled_ ? "AdamW" : "Adam"; }

  void configure(const Json& options) override {
    const AdamOptions o = parse(options, name());
    // The first update's rate is the largest.
    factors(o, {.lr = o.lr, .grad_scale = 1, .step = 1, .fresh = true, .decay = true});
    o_ = o;
    lr_ = o.lr;
  }

  std::vector<std::string> buffers() const override { return {"exp_avg", "exp_avg_sq"}; }

 protected:
  void check_terms(const Terms& terms) const override { factors(o_, terms); }

  bool is_ordinary(const Terms& terms, double largest_grad) const override {
    const kernels::AdamFactors f = factors(o_, terms);
    return f.rate <= 1 && f.shrink <= 1 && f.l2 <= 1 && f.eps >= 1e-12F && largest_grad <= 1e9;
  }

  bool is_non_negative(std::string_view buffer) const override { return buffer == "exp_avg_sq"; }

  void update(const Run& run) const override {
    kernels::adam_update(factors(o_, run.terms),
                         {run.grad, run.value, run.buffers[0], run.buffers[1]}, run.size);
  }

  void update(std::span<const Whole> all) const override {
    std::vector<kernels::cuda::AdamTensors> rows;
    for (const Whole& p : all)
      rows.push_back({factors(o_, p.terms), p.grad, p.value, p.buffers[0], p.buffers[1]});
    kernels::cuda::adam_update(rows);
  }

 private:
  kernels::AdamFactors factors(const AdamOptions& o, const Terms& of) const {
    const double lr = of.lr, decay = of.decay ? o.weight_decay : 0;
    const auto step = static_cast<double>(of.step);
    const auto narrow = [&](double value, std::string_view what) {
      return to_float32(value, name(), what);
    };
    narrow(lr, "lr");
    // torch multiplies by 1 - lr * weight_decay instead of taking `shrink` off, which in float32 is
    // 1 - 1.2e-7 for 1e-7.
    return {
        .scale = narrow(o.maximize ? -of.grad_scale : of.grad_scale, "grad_scale"),
        .l2 = decoupled_ ? 0 : narrow(decay, "weight_decay"),
        .shrink = decoupled_ ? narrow(lr * decay, "lr * weight_decay") : 0,
        .first = static_cast<float>(1 - o.beta1),
        .second = static_cast<float>(1 - o.beta2),
        .keep_second = static_cast<float>(o.beta2),
        .root = static_cast<float>(std::sqrt(1 - std::pow(o.beta2, step))),
        .eps = narrow(o.eps, "eps"),
        .rate = narrow(lr / (1 - std::pow(o.beta1, step)), "lr / (1 - betas[0]^step)"),
    };
  }

  bool decoupled_;
  AdamOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> adamw() { return std::make_unique<Adam>(true); }
std::unique_ptr<Optimizer> adam() { return std::make_unique<Adam>(false); }

}  // namespace twinkle::optim
