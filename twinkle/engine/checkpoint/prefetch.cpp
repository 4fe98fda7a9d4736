#include "twinkle/engine/checkpoint/prefetch.h"

#include <filesystem>

namespace twinkle::engine {
namespace {

std::string name_of(const std::string& directory) {
  std::error_code error;
  const auto name = std::filesystem::weakly_canonical(directory, error);
  return (error ? std::filesystem::path(directory) : name).lexically_normal().string();
}

// Errors wait for the operation's turn, but for want of room, which refuses it.
template <class Read>
std::shared_ptr<Prepared> attempt(Read&& read) {
  auto out = std::make_shared<PreparedAdapter>();
  try {
    out->loaded = read();
  } catch (const Error& e) {
    if (e.code == Code::kBusy) throw;
    out->error = std::current_exception();
  } catch (...) {
    out->error = std::current_exception();
  }
  return out;
}

}  // namespace

struct Prefetch::PreparedSave : Prepared {
  PreparedSave(std::shared_ptr<Folders> folders, std::string name)
      : folders(std::move(folders)), name(std::move(name)) {
    const std::lock_guard lock(this->folders->mutex);
    this->folders->names.insert(this->name);
  }
  ~PreparedSave() override {
    const std::lock_guard lock(folders->mutex);
    folders->names.erase(folders->names.find(name));
  }
  PreparedSave(const PreparedSave&) = delete;
  PreparedSave& operator=(const PreparedSave&) = delete;

  const std::shared_ptr<Folders> folders;
  const std::string name;
};

bool Prefetch::is_awaited(const std::string& directory) const {
  const std::lock_guard lock(awaited_->mutex);
  return awaited_->names.contains(name_of(directory));
}

std::shared_ptr<Prepared> Prefetch::prepare(const Operation& operation, const Reserve& reserve) {
  if (const auto* op = std::get_if<Save>(&operation))
    return std::make_shared<PreparedSave>(awaited_, name_of(op->directory));
  if (const auto* op = std::get_if<Load>(&operation); op && !is_awaited(op->directory))
    return attempt([&] { return read_checkpoint(*op, Mode::kLora, base_, reserve); });
  const auto* op = std::get_if<Create>(&operation);
  if (!op || op->frozen || op->directory.empty() || is_awaited(op->directory)) return nullptr;
  return attempt(
      [&] { return Loaded{.adapter = lora::read_adapter(op->directory, base_.linears, reserve)}; });
}

}  // namespace twinkle::engine
