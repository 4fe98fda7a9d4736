// The body of Tinker's POST /api/v1/forward_backward: a protobuf of package tinker_public (message
// ForwardBackwardRequest), as plain values. Knows no engine; docs/tinker.md has the schema.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "twinkle/server/tinker/tensor.h"

namespace twinkle::server::tinker {

struct Datum {
  std::vector<int32_t> tokens;  // of all chunks of text, one after the other
  std::map<std::string, Tensor> loss_fn_inputs;

  bool operator==(const Datum&) const = default;
};

using LossConfig = std::map<std::string, std::variant<double, std::string>>;

struct ForwardBackwardRequest {
  std::string model_id;
  int32_t seq_id = 0;  // >= 1
  std::vector<Datum> data;
  std::string loss_fn;
  LossConfig loss_fn_config;
  bool forward_only = false;
  bool disable_lora = false;      // as modelscope.h finds it; read_forward_backward does not
  bool stable_reinforce = false;  // asked for, and importance_sampling is in loss_fn's place

  bool operator==(const ForwardBackwardRequest&) const = default;
};

// Values that the tensors of one request may have, cells of sparse ones with them. What takes
// memory without values counts as some: kItemValues for each datum, input and option.
inline constexpr int64_t kMaxValues = int64_t{1} << 26;
inline constexpr int64_t kItemValues = 16;

// Error kInvalid: bytes that are no such message, a chunk that is no text, a tensor whose numbers
// do not fit its shape, sparse indices that are out of range or out of order, a seq_id below 1,
// more than kMaxValues; with the field and its place.
ForwardBackwardRequest read_forward_backward(std::string_view bytes);

// Whose request of which number the bytes are, as far as can be told where they are broken: empty
// and 0 where it cannot.
struct Address {
  std::string model_id;
  int32_t seq_id = 0;
  bool forward_only = false;
};
Address address_of(std::string_view bytes);
// And a message of that alone.
std::string bytes_of(const Address& address);

}  // namespace twinkle::server::tinker
