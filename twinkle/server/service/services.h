// All that the handlers of the service share: sessions, training runs, samplers and promises. Used
// by the service's thread alone.
#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "twinkle/server/loop.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/server/service/promises.h"
#include "twinkle/server/service/runs.h"

namespace twinkle::server {

struct Session {
  std::string id, owner;
  std::map<int64_t, std::string> runs;      // request_id by model_seq_id
  std::map<int64_t, std::string> samplers;  // sampler id by sampling_session_seq_id
  bool finished = false;
};

struct Sampler {
  std::string id, owner, base_model;
  std::string model_path;  // of a named checkpoint; or empty
  std::string tenant;      // of the engine
  int64_t version = 0;     // of its weights; 0: those of a tenant that nobody trains
  std::map<int64_t, std::string> requests;  // request_id by seq_id
};

// A new id, as a client might see anywhere: 32 hexadecimal digits of the system's randomness.
std::string new_id();

class Services {
 public:
  Services(Backend& backend, Loop& loop, std::filesystem::path state);

  Session& session(const std::string& id, const std::string& owner);
  Sampler& sampler(const std::string& id, const std::string& owner);
  // Queues an operation that belongs to no run's order, and settles the promise with its answer.
  void submit(engine::Operation operation, const std::string& request_id, Answered answer);
  // The tenant that samples the base model, or a checkpoint's adapter; made when first asked for.
  std::string tenant_of_base();
  std::string tenant_of(const std::filesystem::path& checkpoint);
  // The folder of tinker://RUN/KIND/NAME. Error kInvalid: no such path; kNotFound: no such
  // checkpoint.
  std::filesystem::path folder_of(const std::string& tinker_path) const;
  std::filesystem::path folder_of(const std::string& run, const std::string& kind,
                                  const std::string& name) const;
  // `name`: Error kInvalid: no model of this name is served, with those that are.
  void require_model(const std::string& name) const;

  Backend& backend;
  Loop& loop;
  const std::filesystem::path state;
  Promises promises;
  Runs runs;
  std::map<std::string, Session> sessions;
  std::map<std::string, Sampler> samplers;

 private:
  void make(engine::Create create);

  std::set<std::string> tenants_;
};

}  // namespace twinkle::server
