// Operations as bytes: u16 version, u8 kind, then the fields in their order. Numbers little-endian,
// containers a u64 count and their items.
#include <bit>
#include <cstring>
#include <type_traits>

#include "twinkle/engine/operation.h"

namespace twinkle::engine {
namespace {

static_assert(std::endian::native == std::endian::little);

// One list of fields per struct serves writing and reading.
template <class A, class T>
void fields(A& a, T& v) {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_same_v<U, Sequence>) {
    a(v.input_ids, v.labels, v.weights, v.extras, v.embedding_grad, v.logits_grad);
  } else if constexpr (std::is_same_v<U, Create>) {
    a(v.tenant, v.lora_json, v.directory, v.seed, v.frozen, v.weight, v.priority);
  } else if constexpr (std::is_same_v<U, Delete> || std::is_same_v<U, ZeroGrad> ||
                       std::is_same_v<U, Publish>) {
    a(v.tenant);
  } else if constexpr (std::is_same_v<U, Forward>) {
    a(v.tenant, v.sequences, v.disable_lora, v.temperature, v.entropy, v.train, v.logits,
      v.embedding);
  } else if constexpr (std::is_same_v<U, ForwardBackward>) {
    a(v.tenant, v.sequences, v.loss, v.loss_options, v.temperature, v.logits);
  } else if constexpr (std::is_same_v<U, Step>) {
    a(v.tenant, v.optimizer, v.options, v.max_grad_norm, v.norm_type);
  } else if constexpr (std::is_same_v<U, ClipGradNorm>) {
    a(v.tenant, v.max_grad_norm, v.norm_type);
  } else if constexpr (std::is_same_v<U, SamplingParams>) {
    a(v.max_tokens, v.seed, v.stop, v.stop_token_ids, v.temperature, v.top_k, v.top_p,
      v.repetition_penalty, v.num_samples, v.logprobs, v.ignore_eos, v.min_p, v.top_logprobs,
      v.prompt_logprobs, v.top_prompt_logprobs);
  } else if constexpr (std::is_same_v<U, Sample>) {
    a(v.tenant, v.prompts, v.params, v.version);
  } else if constexpr (std::is_same_v<U, Save>) {
    a(v.tenant, v.directory, v.optimizer, v.extra_json, v.max_shard_bytes);
  } else if constexpr (std::is_same_v<U, Load>) {
    a(v.tenant, v.directory, v.optimizer, v.exact);
  } else if constexpr (std::is_same_v<U, Release>) {
    a(v.tenant, v.version);
  } else {
    static_assert(std::is_same_v<U, Inspect>);
    a(v.tenant, v.tensors);
  }
}

struct Writer {
  std::string out;

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }
  template <class T>
  void put(const T& v) {
    if constexpr (std::is_arithmetic_v<T>)
      out.append(reinterpret_cast<const char*>(&v), sizeof(T));
    else
      fields(*this, v);
  }
  void put(const std::string& v) {
    put(static_cast<uint64_t>(v.size()));
    out += v;
  }
  template <class T>
  void put(const std::vector<T>& v) {
    put(static_cast<uint64_t>(v.size()));
    if constexpr (std::is_arithmetic_v<T>)
      out.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T));
    else
      for (const T& item : v) put(item);
  }
  template <class T>
  void put(const std::map<std::string, T>& v) {
    put(static_cast<uint64_t>(v.size()));
    for (const auto& [key, item] : v) (*this)(key, item);
  }
};

struct Reader {
  std::span<const char> in;

  const char* bytes(size_t n) {
    require(n <= in.size(), Code::kInvalid, "engine: an operation's bytes end ", n - in.size(),
            " bytes too early");
    const char* p = in.data();
    in = in.subspan(n);
    return p;
  }
  template <class... T>
  void operator()(T&... values) {
    (take(values), ...);
  }
  template <class T>
  void take(T& v) {
    if constexpr (std::is_same_v<T, bool>)
      v = *bytes(1) != 0;
    else if constexpr (std::is_arithmetic_v<T>)
      std::memcpy(&v, bytes(sizeof(T)), sizeof(T));
    else
      fields(*this, v);
  }
  // A count is at most the bytes that are left: a corrupt one must not reserve memory.
  size_t count(size_t item_bytes) {
    uint64_t n = 0;
    take(n);
    require(n <= in.size() / item_bytes, Code::kInvalid, "engine: an operation's bytes promise ", n,
            " items where ", in.size(), " bytes are left");
    return static_cast<size_t>(n);
  }
  void take(std::string& v) {
    const size_t n = count(1);
    v.assign(bytes(n), n);
  }
  template <class T>
  void take(std::vector<T>& v) {
    if constexpr (std::is_arithmetic_v<T>) {
      const size_t n = count(sizeof(T));
      v.resize(n);
      if (n) std::memcpy(v.data(), bytes(n * sizeof(T)), n * sizeof(T));
    } else {
      v.resize(count(1));
      for (T& item : v) take(item);
    }
  }
  template <class T>
  void take(std::map<std::string, T>& v) {
    for (size_t n = count(1); n > 0; --n) {
      std::string key;
      take(key);
      take(v[key]);
    }
  }
};

template <size_t I = 0>
Operation read_kind(uint8_t kind, Reader& reader) {
  if constexpr (I == std::variant_size_v<Operation>) {
    fail(Code::kInvalid, "engine: operation kind ", static_cast<int>(kind),
         " is unknown, the last is ", I - 1);
  } else {
    if (kind != I) return read_kind<I + 1>(kind, reader);
    std::variant_alternative_t<I, Operation> value;
    fields(reader, value);
    return value;
  }
}

}  // namespace

const std::string& tenant_of(const Operation& operation) {
  return std::visit([](const auto& op) -> const std::string& { return op.tenant; }, operation);
}

std::string to_bytes(const Operation& operation) {
  Writer writer;
  writer(kVersion, static_cast<uint8_t>(operation.index()));
  std::visit([&](const auto& op) { fields(writer, op); }, operation);
  return std::move(writer.out);
}

Operation from_bytes(std::span<const char> bytes) {
  Reader reader{bytes};
  uint16_t version = 0;
  uint8_t kind = 0;
  reader(version, kind);
  require(version == kVersion, Code::kInvalid, "engine: an operation of version ", version,
          ", this program reads ", kVersion);
  Operation out = read_kind(kind, reader);
  require(reader.in.empty(), Code::kInvalid, "engine: ", reader.in.size(),
          " bytes after the end of an operation");
  return out;
}

}  // namespace twinkle::engine
