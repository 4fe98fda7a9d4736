#include "twinkle/sync/link.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/sync/checksum.h"
#include "twinkle/sync/transfer.h"

namespace twinkle::sync {
namespace {

using engine::Engine;
using engine::Weight;
using engine::WeightsView;

Manifest manifest_of(const std::vector<Weight>& tensors) {
  Manifest out;
  for (const Weight& t : tensors)
    out.push_back({t.name,
                   t.value.sizes().vec(),
                   std::string(t.value.dtype().name()),
                   t.value.element_size(),
                   {{0, t.value.numel()}}});
  return out;
}

// New tensors of a manifest, one after the other in one block.
std::vector<Weight> room_for(const Manifest& manifest, const std::vector<at::ScalarType>& types) {
  std::vector<int64_t> begins{0};
  for (const Entry& e : manifest) {  // where numbers of its type may lie
    int64_t& begin = begins.back();
    begin = (begin + e.element_size - 1) / e.element_size * e.element_size;
    begins.push_back(begin + e.num_elements() * e.element_size);
  }
  const at::Tensor block = at::empty({begins.back()}, at::kByte);
  std::vector<Weight> out;
  for (size_t i = 0; i < manifest.size(); ++i) {
    const Entry& e = manifest[i];
    const int64_t bytes = e.num_elements() * e.element_size;
    out.push_back({e.name, block.narrow(0, begins[i], bytes).view(types[i]).view(e.shape)});
  }
  return out;
}

std::vector<at::ScalarType> of_float32(size_t count) {
  return std::vector<at::ScalarType>(count, at::kFloat);
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

std::string text_of(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace

// What this rank has, as read from its engine.
struct Link::Mine {
  Hello hello;
  uint64_t base_version = 0;
  std::vector<at::ScalarType> base_types;
  std::vector<Weight> adapter;  // copies, which the engine may go on from
};

Link::Link(std::unique_ptr<mesh::Comm> comm, const Options& options)
    : comm_(std::move(comm)), options_(options) {
  require(options.num_senders >= 1 && options.num_senders < comm_->size(), Code::kInvalid,
          "sync: num_senders is ", options.num_senders, " of ", comm_->size(),
          " ranks, it must be from 1 to ", comm_->size() - 1, ", so that the others receive");
  require(options.bucket_bytes >= 1, Code::kInvalid, "sync: bucket_bytes is ", options.bucket_bytes,
          ", it must be at least 1");
}

Plan Link::plan_of_base(const std::vector<Hello>& ranks) const {
  std::vector<Manifest> all;
  for (const Hello& hello : ranks) all.push_back(hello.base);
  return plan(all, options_.num_senders, options_.bucket_bytes);
}

// Every receiver gets all of it; empty without an adapter.
Plan Link::plan_of_adapter(const std::vector<Hello>& ranks) const {
  std::vector<Manifest> all;
  for (const Hello& hello : ranks) all.push_back(hello.sends ? hello.adapter : ranks[0].adapter);
  return plan(all, options_.num_senders, options_.bucket_bytes);
}

Link::Mine Link::described(Engine& engine, const std::string& tenant, bool sends) {
  Mine out;
  engine.read_weights(tenant, [&](const WeightsView& view) {
    out.base_version = view.base_version;
    out.hello.base = manifest_of(view.base);
    for (const Weight& t : view.base) out.base_types.push_back(t.value.scalar_type());
    if (!sends) return;
    out.hello.lora_json = view.lora_json;
    out.hello.adapter = manifest_of(view.adapter);
    out.hello.trains_base = view.trains_base;
    out.adapter = room_for(out.hello.adapter, of_float32(view.adapter.size()));
    for (size_t i = 0; i < view.adapter.size(); ++i)
      out.adapter[i].value.copy_(view.adapter[i].value);
  });
  out.hello.knows_base = compared_base_ == out.base_version;
  return out;
}

std::vector<Hello> Link::meet(Hello hello, const std::exception_ptr& failed) {
  hello.error = text_of(failed);
  hello.bucket_bytes = options_.bucket_bytes;
  hello.num_senders = options_.num_senders;
  std::vector<Hello> out;
  for (const std::string& bytes : comm_->all_gather(to_bytes(hello)))
    out.push_back(hello_from_bytes(bytes));
  if (failed) std::rethrow_exception(failed);
  require_fit(out, options_.num_senders);
  return out;
}

// Compares all ranks' base models with rank 0's, unless none has changed since that was done.
bool Link::same_base(Engine& engine, const std::string& tenant, const Mine& mine,
                     const std::vector<Hello>& ranks) {
  if (std::ranges::all_of(ranks, [](const Hello& h) { return h.knows_base; })) return true;
  std::vector<std::pair<std::string, uint64_t>> sums;
  const std::exception_ptr failed = error_of([&] {
    engine.read_weights(tenant, [&](const WeightsView& view) {
      const std::vector<uint64_t> of_all = checksums(view.base);
      for (size_t i = 0; i < of_all.size(); ++i) sums.emplace_back(view.base[i].name, of_all[i]);
    });
  });
  settle(failed);
  std::ranges::sort(sums);
  std::string bytes;
  for (const auto& [name, sum] : sums)
    bytes.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  const std::vector<std::string> all = comm_->all_gather(bytes);
  const bool same = std::ranges::all_of(all, [&](const std::string& s) { return s == all[0]; });
  compared_base_ = same ? mine.base_version : 0;
  return same;
}

// Every rank tells how it fares; where one has failed, all throw.
void Link::settle(const std::exception_ptr& failed) {
  const std::vector<std::string> texts = comm_->all_gather(text_of(failed));
  if (failed) std::rethrow_exception(failed);
  for (size_t r = 0; r < texts.size(); ++r)
    require(texts[r].empty(), Code::kInternal, "sync: rank ", r, ": ", texts[r]);
}

// A rank that fails between messages cannot be waited for: the others hear of it at once.
template <class Call>
void Link::or_close(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    comm_->close("sync: rank " + std::to_string(comm_->rank()) + ": " + error.what());
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
  meet_engine(engine);
  Mine mine;
  const std::exception_ptr failed = error_of([&] { mine = described(engine, tenant, true); });
  mine.hello.sends = true;
  mine.hello.adapter_name = mine.hello.lora_json.empty() ? "" : name;
  const std::vector<Hello> ranks = meet(mine.hello, failed);
  Synced out{.adapter_name = mine.hello.adapter_name};
  out.has_base = mine.hello.trains_base || !same_base(engine, tenant, mine, ranks);
  or_close([&] {
    if (out.has_base) {
      const Plan p = plan_of_base(ranks);
      // On the engine's thread: a copy of all weights would double their memory.
      std::exception_ptr lost;
      engine.read_weights(tenant, [&](const WeightsView& view) {
        lost = error_of([&] {
          out.num_bytes += transfer(*comm_, p, locals_of(p, mine.hello.base, view.base));
        });
      });
      if (lost) std::rethrow_exception(lost);
    }
    const Plan p = plan_of_adapter(ranks);
    out.num_bytes += transfer(*comm_, p, locals_of(p, mine.hello.adapter, mine.adapter));
  });
  settle(nullptr);  // all has arrived everywhere ...
  settle(nullptr);  // ... and everybody has switched
  return out;
}

Synced Link::receive(Engine& engine, const std::string& frozen) {
  meet_engine(engine);
  Mine mine;
  const std::exception_ptr failed = error_of([&] { mine = described(engine, frozen, false); });
  const std::vector<Hello> ranks = meet(mine.hello, failed);
  const Hello& sender = ranks[0];
  Synced out{.adapter_name = sender.adapter_name, .tenant = frozen};
  out.has_base = sender.trains_base || !same_base(engine, frozen, mine, ranks);
  std::vector<Weight> base, factors;
  or_close([&] {
    if (out.has_base) {
      const Plan p = plan_of_base(ranks);
      base = room_for(mine.hello.base, mine.base_types);
      out.num_bytes += transfer(*comm_, p, locals_of(p, mine.hello.base, base));
    }
    const Plan p = plan_of_adapter(ranks);
    factors = room_for(sender.adapter, of_float32(sender.adapter.size()));
    out.num_bytes += transfer(*comm_, p, locals_of(p, sender.adapter, factors));
  });
  settle(nullptr);
  settle(error_of([&] {
    for (const std::string& old : std::exchange(replaced_, {}))
      engine.run<engine::Done>(engine::Delete{old});
    if (!sender.lora_json.empty()) out.tenant = adapter_tenant(engine, sender);
    if (out.has_base) engine.replace_weights(frozen, std::move(base));
    if (!sender.lora_json.empty()) engine.replace_weights(out.tenant, std::move(factors));
  }));
  return out;
}

// The tenant that samples with the adapter. One of another config is deleted at the next sync:
// until this one returns, callers know no other.
const std::string& Link::adapter_tenant(Engine& engine, const Hello& sender) {
  Adapter& known = adapters_[sender.adapter_name];
  if (known.lora_json == sender.lora_json) return known.tenant;
  const std::string tenant = "sync/" + std::to_string(++num_tenants_) + "/" + sender.adapter_name;
  engine.run<engine::Done>(engine::Create{.tenant = tenant, .lora_json = sender.lora_json});
  if (!known.tenant.empty()) replaced_.push_back(known.tenant);
  known = {tenant, sender.lora_json};
  return known.tenant;
}

}  // namespace twinkle::sync
