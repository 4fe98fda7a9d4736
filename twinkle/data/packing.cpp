#include "twinkle/data/packing.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::data {
namespace {

constexpr std::array<std::string_view, 5> kPerToken = {"input_ids", "labels", "attention_mask",
                                                       "loss_scale", "completion_mask"};

const JsonArray* list_of(const Row& row, std::string_view field) {
  const Json* const value = row.if_contains(field);
  return value ? value->if_array() : nullptr;
}

int64_t length_of(const Dataset& rows, int64_t index, int64_t limit) {
  const Row& row = rows.rows()[index];
  const JsonArray* const ids = list_of(row, "input_ids");
  require(ids, Code::kInvalid, "data: ", rows.where(index),
          " has no input_ids: packing comes after encode");
  const auto length = static_cast<int64_t>(ids->size());
  require(length > 0 && length <= limit, Code::kInvalid, "data: ", rows.where(index), " has ",
          length, " tokens, packed rows have from 1 to ", limit);
  const Json* const routes = row.if_contains("routed_experts");
  require(!routes || routes->is_null(), Code::kInvalid, "data: ", rows.where(index),
          " has routed_experts, which packed rows do not carry; train on such rows without "
          "packing: the engine packs what it gets by itself");
  return length;
}

Row joined(const Dataset& rows, const std::vector<int64_t>& samples) {
  Row out;
  for (const std::string_view field : kPerToken) {
    JsonArray all;
    const bool in_each = std::ranges::all_of(samples, [&](int64_t i) {
      const JsonArray* const part = list_of(rows.rows()[i], field);
      if (part) all.insert(all.end(), part->begin(), part->end());
      return part != nullptr;
    });
    if (in_each) out[field] = std::move(all);
  }
  JsonArray positions;
  for (const int64_t i : samples)
    for (size_t at = 0; at < list_of(rows.rows()[i], "input_ids")->size(); ++at)
      positions.push_back(static_cast<int64_t>(at));
  out["length"] = static_cast<int64_t>(positions.size());
  out["position_ids"] = std::move(positions);
  return out;
}

}  // namespace

std::vector<std::vector<int64_t>> bins(const std::vector<int64_t>& lengths, int64_t limit) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int64_t i) { return lengths[i]; });
  std::vector<std::vector<int64_t>> found;
  std::multimap<int64_t, size_t> room;  // room left, and the bin that has it
  for (const int64_t i : order) {
    auto place = room.lower_bound(lengths[i]);
    if (place == room.end()) {
      place = room.emplace(limit, found.size());
      found.emplace_back();
    }
    const auto [left, bin] = *place;
    room.erase(place);
    room.emplace(left - lengths[i], bin);
    found[bin].push_back(i);
  }
  for (auto& bin : found) std::ranges::sort(bin);
  std::ranges::sort(found);
  return found;
}

Dataset packed(const Dataset& rows, int64_t limit, int64_t chunk) {
  std::vector<int64_t> lengths(static_cast<size_t>(rows.size()));
  for (int64_t i = 0; i < rows.size(); ++i) lengths[i] = length_of(rows, i, limit);
  Rows out;
  std::vector<int64_t> origins;
  for (int64_t begin = 0; begin < rows.size(); begin += chunk) {
    const auto first = lengths.begin() + begin;
    const int64_t count = std::min(chunk, rows.size() - begin);
    for (std::vector<int64_t>& bin : bins({first, first + count}, limit)) {
      for (int64_t& i : bin) i += begin;
      out.push_back(joined(rows, bin));
      origins.push_back(bin.front());
    }
  }
  return rows.replaced(std::move(out), origins);
}

}  // namespace twinkle::data
