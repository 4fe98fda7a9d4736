#include "twinkle/server/tinker/results.h"

#include <algorithm>
#include <bit>
#include <protozero/pbf_writer.hpp>
#include <string_view>

namespace twinkle::server::tinker {
namespace {

using protozero::pbf_writer;

constexpr int32_t kFloats = 1, kInts = 2;
constexpr float kNoLogprob = -99999.0f;

static_assert(std::endian::native == std::endian::little);

template <class T>
std::string_view raw_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

void add(pbf_writer& out, protozero::pbf_tag_type tag, std::string_view bytes) {
  out.add_bytes(tag, bytes.data(), bytes.size());
}

// Data [first, last) of one name as a BatchedTensor: all values, where each datum's begin, in
// bytes, and the trailing shape.
std::string batched(const ForwardBackwardOutput& output, size_t first, size_t last,
                    const std::string& name) {
  std::string out;
  std::vector<float> values;
  std::vector<int64_t> offsets = {0};
  int64_t width = 0;
  for (size_t i = first; i < last; ++i) {
    const Array& array = output.data[i].at(name);
    values.insert(values.end(), array.values.begin(), array.values.end());
    offsets.push_back(std::ssize(values) * static_cast<int64_t>(sizeof(float)));
    width = array.width;
  }
  pbf_writer tensor(out);
  add(tensor, 1, raw_bytes(values));
  add(tensor, 2, raw_bytes(offsets));
  tensor.add_enum(3, kFloats);
  if (width > 0) tensor.add_packed_int64(4, &width, &width + 1);
  return out;
}

bool same_shape(const std::map<std::string, Array>& a, const std::map<std::string, Array>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.width == y.second.width;
  });
}

std::string top_tokens(const TopTokens& top) {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  for (const auto& row : top.rows) {
    for (int64_t i = 0; i < top.k; ++i) {
      const bool has = i < std::ssize(row);
      ids.push_back(has ? row[i].first : 0);
      logprobs.push_back(has ? row[i].second : kNoLogprob);
    }
  }
  std::string out;
  pbf_writer writer(out);
  add(writer, 1, raw_bytes(ids));
  add(writer, 2, raw_bytes(logprobs));
  writer.add_uint32(3, static_cast<uint32_t>(top.k));
  writer.add_uint32(4, static_cast<uint32_t>(top.rows.size()));
  return out;
}

std::string tensor_bytes(const Tensor& tensor) {
  std::string out;
  pbf_writer writer(out);
  const std::string_view values =
      std::visit([](const auto& v) { return raw_bytes(v); }, tensor.values);
  if (tensor.sparse) {
    pbf_writer sparse(writer, 2);
    add(sparse, 1, values);
    add(sparse, 2, raw_bytes(tensor.sparse->crow));
    add(sparse, 3, raw_bytes(tensor.sparse->col));
  } else {
    add(writer, 1, values);
  }
  writer.add_enum(3, tensor.values.index() == 0 ? kFloats : kInts);
  writer.add_packed_int64(4, tensor.shape.begin(), tensor.shape.end());
  return out;
}

}  // namespace

std::string to_protobuf(const ForwardBackwardOutput& output) {
  std::string out;
  pbf_writer writer(out);
  writer.add_string(1, "ArrayRecord");
  // One record for each run of data whose arrays have the same trailing shapes.
  for (size_t first = 0, last = 0; first < output.data.size(); first = last) {
    while (last < output.data.size() && same_shape(output.data[first], output.data[last])) ++last;
    pbf_writer record(writer, 2);
    record.add_string(1, "ArrayRecord");
    for (const auto& [name, array] : output.data[first]) {
      pbf_writer field(record, 2);
      field.add_string(1, name);
      field.add_message(2, batched(output, first, last, name));
    }
    record.add_int64(3, static_cast<int64_t>(last - first));
  }
  for (const auto& [name, value] : output.metrics) {
    pbf_writer metric(writer, 3);
    metric.add_string(1, name);
    metric.add_double(2, value);
  }
  return out;
}

std::string to_protobuf(const SampleResponse& response) {
  std::string out;
  pbf_writer writer(out);
  for (const SampledSequence& s : response.sequences) {
    pbf_writer sequence(writer, 1);
    if (s.at_length) sequence.add_enum(1, 1);
    add(sequence, 2, raw_bytes(s.tokens));
    add(sequence, 3, raw_bytes(s.logprobs));
    if (s.top) sequence.add_message(4, top_tokens(*s.top));
  }
  if (response.prompt_logprobs) add(writer, 2, raw_bytes(*response.prompt_logprobs));
  if (response.prompt_top) writer.add_message(3, top_tokens(*response.prompt_top));
  if (response.prompt_cache_hit_tokens != 0) writer.add_int32(4, response.prompt_cache_hit_tokens);
  if (response.prompt_targets) writer.add_message(5, tensor_bytes(*response.prompt_targets));
  if (response.prompt_alt_tokens) {
    pbf_writer drawn(writer, 6);
    drawn.add_message(1, tensor_bytes(response.prompt_alt_tokens->tokens));
    drawn.add_message(2, tensor_bytes(response.prompt_alt_tokens->logprobs));
  }
  return out;
}

}  // namespace twinkle::server::tinker
