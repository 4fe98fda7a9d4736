#include "twinkle/engine/group/group.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/codec.h"
#include "twinkle/engine/group/command.h"
#include "twinkle/engine/memory/text_of_error.h"

namespace twinkle::engine {

std::string to_bytes(const Command& command) {
  ByteWriter writer;
  writer.sized(command);
  return writer.take();
}

Command command_from_bytes(const std::string& bytes) {
  ByteReader reader(bytes, "engine: a command's bytes", uint64_t{16} << 30);
  Command out;
  reader.item(out);
  reader.require_end();
  return out;
}

void Group::close(const std::string& why) const noexcept {
  for (mesh::Channel* channel : {door.get(), control.get(), data.get(), saves.get(), base.get()}) {
    if (channel) channel->close(why);
  }
}

std::exception_ptr agree(mesh::Channel& control, const std::function<std::string()>& call) {
  std::exception_ptr error;
  bool is_broken = false;
  std::string said;
  try {
    said = "has done " + call();
  } catch (const Error& e) {
    error = std::current_exception();
    is_broken = e.code == Code::kInternal;  // in the middle of what ranks do together
    said = e.what();
  } catch (const std::exception& e) {
    error = std::current_exception();
    said = text_of(e);
  }
  const std::vector<std::string> all = control.all_gather(said);
  const bool is_same = std::ranges::all_of(all, [&](const std::string& s) { return s == said; });
  if (is_same && !is_broken) return error;
  std::ostringstream text;
  text << "engine: the ranks of a group can't go on, since an operation has ended differently:";
  for (size_t r = 0; r < all.size(); ++r) text << (r ? "; rank " : " rank ") << r << ": " << all[r];
  fail(Code::kInternal, text.str());
}

std::exception_ptr named(std::exception_ptr error, const std::string& operation) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    if (e.code != Code::kInternal) return error;
    return std::make_exception_ptr(
        Error(Code::kInternal, "engine: " + operation + ": " + e.what()));
  } catch (...) {
    return error;
  }
}

}  // namespace twinkle::engine
