#include "twinkle/server/tinker/address.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <cstdint>
#include <string>
#include <utility>

#include "twinkle/base/fields/json_handler.h"
#include "twinkle/base/json.h"
#include "twinkle/server/tinker/forward_backward_request.h"

namespace twinkle::server::tinker {
namespace {

constexpr size_t kMostIdBytes = 4096;

std::string json_of(const std::string& model_id, int64_t seq_id) {
  return boost::json::serialize(JsonObject{{"model_id", model_id}, {"seq_id", seq_id}});
}

// Those of the outermost object that tell whose request of which number it is.
struct Members : JsonHandler {
  bool on_object_begin(Failure& failure) { return opened(true, failure); }
  bool on_object_end(size_t, Failure&) { return --depth, true; }
  bool on_array_begin(Failure& failure) { return opened(false, failure); }
  bool on_array_end(size_t, Failure&) { return --depth, true; }
  bool on_key_part(Text s, size_t, Failure&) { return add(s), true; }
  bool on_key(Text s, size_t, Failure&) {
    add(s);
    const std::string key = std::exchange(text, {});
    wanted = depth != 1          ? wanted
             : key == "model_id" ? &model_id
             : key == "seq_id"   ? &seq_id
                                 : nullptr;
    if (wanted && !wanted->is_null()) wanted = nullptr;
    return true;
  }
  bool on_string_part(Text s, size_t, Failure&) { return add(s), true; }
  bool on_string(Text s, size_t, Failure& failure) {
    add(s);
    return told(Json(std::exchange(text, {})), failure);
  }
  bool on_int64(int64_t i, Text, Failure& failure) { return told(i, failure); }
  bool on_uint64(uint64_t u, Text, Failure& failure) { return told(u, failure); }
  bool on_double(double d, Text, Failure& failure) { return told(d, failure); }
  bool on_bool(bool b, Failure& failure) { return told(b, failure); }
  bool on_null(Failure& failure) { return told({}, failure); }

  // Of keys and values of the outermost object, which tell whether an id is too long.
  void add(Text s) {
    if (depth == 1) text.append(s.data(), std::min(s.size(), kMostIdBytes + 1 - text.size()));
  }
  bool opened(bool is_object, Failure& failure) {
    ++depth;
    const bool goes_on = depth == 1 ? is_object : depth > 2 || !wanted;
    return goes_on || ended(failure);
  }
  bool told(Json value, Failure& failure) {
    if (depth == 0) return ended(failure);
    if (depth > 1 || !wanted) return true;
    *std::exchange(wanted, nullptr) = std::move(value);
    return model_id.is_null() || seq_id.is_null() || ended(failure);
  }
  static bool ended(Failure& failure) {
    failure = boost::json::error::extra_data;
    return false;
  }

  int depth = 0;           // of objects and arrays that have begun
  std::string text;        // of a key or a value, as far as it has come
  Json* wanted = nullptr;  // the member whose value comes next
  Json model_id, seq_id;
};

class InJson : public Finder {
 public:
  explicit InJson(Form found)
      : found_(found), parser_([] {
          boost::json::parse_options out;
          out.max_depth = 128;
          return out;
        }()) {}

  bool read(std::string_view more) override {
    if (failure_ || parser_.done()) return false;
    parser_.write_some(true, more.data(), more.size(), failure_);
    return !failure_ && !parser_.done();
  }
  std::string found() const override {
    const Json &model_id = parser_.handler().model_id, &seq_id = parser_.handler().seq_id;
    if (!model_id.is_string() || !seq_id.is_int64()) return "";
    const std::string id(model_id.get_string());
    const int64_t number = seq_id.get_int64();
    if (id.size() > kMostIdBytes) return "";
    if (found_ == Form::kJson) return json_of(id, number);
    if (id.empty() || number < 1 || !std::in_range<int32_t>(number)) return "";
    return bytes_of({.model_id = id, .seq_id = static_cast<int32_t>(number)});
  }

 private:
  const Form found_;
  boost::json::basic_parser<Members> parser_;
  boost::json::error_code failure_;
};

// Byte by byte (protobuf's encoding, wire types 0, 1, 2 and 5), but for what it skips.
class InProtobuf : public Finder {
 public:
  explicit InProtobuf(Form found) : found_(found) {}

  bool read(std::string_view more) override {
    while (!more.empty() && !ends_) {
      const auto skipped = static_cast<size_t>(std::min<uint64_t>(skip_, more.size()));
      skip_ -= skipped;
      more.remove_prefix(skipped);
      if (more.empty()) break;
      if (text_left_ > 0)
        add(more.front());
      else
        add_to_number(static_cast<uint8_t>(more.front()));
      more.remove_prefix(1);
    }
    return !ends_;
  }
  std::string found() const override {
    if (!has_both()) return "";
    return found_ == Form::kJson ? json_of(to_.model_id, to_.seq_id) : bytes_of(to_);
  }

 private:
  bool has_both() const { return !to_.model_id.empty() && text_left_ == 0 && to_.seq_id >= 1; }
  void add(char c) {
    to_.model_id += c;
    --text_left_;
    ends_ = has_both();
  }
  void add_to_number(uint8_t byte) {
    if (shift_ > 63) {
      ends_ = true;
      return;
    }
    number_ |= uint64_t{byte & 0x7FU} << shift_;
    shift_ += 7;
    if (byte & 0x80U) return;
    shift_ = 0;
    take(std::exchange(number_, 0));
  }
  // A field's key, its number, or its length.
  void take(uint64_t number) {
    if (!in_field_) {
      key_ = number;
      const uint64_t type = key_ & 7U;
      in_field_ = type == 0 || type == 2;
      skip_ = type == 1 ? 8 : type == 5 ? 4 : 0;
      ends_ = !in_field_ && skip_ == 0;
      return;
    }
    in_field_ = false;
    if (key_ == (1U << 3U | 2U) && to_.model_id.empty()) {
      text_left_ = number;
      ends_ = number > kMostIdBytes;
    } else if ((key_ & 7U) == 2) {
      skip_ = number;
    } else if (key_ == 2U << 3U && to_.seq_id == 0) {
      to_.seq_id = static_cast<int32_t>(number);
      ends_ = has_both();
    } else if (key_ == 6U << 3U) {
      to_.forward_only = number != 0;
    }
  }

  const Form found_;
  Address to_;
  uint64_t number_ = 0, key_ = 0, skip_ = 0, text_left_ = 0;
  int shift_ = 0;
  bool in_field_ = false, ends_ = false;
};

}  // namespace

std::shared_ptr<Finder> address_finder(Form body, Form found) {
  if (body == Form::kProtobuf) return std::make_shared<InProtobuf>(found);
  return std::make_shared<InJson>(found);
}

}  // namespace twinkle::server::tinker
