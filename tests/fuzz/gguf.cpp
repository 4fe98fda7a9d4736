#include "twinkle/io/gguf/gguf.h"

#include "tests/fuzz/fuzz.h"
#include "twinkle/io/checkpoint.h"
#include "twinkle/model/family.h"

namespace twinkle::fuzz {
namespace {

std::string text(const std::string& value) { return raw<uint64_t>(value.size()) + value; }

// A GGUF file of a model with one layer of eight values; `add` puts more into it.
class File {
 public:
  explicit File(const std::string& architecture) : prefix_(architecture + ".") {
    key("general.architecture", 8, text(architecture));
    for (const auto& [name, value] :
         std::vector<std::pair<const char*, uint32_t>>{{"embedding_length", 8},
                                                       {"block_count", 1},
                                                       {"feed_forward_length", 3},
                                                       {"context_length", 64},
                                                       {"attention.head_count", 2},
                                                       {"attention.head_count_kv", 1}}) {
      key(prefix_ + name, 4, raw(value));
    }
    key(prefix_ + "attention.layer_norm_rms_epsilon", 6, raw(1e-5F));
    key(prefix_ + "rope.freq_base", 6, raw(1e5F));
    key("tokenizer.ggml.eos_token_id", 4, raw<uint32_t>(2));
    key("tokenizer.ggml.tokens", 9, raw<uint32_t>(8) + raw<uint64_t>(2) + text("a") + text("é"));
    tensor("token_embd.weight", {32, 2}, 8, std::string(68, 'x'));
    tensor("blk.0.attn_q.weight", {32, 8}, 2, std::string(8 * 18, 'x'));
    tensor("blk.0.attn_k.bias", {4}, 1, std::string(8, 'x'));
  }

  File& key(const std::string& name, uint32_t type, const std::string& value) {
    metadata_ += text(name) + raw(type) + value;
    ++num_keys_;
    return *this;
  }
  // The model's own names, with the architecture before it.
  File& size(const std::string& name, uint64_t value) {
    return key(prefix_ + name, 10, raw(value));
  }

  File& tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
               const std::string& bytes) {
    tensors_ += text(name) + raw<uint32_t>(dims.size());
    for (const uint64_t dim : dims) tensors_ += raw(dim);
    tensors_ += raw(type) + raw<uint64_t>(data_.size());
    data_ += bytes;
    data_.resize((data_.size() + 31) / 32 * 32);
    ++num_tensors_;
    return *this;
  }

  std::string bytes() const {
    std::string all = "GGUF" + raw<uint32_t>(3) + raw(num_tensors_) + raw(num_keys_);
    all += metadata_ + tensors_;
    all.resize((all.size() + 31) / 32 * 32);
    return all + data_;
  }

 private:
  std::string prefix_, metadata_, tensors_, data_;
  uint64_t num_keys_ = 0, num_tensors_ = 0;
};

void read_gguf(const std::string& bytes) {
  const Checkpoint checkpoint = Checkpoint::open(file_of(bytes, "x.gguf"));
  for (const std::string& name : checkpoint.names()) checkpoint.at(name).load();
  model::read_spec(checkpoint.config());
}

}  // namespace

Reader gguf() {
  return {
      .name = "gguf",
      .corpus = {File("llama").bytes(), File("qwen2").bytes(), File("qwen3").bytes(),
                 File("llama").tensor("rope_freqs.weight", {2}, 0, raw(1.F) + raw(8.F)).bytes(),
                 File("llama").tensor("rope_freqs.weight", {0}, 0, "").bytes(),
                 File("llama")
                     .size("attention.head_count", uint64_t{1} << 62)
                     .size("attention.key_length", 4)
                     .bytes(),
                 File("qwen2")
                     .key("qwen2.rope.scaling.type", 8, text("yarn"))
                     .key("qwen2.rope.scaling.factor", 6, raw(4.F))
                     .size("rope.scaling.original_context_length", 32)
                     .bytes(),
                 File("qwen2").key("\xff", 8, text("\xff")).bytes(),
                 File("qwen2")
                     .key("x", 9, raw<uint32_t>(0) + raw<uint64_t>(20000) + std::string(20000, '1'))
                     .bytes()},
      .words = {text("llama.attention.key_length"), text("blk.0.attn_q.weight"),
                text("rope_freqs.weight"), text("general.alignment"),
                raw<uint32_t>(9) + raw<uint32_t>(9) + raw<uint64_t>(1)},
      .read = read_gguf};
}

}  // namespace twinkle::fuzz
