// Lists, arrays and tensors of rewards as the doubles of twinkle/rl/advantages.h, and float32
// arrays back. What is refused is refused by its name and place.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/rl/advantages.h"

namespace py = pybind11;
using namespace py::literals;

namespace twinkle::python::advantages {
namespace {

using Numbers = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Doubles = std::vector<double>;

template <class... Arguments>
py::object check(const char* name, const Arguments&... arguments) {
  return py::module_::import("twinkle.checks").attr(name)(arguments...);
}

// Python's text of a value, such as a shape.
std::string text_of(const py::handle& value) { return py::str(value); }

// Numbers of a list, an array or a tensor, [..] as `shape` says.
Numbers numbers(const std::string& what, const py::handle& given, const char* shape) {
  return Numbers(check("floats", what, given, std::string("numbers ") + shape));
}

void check_shape(const std::string& what, const Numbers& values, const char* shape, bool right) {
  require(right, Code::kInvalid, what, " have the shape ", text_of(values.attr("shape")),
          ", it must be ", shape);
}

// Looks at a list, or a matrix [B, T], where `masks`, if any, are not 0.
void check_finite(const std::string& what, const Numbers& values, const double* masks = nullptr) {
  const py::ssize_t width = values.ndim() == 2 ? values.shape(1) : 0;
  for (py::ssize_t i = 0; i < values.size(); ++i) {
    const double value = values.data()[i];
    if (std::isfinite(value) || (masks && masks[i] == 0)) continue;
    const std::string at = width == 0
                               ? std::to_string(i)
                               : std::to_string(i / width) + ", " + std::to_string(i % width);
    fail(Code::kInvalid, what, "[", at, "] is ", text_of(py::float_(value)),
         ", it must be a finite number");
  }
}

py::array_t<float> floats(const Doubles& values, std::vector<py::ssize_t> shape) {
  py::array_t<float> out(std::move(shape));
  std::ranges::transform(values, out.mutable_data(),
                         [](double v) { return static_cast<float>(v); });
  return out;
}

// ---- of replies

bool is_key(const py::handle& value) {
  if (!py::isinstance<py::tuple>(value))
    return py::isinstance<py::str>(value) ||
           py::isinstance(value, py::module_::import("numbers").attr("Number"));
  for (const py::handle part : value)
    if (!is_key(part)) return false;
  return true;
}

// Indices of rewards, such that those of one prompt follow each other.
std::vector<size_t> order_of(const py::object& given, size_t num_rewards, size_t count) {
  std::vector<size_t> out(num_rewards);
  std::iota(out.begin(), out.end(), size_t{0});
  if (given.is_none()) return out;
  const py::object prompts = py::hasattr(given, "tolist") ? given.attr("tolist")() : given;
  if (!py::isinstance<py::list>(prompts) && !py::isinstance<py::tuple>(prompts))
    check("refuse", "advantage: prompts", prompts, "a list of keys, one for each reward");
  require(py::len(prompts) == num_rewards, Code::kInvalid, "advantage: there are ",
          py::len(prompts), " prompts for ", num_rewards, " rewards, there must be a key for each");
  py::dict members;
  size_t i = 0;
  for (const py::handle key : prompts) {
    if (!is_key(key))
      check("refuse", "advantage: prompts[" + std::to_string(i) + "]", key,
            "a number, a text or a tuple of these");
    members.attr("setdefault")(key, py::list()).attr("append")(i++);
  }
  out.clear();
  for (const auto& [key, indices] : members) {
    require(py::len(indices) == count, Code::kInvalid, "advantage: prompt ", text_of(py::repr(key)),
            " has ", py::len(indices), " rewards, it must have num_generations, ", count);
    for (const py::handle index : indices) out.push_back(index.cast<size_t>());
  }
  return out;
}

py::array_t<float> of_groups(const py::object& given, int64_t num_generations,
                             const std::string& scale, const py::object& prompts, bool others) {
  constexpr const char* kWhat = "advantage: rewards";
  constexpr const char* kShape = "[N] or [N, K]";
  const Numbers values = numbers(kWhat, given, kShape);
  check_shape(kWhat, values, kShape, values.ndim() == 1 || values.ndim() == 2);
  check_finite(kWhat, values);
  const auto size = static_cast<size_t>(values.shape(0));
  const size_t width = size == 0 ? 0 : static_cast<size_t>(values.size()) / size;
  const std::vector<size_t> order = order_of(prompts, size, static_cast<size_t>(num_generations));
  Doubles rewards;
  for (const size_t i : order)
    rewards.push_back(
        std::accumulate(values.data() + i * width, values.data() + (i + 1) * width, 0.0));
  const rl::GroupOptions options{.num_generations = num_generations,
                                 .scale = scale == "group"   ? rl::Scale::kGroup
                                          : scale == "batch" ? rl::Scale::kBatch
                                                             : rl::Scale::kNone,
                                 .baseline = others ? rl::Baseline::kOthers : rl::Baseline::kGroup};
  const Doubles found = rl::group_advantages(rewards, options);
  Doubles out(size);
  for (size_t i = 0; i < size; ++i) out[order[i]] = found[i];
  return floats(out, {values.shape(0)});
}

// ---- of tokens

Numbers matrix(const std::string& name, const py::object& given) {
  const std::string what = "advantage: " + name;
  Numbers out = numbers(what, given, "[B, T] (pad replies, with masks)");
  if (out.ndim() == 1) out = Numbers(out.reshape({py::ssize_t{1}, out.size()}));
  check_shape(what, out, "[B, T]", out.ndim() == 2);
  return out;
}

py::tuple of_tokens(const py::object& given_rewards, const py::object& given_values,
                    const py::object& given_masks, const std::pair<double, double>& decay,
                    bool normalize) {
  const Numbers rewards = matrix("rewards", given_rewards), values = matrix("values", given_values);
  const py::object ones = py::module_::import("numpy").attr("ones_like")(rewards);
  const Numbers masks = matrix("masks", given_masks.is_none() ? ones : given_masks);
  for (const auto& [name, other] : {std::pair{"values", values}, std::pair{"masks", masks}})
    require(other.attr("shape").equal(rewards.attr("shape")), Code::kInvalid, "advantage: ", name,
            " have the shape ", text_of(other.attr("shape")), ", rewards ",
            text_of(rewards.attr("shape")), ", these must be the same");
  check_finite("advantage: rewards", rewards, masks.data());
  check_finite("advantage: values", values, masks.data());
  const auto size = static_cast<size_t>(rewards.size());
  const auto width = static_cast<size_t>(rewards.shape(1));
  Doubles advantages(size), returns(size);
  for (size_t at = 0; at < size; at += width)
    rl::token_advantages({rewards.data() + at, width}, {values.data() + at, width},
                         {masks.data() + at, width}, {decay.first, decay.second},
                         std::span(advantages).subspan(at, width));
  for (size_t i = 0; i < size; ++i)
    if (masks.data()[i] != 0) returns[i] = advantages[i] + values.data()[i];
  if (normalize) rl::whiten(advantages, {masks.data(), size});
  const std::vector<py::ssize_t> shape{rewards.shape(0), rewards.shape(1)};
  return py::make_tuple(floats(advantages, shape), floats(returns, shape));
}

void check_number(const std::string& name, size_t given, size_t rewards) {
  require(given == rewards, Code::kInvalid, "advantage: there are ", given, " ", name, " for ",
          rewards, " rewards, there must be one for each");
}

// A list of numbers for each of `lengths`.
std::vector<Numbers> ragged(const std::string& name, const py::object& given,
                            const std::vector<int64_t>& lengths) {
  const bool is_sized =
      py::hasattr(given, "__len__") && !py::getattr(given, "ndim", py::int_(1)).equal(py::int_(0));
  if (!is_sized || py::isinstance<py::str>(given) || py::isinstance<py::dict>(given))
    check("refuse", "advantage: " + name, given, "a list of log-probabilities for each reply");
  check_number(name, py::len(given), lengths.size());
  std::vector<Numbers> out;
  for (const py::handle row : given) {
    const int64_t length = lengths[out.size()];
    const std::string what = "advantage: " + name + "[" + std::to_string(out.size()) + "]";
    const Numbers& values = out.emplace_back(numbers(what, row, "[T]"));
    require(values.ndim() == 1 && values.size() == length, Code::kInvalid, what, " has the shape ",
            text_of(values.attr("shape")), ", the reply has ", length, " tokens");
    check_finite(what, values);
  }
  return out;
}

std::vector<Doubles> token_rewards(const py::object& given, const std::vector<int64_t>& lengths,
                                   const py::object& old_logps, const py::object& ref_logps,
                                   double kl_coef) {
  const Numbers rewards = numbers("advantage: rewards", given, "[B]");
  check_shape("advantage: rewards", rewards, "[B]", rewards.ndim() == 1);
  check_finite("advantage: rewards", rewards);
  check_number("lengths", lengths.size(), static_cast<size_t>(rewards.size()));
  require(old_logps.is_none() == ref_logps.is_none(), Code::kInvalid,
          "advantage: old_logps and ref_logps go together, but only one of them is given");
  require(!old_logps.is_none() || kl_coef == 0, Code::kInvalid, "advantage: kl_coef is ", kl_coef,
          ", for which old_logps and ref_logps must be given");
  std::vector<Doubles> out;
  for (const int64_t length : lengths) {
    require(length >= 1, Code::kInvalid, "advantage: lengths[", out.size(), "] is ", length,
            ", it must be an integer of at least 1");
    out.emplace_back(static_cast<size_t>(length));
  }
  if (!old_logps.is_none()) {
    const auto old = ragged("old_logps", old_logps, lengths);
    const auto ref = ragged("ref_logps", ref_logps, lengths);
    for (size_t i = 0; i < out.size(); ++i)
      for (size_t t = 0; t < out[i].size(); ++t)
        out[i][t] = -kl_coef * (old[i].data()[t] - ref[i].data()[t]);
  }
  for (size_t i = 0; i < out.size(); ++i) out[i].back() += rewards.data()[i];
  return out;
}

}  // namespace
}  // namespace twinkle::python::advantages

void bind_advantages(py::module_& m) {
  namespace here = twinkle::python::advantages;
  m.def("group_advantages", &here::of_groups, "rewards"_a, "num_generations"_a, "scale"_a,
        "prompts"_a, "others"_a, "As GRPOAdvantage; others: as RLOOAdvantage.");
  m.def("token_advantages", &here::of_tokens, "rewards"_a, "values"_a, "masks"_a, "decay"_a,
        "normalize"_a, "As GAEAdvantage; decay: (gamma, lambda).");
  m.def("token_rewards", &here::token_rewards, "rewards"_a, "lengths"_a, "old_logps"_a,
        "ref_logps"_a, "kl_coef"_a, "As GAEAdvantage.build_token_rewards.");
}
