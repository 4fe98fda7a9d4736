// Options of metrics: structs with field lists (base/fields/options.h), read from JSON.
#pragma once
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "twinkle/loss/options.h"
#include "twinkle/metric/metric.h"

namespace twinkle::metric {

struct NoOptions {
  static constexpr auto fields() { return std::tuple{}; }
};

// A member that is null leaves a default that is out of range, in whose place another one stands.
// Error kInvalid: an option that is not known, a value of another type or out of its range.
void set_options(std::span<const AnyOption> options, const JsonObject& given,
                 std::string_view metric);

// The Kind of a class whose constructor takes these Options.
template <class Of, HasFields Options = NoOptions>
Kind kind_of(Kind kind) {
  kind.options = loss::described<Options>;
  kind.make = [](const JsonObject& given, std::string_view name) -> std::unique_ptr<Metric> {
    Options options;
    set_options(options_of(options), given, name);
    return std::make_unique<Of>(options);
  };
  return kind;
}

}  // namespace twinkle::metric
