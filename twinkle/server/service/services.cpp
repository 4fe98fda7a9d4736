#include "twinkle/server/service/services.h"

#include <algorithm>
#include <random>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"

namespace twinkle::server {

namespace fs = std::filesystem;

namespace {

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

}  // namespace

std::string new_id() {
  std::random_device device;
  std::string out;
  for (int i = 0; i < 32; ++i) out += "0123456789abcdef"[device() % 16];
  return out;
}

Services::Services(Backend& backend, Loop& loop, fs::path state)
    : backend(backend),
      loop(loop),
      state(std::move(state)),
      promises({}, loop),
      runs(backend, promises, loop) {}

Session& Services::session(const std::string& id, const std::string& owner) {
  const auto found = sessions.find(id);
  require(found != sessions.end() && found->second.owner == owner, Code::kNotFound,
          "server: session_id '", id, "' is not known");
  return found->second;
}

Sampler& Services::sampler(const std::string& id, const std::string& owner) {
  const auto found = samplers.find(id);
  require(found != samplers.end() && found->second.owner == owner, Code::kNotFound,
          "server: sampling_session_id '", id, "' is not known");
  return found->second;
}

void Services::submit(engine::Operation operation, const std::string& request_id, Answered answer) {
  backend.submit(backend.check(std::move(operation)),
                 [this, request_id, answer = std::move(answer)](engine::Outcome outcome) {
                   const auto shared = std::make_shared<engine::Outcome>(std::move(outcome));
                   loop.post([this, request_id, answer, shared] {
                     promises.settle(request_id, response_of(std::move(*shared), answer));
                   });
                 });
}

void Services::make(engine::Create create) {
  if (!tenants_.insert(create.tenant).second) return;
  const std::string name = create.tenant;
  backend.submit(backend.check(std::move(create)), [this, name](const engine::Outcome& outcome) {
    if (!outcome.error) return;
    loop.post([this, name] { tenants_.erase(name); });  // the next who asks tries again
  });
}

std::string Services::tenant_of_base() {
  make({.tenant = "base", .frozen = true});
  return "base";
}

std::string Services::tenant_of(const fs::path& checkpoint) {
  const std::string name = "sampler:" + checkpoint.lexically_relative(state).string();
  make({.tenant = name, .directory = checkpoint.string()});
  return name;
}

fs::path Services::folder_of(const std::string& run, const std::string& kind,
                             const std::string& name) const {
  require(is_name(name), Code::kInvalid, "server: the name '", name,
          "' of a checkpoint must be 1 to 255 letters, digits, '.', '_' and '-'");
  return state / "checkpoints" / run / kind / name;
}

fs::path Services::folder_of(const std::string& tinker_path) const {
  constexpr std::string_view kScheme = "tinker://";
  const std::string_view rest =
      std::string_view(tinker_path)
          .substr(tinker_path.starts_with(kScheme) ? kScheme.size() : tinker_path.size());
  const size_t first = rest.find('/'), last = rest.rfind('/');
  const std::string_view run = rest.substr(0, first);
  const bool whole = first != std::string_view::npos && first < last &&
                     runs.all().contains(std::string(run)) &&
                     (rest.substr(first + 1, last - first - 1) == "weights" ||
                      rest.substr(first + 1, last - first - 1) == "sampler_weights");
  require(whole && is_name(rest.substr(last + 1)), Code::kNotFound, "server: the checkpoint '",
          tinker_path,
          "' is not known; paths are tinker://RUN/weights/NAME and "
          "tinker://RUN/sampler_weights/NAME");
  fs::path out = state / "checkpoints" / std::string(rest);
  require(is_there(out), Code::kNotFound, "server: the checkpoint '", tinker_path,
          "' is not known");
  return out;
}

void Services::require_model(const std::string& name) const {
  const auto& names = backend.model().names;
  if (std::ranges::find(names, name) != names.end()) return;
  std::string known;
  for (const std::string& n : names) known += (known.empty() ? "" : ", ") + n;
  fail(Code::kInvalid, "server: base_model '", name, "' is not served here, only ", known);
}

}  // namespace twinkle::server
