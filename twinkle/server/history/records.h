// What the service writes into its journal. Its state is what these records make of nothing, one
// after another: so a server that was killed has only to go through them again. Bytes are those of
// base/fields/codec.h; a new field gets the next tag, and kRecordFormat the next number.
#pragma once
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "twinkle/base/fields.h"
#include "twinkle/server/tenants/usage.h"

namespace twinkle::server {

inline constexpr uint16_t kRecordFormat = 2;  // the only one that is read

// A start of the server, before all that it takes.
struct Opened {
  std::string arithmetic;  // JSON: what the bits of results depend on besides their inputs
  std::string model;       // JSON: which model
  std::string weights;     // which of its weights; empty: not known, where they are not here
  std::string path;        // where they were, for people: the same weights may come from another

  bool operator==(const Opened&) const = default;
  static constexpr uint8_t kKind = 1;
  static constexpr auto fields() {
    return std::tuple{field(1, "arithmetic", &Opened::arithmetic),
                      field(2, "model", &Opened::model), field(3, "weights", &Opened::weights),
                      field(4, "path", &Opened::path)};
  }
};

// A request that may change something, as it came, and all that came from chance or the clock.
// Written before its handler runs.
struct Command {
  std::string method, path, content_type, owner, body;
  std::string chance;   // 32 hexadecimal digits: ids and seeds that the client did not choose
  int64_t time_ms = 0;  // since 1970
  std::string key_id;   // of the key that it came with, if keys were asked for
  std::string refused;  // why, where its tenant's limits refuse what is new; or empty

  static constexpr uint8_t kKind = 2;
  static constexpr auto fields() {
    return std::tuple{field(1, "method", &Command::method),
                      field(2, "path", &Command::path),
                      field(3, "content_type", &Command::content_type),
                      field(4, "owner", &Command::owner),
                      field(5, "body", &Command::body),
                      field(6, "chance", &Command::chance),
                      field(7, "time_ms", &Command::time_ms),
                      field(8, "key_id", &Command::key_id),
                      field(9, "refused", &Command::refused)};
  }
};

// A command that was answered "later" (429, 503) and did nothing: whether there is room is a matter
// of time, so it is not tried again.
struct Dropped {
  uint64_t sequence = 0;  // of its record

  static constexpr uint8_t kKind = 3;
  static constexpr auto fields() { return std::tuple{field(1, "sequence", &Dropped::sequence)}; }
};

// A command that was refused for what a replay cannot ask again: options, names, the disk.
struct Refused {
  uint64_t sequence = 0;  // of its record
  std::string why;

  static constexpr uint8_t kKind = 8;  // 7 is a State's
  static constexpr auto fields() {
    return std::tuple{field(1, "sequence", &Refused::sequence), field(2, "why", &Refused::why)};
  }
};

// How an operation ended. Written before its end changes anything and before anybody is told.
struct Ended {
  std::string request_id;
  bool failed = false;
  std::string content_type, body;  // the answer
  Used used;

  // What is told. Time that was used differs each time.
  bool is_told_as(const Ended& other) const {
    return request_id == other.request_id && failed == other.failed &&
           content_type == other.content_type && body == other.body;
  }
  static constexpr uint8_t kKind = 4;
  static constexpr auto fields() {
    return std::tuple{field(1, "request_id", &Ended::request_id),
                      field(2, "failed", &Ended::failed),
                      field(3, "content_type", &Ended::content_type),
                      field(4, "body", &Ended::body), field(5, "used", &Ended::used)};
  }
};

// An answer was given for the first time.
struct Read {
  std::string request_id;
  int64_t time_ms = 0;  // since 1970

  static constexpr uint8_t kKind = 5;
  static constexpr auto fields() {
    return std::tuple{field(1, "request_id", &Read::request_id),
                      field(2, "time_ms", &Read::time_ms)};
  }
};

// A run's state as it was when the request of this number had ended lies in a folder: a replay does
// not do again what came before.
struct Snapshotted {
  std::string run, folder;  // of a Save with the optimizer, below the folder of snapshots
  int64_t seq_id = 0;       // that it is behind
  // Folders of the published versions, 1 and on, likewise.
  std::vector<std::string> versions;
  // Of the run, and of the key that made it: by their weight and priority it goes on.
  std::string owner, key_id;

  static constexpr uint8_t kKind = 6;
  static constexpr auto fields() {
    return std::tuple{
        field(1, "run", &Snapshotted::run),       field(2, "folder", &Snapshotted::folder),
        field(3, "seq_id", &Snapshotted::seq_id), field(4, "versions", &Snapshotted::versions),
        field(5, "owner", &Snapshotted::owner),   field(6, "key_id", &Snapshotted::key_id)};
  }
};

}  // namespace twinkle::server
