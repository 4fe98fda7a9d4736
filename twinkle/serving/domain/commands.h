// Everything that changes the service, as values. A command is decided once, when its request
// comes; the journal holds it with what was decided, and the service's state is what these records
// make of nothing, in their order. So a start has only to apply them again. Bytes are those of
// base/fields/codec.h; a new field gets the next tag, and kFormat (log.h) the next number.
#pragma once
#include <cstdint>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "twinkle/base/fields.h"
#include "twinkle/server/tenants/usage.h"
#include "twinkle/serving/domain/entities.h"

namespace twinkle::server::core {

// A start of the server, before all that it takes.
struct Opened {
  std::string arithmetic;  // JSON: what the bits of results depend on besides their inputs
  std::string model;       // JSON: which model
  std::string weights;     // the weights' own mark; empty: not known, where they are not here
  std::string path;        // where they were, for people: the same weights may come from another

  bool operator==(const Opened&) const = default;
  static constexpr uint8_t kKind = 1;
  static constexpr auto fields() {
    return std::tuple{field(1, "arithmetic", &Opened::arithmetic),
                      field(2, "model", &Opened::model), field(3, "weights", &Opened::weights),
                      field(4, "path", &Opened::path)};
  }
};

struct OpenSession {
  Session session;

  static constexpr uint8_t kKind = 2;
  static constexpr auto fields() { return std::tuple{field(1, "session", &OpenSession::session)}; }
};

// Its runs take no more requests; those that wait for a number that did not come fail.
struct FinishSession {
  std::string session;

  static constexpr uint8_t kKind = 3;
  static constexpr auto fields() {
    return std::tuple{field(1, "session", &FinishSession::session)};
  }
};

// The same of one run.
struct FinishRun {
  std::string run;

  static constexpr uint8_t kKind = 17;
  static constexpr auto fields() { return std::tuple{field(1, "run", &FinishRun::run)}; }
};

// Its future is RUN:0.
struct CreateRun {
  int64_t number = 0;  // in its session
  Run run;
  std::string note;

  static constexpr uint8_t kKind = 4;
  static constexpr auto fields() {
    return std::tuple{field(1, "number", &CreateRun::number), field(2, "run", &CreateRun::run),
                      field(3, "note", &CreateRun::note)};
  }
};

// One operation of a run, done in the order of the numbers. Its future is RUN:SEQ_ID.
struct Submit {
  std::string run;
  int64_t seq_id = 0, time_ms = 0;  // since 1970
  std::string key_id;               // the key's that it came with
  std::string operation;            // bytes of an engine::Operation
  std::string note;
  Checkpoint saves;     // a Save's under a name: there when it has ended
  std::string sampler;  // a Publish's: the id of the sampler that there is then

  static constexpr uint8_t kKind = 5;
  static constexpr auto fields() {
    return std::tuple{field(1, "run", &Submit::run),
                      field(2, "seq_id", &Submit::seq_id),
                      field(3, "time_ms", &Submit::time_ms),
                      field(4, "key_id", &Submit::key_id),
                      field(5, "operation", &Submit::operation),
                      field(6, "note", &Submit::note),
                      field(7, "saves", &Submit::saves),
                      field(8, "sampler", &Submit::sampler)};
  }
};

// A numbered request that is wrong: its future has the error, and the run goes on behind it.
struct Fail {
  std::string run;
  int64_t seq_id = 0, time_ms = 0;
  std::string key_id, why;
  bool breaks_window = false;  // it was to accumulate

  static constexpr uint8_t kKind = 6;
  static constexpr auto fields() {
    return std::tuple{
        field(1, "run", &Fail::run),         field(2, "seq_id", &Fail::seq_id),
        field(3, "time_ms", &Fail::time_ms), field(4, "key_id", &Fail::key_id),
        field(5, "why", &Fail::why),         field(6, "breaks_window", &Fail::breaks_window)};
  }
};

struct OpenSampler {
  int64_t number = 0;  // in its session
  Sampler sampler;

  static constexpr uint8_t kKind = 7;
  static constexpr auto fields() {
    return std::tuple{field(1, "number", &OpenSampler::number),
                      field(2, "sampler", &OpenSampler::sampler)};
  }
};

// Belongs to no run's order. Its future is SAMPLER:SEQ_ID.
struct Sample {
  std::string sampler;
  int64_t seq_id = 0;
  std::string key_id;
  std::string operation;  // bytes of an engine::Sample, without tenant and version
  std::string note;

  static constexpr uint8_t kKind = 8;
  static constexpr auto fields() {
    return std::tuple{field(1, "sampler", &Sample::sampler), field(2, "seq_id", &Sample::seq_id),
                      field(3, "key_id", &Sample::key_id),
                      field(4, "operation", &Sample::operation), field(5, "note", &Sample::note)};
  }
};

// How an operation ended. Nobody is answered before it is written.
struct Ended {
  std::string id;         // the future's
  std::string error;      // empty: it is done
  bool is_users = false;  // by a fault of its request
  std::string result;     // bytes of an engine::Result
  Used used;
  int64_t bytes = 0;  // a Save's, on disk

  static constexpr uint8_t kKind = 9;
  static constexpr auto fields() {
    return std::tuple{field(1, "id", &Ended::id),
                      field(2, "error", &Ended::error),
                      field(3, "is_users", &Ended::is_users),
                      field(4, "result", &Ended::result),
                      field(5, "used", &Ended::used),
                      field(6, "bytes", &Ended::bytes)};
  }
};

// A result was given for the first time.
struct Read {
  std::string id;
  int64_t time_ms = 0;  // since 1970

  static constexpr uint8_t kKind = 10;
  static constexpr auto fields() {
    return std::tuple{field(1, "id", &Read::id), field(2, "time_ms", &Read::time_ms)};
  }
};

struct Snapshotted {
  std::string run;
  Snapshot snapshot;

  static constexpr uint8_t kKind = 11;
  static constexpr auto fields() {
    return std::tuple{field(1, "run", &Snapshotted::run),
                      field(2, "snapshot", &Snapshotted::snapshot)};
  }
};

// A run can't go on: its files are not there, or doing it again gave something else.
struct Lost {
  std::string run, why;

  static constexpr uint8_t kKind = 12;
  static constexpr auto fields() {
    return std::tuple{field(1, "run", &Lost::run), field(2, "why", &Lost::why)};
  }
};

// Who may read a checkpoint, and until when.
struct KeepCheckpoint {
  std::string path;
  bool is_public = false;
  int64_t expires_ms = 0;  // since 1970; 0: never

  static constexpr uint8_t kKind = 13;
  static constexpr auto fields() {
    return std::tuple{field(1, "path", &KeepCheckpoint::path),
                      field(2, "is_public", &KeepCheckpoint::is_public),
                      field(3, "expires_ms", &KeepCheckpoint::expires_ms)};
  }
};

struct DeleteCheckpoint {
  std::string path;

  static constexpr uint8_t kKind = 14;
  static constexpr auto fields() { return std::tuple{field(1, "path", &DeleteCheckpoint::path)}; }
};

// With its checkpoints, snapshots and published versions.
struct DeleteRun {
  std::string run;

  static constexpr uint8_t kKind = 15;
  static constexpr auto fields() { return std::tuple{field(1, "run", &DeleteRun::run)}; }
};

// The service's state of the records 1 to `sequence`: a start goes on from it.
struct State {
  uint64_t sequence = 0;
  int64_t time_ms = 0;         // since 1970, when it was taken
  std::vector<Opened> starts;  // one of each kind, the last one last
  std::vector<Session> sessions;
  std::vector<Run> runs;
  std::vector<Sampler> samplers;
  std::vector<Checkpoint> checkpoints;
  std::vector<Future> futures;
  int64_t num_futures = 0;  // ever
  std::vector<UsageLine> usage;
  std::vector<std::string> removing;  // folders below the state's that nothing needs any more

  static constexpr uint8_t kKind = 16;
  static constexpr auto fields() {
    return std::tuple{field(1, "sequence", &State::sequence),
                      field(2, "time_ms", &State::time_ms),
                      field(3, "starts", &State::starts),
                      field(4, "sessions", &State::sessions),
                      field(5, "runs", &State::runs),
                      field(6, "samplers", &State::samplers),
                      field(7, "checkpoints", &State::checkpoints),
                      field(8, "futures", &State::futures),
                      field(9, "num_futures", &State::num_futures),
                      field(10, "usage", &State::usage),
                      field(11, "removing", &State::removing)};
  }
};

using Record = std::variant<Opened, OpenSession, FinishSession, CreateRun, Submit, Fail,
                            OpenSampler, Sample, Ended, Read, Snapshotted, Lost, KeepCheckpoint,
                            DeleteCheckpoint, DeleteRun, State, FinishRun>;

}  // namespace twinkle::server::core
