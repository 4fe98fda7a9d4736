#include "twinkle/server/bodies/num_values.h"

#include <boost/json/basic_parser_impl.hpp>

#include "twinkle/base/fields/json_handler.h"

namespace twinkle::server {
namespace {

struct Counted : JsonHandler {
  bool on_object_begin(Failure& failure) { return one(failure); }
  bool on_array_begin(Failure& failure) { return one(failure); }
  bool on_string(Text, size_t, Failure& failure) { return one(failure); }
  bool on_int64(int64_t, Text, Failure& failure) { return one(failure); }
  bool on_uint64(uint64_t, Text, Failure& failure) { return one(failure); }
  bool on_double(double, Text, Failure& failure) { return one(failure); }
  bool on_bool(bool, Failure& failure) { return one(failure); }
  bool on_null(Failure& failure) { return one(failure); }

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
