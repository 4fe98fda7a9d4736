// What a service has become of its records 1 to `sequence`: a start goes on from it, and the
// records are needed no more. What has not ended is not in it as such: the commands that began it
// are carried along, and done again on top, and so are records of answers, which are read when they
// are asked for (state_file.h). A new field gets the next tag of its
// struct, and the file's format (state_file.cpp) the next number.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "twinkle/base/fields.h"
#include "twinkle/server/history/records.h"
#include "twinkle/server/tenants/usage.h"

namespace twinkle::server {

// An id by the number that its session's client gave.
struct NumberedId {
  int64_t number = 0;
  std::string id;

  static constexpr auto fields() {
    return std::tuple{field(1, "number", &NumberedId::number), field(2, "id", &NumberedId::id)};
  }
};

struct SessionState {
  std::string id, owner;
  std::vector<NumberedId> runs;      // request_id by model_seq_id
  std::vector<NumberedId> samplers;  // sampler id by sampling_session_seq_id
  bool finished = false;

  static constexpr auto fields() {
    return std::tuple{field(1, "id", &SessionState::id), field(2, "owner", &SessionState::owner),
                      field(3, "runs", &SessionState::runs),
                      field(4, "samplers", &SessionState::samplers),
                      field(5, "finished", &SessionState::finished)};
  }
};

struct RefusedState {
  int64_t seq_id = 0;
  std::string why;
  bool breaks_window = false;
  bool is_told = false;  // by its promise

  static constexpr auto fields() {
    return std::tuple{field(1, "seq_id", &RefusedState::seq_id),
                      field(2, "why", &RefusedState::why),
                      field(3, "breaks_window", &RefusedState::breaks_window),
                      field(4, "is_told", &RefusedState::is_told)};
  }
};

// A run as it was right before its request `next`, the first that has not ended.
struct RunState {
  std::string id, owner, base_model;
  int64_t rank = 0, next = 1, num_published = 0;
  bool is_made = false;   // the engine has it
  bool finished = false;  // its session has
  bool is_lost = false;   // the engine cannot get it any more
  std::string broken;     // why the window is dropped, or empty
  std::vector<RefusedState> refused;
  std::vector<std::string> saved;       // KIND/NAME
  std::vector<NumberedId> folders;      // of saves that have not ended, below the state's
  std::vector<int64_t> refused_before;  // ranges of numbers below, first and last of each
  std::string key_id;                   // of the key that made it, if keys were asked for
  int64_t last_ms = 0;                  // since 1970, when its last request was accepted
  std::map<std::string, bool> trains;   // groups of modules, by "train_attn" and the like
  bool is_unloaded = false;             // made, but not loaded with what it was to begin with

  static constexpr auto fields() {
    return std::tuple{field(1, "id", &RunState::id),
                      field(2, "owner", &RunState::owner),
                      field(3, "base_model", &RunState::base_model),
                      field(4, "rank", &RunState::rank),
                      field(5, "next", &RunState::next),
                      field(6, "num_published", &RunState::num_published),
                      field(7, "is_made", &RunState::is_made),
                      field(8, "broken", &RunState::broken),
                      field(9, "refused", &RunState::refused),
                      field(10, "saved", &RunState::saved),
                      field(11, "folders", &RunState::folders),
                      field(12, "finished", &RunState::finished),
                      field(13, "is_lost", &RunState::is_lost),
                      field(14, "refused_before", &RunState::refused_before),
                      field(15, "key_id", &RunState::key_id),
                      field(16, "last_ms", &RunState::last_ms),
                      field(17, "trains", &RunState::trains),
                      field(18, "is_unloaded", &RunState::is_unloaded)};
  }
};

struct SamplerState {
  std::string id, owner, base_model, model_path, tenant;
  int64_t version = 0;
  std::vector<int64_t> came;  // ranges of seq_ids, first and last of each
  std::string key_id;         // of the key that made the run whose version it is

  static constexpr auto fields() {
    return std::tuple{field(1, "id", &SamplerState::id),
                      field(2, "owner", &SamplerState::owner),
                      field(3, "base_model", &SamplerState::base_model),
                      field(4, "model_path", &SamplerState::model_path),
                      field(5, "tenant", &SamplerState::tenant),
                      field(6, "version", &SamplerState::version),
                      field(7, "came", &SamplerState::came),
                      field(8, "key_id", &SamplerState::key_id)};
  }
};

struct CheckpointState {
  std::string path, owner, base_model;
  int64_t rank = 0;
  std::string folder;                  // below the state's
  std::map<std::string, bool> trains;  // as RunState's

  static constexpr auto fields() {
    return std::tuple{field(1, "path", &CheckpointState::path),
                      field(2, "owner", &CheckpointState::owner),
                      field(3, "base_model", &CheckpointState::base_model),
                      field(4, "rank", &CheckpointState::rank),
                      field(5, "folder", &CheckpointState::folder),
                      field(6, "trains", &CheckpointState::trains)};
  }
};

struct PromiseState {
  std::string id, owner;
  int64_t number = 0;     // how many there had been
  uint64_t sequence = 0;  // of the Command that opened it, which is carried; 0: it is settled
  int64_t status = 200;
  std::string content_type, body;
  int64_t read_ms = 0;  // since 1970; 0: nobody has read it
  std::string key_id;   // of the key that it came with
  // Of the Ended that holds the answer, which is carried; 0: it is here.
  uint64_t ended = 0;
  int64_t num_samples = 0;  // of an asample: that it asked for

  static constexpr auto fields() {
    return std::tuple{field(1, "id", &PromiseState::id),
                      field(2, "owner", &PromiseState::owner),
                      field(3, "number", &PromiseState::number),
                      field(4, "sequence", &PromiseState::sequence),
                      field(5, "status", &PromiseState::status),
                      field(6, "content_type", &PromiseState::content_type),
                      field(7, "body", &PromiseState::body),
                      field(8, "read_ms", &PromiseState::read_ms),
                      field(9, "key_id", &PromiseState::key_id),
                      field(10, "ended", &PromiseState::ended),
                      field(11, "num_samples", &PromiseState::num_samples)};
  }
};

struct State {
  uint64_t sequence = 0;       // of the last record that it holds
  int64_t time_ms = 0;         // since 1970, when it was taken
  std::vector<Opened> starts;  // one of each kind, the last one last
  std::vector<Snapshotted> snapshots;
  std::vector<SessionState> sessions;
  std::vector<RunState> runs;
  std::vector<SamplerState> samplers;
  std::vector<CheckpointState> checkpoints;
  std::vector<PromiseState> promises;
  int64_t num_promises = 0;  // ever
  std::vector<UsageLine> usage;

  static constexpr uint8_t kKind = 7;
  static constexpr auto fields() {
    return std::tuple{
        field(1, "sequence", &State::sequence), field(2, "time_ms", &State::time_ms),
        field(3, "starts", &State::starts),     field(4, "snapshots", &State::snapshots),
        field(5, "sessions", &State::sessions), field(6, "runs", &State::runs),
        field(7, "samplers", &State::samplers), field(8, "checkpoints", &State::checkpoints),
        field(9, "promises", &State::promises), field(10, "num_promises", &State::num_promises),
        field(11, "usage", &State::usage)};
  }
};

// What a replay does, one after another. Other records tell it how.
using AnyRecord = std::variant<State, Command, Ended, Read>;

}  // namespace twinkle::server
