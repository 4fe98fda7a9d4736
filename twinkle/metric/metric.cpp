#include "twinkle/metric/metric.h"

#include <algorithm>
#include <numeric>

#include "twinkle/base/fields/options.h"
#include "twinkle/metric/options.h"

namespace twinkle::metric {

#define METRIC(name) Kind name();
#include "twinkle/metric/metrics.def"
#undef METRIC

namespace {

at::Tensor checked_length(std::string_view name, const at::Tensor& values, int64_t length,
                          const char* each) {
  require(!values.defined() || (values.dim() == 1 && values.numel() == length), Code::kInvalid,
          "metric: ", name, " has ", values.defined() ? values.numel() : 0,
          " entries, it must have one for each of ", length, " ", each);
  return values;
}

[[noreturn]] void refuse_option(std::span<const AnyOption> options, std::string_view key,
                                std::string_view metric) {
  std::string names;
  for (const AnyOption& one : options) names.append(names.empty() ? "" : ", ").append(one.name);
  fail(Code::kInvalid, "metric: ", metric, " has no option '", key, "', it has ",
       names.empty() ? "none" : names);
}

}  // namespace

at::Tensor Batch::tensor(std::string_view name) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? at::Tensor() : found->second;
}

at::Tensor Batch::of_labels(std::string_view name) const {
  const int64_t labels = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return checked_length(name, tensor(name), labels, "labels");
}

at::Tensor Batch::of_sequences(std::string_view name) const {
  return checked_length(name, tensor(name), static_cast<int64_t>(counts.size()), "sequences");
}

std::optional<double> Batch::number(std::string_view name) const {
  const Json* found = numbers.if_contains(name);
  if (!found || found->is_null()) return {};
  require(found->is_number(), Code::kInvalid, "metric: ", name, " is ", told(*found),
          ", it must be a number");
  return found->to_number<double>();
}

at::Tensor Batch::sums(const at::Tensor& of_labels) const {
  at::Tensor out = at::zeros({static_cast<int64_t>(counts.size())}, at::kDouble);
  int64_t begin = 0;
  for (size_t s = 0; s < counts.size(); begin += counts[s++])
    out[static_cast<int64_t>(s)] = of_labels.narrow(0, begin, counts[s]).sum();
  return out;
}

void Metric::on_step(const Step&) {}

const std::vector<Kind>& all() {
  static const std::vector<Kind> kinds = {
#define METRIC(name) name(),
#include "twinkle/metric/metrics.def"
#undef METRIC
  };
  return kinds;
}

const Kind& find(std::string_view class_name) {
  const auto found = std::ranges::find(all(), class_name, &Kind::class_name);
  if (found != all().end()) return *found;
  std::vector<std::string> names;
  for (const Kind& kind : all()) names.emplace_back(kind.class_name);
  refuse_name(class_name, names, "metric: ", "metric");
}

std::unique_ptr<Metric> make(std::string_view class_name, const JsonObject& options) {
  const Kind& kind = find(class_name);
  return kind.make(options, kind.class_name);
}

void set_options(std::span<const AnyOption> options, const JsonObject& given,
                 std::string_view metric) {
  for (const auto& [key, value] : given) {
    const auto found = std::ranges::find(options, std::string_view(key), &AnyOption::name);
    if (found == options.end()) refuse_option(options, key, metric);
    if (value.is_null() && !found->allows(found->get())) continue;
    const std::string text = told(value);
    set_option(*found, value, "metric: ", value.is_string() ? "'" + text + "'" : text);
  }
}

}  // namespace twinkle::metric
