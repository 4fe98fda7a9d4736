// A model family: how its config.json reads, and what its checkpoints call their tensors
// (DecoderSpec::layout). One file and one line of families.def each.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"
#include "twinkle/model/spec.h"

namespace twinkle::model {

struct Family {
  std::string name;                        // config.json's model_type
  std::vector<std::string> architectures;  // config.json's architectures that it serves
  // Keys of config.json that `spec` reads, out of those that change a decoder's arithmetic
  // (family.cpp lists them). One that is set and not named here is refused before `spec` is called.
  std::vector<std::string> keys = {};
  DecoderSpec (*spec)(const Json& config) = nullptr;
  std::vector<std::string> also = {};  // other model_types
  // Where the text model's fields may stand in config.json's `text_config`: text_of finds them.
  bool nested = false;
  // True if transformers has a token classifier of it, as which a value head is saved.
  bool classifier = true;
  // Fields that config.json may leave out, with the values that the family's class in transformers
  // has then, where llama_like() takes others. In place when `spec` is called.
  JsonObject absent = {};
};

// The spec of a parsed config.json. Error kInvalid: an architecture, rope kind or activation that
// is not supported (the text lists those that are), or a size that is missing or impossible.
// value_head: with one, new on a causal model, or that of a token or sequence classifier with one
// label.
DecoderSpec read_spec(const Json& config, bool value_head = false);

// The config.json of a model that is saved with its value head: transformers' token classifier with
// one label. `spec` is read_spec's of it.
void describe_value_head(JsonObject& config, const DecoderSpec& spec);

std::span<const Family> families();

// `text_config` of a nested family's config, or the config itself.
const Json& text_of(const Json& config);

// The part that the llama-like families share: sizes, norms, rope, windows, a SwiGLU MLP. Every
// layer has an AttentionSpec and a GatedMlpSpec, to be changed or replaced.
DecoderSpec llama_like(const Json& config);

// `rope_scaling`, or `rope_parameters` (transformers 5), or null. Both: transformers takes the
// first unless it is empty.
const Json* find_rope(const Json& config);

// find_rope()'s, or the default, with `rope_theta` beside it where it has none. Error kInvalid: a
// kind, field or value that is not supported.
nn::RopeSpec read_rope(const Json& config);

// A base of the wavelengths. Error kInvalid: it is infinite, or not above 1.
double read_theta(const Json& config, std::string_view key, double absent);

// A number of the rope's object. Error kInvalid: it is missing, infinite, or not above 0.
double read_rope_number(const Json& rope, std::string_view key);

// `partial_rotary_factor`, in the rope's object or beside it, which is above 0 and at most 1.
double read_rotary_share(const Json& config, double absent = 1);

// Turns the leading `share` of each head's dims. Error kInvalid: that is an odd number of them.
void rotate_share(DecoderSpec& spec, double share);

// A whole number of config.json that is at least 1 and at most 2^30. Error kInvalid: it is missing,
// no such number or beyond.
int64_t read_size(const Json& config, std::string_view key);

// true or false. Null is false, as None is in transformers, whatever is meant where it is absent.
bool read_flag(const Json& config, std::string_view key, bool absent);

// Error kInvalid: the key has another value than this, which is also meant where it is absent.
template <class T>
void require_value(const Json& config, std::string_view key, const T& only) {
  const T value = get_or<T>(config, key, only);
  const auto text = [](const T& x) { return boost::json::serialize(Json(x)); };
  require(value == only, Code::kInvalid, "model: config field '", key, "' is ", text(value),
          "; known: ", text(only));
}

}  // namespace twinkle::model
