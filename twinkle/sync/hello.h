// Every rank's greeting when a sync begins. One build writes and reads it.
#pragma once
#include <string>
#include <vector>

#include "twinkle/base/fields.h"
#include "twinkle/sync/manifest.h"

namespace twinkle::sync {

struct Hello {
  std::string error;         // why this rank cannot take part; empty: it does
  bool sends = false;        // it has called send(), not receive()
  int64_t bucket_bytes = 0;  // from Options
  int32_t num_senders = 0;
  uint64_t meeting = 0;     // a number of the first rank's own, which no other meeting has
  bool knows_base = false;  // its base model is the one that was compared at the last sync
  Manifest base;
  // Only for senders.
  bool trains_base = false;  // all weights of the base model are trained
  std::string adapter_name;
  std::string lora_json;  // config of the adapter; empty: there is none
  Manifest adapter;

  static constexpr auto fields() {
    return std::tuple{field(1, "error", &Hello::error),
                      field(2, "sends", &Hello::sends),
                      field(3, "bucket_bytes", &Hello::bucket_bytes),
                      field(4, "num_senders", &Hello::num_senders),
                      field(5, "knows_base", &Hello::knows_base),
                      field(6, "base", &Hello::base),
                      field(7, "trains_base", &Hello::trains_base),
                      field(8, "adapter_name", &Hello::adapter_name),
                      field(9, "lora_json", &Hello::lora_json),
                      field(10, "adapter", &Hello::adapter),
                      field(11, "meeting", &Hello::meeting)};
  }
};

std::string to_bytes(const Hello& hello);
Hello hello_from_bytes(const std::string& bytes);

// Error kInvalid: ranks that do not fit together, with the first that does not.
void require_fit(const std::vector<Hello>& ranks, int num_senders);

}  // namespace twinkle::sync
