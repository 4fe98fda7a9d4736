// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon), with torch.optim.Muon's formulas: a
// matrix moves along its momentum made nearly orthogonal, by a few Newton-Schulz iterations in
// float32, where torch's are in bfloat16. One thread iterates a matrix of the CPU, in one order.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "twinkle/optim/optimizer.h"
#include "twinkle/optim/options.h"

namespace twinkle::optim {
namespace {

struct MuonOptions {
  double lr = 1e-5;
  double weight_decay = 0.01;
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> coefficients = {3.4445, -4.775,
                                        2.0315};  // factors of X, X X^T X, (X X^T)^2 X
  double eps = 1e-7;                              // least norm that divides
  int64_t steps = 5;
  bool matches_adamw = false;  // the rate's factor: 0.2 sqrt(max(A, B)), or sqrt(max(1, A / B))
};

MuonOptions parse(const Json& json) {
  constexpr std::string_view kName = "Muon";
  check_known(json, kName,
              {"lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps",
               "adjust_lr_fn"});
  MuonOptions o;
  o.lr = number_in(json, kName, "lr", o.lr);
  o.weight_decay = number_in(json, kName, "weight_decay", o.weight_decay);
  o.momentum = number_in(json, kName, "momentum", o.momentum, {.high = 1, .below_high = true});
  o.nesterov = get_or<bool>(json, "nesterov", o.nesterov);
  numbers_in(json, kName, "ns_coefficients", o.coefficients);
  o.eps = number_in(json, kName, "eps", o.eps, {.low = 1e-30});
  o.steps = get_or<int64_t>(json, "ns_steps", o.steps);
  require(o.steps >= 1 && o.steps < 100, Code::kInvalid, "optim: ns_steps of Muon is ", o.steps,
          ", it must be at least 1 and below 100");
  const auto adjust = get_or<std::string>(json, "adjust_lr_fn", "original");
  require(adjust == "original" || adjust == "match_rms_adamw", Code::kInvalid,
          "optim: adjust_lr_fn of Muon is '", adjust,
          "', it must be 'original' or 'match_rms_adamw'");
  o.matches_adamw = adjust == "match_rms_adamw";
  return o;
}

constexpr int64_t kLanes = 16;

float dot(const float* x, const float* y, int64_t n) {
  std::array<float, kLanes> lanes{};
  const int64_t whole = n - n % kLanes;
  for (int64_t k = 0; k < whole; k += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += x[k + l] * y[k + l];
  for (int64_t k = whole; k < n; ++k) lanes[k - whole] += x[k] * y[k];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

void add_scaled(float* y, float factor, const float* x, int64_t n) {
  for (int64_t k = 0; k < n; ++k) y[k] += factor * x[k];
}

// A wide matrix [m, n], m <= n, and what an iteration needs.
struct Scratch {
  int64_t m, n;
  std::vector<float> x, next, gram, product;
  explicit Scratch(const at::Tensor& value)
      : m(std::min(value.size(0), value.size(1))),
        n(std::max(value.size(0), value.size(1))),
        x(static_cast<size_t>(m * n)),
        next(x.size()),
        gram(static_cast<size_t>(m * m)),
        product(gram.size()) {}

  void iterate(const std::array<double, 3>& coefficients) {
    const auto a = static_cast<float>(coefficients[0]), b = static_cast<float>(coefficients[1]),
               c = static_cast<float>(coefficients[2]);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j <= i; ++j)
        gram[i * m + j] = gram[j * m + i] = dot(&x[i * n], &x[j * n], n);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < m; ++j)
        product[i * m + j] = b * gram[i * m + j] + c * dot(&gram[i * m], &gram[j * m], m);
    for (int64_t i = 0; i < m; ++i) {
      float* row = &next[i * n];
      for (int64_t k = 0; k < n; ++k) row[k] = a * x[i * n + k];
      for (int64_t j = 0; j < m; ++j) add_scaled(row, product[i * m + j], &x[j * n], n);
    }
    x.swap(next);
  }
};

class Muon : public Optimizer {
 public:
  std::string_view name() const override { return "Muon"; }

  void configure(const Json& options) override {
    const MuonOptions o = parse(options);
    factors(o, {.lr = o.lr, .grad_scale = 1, .step = 1, .fresh = true, .decay = true});
    o_ = o;
    lr_ = o.lr;
  }

  std::vector<std::string> buffers() const override { return {"momentum_buffer"}; }

 protected:
  bool takes_whole() const override { return true; }

  void check_param(const Param& param) const override {
    require(param.value.dim() == 2, Code::kInvalid, "optim: Muon updates matrices, but ",
            param.name, " has shape ", param.value.sizes(),
            ": train an adapter, whose factors are matrices, or take AdamW");
  }

  void check_terms(const Terms& terms) const override { factors(o_, terms); }

  bool is_ordinary(const Terms& terms, double largest_grad) const override {
    return terms.lr <= 1 && terms.lr * o_.weight_decay <= 1 && largest_grad <= 1e9;
  }

  void update(std::span<const Whole> all) const override {
    std::vector<Scratch> scratch;  // all of it before the first value changes
    for (const Whole& p : all)
      if (p.value.is_cpu()) scratch.emplace_back(p.value);
    if (scratch.empty()) return update_device(all);
    at::parallel_for(0, static_cast<int64_t>(all.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        update_one(all[static_cast<size_t>(i)], scratch[static_cast<size_t>(i)]);
    });
  }

 private:
  struct Factors {
    float scale, share, momentum, keep;  // keep: what decay leaves of a weight
  };
  static Factors factors(const MuonOptions& o, const Terms& of) {
    const auto narrow = [](double value, std::string_view what) {
      return to_float32(value, "Muon", what);
    };
    narrow(of.lr, "lr");
    narrow(of.lr * o.weight_decay, "lr * weight_decay");
    return {.scale = narrow(of.grad_scale, "grad_scale"),
            .share = static_cast<float>(1 - o.momentum),
            .momentum = static_cast<float>(o.momentum),
            .keep = static_cast<float>(1 - (of.decay ? of.lr * o.weight_decay : 0))};
  }
  double rate(const Whole& p) const {
    const auto rows = static_cast<double>(p.value.size(0)),
               columns = static_cast<double>(p.value.size(1));
    return p.terms.lr * (o_.matches_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                          : std::sqrt(std::max(1.0, rows / columns)));
  }

  void update_one(const Whole& p, Scratch& s) const {
    const Factors f = factors(o_, p.terms);
    const int64_t rows = p.value.size(0), columns = p.value.size(1);
    float *value = p.value.mutable_data_ptr<float>(),
          *buffer = p.buffers[0].mutable_data_ptr<float>();
    const float* grad = p.grad.const_data_ptr<float>();
    const auto place = [&](int64_t row, int64_t column) {
      return static_cast<size_t>(rows > columns ? column * rows + row : row * columns + column);
    };
    double squares = 0;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t i = row * columns + column;
        const float g = grad[i] * f.scale;
        buffer[i] += f.share * (g - buffer[i]);
        const float moved = o_.nesterov ? g + f.momentum * (buffer[i] - g) : buffer[i];
        s.x[place(row, column)] = moved;
        squares += double{moved} * moved;
      }
    const auto norm = static_cast<float>(std::max(std::sqrt(squares), o_.eps));
    for (float& x : s.x) x /= norm;
    for (int64_t i = 0; i < o_.steps; ++i) s.iterate(o_.coefficients);
    const auto by = static_cast<float>(rate(p));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column) {
        float& v = value[row * columns + column];
        v = v * f.keep - by * s.x[place(row, column)];
      }
  }

  void update_device(std::span<const Whole> all) const {
    const at::NoGradGuard guard;
    for (const Whole& p : all) {
      const Factors f = factors(o_, p.terms);
      const at::Tensor g = p.grad * f.scale;
      const at::Tensor& buffer = p.buffers[0];
      buffer.add_(g - buffer, f.share);
      at::Tensor x = o_.nesterov ? g + (buffer - g) * f.momentum : buffer;
      const bool is_tall = x.size(0) > x.size(1);
      if (is_tall) x = x.t();
      x = x / x.norm().clamp_min(o_.eps);
      const auto [a, b, c] = o_.coefficients;
      for (int64_t i = 0; i < o_.steps; ++i) {
        const at::Tensor gram = x.matmul(x.t());
        x = x * a + (gram * b + gram.matmul(gram) * c).matmul(x);
      }
      p.value.mul_(f.keep).sub_(is_tall ? x.t() : x, rate(p));
    }
  }

  MuonOptions o_;
};

}  // namespace

std::unique_ptr<Optimizer> muon() { return std::make_unique<Muon>(); }

}  // namespace twinkle::optim
