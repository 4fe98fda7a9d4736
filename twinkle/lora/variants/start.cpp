#include "twinkle/lora/variants/start.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "twinkle/base/error.h"
#include "twinkle/kernels/random/uniform.h"
#include "twinkle/lora/variants/dora.h"
#include "twinkle/lora/variants/kinds.h"

namespace twinkle::lora {
namespace {

constexpr std::string_view kIterated = "pissa_niter_";

at::Tensor drawn(uint64_t key, int64_t rank, int64_t inputs) {
  at::Tensor out = at::empty({rank, inputs}, at::kFloat);
  kernels::fill_uniform(key, 1.0 / std::sqrt(static_cast<double>(inputs)),
                        {out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel())});
  return out;
}

at::Tensor normal(uint64_t key, int64_t rows, int64_t columns, double deviation) {
  at::Generator generator = at::detail::createCPUGenerator(key);
  return at::empty({rows, columns}, at::kFloat).normal_(0, deviation, generator);
}

// Power iterations that "pissa_niter_N" asks for; nullopt: another text.
std::optional<int64_t> iterations_of(std::string_view init) {
  if (!init.starts_with(kIterated)) return std::nullopt;
  const std::string_view digits = init.substr(kIterated.size());
  int64_t out = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (error != std::errc() || end != digits.data() + digits.size() || out < 0) return std::nullopt;
  return out;
}

struct Svd {
  at::Tensor u, s, vh;  // [O, r], [r], [r, I]
};

Svd principal(const at::Tensor& weight, int64_t rank) {
  auto [u, s, vh] = at::linalg_svd(weight, /*full_matrices=*/false);
  return {u.narrow(1, 0, rank), s.narrow(0, 0, rank), vh.narrow(0, 0, rank)};
}

at::Tensor basis(const at::Tensor& columns) { return std::get<0>(at::linalg_qr(columns)); }

Svd principal_of_subspace(const at::Tensor& weight, int64_t rank, int64_t iterations,
                          uint64_t key) {
  at::Tensor q = basis(weight.mm(normal(key, weight.size(1), rank, 1).to(weight.scalar_type())));
  for (int64_t i = 0; i < iterations; ++i) q = basis(weight.mm(basis(weight.t().mm(q))));
  auto [u, s, vh] = at::linalg_svd(q.t().mm(weight), /*full_matrices=*/false);
  return {q.mm(u), s, vh};
}

std::vector<at::Tensor> pissa(const PeftConfig& config, uint64_t key, const at::Tensor& weight,
                              const StartSize& size) {
  const int64_t most = std::min(weight.size(0), weight.size(1));
  require(size.rank <= most, Code::kInvalid, "lora: init_lora_weights is '", config.init,
          "' and the rank ", size.rank, ", but a matrix of [", weight.size(0), ", ", weight.size(1),
          "] has ", most, " singular values: take a lower r, or leave it out of target_modules");
  const auto iterations = iterations_of(config.init);
  const Svd svd = iterations ? principal_of_subspace(weight, size.rank, *iterations, key)
                             : principal(weight, size.rank);
  const at::Tensor root = svd.s.div(size.scale).sqrt();
  const at::Tensor a = (root.unsqueeze(1) * svd.vh).contiguous(), b = (svd.u * root).contiguous();
  return {a, b, a.clone(), b.clone()};
}

}  // namespace

std::vector<at::Tensor> start_of(const PeftConfig& config, std::optional<uint64_t> key,
                                 const at::Tensor& weight, const StartSize& size) {
  const bool plain = config.init.empty(), gaussian = config.init == "gaussian";
  require(plain || gaussian || config.init == "pissa" || iterations_of(config.init), Code::kInvalid,
          "lora: init_lora_weights is '", config.init,
          "', it must be true, 'gaussian', 'pissa' or 'pissa_niter_' and a number");
  const auto type = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (key && is_pissa(config)) return pissa(config, *key, weight.to(type), size);
  const auto zeros = [&](int64_t rows, int64_t columns) {
    return at::zeros({rows, columns}, weight.options().dtype(type));
  };
  const int64_t outputs = weight.size(0), inputs = weight.size(1), r = size.rank;
  if (is_pissa(config))
    return {zeros(r, inputs), zeros(outputs, r), zeros(r, inputs), zeros(outputs, r)};
  std::vector<at::Tensor> out{zeros(r, inputs), zeros(outputs, r)};
  if (config.use_dora) out.push_back(zeros(outputs, 1).flatten());
  if (!key) return out;
  const at::Tensor a =
      plain ? drawn(*key, r, inputs) : normal(*key, r, inputs, 1.0 / static_cast<double>(r));
  out[0] = a.to(weight.device(), type);
  if (config.use_dora)
    out.back() = row_norms(weight, {.a = out[0], .b = out[1], .scale = size.scale});
  return out;
}

}  // namespace twinkle::lora
