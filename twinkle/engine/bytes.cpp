// Operations as bytes: u16 version, u8 kind, then the fields in their order. Numbers little-endian,
// containers a u64 count and their items. And how much memory operations and results take.
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "twinkle/engine/operation.h"

namespace twinkle::engine {
namespace {

static_assert(std::endian::native == std::endian::little);

// One list of fields per struct serves writing and reading.
template <class A, class T>
void fields(A& a, T& v) {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_same_v<U, Example>) {
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

// The same for results, of which only the memory is asked for.
template <class A>
void result_fields(A& a, const ForwardResult& v) {
  a(v.logps, v.entropies, v.logits, v.embeddings);
}
template <class A>
void result_fields(A& a, const Completion& v) {
  a(v.tokens, v.logprobs, v.stop_reason, v.matched, v.top_logprobs);
}
template <class A>
void result_fields(A& a, const sampler::PromptScores& v) {
  a(v.logprobs, v.top_logprobs);
}
template <class A>
void result_fields(A& a, const SampleResult& v) {
  a(v.completions, v.prompts);
}
template <class A>
void result_fields(A& a, const SaveResult& v) {
  a(v.directory);
}
template <class A>
void result_fields(A& a, const LoadResult& v) {
  a(v.extra_json);
}
template <class A>
void result_fields(A& a, const NamedTensor& v) {
  a(v.name, v.shape, v.values);
}
template <class A>
void result_fields(A& a, const InspectResult& v) {
  a(v.tensors);
}
template <class T, class A>
concept HasResultFields = requires(A& a, const T& v) { result_fields(a, v); };
template <class T>
constexpr bool kHasNoHeap = std::is_trivially_copyable_v<T>;

struct ByteWriter {
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

// Bytes on the heap.
struct Sizer {
  int64_t out = 0;

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }
  template <class T>
  void put(const T& v) {
    if constexpr (HasResultFields<T, Sizer>)
      result_fields(*this, v);
    else if constexpr (!kHasNoHeap<T>)
      fields(*this, v);
  }
  void put(const std::string& v) { out += static_cast<int64_t>(v.size()); }
  template <class T>
  void put(const std::vector<T>& v) {
    out += static_cast<int64_t>(v.size() * sizeof(T));
    if constexpr (!kHasNoHeap<T>)
      for (const T& item : v) put(item);
  }
  template <class T>
  void put(const std::map<std::string, T>& v) {
    constexpr int64_t kNode = 48;  // of a tree, besides its value
    for (const auto& [key, item] : v) {
      out += kNode + static_cast<int64_t>(sizeof(key) + sizeof(item));
      (*this)(key, item);
    }
  }
};

// The least that a T takes as bytes.
template <class T>
size_t least_bytes() {
  static const size_t n = [] {
    ByteWriter writer;
    writer.put(T{});
    return writer.out.size();
  }();
  return n;
}

struct ByteReader {
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
  // So many items could be in the bytes that are left: a corrupt count must not reserve memory.
  size_t count(size_t least) {
    uint64_t n = 0;
    take(n);
    require(n <= in.size() / least, Code::kInvalid, "engine: an operation's bytes promise ", n,
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
      const size_t n = count(least_bytes<T>());
      v.reserve(n);
      for (size_t i = 0; i < n; ++i) take(v.emplace_back());
    }
  }
  template <class T>
  void take(std::map<std::string, T>& v) {
    for (size_t n = count(least_bytes<std::string>() + least_bytes<T>()); n > 0; --n) {
      std::string key;
      take(key);
      const auto [it, is_new] = v.try_emplace(std::move(key));
      require(is_new, Code::kInvalid, "engine: an operation's bytes hold '", it->first, "' twice");
      take(it->second);
    }
  }
};

template <size_t I = 0>
Operation read_kind(uint8_t kind, ByteReader& reader) {
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
  ByteWriter writer;
  writer(kVersion, static_cast<uint8_t>(operation.index()));
  std::visit([&](const auto& op) { fields(writer, op); }, operation);
  return std::move(writer.out);
}

int64_t num_bytes(const Operation& operation) {
  Sizer sizer{sizeof(Operation)};
  std::visit([&](const auto& op) { fields(sizer, op); }, operation);
  return sizer.out;
}

int64_t num_bytes(const Result& result) {
  Sizer sizer{sizeof(Result)};
  std::visit([&](const auto& r) { sizer.put(r); }, result);
  return sizer.out;
}

Operation from_bytes(std::span<const char> bytes) {
  require(bytes.size() <= kMaxOperationBytes, Code::kInvalid, "engine: an operation of ",
          bytes.size(), " bytes, it may have at most ", kMaxOperationBytes);
  ByteReader reader{bytes};
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
