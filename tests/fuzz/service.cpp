// The service over a null model: requests to its routes, and the records of its journal.
#include <memory>
#include <stdexcept>

#include "tests/fuzz/fuzz.h"
#include "twinkle/base/fields/codec.h"
#include "twinkle/engine/schedule/null_executor_for_test.h"
#include "twinkle/server/null_backend_for_test.h"
#include "twinkle/server/routes.h"
#include "twinkle/server/service/loop_for_test.h"

namespace twinkle::fuzz {
namespace {

namespace fs = std::filesystem;
using namespace server;

constexpr const char* kSession = "0123456789abcdef0123456789abcdef";

constexpr int64_t kCasesOfService = 2000;  // then another: it keeps what it accepted

struct Service {
  explicit Service(const fs::path& state) : services(backend, loop, state) {}
  ~Service() {
    services.close([this] { loop.run(); });
    dispatcher.close();
  }

  LoopForTest loop;
  engine::NullExecutor executor;
  engine::Dispatcher dispatcher{{.gather_ms = 0}, executor};
  NullBackend backend{dispatcher};
  Services services;
};

Command command(const std::string& path, const std::string& body) {
  return {.method = "POST",
          .path = "/api/v1/" + path,
          .content_type = "application/json",
          .owner = "a",
          .body = body,
          .chance = kSession,
          .time_ms = 1};
}

// To all routes that are journalled, with the ids of a service to which they come in this order.
std::vector<Command> commands() {
  const std::string session = std::string(R"("session_id":")") + kSession + R"(",)";
  const std::string run = std::string(R"({"model_id":")") + kSession + R"(:train:0","seq_id":)";
  std::vector<Command> out = {
      command("create_session", "{}"),
      command("create_model", "{" + session + R"("model_seq_id":0,"base_model":"null",)" +
                                  R"("lora_config":{"rank":8,"seed":1,"train_mlp":true}})"),
      command("forward_backward",
              forward_backward_bytes(std::string(kSession) + ":train:0", 1, "cross_entropy")),
      command("optim_step", run + R"(2,"adam_params":{"learning_rate":1e-3,"beta1":0.9}})"),
      command("save_weights", run + R"(3,"path":"a","overwrite":false})"),
      command("save_weights_for_sampler", run + R"(4,"sampling_session_seq_id":0})"),
      command("load_weights", "{" + session + R"("model_seq_id":1,"path":"tinker://)" + kSession +
                                  R"(:train:0/weights/a","optimizer":true})"),
      command("create_sampling_session",
              "{" + session + R"("sampling_session_seq_id":0,"base_model":"null"})"),
      command("asample", std::string(R"({"sampling_session_id":")") + kSession +
                             R"(:sample:0","seq_id":0,"num_samples":1,"prompt":{"chunks":[)" +
                             R"({"tokens":[1,2],"type":"encoded_text"}]},"sampling_params":)" +
                             R"({"max_tokens":2,"seed":1,"stop":["a"],"top_k":-1,"top_p":1.0}})"),
      command(std::string("sessions/") + kSession + "/finish", "{}")};
  out[2].content_type = "application/x-protobuf";
  return out;
}

// To the others that read a body.
std::vector<Command> questions() {
  const std::string session = std::string(R"({"session_id":")") + kSession + R"("})";
  const std::string run = std::string(kSession) + ":train:0";
  return {command("get_info", R"({"model_id":")" + run + R"("})"),
          command("weights_info", R"({"tinker_path":"tinker://)" + run + R"(/weights/a"})"),
          command("retrieve_future", R"({"request_id":")" + run + R"(:1"})"),
          command("session_heartbeat", session)};
}

void send(Service& service, const Command& c, const Reply& reply) {
  Request request;
  request.method = c.method;
  request.path = c.path;
  request.headers = {{"content-type", c.content_type}, {"x-api-key", c.owner}};
  request.body = c.body;
  route(std::move(request), service.services, reply);
}

// "PATH\nBODY" to a service that has a session, a run and a sampler.
void read_route(const std::string& bytes) {
  const size_t line = std::min(bytes.find('\n'), bytes.size());
  static std::unique_ptr<Service> service;
  static int64_t num_cases = 0;
  if (num_cases++ % kCasesOfService == 0) {
    service.reset();
    fs::remove_all(scratch_folder());
    service = std::make_unique<Service>(scratch_folder());
    for (const Command& c : commands()) replay(0, c, service->services);
  }
  Command sent = command(bytes.substr(0, line), line < bytes.size() ? bytes.substr(line + 1) : "");
  // A poll that is held is answered by a later case.
  const auto told = std::make_shared<int>(0);
  send(*service, sent, [told](const Response& response) {
    const int status = *told = response.status;
    if (status == 400 || status == 409 || (status >= 500 && status != 503))
      throw std::logic_error("status " + std::to_string(status) + ": " + response.body);
    if (status != 200) parse_json(response.body, "the answer");
  });
  service->loop.run();
  // Some routes answer behind what waits for the disk, or for a checkpoint.
  for (Worker* worker : {&service->services.disk, &service->services.reads}) {
    bool is_done = false;
    worker->run([] {}, service->loop, [&](auto&&) { is_done = true; });
    service->loop.run_until([&] { return is_done; });
  }
  require(*told == 200, Code::kInvalid, "refused");
}

// [kind][size, u16][payload], one after another: a journal's records with headers as they must be.
std::string packed(uint8_t kind, const std::string& payload) {
  return raw(kind) + raw(static_cast<uint16_t>(payload.size())) + payload;
}

template <class R>
std::string packed(const R& record) {
  ByteWriter writer;
  writer.put(record);
  return packed(R::kKind, writer.take());
}

std::string segment_of(const std::string& bytes) {
  std::string out;
  uint64_t sequence = 1;
  for (size_t at = 0; at + 3 <= bytes.size();) {
    const auto kind = static_cast<uint8_t>(bytes[at]);
    uint16_t size = 0;
    std::memcpy(&size, bytes.data() + at + 1, sizeof size);
    const std::string payload = bytes.substr(at + 3, size);
    const store::Header header = store::header_of({sequence++, kind, 1, payload});
    out += std::string(header.begin(), header.end()) + payload;
    at += 3 + payload.size();
  }
  return out;
}

// Twice: what the first start wrote, the second reads.
void read_records(const std::string& bytes) {
  const fs::path state = scratch_folder() / "state";
  fs::remove_all(state);
  fs::create_directories(state / "journal");
  file_of(segment_of(bytes), "state/journal/00000000000000000001.journal");
  for (int i = 0; i < 2; ++i) {
    Service service(state);
    service.services.open(
        {}, true,
        [&](uint64_t sequence, const Command& c) { server::replay(sequence, c, service.services); },
        [&] { service.loop.run(); });
  }
}

}  // namespace

Reader routes() {
  std::vector<std::string> cases;
  std::vector<Command> all = commands();
  for (const Command& c : questions()) all.push_back(c);
  for (const Command& c : all)
    if (c.content_type == "application/json")
      cases.push_back(c.path.substr(std::string("/api/v1/").size()) + "\n" + c.body);
  cases.push_back(std::string("forward_backward\n{\"model_id\":\"") + kSession +
                  ":train:0\",\"seq_id\":5}");  // it takes none, and uses its number up
  return {.name = "routes",
          .corpus = std::move(cases),
          .words = {"\"seq_id\":", "\"path\":\"..\"", "tinker://", kSession, "null", "1e999",
                    "[[[[", "9223372036854775808", "\"seq_id\":2147483647", "\xff", "\\u0000"},
          .read = read_route};
}

Reader records() {
  std::string whole = packed(Opened{.arithmetic = "{}", .model = "{}"});
  std::vector<std::string> words;
  for (const Command& c : commands()) {
    whole += packed(c);
    words.push_back(packed(c));
  }
  const std::string run = std::string(kSession) + ":train:0";
  const Ended ended{.request_id = run + ":0", .content_type = "application/json", .body = "{}"};
  const std::string failed = packed(Ended{.request_id = run + ":1", .failed = true, .body = "{}"});
  words.insert(words.end(), {packed(questions()[1]), packed(ended), failed, packed(Dropped{3}),
                             packed(Refused{2, "no"}), packed(Read{run + ":0", 1}),
                             packed(Snapshotted{.run = run, .folder = "a", .seq_id = 2}),
                             packed(7, ""), packed(2, "")});
  return {.name = "records",
          .corpus = {whole, whole + packed(ended) + failed + packed(Read{run + ":0", 1}),
                     whole + packed(Dropped{2}), whole + packed(Refused{2, "no"}),
                     whole + packed(ended) + packed(ended), "",
                     packed(Snapshotted{.run = run, .folder = "a", .seq_id = 2}) + whole},
          .words = std::move(words),
          .read = read_records};
}

}  // namespace twinkle::fuzz
