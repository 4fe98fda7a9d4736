#include "twinkle/sync/link.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/parallel.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/mesh/thread_comm.h"
#include "twinkle/model/weights/weight_memory.h"
#include "twinkle/sync/checksum.h"
#include "twinkle/sync/transfer.h"

namespace twinkle::sync {
namespace {

using engine::Engine;
using engine::text_of;
using engine::Weight;
using engine::WeightsView;

Manifest manifest_of(const std::vector<Weight>& tensors) {
  Manifest out;
  for (const Weight& t : tensors) {
    out.push_back({t.name, t.shape, std::string(t.value.dtype().name()), t.value.element_size()});
    const int64_t last = t.first + t.value.numel();
    if (last > t.first) out.back().slices.push_back({t.first, last});
  }
  return out;
}

// A tensor of the same kind and size for each, on huge pages, as the decoder's own.
std::vector<Weight> room_for(const std::vector<Weight>& like) {
  model::WeightMemory memory;
  std::vector<Weight> out = like;
  for (Weight& t : out) t.value = memory.empty(t.value.sizes(), t.value.scalar_type());
  return out;
}

// The tensors of an adapter as a sender lists them: float32.
std::vector<Weight> room_for(const Manifest& adapter) {
  model::WeightMemory memory;
  std::vector<Weight> out;
  for (const Entry& e : adapter)
    out.push_back({e.name, memory.empty(e.shape, at::kFloat), e.shape});
  return out;
}

// In the order of the plan; a rank without a tensor has nothing there.
std::vector<Local> locals_of(const Plan& plan, const Manifest& manifest,
                             const std::vector<Weight>& tensors) {
  std::map<std::string_view, size_t> numbers;
  for (size_t i = 0; i < manifest.size(); ++i) numbers[manifest[i].name] = i;
  std::vector<Local> out;
  for (const Plan::Tensor& t : plan.tensors) {
    const auto found = numbers.find(t.name);
    out.push_back(found == numbers.end()
                      ? Local{}
                      : Local{tensors[found->second].value, manifest[found->second].slices});
  }
  return out;
}

template <class Call>
std::exception_ptr error_of(const Call& call) {
  try {
    call();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// On a thread of its own, for this one, whose interrupt ends it: it may wait for other ranks of its
// engine, and this one for it.
template <class Call>
auto started(const Call& call) {
  return std::async(std::launch::async, [call, interrupt = Interrupt::current()] {
    const Interruptible scope(interrupt);
    return call();
  });
}

// The sign of life of a rank that is still at work, and its interval: well within the timeouts of
// groups, which are of a second and more.
constexpr const char* kAtWork = "\x01";
constexpr const char* kToldBefore = "\x02";  // its hello, while others are at work
constexpr auto kBeat = std::chrono::milliseconds(100);

uint64_t drawn_number() {
  std::random_device source;
  return (uint64_t{source()} << 32) | source();
}

// The others have received an Error, whatever it was.
[[noreturn]] void throw_told(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    throw;
  } catch (...) {
    fail(Code::kInternal, text_of(error));
  }
}

}  // namespace

// The weights of this rank, as read from its engine.
struct Link::Mine {
  Hello hello;
  uint64_t base_version = 0;
  std::vector<Weight> base;     // for a receiver: sizes and types, without values
  std::vector<Weight> adapter;  // a sender's copies, which the engine may go on from
};

Link::Link(std::unique_ptr<mesh::Comm> comm, const Options& options)
    : comm_(std::move(comm)), options_(options), meeting_(drawn_number()) {
  require(options.num_senders >= 1 && options.num_senders < comm_->size(), Code::kInvalid,
          "sync: num_senders is ", options.num_senders, " of ", comm_->size(),
          " ranks, it must be from 1 to ", comm_->size() - 1, ", so that the others receive");
  require(options.bucket_bytes >= 1, Code::kInvalid, "sync: bucket_bytes is ", options.bucket_bytes,
          ", it must be at least 1");
}

Plan Link::plan_of(const std::vector<Manifest>& ranks) const {
  return plan(ranks, options_.num_senders, {.bucket_bytes = options_.bucket_bytes});
}

Plan Link::plan_of_base(const std::vector<Hello>& ranks) const {
  std::vector<Manifest> all;
  for (const Hello& hello : ranks) all.push_back(hello.base);
  return plan_of(all);
}

// Every receiver gets all of it; empty without an adapter.
Plan Link::plan_of_adapter(const std::vector<Hello>& ranks) const {
  std::vector<Manifest> all;
  for (const Hello& hello : ranks) all.push_back(hello.sends ? hello.adapter : ranks[0].adapter);
  return plan_of(all);
}

Link::Mine Link::described(Engine& engine, const std::string& tenant, bool sends) {
  Mine out;
  engine.read_weights(tenant, [&](const WeightsView& view) {
    out.base_version = view.base_version;
    out.hello.base = manifest_of(view.base);
    if (!sends) {
      out.base = view.base;
      for (Weight& t : out.base) t.value = at::empty_like(t.value, at::device(at::kMeta));
      return;
    }
    out.hello.lora_json = view.lora_json;
    out.hello.adapter = manifest_of(view.adapter);
    out.hello.trains_base = view.trains_base;
    out.adapter = room_for(out.hello.adapter);
    for (size_t i = 0; i < view.adapter.size(); ++i)
      out.adapter[i].value.copy_(view.adapter[i].value);
  });
  out.hello.knows_base = compared_base_ == out.base_version;
  return out;
}

// Describes what this rank has while others do, and tells them that it lives for as long as that
// takes: an engine may be busy. Every rank tells its hello once.
std::vector<Hello> Link::meet(const std::function<Mine()>& describe, Mine& mine) {
  auto at_work = started(describe);
  std::vector<std::string> hellos(static_cast<size_t>(comm_->size()));
  std::exception_ptr failed;
  std::string own = kAtWork;
  for (bool all_told = false; !all_told;) {
    if (own == kToldBefore) {
      std::this_thread::sleep_for(kBeat);
    } else if (at_work.wait_for(kBeat) == std::future_status::ready) {
      failed = error_of([&] { mine = at_work.get(); });
      own = to_bytes(told(mine.hello, failed));
    }
    const std::vector<std::string> texts = comm_->all_gather(own);
    for (size_t r = 0; r < texts.size(); ++r)
      if (texts[r] != kAtWork && texts[r] != kToldBefore) hellos[r] = texts[r];
    if (own != kAtWork) own = kToldBefore;
    all_told = std::ranges::none_of(hellos, [](const std::string& h) { return h.empty(); });
  }
  if (failed) throw_told(failed);
  std::vector<Hello> out;
  for (const std::string& bytes : hellos) out.push_back(hello_from_bytes(bytes));
  require_fit(out, options_.num_senders);
  return out;
}

Hello Link::told(Hello hello, const std::exception_ptr& failed) const {
  hello.error = text_of(failed);
  hello.bucket_bytes = options_.bucket_bytes;
  hello.num_senders = options_.num_senders;
  hello.meeting = meeting_;
  return hello;
}

// Compares every sampler's base model with the model's, unless none has changed since that was
// done. Ranks may hold different parts: what is compared is what would be sent.
bool Link::same_base(Engine& engine, const std::string& tenant, const Mine& mine,
                     const std::vector<Hello>& ranks, const Plan& plan) {
  if (std::ranges::all_of(ranks, [](const Hello& h) { return h.knows_base; })) return true;
  std::string bytes;
  settle([&] {
    engine.read_weights(tenant, [&](const WeightsView& view) {
      const std::vector<uint64_t> sums =
          checksums(plan, comm_->rank(), locals_of(plan, mine.hello.base, view.base));
      bytes.assign(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(uint64_t));
    });
  });
  std::vector<std::vector<uint64_t>> all;
  for (const std::string& of_rank : comm_->all_gather(bytes)) {
    all.emplace_back(of_rank.size() / sizeof(uint64_t));
    std::memcpy(all.back().data(), of_rank.data(), of_rank.size());
  }
  const bool same = are_equal(plan, all);
  compared_base_ = same ? mine.base_version : 0;
  return same;
}

// Does its work while others do theirs, and tells them that it lives for as long as it takes. Where
// a rank has failed, all throw.
void Link::settle(const std::function<void()>& work) {
  std::future<void> at_work;
  if (work) at_work = started(work);
  std::exception_ptr failed;
  while (true) {
    const bool is_at_work = at_work.valid() && at_work.wait_for(kBeat) != std::future_status::ready;
    if (at_work.valid() && !is_at_work) failed = error_of([&] { at_work.get(); });
    const std::vector<std::string> texts =
        comm_->all_gather(is_at_work ? kAtWork : text_of(failed));
    if (std::ranges::any_of(texts, [](const std::string& t) { return t == kAtWork; })) continue;
    if (failed) throw_told(failed);
    for (size_t r = 0; r < texts.size(); ++r)
      require(texts[r].empty(), Code::kInternal, "sync: rank ", r, ": ", texts[r]);
    return;
  }
}

int64_t Link::transferred(const Plan& plan, const Manifest& manifest,
                          const std::vector<Weight>& tensors) {
  return transfer(*comm_, plan, locals_of(plan, manifest, tensors), options_.bucket_bytes);
}

void Link::leave(const std::exception_ptr& why) {
  comm_->close("sync: rank " + std::to_string(comm_->rank()) + ": " + text_of(why));
}

// A rank that fails between messages cannot be waited for: the others hear of its Error at once, as
// in_step() tells them of anything else.
template <class Call>
void Link::or_close(const Call& call) {
  try {
    call();
  } catch (const Error&) {
    leave(std::current_exception());
    throw;
  }
}

// Errors are all ranks', or have been told to them. Of anything else, as a lack of memory or an
// interrupt, the others have not heard, and would wait.
template <class Call>
Synced Link::in_step(const Call& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (...) {
    leave(std::current_exception());
    throw;
  }
}

// Everything that it remembers is of one engine.
void Link::meet_engine(const Engine& engine) {
  const auto last = std::exchange(engine_, engine.life()).lock();
  if (last && last == engine_.lock()) return;
  compared_base_ = 0;
  adapters_.clear();
  replaced_.clear();
}

Synced Link::send(Engine& engine, const std::string& tenant, const std::string& name) {
  return in_step([&] { return sent(engine, tenant, name); });
}

Synced Link::receive(Engine& engine, const std::string& frozen) {
  return in_step([&] { return received(engine, frozen); });
}

Synced Link::sent(Engine& engine, const std::string& tenant, const std::string& name) {
  meet_engine(engine);
  Mine mine;
  mine.hello.sends = true;
  const auto describe = [&] {
    Mine out = described(engine, tenant, true);
    out.hello.sends = true;
    out.hello.adapter_name = out.hello.lora_json.empty() ? "" : name;
    return out;
  };
  const std::vector<Hello> ranks = meet(describe, mine);
  Synced out{.adapter_name = mine.hello.adapter_name};
  const Plan of_base = plan_of_base(ranks), of_adapter = plan_of_adapter(ranks);
  out.has_base = mine.hello.trains_base || !same_base(engine, tenant, mine, ranks, of_base);
  or_close([&] {
    if (out.has_base) {
      // On the engine's thread: a copy of all weights would double their memory.
      std::exception_ptr lost;
      engine.read_weights(tenant, [&](const WeightsView& view) {
        lost = error_of([&] { out.num_bytes += transferred(of_base, mine.hello.base, view.base); });
      });
      if (lost) std::rethrow_exception(lost);
    }
    out.num_bytes += transferred(of_adapter, mine.hello.adapter, mine.adapter);
  });
  settle();  // all has arrived everywhere ...
  settle();  // ... and everybody has switched
  return out;
}

Synced Link::received(Engine& engine, const std::string& frozen) {
  meet_engine(engine);
  Mine mine;
  const std::vector<Hello> ranks = meet([&] { return described(engine, frozen, false); }, mine);
  const Hello& sender = ranks[0];
  const bool has_adapter = !sender.lora_json.empty();
  Synced out{.adapter_name = sender.adapter_name, .tenant = frozen};
  const Plan of_base = plan_of_base(ranks), of_adapter = plan_of_adapter(ranks);
  out.has_base = sender.trains_base || !same_base(engine, frozen, mine, ranks, of_base);
  engine::NewWeights weights;
  or_close([&] {
    if (out.has_base) {
      weights.base = room_for(mine.base);
      out.num_bytes += transferred(of_base, mine.hello.base, weights.base);
    }
    weights.adapter = room_for(sender.adapter);
    out.num_bytes += transferred(of_adapter, sender.adapter, weights.adapter);
  });
  settle();
  settle([&] {
    for (const std::string& old : std::exchange(replaced_, {}))
      engine.run<engine::Done>(engine::Delete{old});
    if (has_adapter) out.tenant = adapter_tenant(engine, sender);
    if (out.has_base || has_adapter) engine.replace_weights(out.tenant, std::move(weights));
  });
  return out;
}

// The tenant that samples with the adapter. One of another config is deleted at the next sync:
// until this one returns, callers know no other.
const std::string& Link::adapter_tenant(Engine& engine, const Hello& sender) {
  Adapter& known = adapters_[sender.adapter_name];
  if (known.lora_json == sender.lora_json) return known.tenant;
  // A name that nobody else gives: an engine may have tenants of other links, or of ranks that met
  // before. The same on all ranks of an engine.
  std::ostringstream tenant;
  tenant << "sync/" << std::hex << sender.meeting << '/' << std::dec << ++num_tenants_ << '/'
         << sender.adapter_name;
  engine.run<engine::Done>(engine::Create{.tenant = tenant.str(), .lora_json = sender.lora_json});
  if (!known.tenant.empty()) replaced_.push_back(known.tenant);
  known = {tenant.str(), sender.lora_json};
  return known.tenant;
}

Pair::Pair(int64_t bucket_bytes, double timeout_s)
    : Pair(mesh::thread_comms(2, timeout_s), Options{1, bucket_bytes}) {}

Pair::Pair(std::vector<std::unique_ptr<mesh::Comm>> comms, const Options& options)
    : sender_(std::move(comms[0]), options), receiver_(std::move(comms[1]), options) {}

Synced Pair::sync(Engine& from, const std::string& tenant, const std::string& name, Engine& to,
                  const std::string& frozen) {
  auto sent = std::async(std::launch::async, [&] { sender_.send(from, tenant, name); });
  Synced out;
  const std::exception_ptr here = error_of([&] { out = receiver_.receive(to, frozen); });
  const std::exception_ptr there = error_of([&] { sent.get(); });
  if (there && !(here && text_of(there).starts_with("sync: rank "))) std::rethrow_exception(there);
  if (here) std::rethrow_exception(here);
  return out;
}

}  // namespace twinkle::sync
