#include "twinkle/server/tinker/forward_backward_request.h"

#include <bit>
#include <cstring>
#include <limits>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::server::tinker {
namespace {

using protozero::pbf_reader;

enum Type : int32_t { kUnspecified = 0, kFloat32 = 1, kInt64 = 2, kInt32 = 3, kBfloat16 = 4 };

// A field and its wire type; one of another type is skipped, as an unknown field is.
constexpr uint32_t bytes_at(uint32_t tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::length_delimited);
}
constexpr uint32_t varint_at(uint32_t tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::varint);
}
constexpr uint32_t double_at(uint32_t tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::fixed64);
}

std::string text(protozero::data_view view) { return {view.data(), view.size()}; }

template <class... Parts>
void check(bool ok, const Parts&... parts) {
  require(ok, Code::kInvalid, "forward_backward: ", parts...);
}

// Little-endian numbers, packed.
template <class T>
std::vector<T> numbers(std::string_view bytes, const std::string& where) {
  static_assert(std::endian::native == std::endian::little);
  check(bytes.size() % sizeof(T) == 0, where, " has ", bytes.size(), " bytes, its numbers take ",
        sizeof(T), " each");
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

std::variant<std::vector<float>, std::vector<int64_t>> values_of(int32_t type,
                                                                 std::string_view bytes,
                                                                 const std::string& where) {
  switch (type) {
    case kFloat32:
      return numbers<float>(bytes, where);
    case kInt64:
      return numbers<int64_t>(bytes, where);
    case kInt32: {
      const auto narrow = numbers<int32_t>(bytes, where);
      return std::vector<int64_t>(narrow.begin(), narrow.end());
    }
    case kBfloat16: {
      std::vector<float> out;
      for (const uint16_t half : numbers<uint16_t>(bytes, where))
        out.push_back(std::bit_cast<float>(uint32_t{half} << 16));
      return out;
    }
    default:
      fail(Code::kInvalid, "forward_backward: ", where, " has dtype ", type,
           ", it must be 1 (float32), 2 (int64), 3 (int32) or 4 (bfloat16)");
  }
}

class Reader {
 public:
  ForwardBackwardRequest read(std::string_view bytes) {
    ForwardBackwardRequest out;
    LossConfig old_config;
    pbf_reader in(bytes.data(), bytes.size());
    int64_t seq_id = 0;
    while (in.next()) {
      switch (in.tag_and_type()) {
        case bytes_at(1):
          out.model_id = text(in.get_view());
          break;
        case varint_at(2):
          seq_id = in.get_int32();
          break;
        case bytes_at(3):
          count(kItemValues, "data");
          out.data.push_back(
              datum(in.get_message(), "data[" + std::to_string(out.data.size()) + "]"));
          break;
        case bytes_at(4):
          out.loss_fn = text(in.get_view());
          break;
        case bytes_at(5):
          count(kItemValues, "loss_fn_config");
          config(in.get_message(), old_config);
          break;
        case varint_at(6):
          out.forward_only = in.get_bool();
          break;
        case bytes_at(7):
          count(kItemValues, "loss_fn_config");
          config_v2(in.get_message(), out.loss_fn_config);
          break;
        default:
          in.skip();
      }
    }
    if (out.loss_fn_config.empty()) out.loss_fn_config = std::move(old_config);
    out.stable_reinforce = out.loss_fn == "stable_reinforce";
    if (out.stable_reinforce) out.loss_fn = "importance_sampling";
    check(seq_id >= 1, "seq_id is ", seq_id, ", it must be at least 1");
    out.seq_id = static_cast<int32_t>(seq_id);
    return out;
  }

 private:
  Datum datum(pbf_reader in, const std::string& where) {
    Datum out;
    while (in.next()) {
      if (in.tag_and_type() == bytes_at(1))
        chunk(in.get_message(), where, out.tokens);
      else if (in.tag_and_type() == bytes_at(2))
        input(in.get_message(), where, out.loss_fn_inputs);
      else
        in.skip();  // spans of provenance, which only stable_reinforce reads
    }
    return out;
  }

  void chunk(pbf_reader in, const std::string& where, std::vector<int32_t>& tokens) {
    bool is_text = false;
    while (in.next()) {
      if (in.tag_and_type() == bytes_at(1)) {
        is_text = true;
        pbf_reader inner = in.get_message();
        while (inner.next()) {
          if (inner.tag_and_type() != bytes_at(1)) {
            inner.skip();
            continue;
          }
          const auto view = inner.get_view();
          const auto more = numbers<int32_t>({view.data(), view.size()}, where + ".model_input");
          count(std::ssize(more), where);
          tokens.insert(tokens.end(), more.begin(), more.end());
        }
      } else {
        check(in.tag() != 2 && in.tag() != 3, where, ".model_input has a chunk of ",
              in.tag() == 2 ? "an image" : "audio", "; this server's models read text alone");
        in.skip();
      }
    }
    check(is_text, where, ".model_input has a chunk that is neither text, image nor audio");
  }

  void input(pbf_reader in, const std::string& where, std::map<std::string, Tensor>& out) {
    std::string name;
    protozero::data_view bytes{};
    while (in.next()) {
      if (in.tag_and_type() == bytes_at(1))
        name = text(in.get_view());
      else if (in.tag_and_type() == bytes_at(2))
        bytes = in.get_view();
      else
        in.skip();
    }
    count(kItemValues, where);
    out[name] = tensor(pbf_reader(bytes), where + "." + name);  // the last of a name counts
  }

  Tensor tensor(pbf_reader in, const std::string& where) {
    Tensor out;
    protozero::data_view dense{}, sparse{};
    int32_t type = kUnspecified;
    bool is_sparse = false;
    while (in.next()) {
      if (in.tag_and_type() == bytes_at(1)) {
        dense = in.get_view();
        is_sparse = false;
      } else if (in.tag_and_type() == bytes_at(2)) {
        sparse = in.get_view();
        is_sparse = true;
      } else if (in.tag_and_type() == varint_at(3)) {
        type = in.get_enum();
      } else if (in.tag_and_type() == varint_at(4)) {
        add_size(out.shape, in.get_int64(), where);
      } else if (in.tag_and_type() == bytes_at(4)) {
        for (const int64_t size : in.get_packed_int64()) add_size(out.shape, size, where);
      } else {
        in.skip();
      }
    }
    if (is_sparse) return sparse_of(std::move(out.shape), type, pbf_reader(sparse), where);
    out.values = values_of(type, {dense.data(), dense.size()}, where);
    count(out.num_values(), where);
    if (out.shape.empty()) out.shape = {out.num_values()};
    const int64_t want = size_of(out.shape, where);
    check(want == out.num_values(), where, " has ", out.num_values(), " values, its shape has ",
          want);
    return out;
  }

  // Refused here, so that no memory goes into a shape.
  static void add_size(std::vector<int64_t>& shape, int64_t size, const std::string& where) {
    check(shape.size() < 2, where, " has more than 2 dimensions, the limit is 2");
    shape.push_back(size);
  }

  static int64_t size_of(const std::vector<int64_t>& shape, const std::string& where) {
    int64_t out = 1;
    for (const int64_t size : shape) {
      check(size >= 0 && size <= kMaxValues && out * size <= kMaxValues, where,
            " has a dimension of ", size, "; at most ", kMaxValues, " values are taken in all");
      out *= size;
    }
    return out;
  }

  Tensor sparse_of(std::vector<int64_t> shape, int32_t type, pbf_reader in,
                   const std::string& where) {
    protozero::data_view values{}, crow_bytes{}, col_bytes{};
    while (in.next()) {
      if (in.tag_and_type() == bytes_at(1))
        values = in.get_view();
      else if (in.tag_and_type() == bytes_at(2))
        crow_bytes = in.get_view();
      else if (in.tag_and_type() == bytes_at(3))
        col_bytes = in.get_view();
      else
        in.skip();
    }
    check(shape.size() == 2, where, " is sparse and has ", shape.size(),
          " dimensions, it must have 2");
    const int64_t size = size_of(shape, where);
    Tensor out{.shape = std::move(shape),
               .values = values_of(type, {values.data(), values.size()}, where)};
    Csr& csr = out.sparse.emplace();
    csr.crow = numbers<int64_t>({crow_bytes.data(), crow_bytes.size()}, where + ".crow_indices");
    csr.col = numbers<int64_t>({col_bytes.data(), col_bytes.size()}, where + ".col_indices");
    check(out.num_values() == std::ssize(csr.col), where, " has ", out.num_values(), " values and ",
          csr.col.size(), " col_indices");
    count(size, where);
    require_rows(out, "forward_backward: " + where + ".");
    return out;
  }

  static void config(pbf_reader in, LossConfig& out) {
    std::string name;
    double value = 0;
    while (in.next()) {
      if (in.tag_and_type() == bytes_at(1))
        name = text(in.get_view());
      else if (in.tag_and_type() == double_at(2))
        value = in.get_double();
      else
        in.skip();
    }
    out[name] = value;
  }

  static void config_v2(pbf_reader in, LossConfig& out) {
    std::string name;
    std::variant<double, std::string> value = 0.0;
    while (in.next()) {
      if (in.tag_and_type() == bytes_at(1)) {
        name = text(in.get_view());
      } else if (in.tag_and_type() == bytes_at(2)) {
        pbf_reader inner = in.get_message();
        while (inner.next()) {
          if (inner.tag_and_type() == double_at(1))
            value = inner.get_double();
          else if (inner.tag_and_type() == bytes_at(2))
            value = text(inner.get_view());
          else
            inner.skip();
        }
      } else {
        in.skip();
      }
    }
    out[name] = std::move(value);
  }

  void count(int64_t more, const std::string& where) {
    num_values_ += more;
    check(num_values_ <= kMaxValues, "the request has more than ", kMaxValues, " values with ",
          where, "; send fewer at once");
  }

  int64_t num_values_ = 0;
};

}  // namespace

ForwardBackwardRequest read_forward_backward(std::string_view bytes) {
  try {
    return Reader().read(bytes);
  } catch (const protozero::exception& e) {
    fail(Code::kInvalid, "forward_backward: the body is no ForwardBackwardRequest: ", e.what());
  }
}

Address address_of(std::string_view bytes) {
  Address out;
  try {
    pbf_reader in(bytes.data(), bytes.size());
    while (in.next()) {
      if (in.tag_and_type() == bytes_at(1))
        out.model_id = text(in.get_view());
      else if (in.tag_and_type() == varint_at(2))
        out.seq_id = in.get_int32();
      else if (in.tag_and_type() == varint_at(6))
        out.forward_only = in.get_bool();
      else
        in.skip();
    }
  } catch (const protozero::exception&) {  // what came before it counts
  }
  return out;
}

std::string bytes_of(const Address& address) {
  std::string out;
  protozero::pbf_writer writer(out);
  writer.add_string(1, address.model_id);
  writer.add_int32(2, address.seq_id);
  writer.add_bool(6, address.forward_only);
  return out;
}

}  // namespace twinkle::server::tinker
