// Whether a request is taken depends in part on more than the request and what was journalled
// before it: on options, on the names that are served, on the disk, on what there is room for. That
// is decided once, when the request comes, and stands in the journal (records.h: Refused, Dropped).
// A replay is told it, and asks nothing of that again. Used by the service's thread alone.
#pragma once
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/server/replay/brief.h"

namespace twinkle::server {

class Decisions {
 public:
  // The request that is done next has come just now.
  void come() { *this = {}; }
  // The request that is done next was decided when it came: it was refused, with this text, or, of
  // an empty one, taken.
  void recall(std::string refused) {
    *this = {};
    is_decided_ = true;
    refused_ = std::move(refused);
  }

  // Does `check`, which throws an Error where it refuses the request, and passes that on. Of a
  // request that was decided before: throws what it threw then, as kInvalid, or does nothing.
  // Before the request has changed anything that a refusal would not.
  template <class Check>
  void decide(const Check& check) {
    if (is_decided_) return require(refused_.empty(), Code::kInvalid, refused_);
    try {
      check();
    } catch (const Error& e) {
      if (e.code != Code::kBusy) refused_ = brief(e.what());  // else it comes again
      throw;
    }
  }

  // Does `work`, all that the request changes or a part of it. Where memory ends in the middle the
  // process does, too: the journal has the request, and a start does it.
  template <class Work>
  void change(const Work& work) {
    has_changed_ = true;
    try {
      work();
    } catch (const std::bad_alloc&) {
      std::terminate();
    }
  }
  // The request has changed something: one that is then told to come again finds it.
  bool has_changed() const { return has_changed_; }

  // Of the request: it was decided before this start.
  bool is_decided() const { return is_decided_; }
  // Why the request was refused, or "".
  const std::string& refused() const { return refused_; }

 private:
  bool is_decided_ = false, has_changed_ = false;
  std::string refused_;
};

}  // namespace twinkle::server
