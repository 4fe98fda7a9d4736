#include "twinkle/engine/protocol/json.h"

#include "twinkle/base/fields/json_codec.h"

namespace twinkle::engine {
namespace {

template <class Variant>
Json as_json(const Variant& value) {
  return std::visit(
      [](const auto& v) {
        JsonObject out;
        out[std::remove_cvref_t<decltype(v)>::kName] = JsonOf::of(v);
        return Json(std::move(out));
      },
      value);
}

template <class Variant, size_t I = 0>
Variant kind_from_json(std::string_view kind, const Json& fields, std::string_view what) {
  if constexpr (I == std::variant_size_v<Variant>) {
    fail(Code::kInvalid, "engine: ", what, " '", kind, "' is unknown, the last of the kinds is '",
         std::variant_alternative_t<I - 1, Variant>::kName, "'");
  } else {
    using T = std::variant_alternative_t<I, Variant>;
    if (kind != T::kName) return kind_from_json<Variant, I + 1>(kind, fields, what);
    T value;
    JsonFields("engine: " + std::string(kind) + ": ").take(fields, value);
    return value;
  }
}

template <class Variant>
Variant from_json(const Json& json, std::string_view what) {
  const JsonObject* object = json.if_object();
  require(object && object->size() == 1, Code::kInvalid, "engine: ", what,
          " as JSON is not an object of its kind alone, such as {\"step\": {\"tenant\": \"a\"}}");
  return kind_from_json<Variant>(object->begin()->key(), object->begin()->value(), what);
}

}  // namespace

Json to_json(const Operation& operation) { return as_json(operation); }
Json to_json(const Result& result) { return as_json(result); }
Operation operation_from_json(const Json& json) { return from_json<Operation>(json, "operation"); }
Result result_from_json(const Json& json) { return from_json<Result>(json, "result"); }

}  // namespace twinkle::engine
