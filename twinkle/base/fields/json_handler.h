// Called by Boost.JSON's parser while it reads a document, with hooks that take everything and do
// nothing: a handler derives from this, and has of its own those that it needs. It is for one
// basic_parser<Handler>, which calls a handler's own type. A hook that answers false ends the
// parsing, by the failure that it sets; long texts come in parts, of which on_string and on_key get
// the last.
#pragma once
#include <boost/json.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace twinkle {

struct JsonHandler {
  static constexpr size_t max_object_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_array_size = max_object_size;
  static constexpr size_t max_key_size = max_object_size;
  static constexpr size_t max_string_size = max_object_size;
  using Text = boost::json::string_view;
  using Failure = boost::json::error_code;

  bool on_document_begin(Failure&) { return true; }
  bool on_document_end(Failure&) { return true; }
  bool on_object_begin(Failure&) { return true; }
  bool on_object_end(size_t, Failure&) { return true; }
  bool on_array_begin(Failure&) { return true; }
  bool on_array_end(size_t, Failure&) { return true; }
  bool on_key_part(Text, size_t, Failure&) { return true; }
  bool on_key(Text, size_t, Failure&) { return true; }
  bool on_string_part(Text, size_t, Failure&) { return true; }
  bool on_string(Text, size_t, Failure&) { return true; }
  bool on_number_part(Text, Failure&) { return true; }
  bool on_int64(int64_t, Text, Failure&) { return true; }
  bool on_uint64(uint64_t, Text, Failure&) { return true; }
  bool on_double(double, Text, Failure&) { return true; }
  bool on_bool(bool, Failure&) { return true; }
  bool on_null(Failure&) { return true; }
  bool on_comment_part(Text, Failure&) { return true; }
  bool on_comment(Text, Failure&) { return true; }
};

}  // namespace twinkle
