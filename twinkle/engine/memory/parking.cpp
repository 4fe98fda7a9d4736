#include "twinkle/engine/memory/parking.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/io/folder/private.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> raw_bytes(const at::Tensor& tensor) {
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

constexpr std::string_view kPrefix = "parked-";

// -1: it can't be locked, because its process lives.
int lock_folder(const fs::path& folder, int operation) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || ::flock(fd, operation) == 0) return fd;
  ::close(fd);
  return -1;
}

// Folders of processes that were killed.
void remove_left_behind(const fs::path& directory) {
  std::error_code ignored;
  for (const std::string& name : names_in(directory, ignored)) {
    // Names without a process are not an engine's.
    if (!name.starts_with(kPrefix) || name.find('-', kPrefix.size()) == name.npos) continue;
    const FileHandle dead(lock_folder(directory / name, LOCK_EX | LOCK_NB));
    if (dead.get() >= 0) remove_tree(directory / name);
  }
}

fs::path make_folder(const ParkingOptions& options, FileHandle& lock) {
  std::error_code error;
  make_private_folders(fs::path(options.directory), error);
  // A folder that is made and not yet locked must not look like a dead process's.
  const FileHandle alone(lock_folder(options.directory, LOCK_EX));
  if (alone.get() >= 0) remove_left_behind(options.directory);
  std::string pattern =
      (fs::path(options.directory) / kPrefix).string() + std::to_string(::getpid()) + "-XXXXXX";
  require(::mkdtemp(pattern.data()) != nullptr, Code::kInvalid, "engine: park_directory ",
          options.directory, " cannot be written to; name a folder that can");
  lock.reset(lock_folder(pattern, LOCK_EX | LOCK_NB));
  return pattern;
}

// Without a checkpoint's safeguards: after a crash the file is useless.
class ParkedFile {
 public:
  explicit ParkedFile(const fs::path& file)
      : path_(file), fd_(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    check(fd_.get() >= 0);
  }
  ~ParkedFile() {
    if (!kept_) ::unlink(path_.c_str());
  }
  ParkedFile(const ParkedFile&) = delete;
  ParkedFile& operator=(const ParkedFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
      check(n >= 0 || errno == EINTR);
      bytes = bytes.subspan(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    }
  }
  void keep() { kept_ = true; }

 private:
  void check(bool ok) const {
    require(ok, Code::kInvalid, "engine: cannot write ", path_.string(), ": ",
            std::strerror(errno));
  }

  const fs::path path_;
  const FileHandle fd_;
  bool kept_ = false;
};

// No limit is set by itself where nothing can be parked.
int64_t limit_of(const ParkingOptions& options, int64_t memory) {
  if (options.resident_bytes != ParkingOptions::kHalf) return options.resident_bytes;
  return options.directory.empty() ? 0 : memory / 2;
}

}  // namespace

Parking::Parking(const ParkingOptions& options, int64_t memory)
    : limit_(limit_of(options, memory)) {
  check_options(options, "engine: ");
  require(options.resident_bytes <= 0 || !options.directory.empty(), Code::kInvalid,
          "engine: resident_bytes is ", options.resident_bytes,
          " but park_directory is empty; name a folder for idle tenants");
  if (options.directory.empty()) return;
  folder_ = make_folder(options, lock_);
}

Parking::~Parking() {
  if (!folder_.empty()) remove_tree(folder_);
}

void Parking::use(Tenant& tenant) {
  if (folder_.empty()) return;
  Place& place = places_[&tenant];
  place.tenant = &tenant;
  if (!place.shapes.empty()) {
    make_room(place.bytes, [this](const Place& other) { return other.round == round_; });
    bring_back(place);
  }
  if (place.round != round_) used_.push_back(&place);
  resident_.erase(place.used);
  place.used = ++num_uses_;
  place.round = round_;
  resident_[place.used] = &place;
}

void Parking::forget(const Tenant& tenant) {
  const auto it = places_.find(&tenant);
  if (it == places_.end()) return;
  Place& place = it->second;
  std::error_code ignored;
  if (place.shapes.empty()) {
    resident_bytes_ -= place.bytes;
  } else {
    fs::remove(place.file, ignored);
    --num_parked_;
  }
  resident_.erase(place.used);
  std::erase(used_, &place);
  places_.erase(it);
}

void Parking::end_round(const std::set<const Tenant*>& held) {
  if (folder_.empty()) return;
  try {
    held_ = held;
    for (Place* place : used_) count(*place);
    used_.clear();
    ++round_;
    // Parking the one that was used last would gain nothing.
    make_room(0, [this](const Place& place) { return place.used == num_uses_; });
  } catch (const std::bad_alloc&) {
    // The operation before it has succeeded, and must not be reported as failed: the next one
    // parks.
  }
}

void Parking::count(const Tenant& tenant) {
  const auto found = places_.find(&tenant);
  if (found != places_.end() && found->second.shapes.empty()) count(found->second);
}

void Parking::count(Place& place) {
  const int64_t bytes = place.tenant->num_bytes();
  resident_bytes_ += bytes - std::exchange(place.bytes, bytes);
  if (bytes == 0) resident_.erase(place.used);
}

int64_t Parking::bytes_of(const Tenant& tenant) const {
  const auto found = places_.find(&tenant);
  return found == places_.end() ? 0 : found->second.bytes;
}

int64_t Parking::bytes_in_use(const std::set<const Tenant*>& held) const {
  int64_t out = 0;
  for (const auto& [used, place] : resident_)
    if (held.contains(place->tenant) || place->tenant->is_read()) out += place->bytes;
  return out;
}

int64_t Parking::park_now(const Tenant& tenant) {
  const auto found = places_.find(&tenant);
  if (found == places_.end() || !found->second.shapes.empty()) return 0;
  Place& place = found->second;
  const bool is_in_use = place.round == round_ || held_.contains(&tenant);
  if (is_in_use || park(place) != Parked::kYes) return 0;
  resident_.erase(place.used);
  return place.bytes;
}

// The least recently used first.
template <class Busy>
void Parking::make_room(int64_t bytes, Busy&& busy) {
  if (limit_ == 0) return;
  bool any = false;
  for (auto it = resident_.begin(); it != resident_.end() && resident_bytes_ + bytes > limit_;) {
    Place& place = *it->second;
    const bool stays = busy(place) || held_.contains(place.tenant);
    const Parked parked = stays ? Parked::kInUse : park(place);
    any = any || parked == Parked::kYes;
    it = parked == Parked::kInUse ? std::next(it) : resident_.erase(it);
  }
  if (any) ::malloc_trim(0);  // small tensors leave holes in the heap
}

Parking::Parked Parking::park(Place& place) {
  std::vector<at::Tensor*> tensors;
  std::vector<Shape> shapes;
  uint64_t checksum = 0;
  fs::path file;
  try {
    tensors = place.tenant->movable_tensors();
    if (tensors.empty()) return Parked::kInUse;
    file = folder_ / std::to_string(++num_files_);
    ParkedFile out(file);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i]->defined()) continue;
      const at::Tensor t = tensors[i]->cpu().contiguous();
      out.write(raw_bytes(t));
      checksum = add_checksum(checksum, raw_bytes(t));
      shapes.push_back({t.sizes().vec(), t.scalar_type(), tensors[i]->device(), i});
    }
    out.keep();
  } catch (const std::exception& e) {
    // Errors of any kind: the operation before it has succeeded, and must not be reported as
    // failed.
    count_failure(text_of(e));
    return Parked::kFailed;
  }
  for (at::Tensor* t : tensors) *t = at::Tensor();
  place.tenant->link_shared();
  resident_bytes_ -= place.bytes;
  place.file = std::move(file);
  place.shapes = std::move(shapes);
  place.checksum = checksum;
  ++num_parked_;
  return Parked::kYes;
}

void Parking::bring_back(Place& place) {
  const std::string who = "engine: tenant '" + place.tenant->name() + "' is parked in " +
                          place.file.string() + ", which ";
  require(is_there(place.file), Code::kInternal, who, "is gone");
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
      checksum = add_checksum(checksum, raw_bytes(t));
      values.push_back(t.to(shape.device));
    }
    require(at == file.size() && checksum == place.checksum, Code::kInternal, who,
            "does not hold what was written to it");
  }
  const std::vector<at::Tensor*> tensors = place.tenant->movable_tensors();
  for (size_t i = 0; i < values.size(); ++i) *tensors[place.shapes[i].index] = values[i];
  place.tenant->link_shared();
  place.shapes.clear();
  resident_bytes_ += place.bytes;
  ++num_returns_;
  --num_parked_;
  std::error_code ignored;
  fs::remove(place.file, ignored);
}

void Parking::count_failure(const char* what) noexcept {
  ++num_failures_;
  const Lock lock(mutex_);
  try {
    last_failure_ = what;
  } catch (const std::bad_alloc&) {
    last_failure_.clear();
  }
}

ParkingStats Parking::stats() const {
  const Lock lock(mutex_);
  return {resident_bytes_, limit_, num_parked_, num_returns_, num_failures_, last_failure_};
}

}  // namespace twinkle::engine
