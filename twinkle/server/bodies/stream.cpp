#include "twinkle/server/bodies/stream.h"

namespace twinkle::server {

// The writer is not called here: the service that it belongs to may have ended, too.
Stream::~Stream() {
  pipe_->is_gone = true;
  pipe_->unsent = {};
  pipe_->changed = nullptr;
}

void Stream::hang_up() {
  pipe_->is_gone = true;
  if (const auto run = std::exchange(pipe_->when_gone, nullptr)) run();
}

StreamWriter::~StreamWriter() {
  if (pipe_) cut();
}

bool StreamWriter::write(std::string_view piece) {
  if (pipe_->is_gone || pipe_->is_ended || pipe_->is_cut) return false;
  pipe_->unsent += piece;
  if (pipe_->changed) pipe_->changed();
  return true;
}

void StreamWriter::end() { finish(pipe_->is_ended); }
void StreamWriter::cut() { finish(pipe_->is_cut); }

void StreamWriter::finish(bool& how) {
  if (pipe_->is_ended || pipe_->is_cut) return;
  how = true;
  pipe_->when_gone = nullptr;
  if (pipe_->changed) pipe_->changed();
}

void StreamWriter::when_gone(std::function<void()> run) {
  if (pipe_->is_gone) return run();
  pipe_->when_gone = std::move(run);
}

}  // namespace twinkle::server
