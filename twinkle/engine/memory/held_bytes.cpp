#include "twinkle/engine/memory/held_bytes.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/guarded.h"

namespace twinkle::engine {

struct HeldBytes::Room::Books {
  const int64_t max_of_tenant, max_in_all;
  const pid_t process = getpid();
  Mutex mutex{};
  std::map<std::string, int64_t> of GUARDED_BY(mutex){};  // tenants that hold some
  int64_t in_all GUARDED_BY(mutex) = 0;

  int64_t most() const { return std::min(max_of_tenant, max_in_all); }
  void change(const std::string& tenant, int64_t from, int64_t to);
  void require_possible(const std::string& tenant, int64_t bytes) const {
    require(bytes <= most(), Code::kInvalid, "engine: an operation of tenant '", tenant, "' takes ",
            bytes, " bytes with its files and its result, max_queued_bytes is ", max_of_tenant,
            " and max_queued_bytes_total ", max_in_all, "; submit less at once, or raise them");
  }
};

// One room's bytes, from so many to so many.
void HeldBytes::Room::Books::change(const std::string& tenant, int64_t from, int64_t to) {
  if (from == to || getpid() != process) return;  // a fork may have found the mutex locked
  const Lock lock(mutex);
  const auto it = of.find(tenant);
  const int64_t others = (it == of.end() ? 0 : it->second) - from, all_others = in_all - from;
  const bool more = to > from;
  if (more) require_possible(tenant, to);
  require(!more || others <= max_of_tenant - to, Code::kBusy, "engine: tenant '", tenant,
          "' holds ", others, " bytes in operations and results, this one takes ", to,
          ", max_queued_bytes is ", max_of_tenant, "; take some of their results, or drop them");
  require(!more || all_others <= max_in_all - to, Code::kBusy, "engine: all tenants hold ",
          all_others, " bytes in operations and results, this one of tenant '", tenant, "' takes ",
          to, ", max_queued_bytes_total is ", max_in_all, "; try again later");
  if (others + to > 0)
    of[tenant] = others + to;
  else
    of.erase(it);
  in_all = all_others + to;
}

HeldBytes::HeldBytes(int64_t max_of_tenant, int64_t max_in_all)
    : books_(new Room::Books{max_of_tenant, max_in_all}) {}

HeldBytes::Room::Room(std::shared_ptr<Books> books, std::string tenant, Beyond beyond)
    : books_(std::move(books)), tenant_(std::move(tenant)), beyond_(beyond) {}

HeldBytes::Room::~Room() { resize(0); }

void HeldBytes::Room::resize(int64_t bytes) {
  if (beyond_ == Beyond::kAlone) bytes = std::min(bytes, books_->most());
  books_->change(tenant_, bytes_, bytes);
  bytes_ = bytes;
}

std::shared_ptr<HeldBytes::Room> HeldBytes::reserve(const std::string& tenant, int64_t bytes,
                                                    Beyond beyond) {
  const std::shared_ptr<Room> out(new Room(books_, tenant, beyond));
  out->resize(bytes);
  return out;
}

void HeldBytes::require_possible(const std::string& tenant, int64_t bytes) const {
  books_->require_possible(tenant, bytes);
}

int64_t HeldBytes::max() const { return books_->most(); }

int64_t HeldBytes::in_all() const {
  const Lock lock(books_->mutex);
  return books_->in_all;
}

}  // namespace twinkle::engine
