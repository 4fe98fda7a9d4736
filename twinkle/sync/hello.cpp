#include "twinkle/sync/hello.h"

#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/codec.h"

namespace twinkle::sync {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;

std::string who(size_t rank, int num_senders) {
  const bool is_model = std::cmp_less(rank, num_senders);
  return "rank " + std::to_string(rank) + " (" + (is_model ? "the model" : "the sampler") + ")";
}

}  // namespace

std::string to_bytes(const Hello& hello) {
  ByteWriter writer;
  writer.sized(hello);
  return writer.take();
}

Hello hello_from_bytes(const std::string& bytes) {
  Hello out;
  ByteReader reader(bytes, "sync: a rank's first words", kMaxBytes);
  reader.item(out);
  reader.require_end();
  return out;
}

void require_fit(const std::vector<Hello>& ranks, int num_senders) {
  for (size_t r = 0; r < ranks.size(); ++r)
    require(ranks[r].error.empty(), Code::kInternal, "sync: ", who(r, num_senders), ": ",
            ranks[r].error);
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Hello& hello = ranks[r];
    require(hello.num_senders == num_senders && hello.bucket_bytes == ranks[0].bucket_bytes,
            Code::kInvalid, "sync: ", who(r, num_senders), " has num_senders ", hello.num_senders,
            " and bucket_bytes ", hello.bucket_bytes, ", rank 0 has ", ranks[0].num_senders,
            " and ", ranks[0].bucket_bytes, ": they must be the same on all ranks");
    require(hello.sends == std::cmp_less(r, num_senders), Code::kInvalid,
            "sync: ", who(r, num_senders), " has called ", hello.sends ? "send" : "receive",
            "_weights: the first ", num_senders, " ranks send, the others receive");
    if (!hello.sends) continue;
    require(hello.adapter_name == ranks[0].adapter_name && hello.lora_json == ranks[0].lora_json &&
                hello.trains_base == ranks[0].trains_base,
            Code::kInvalid, "sync: rank ", r, " sends adapter '", hello.adapter_name, "' of ",
            hello.lora_json, ", rank 0 '", ranks[0].adapter_name, "' of ", ranks[0].lora_json,
            ": all ranks of the model must send the same");
  }
  std::vector<Manifest> base;
  for (const Hello& hello : ranks) base.push_back(hello.base);
  require_same_tensors(base, num_senders);
}

}  // namespace twinkle::sync
