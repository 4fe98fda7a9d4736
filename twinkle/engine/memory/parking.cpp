#include "twinkle/engine/memory/parking.h"

#include <ATen/ATen.h>
#include <malloc.h>
#include <stdlib.h>

#include <bit>
#include <cstring>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Against a file that was cut, mixed up or overwritten; not against an adversary.
uint64_t add_checksum(uint64_t sum, std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<size_t>(8, bytes.size() - i));
    sum = (std::rotl(sum, 5) ^ word) * 0x9e3779b97f4a7c15ull;
  }
  return sum;
}

fs::path make_folder(const ParkingOptions& options) {
  std::error_code error;
  fs::create_directories(options.directory, error);
  std::string pattern = (fs::path(options.directory) / "parked-XXXXXX").string();
  require(::mkdtemp(pattern.data()) != nullptr, Code::kInvalid, "engine: park_directory ",
          options.directory, " cannot be written to; name a folder that can");
  return pattern;
}

}  // namespace

Parking::Parking(const ParkingOptions& options) : options_(options) {
  require(options.resident_bytes >= 0, Code::kInvalid, "engine: resident_bytes is ",
          options.resident_bytes, ", it must be at least 0, which means no limit");
  if (options.resident_bytes == 0) return;
  require(!options.directory.empty(), Code::kInvalid, "engine: resident_bytes is ",
          options.resident_bytes, " but park_directory is empty; name a folder for idle tenants");
  folder_ = make_folder(options);
}

Parking::~Parking() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

void Parking::use(Tenant& tenant) {
  if (folder_.empty()) return;
  Place& place = places_[&tenant];
  place.tenant = &tenant;
  if (!place.shapes.empty()) {
    make_room(place.bytes, [this](const Place& other) { return other.round == round_; });
    bring_back(place);
    report();
  }
  place.used = ++num_uses_;
  place.round = round_;
  place.failed = false;
}

void Parking::forget(const Tenant& tenant) {
  const auto it = places_.find(&tenant);
  if (it == places_.end()) return;
  std::error_code ignored;
  if (it->second.shapes.empty())
    now_.resident_bytes -= it->second.bytes;
  else
    fs::remove(it->second.file, ignored);
  places_.erase(it);
  report();
}

void Parking::settle(const std::set<const Tenant*>& held) {
  if (folder_.empty()) return;
  try {
    held_ = held;
    for (auto& [key, place] : places_) {
      if (place.round != round_) continue;
      const int64_t bytes = place.tenant->num_bytes();
      now_.resident_bytes += bytes - place.bytes;
      place.bytes = bytes;
    }
    ++round_;
    // For the one that was used last nothing would be gained.
    make_room(0, [this](const Place& place) { return place.used == num_uses_; });
  } catch (const std::bad_alloc&) {
    // The work before it has been done, and must not be reported as failed: the next one settles.
  }
  report();
}

template <class Busy>
void Parking::make_room(int64_t bytes, Busy&& busy) {
  std::map<uint64_t, Place*> idle;  // the least recent use first
  for (auto& [key, place] : places_) {
    if (!busy(place) && !held_.contains(key) && !place.failed && place.shapes.empty())
      idle[place.used] = &place;
  }
  bool parked = false;
  for (auto it = idle.begin();
       it != idle.end() && now_.resident_bytes + bytes > options_.resident_bytes; ++it)
    parked = park(*it->second) || parked;
  if (parked) ::malloc_trim(0);  // small tensors leave holes in the heap
}

bool Parking::park(Place& place) {
  std::vector<at::Tensor*> tensors;
  std::vector<Shape> shapes;
  uint64_t checksum = 0;
  fs::path file;
  try {
    tensors = place.tenant->movable_tensors();
    if (tensors.empty()) return false;
    file = folder_ / std::to_string(++num_files_);
    AtomicFile out(file);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i]->defined()) continue;
      const at::Tensor t = tensors[i]->cpu().contiguous();
      out.write(bytes_of(t));
      checksum = add_checksum(checksum, bytes_of(t));
      shapes.push_back({t.sizes().vec(), t.scalar_type(), tensors[i]->device(), i});
    }
    out.commit();
  } catch (const std::exception& e) {
    // Whatever it is: the work before it has been done, and must not be reported as failed.
    place.failed = true;
    ++now_.num_failures;
    now_.last_failure = e.what();
    return false;
  }
  for (at::Tensor* t : tensors) *t = at::Tensor();
  now_.resident_bytes -= place.bytes;
  place.file = std::move(file);
  place.shapes = std::move(shapes);
  place.checksum = checksum;
  return true;
}

void Parking::bring_back(Place& place) {
  const std::string who = "engine: tenant '" + place.tenant->name() + "' is parked in " +
                          place.file.string() + ", which ";
  require(fs::exists(place.file), Code::kInternal, who, "is gone");
  std::vector<at::Tensor> values;
  uint64_t checksum = 0;
  {
    const File file(place.file, "engine");
    int64_t at = 0;
    for (const Shape& shape : place.shapes) {
      at::Tensor t = at::empty(shape.sizes, shape.type);
      const auto size = static_cast<int64_t>(t.nbytes());
      require(size <= file.size() - at, Code::kInternal, who, "has been cut");
      file.read_at(at, {static_cast<std::byte*>(t.mutable_data_ptr()), t.nbytes()});
      at += size;
      checksum = add_checksum(checksum, bytes_of(t));
      values.push_back(t.to(shape.device));
    }
    require(at == file.size() && checksum == place.checksum, Code::kInternal, who,
            "does not hold what was written to it");
  }
  const std::vector<at::Tensor*> tensors = place.tenant->movable_tensors();
  for (size_t i = 0; i < values.size(); ++i) *tensors[place.shapes[i].index] = values[i];
  place.shapes.clear();
  now_.resident_bytes += place.bytes;
  ++now_.num_returns;
  std::error_code ignored;
  fs::remove(place.file, ignored);
}

void Parking::report() {
  now_.num_parked = 0;
  for (const auto& [key, place] : places_) now_.num_parked += place.shapes.empty() ? 0 : 1;
  const std::lock_guard lock(mutex_);
  reported_ = now_;
}

ParkingStats Parking::stats() const {
  const std::lock_guard lock(mutex_);
  return reported_;
}

}  // namespace twinkle::engine
