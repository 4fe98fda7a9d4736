#include "twinkle/server/bodies/num_values.h"

#include <boost/json/basic_parser_impl.hpp>
#include <limits>

namespace twinkle::server {
namespace {

// What Boost's parser tells of a document. A handler that answers false ends it.
struct Counted {
  static constexpr size_t max_object_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_array_size = max_object_size;
  static constexpr size_t max_key_size = max_object_size;
  static constexpr size_t max_string_size = max_object_size;
  using Text = boost::json::string_view;
  using Failure = boost::json::error_code;

  bool on_document_begin(Failure&) { return true; }
  bool on_document_end(Failure&) { return true; }
  bool on_object_begin(Failure& failure) { return one(failure); }
  bool on_object_end(size_t, Failure&) { return true; }
  bool on_array_begin(Failure& failure) { return one(failure); }
  bool on_array_end(size_t, Failure&) { return true; }
  bool on_key_part(Text, size_t, Failure&) { return true; }
  bool on_key(Text, size_t, Failure&) { return true; }
  bool on_string_part(Text, size_t, Failure&) { return true; }
  bool on_string(Text, size_t, Failure& failure) { return one(failure); }
  bool on_number_part(Text, Failure&) { return true; }
  bool on_int64(int64_t, Text, Failure& failure) { return one(failure); }
  bool on_uint64(uint64_t, Text, Failure& failure) { return one(failure); }
  bool on_double(double, Text, Failure& failure) { return one(failure); }
  bool on_bool(bool, Failure& failure) { return one(failure); }
  bool on_null(Failure& failure) { return one(failure); }
  bool on_comment_part(Text, Failure&) { return true; }
  bool on_comment(Text, Failure&) { return true; }

  bool one(Failure& failure) {
    if (++num <= most) return true;
    failure = boost::json::error::array_too_large;
    return false;
  }

  int64_t num = 0, most = 0;
};

}  // namespace

int64_t num_values(std::string_view text, int64_t most) {
  boost::json::parse_options options;
  options.max_depth = 128;
  boost::json::basic_parser<Counted> parser(options);
  parser.handler().most = most;
  boost::json::error_code failure;
  parser.write_some(false, text.data(), text.size(), failure);
  return parser.handler().num;
}

}  // namespace twinkle::server
