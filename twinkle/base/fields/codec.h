// Structs with a list of fields (base/fields.h) as bytes and back, and the memory that they take. A
// struct is its fields, each a u16 tag, a u64 size and so many bytes; a reader skips tags that it
// does not know and leaves fields that are not there at their default. Numbers are little-endian, a
// vector of numbers is their array; of other containers each item has a u64 size before it.
#pragma once
#include <bit>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fields.h"

namespace twinkle {

static_assert(std::endian::native == std::endian::little);

namespace detail {

// Copied as it lies in memory: numbers, and structs that say so by `kPacked`, whose fields then
// never change.
template <class T>
concept Plain = std::is_arithmetic_v<T> || requires { requires T::kPacked; };

}  // namespace detail

class ByteWriter {
 public:
  // `bytes`: about how many are coming, so that none are copied again.
  explicit ByteWriter(size_t bytes = 0) { out_.reserve(bytes); }

  template <detail::Plain T>
  void put(const T& v) {
    out_.append(reinterpret_cast<const char*>(&v), sizeof(T));
  }
  template <HasFields T>
    requires(!detail::Plain<T>)
  void put(const T& v) {
    static_assert(detail::tags_rise<T>(), "the tags of fields() rise, from 1");
    for_each_field(v, [this](const auto& field, const auto& member) {
      put(field.tag);
      sized(member);
    });
  }
  void put(const std::string& v) { out_ += v; }
  template <class T>
  void put(const std::vector<T>& v) {
    if constexpr (detail::Plain<T>)
      out_.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T));
    else
      for (const T& item : v) sized(item);
  }
  template <class Key, class T>
  void put(const std::map<Key, T>& v) {
    for (const auto& [key, item] : v) {
      sized(key);
      sized(item);
    }
  }
  // With its size before it.
  template <class T>
  void sized(const T& v) {
    const size_t at = out_.size();
    put(uint64_t{0});
    put(v);
    const uint64_t size = out_.size() - at - sizeof(size);
    std::memcpy(out_.data() + at, &size, sizeof(size));
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// Error kInvalid of all: bytes that end too early or are too many, a tag or a name twice, more than
// `most` bytes of memory. `what` opens the texts: "engine: an operation's bytes".
class ByteReader {
 public:
  ByteReader(std::span<const char> in, std::string_view what, uint64_t most)
      : in_(in), what_(what), left_(most) {}

  template <class T>
  T get() {
    T v{};
    fill(v);
    return v;
  }
  // All that is left.
  template <detail::Plain T>
  void take(T& v) {
    exactly(sizeof(T));
    fill(v);
  }
  template <HasFields T>
    requires(!detail::Plain<T>)
  void take(T& v) {
    for (uint16_t last = 0; !in_.empty();) {
      const auto tag = get<uint16_t>();
      require(tag > last, Code::kInvalid, what_, " have field ", tag, " behind field ", last,
              "; fields rise");
      last = tag;
      ByteReader part = sized();
      for_each_field(v, [&](const auto& field, auto& member) {
        if (field.tag == tag) part.take(member);
      });
      left_ = part.left_;
    }
  }
  void take(std::string& v) {
    grow(in_.size());
    v.assign(in_.data(), in_.size());
    in_ = {};
  }
  template <class T>
  void take(std::vector<T>& v) {
    v.clear();
    if constexpr (detail::Plain<T>) {
      require(in_.size() % sizeof(T) == 0, Code::kInvalid, what_, " have ", in_.size(),
              " bytes of numbers that take ", sizeof(T), " each");
      grow(in_.size());
      v.resize(in_.size() / sizeof(T));
      if (!v.empty()) std::memcpy(v.data(), in_.data(), in_.size());
      in_ = {};
    } else {
      while (!in_.empty()) {
        grow(sizeof(T));
        item(v.emplace_back());
      }
    }
  }
  template <class Key, class T>
  void take(std::map<Key, T>& v) {
    v.clear();
    while (!in_.empty()) {
      grow(kNode + sizeof(Key) + sizeof(T));
      Key key{};
      item(key);
      const auto [it, is_new] = v.try_emplace(std::move(key));
      require(is_new, Code::kInvalid, what_, " hold '", it->first, "' twice");
      item(it->second);
    }
  }

  // Reads the result of ByteWriter::sized.
  template <class T>
  void item(T& v) {
    ByteReader part = sized();
    part.take(v);
    left_ = part.left_;
  }
  void require_end() const {
    require(in_.empty(), Code::kInvalid, what_, " have ", in_.size(), " more behind their end");
  }

  static constexpr int64_t kNode = 48;  // bytes of a map's tree, besides its value

 private:
  std::span<const char> bytes(uint64_t n) {
    require(n <= in_.size(), Code::kInvalid, what_, " end ", n - in_.size(), " bytes too early");
    const auto out = in_.first(n);
    in_ = in_.subspan(n);
    return out;
  }
  void exactly(size_t n) const {
    require(in_.size() == n, Code::kInvalid, what_, " have ", in_.size(),
            " bytes for a number that takes ", n);
  }
  template <detail::Plain T>
  void fill(T& v) {
    const auto from = bytes(sizeof(T));
    if constexpr (std::is_same_v<T, bool>)
      v = from[0] != 0;
    else
      std::memcpy(&v, from.data(), sizeof(T));
  }
  ByteReader sized() { return {bytes(get<uint64_t>()), what_, left_}; }
  void grow(uint64_t bytes) {
    require(bytes <= left_, Code::kInvalid, what_, " are too many: they take more memory than ",
            "one may");
    left_ -= bytes;
  }

  std::span<const char> in_;
  std::string_view what_;
  uint64_t left_;  // bytes of memory
};

// Bytes on the heap.
class MemorySize {
 public:
  template <class T>
  void add(const T& v) {
    if constexpr (HasFields<T> && !detail::Plain<T>)
      for_each_field(v, [this](const auto&, const auto& member) { add(member); });
  }
  void add(const std::string& v) { bytes_ += static_cast<int64_t>(v.size()); }
  template <class T>
  void add(const std::vector<T>& v) {
    bytes_ += static_cast<int64_t>(v.size() * sizeof(T));
    if constexpr (!detail::Plain<T>)
      for (const T& item : v) add(item);
  }
  template <class T>
  void add(const std::map<std::string, T>& v) {
    for (const auto& [key, item] : v) {
      bytes_ += ByteReader::kNode + static_cast<int64_t>(sizeof(key) + sizeof(item));
      add(key);
      add(item);
    }
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

}  // namespace twinkle
