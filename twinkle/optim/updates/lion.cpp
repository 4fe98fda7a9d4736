// Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2): with c = beta1 m + (1 - beta1) g, p -= lr
// (sign(c) + weight_decay p), then m = beta2 m + (1 - beta2) g.
#include <array>

#include "twinkle/optim/optimizer.h"
#include "twinkle/optim/options.h"

namespace twinkle::optim {
namespace {

struct LionOptions {
  double lr = 1e-5;
  std::array<double, 2> betas = {0.9,
                                 0.99};  // decay of the sign's mean, and of the mean that is kept
  double weight_decay = 0.01;
};

LionOptions parse(const Json& json) {
  check_known(json, "Lion", {"lr", "betas", "weight_decay"});
  LionOptions o;
  o.lr = number_in(json, "Lion", "lr", o.lr);
  o.weight_decay = number_in(json, "Lion", "weight_decay", o.weight_decay);
  numbers_in(json, "Lion", "betas", o.betas);
  check_range(o.betas[0], "Lion", "betas[0]", {.high = 1, .below_high = true});
  check_range(o.betas[1], "Lion", "betas[1]", {.high = 1, .below_high = true});
  return o;
}

class Lion : public Optimizer {
 public:
  std::string_view name() const override { return "Lion"; }

  void configure(const Json& options) override {
    const LionOptions o = parse(options);
    factors(o, {.lr = o.lr, .grad_scale = 1, .step = 1, .fresh = true, .decay = true});
    o_ = o;
    lr_ = o.lr;
  }

  std::vector<std::string> buffers() const override { return {"exp_avg"}; }

 protected:
  void check_terms(const Terms& terms) const override { factors(o_, terms); }

  bool is_ordinary(const Terms& terms, double largest_grad) const override {
    const Factors f = factors(o_, terms);
    return f.rate <= 1 && f.shrink <= 1 && largest_grad <= 1e9;
  }

  void update(const Run& run) const override {
    const Factors f = factors(o_, run.terms);
    float *p = run.value, *m = run.buffers[0];
    for (int64_t i = 0; i < run.size; ++i) {
      const float g = run.grad[i] * f.scale;
      const float c = m[i] + f.first * (g - m[i]);
      const float sign = c > 0 ? 1.0F : c < 0 ? -1.0F : c;  // NaN stays NaN
      p[i] -= f.rate * sign + f.shrink * p[i];
      m[i] += f.second * (g - m[i]);
    }
  }

  void update(std::span<const Whole> all) const override {
    for (const Whole& p : all) {
      const Factors f = factors(o_, p.terms);
      const at::Tensor g = p.grad * f.scale, &m = p.buffers[0];
      const at::Tensor c = m + (g - m) * f.first;
      p.value.sub_(c.sign() * f.rate + p.value * f.shrink);
      m.add_(g - m, f.second);
    }
  }

 private:
  struct Factors {
    float scale, first, second, rate, shrink;
  };
  static Factors factors(const LionOptions& o, const Terms& of) {
    const auto narrow = [](double value, std::string_view what) {
      return to_float32(value, "Lion", what);
    };
    const double decay = of.decay ? o.weight_decay : 0;
    return {.scale = narrow(of.grad_scale, "grad_scale"),
            .first = static_cast<float>(1 - o.betas[0]),
            .second = static_cast<float>(1 - o.betas[1]),
            .rate = narrow(of.lr, "lr"),
            .shrink = narrow(of.lr * decay, "lr * weight_decay")};
  }

  LionOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> lion() { return std::make_unique<Lion>(); }

}  // namespace twinkle::optim
