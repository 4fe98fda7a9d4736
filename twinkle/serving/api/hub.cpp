// The read paths of Hugging Face's hub for the tokenizers and configurations of the models that are
// served: with HF_ENDPOINT=URL/hf a client finds them by any served name, and sends HF_TOKEN as its
// key. Never weights. The disk is read by its own thread.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>

#include "twinkle/base/file.h"
#include "twinkle/server/replay/brief.h"
#include "twinkle/serving/api/operator.h"

namespace twinkle::server::api {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;

// Also keeps paths out: what has a '/' or begins with '.' is none of these.
bool is_public(std::string_view file) {
  constexpr std::array kFiles{"tokenizer.json",
                              "tokenizer_config.json",
                              "special_tokens_map.json",
                              "merges.txt",
                              "config.json",
                              "generation_config.json",
                              "vocab.json",
                              "vocab.txt",
                              "chat_template.jinja",
                              "chat_template.json"};
  return std::ranges::find(kFiles, file) != kFiles.end();
}

// The repository that the SDK's get_tokenizer() asks for, for a model of this name.
std::string repository_of(const std::string& name) {
  if (name.starts_with("meta-llama/Llama-3"))
    return "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer";
  return std::ranges::count(name, '/') == 2 ? name.substr(0, name.rfind('/')) : name;
}

struct PublicFile {
  std::string name, etag;
  uintmax_t size;
};

struct Repository {
  fs::path folder;
  std::vector<PublicFile> files;
  std::string commit;  // 40 hexadecimal digits, as clients expect; others when a file changes
};

// A file, and no link that leaves the folder; but in a cache of the hub's each file is a link to
// the repository's blobs: models--A--B/snapshots/COMMIT/FILE -> models--A--B/blobs/HASH.
bool is_within(const fs::path& folder, const std::string& name) {
  std::error_code error;
  if (!fs::is_regular_file(folder / name, error)) return false;
  if (!fs::is_symlink(folder / name, error)) return !error;
  const fs::path own = fs::canonical(folder, error);
  if (error) return false;
  const fs::path file = fs::canonical(folder / name, error);
  if (error) return false;
  const bool is_cached = own.parent_path().filename() == "snapshots";
  return file.parent_path() == own ||
         (is_cached && file.parent_path() == own.parent_path().parent_path() / "blobs");
}

Repository open(const ModelFacts& model) {
  Repository out{.folder = model.directory};
  std::error_code ignored;  // files that cannot be read are not listed
  if (fs::is_regular_file(out.folder, ignored)) out.folder = out.folder.parent_path();
  intmax_t newest = INTMAX_MIN;  // times before their clock's epoch are negative
  uintmax_t bytes = 0;
  std::array<char, 64> text{};
  auto names = names_in(out.folder, ignored);
  std::ranges::sort(names);
  for (const std::string& name : names) {
    if (!is_public(name) || !is_within(out.folder, name)) continue;
    const uintmax_t size = fs::file_size(out.folder / name, ignored);
    const intmax_t time =
        fs::last_write_time(out.folder / name, ignored).time_since_epoch().count();
    std::snprintf(text.data(), text.size(), "%" PRIxMAX "-%" PRIxMAX, static_cast<uintmax_t>(time),
                  size);
    out.files.push_back({name, text.data(), size});
    newest = std::max(newest, time);
    bytes += size;
  }
  std::snprintf(text.data(), text.size(), "%016" PRIxMAX "%024" PRIxMAX,
                static_cast<uintmax_t>(newest), bytes);
  out.commit = text.data();
  return out;
}

// Hub clients act on the code, and show the message.
Response refuse(const char* code, const std::string& text) {
  Response out = refusal(404, text);
  out.headers = {{"X-Error-Code", code}, {"X-Error-Message", brief(text)}};
  return out;
}

using HubFiles = std::map<std::string, HubFile>;

// Read once, whoever asks, until it changes.
std::shared_ptr<const std::string> content_of(const Repository& repository, const PublicFile& file,
                                              HubFiles& files) {
  HubFile& known = files[file.name];
  if (known.etag != file.etag)
    known = {file.etag, std::make_shared<const std::string>(
                            read_file(repository.folder / file.name, "server", kMaxFileBytes))};
  return known.bytes;
}

Response file(const Repository& repository, const std::string& name, const ModelFacts& model,
              HubFiles& files) {
  const auto found = std::ranges::find(repository.files, name, &PublicFile::name);
  if (found == repository.files.end()) {
    const bool is_one_file = model.directory.ends_with(".gguf");
    return refuse("EntryNotFound",
                  "server: '" + name +
                      "' is no file of this model's tokenizer or configuration, or a link out of "
                      "its folder" +
                      (is_one_file ? "; it is a .gguf file, and of those next to it only "
                                     "tokenizer.json and the like are given"
                                   : ""));
  }
  return {.content_type = name.ends_with(".json") ? "application/json" : "text/plain",
          .headers = {{"ETag", '"' + found->etag + '"'}, {"X-Repo-Commit", repository.commit}},
          .shared = content_of(repository, *found, files)};
}

Response model_info(const Repository& repository, const std::string& id) {
  JsonArray siblings;
  for (const PublicFile& f : repository.files)
    siblings.push_back(JsonObject{{"rfilename", f.name}});
  return json({{"id", id},
               {"modelId", id},
               {"sha", repository.commit},
               {"private", false},
               {"disabled", false},
               {"tags", JsonArray{}},
               {"siblings", std::move(siblings)}});
}

Response tree(const Repository& repository) {
  JsonArray files;
  for (const PublicFile& f : repository.files)
    files.push_back(
        JsonObject{{"type", "file"}, {"path", f.name}, {"size", f.size}, {"oid", f.etag}});
  return json(files);
}

std::vector<std::string> segments_of(const std::string& path) {
  std::vector<std::string> out{""};
  for (const char c : path) {
    if (c == '/')
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

}  // namespace

// {id}/resolve/{revision}/{file}, api/models/{id}, api/models/{id}/revision/{revision},
// api/models/{id}/tree/{revision}[/{folder}], with ids of one or two segments. Every revision is
// the one that is served.
Task<Response> hub(Call& call) {
  std::vector<std::string> parts = segments_of(call.path.at("path"));
  const bool is_api = parts.size() > 2 && parts[0] == "api" && parts[1] == "models";
  if (is_api) parts.erase(parts.begin(), parts.begin() + 2);
  const auto end = std::ranges::find_if(parts, [&](const std::string& part) {
    return is_api ? part == "revision" || part == "tree" : part == "resolve";
  });
  std::string id;
  for (auto part = parts.begin(); part != end; ++part) id += (id.empty() ? "" : "/") + *part;
  const std::vector<std::string> rest(end, parts.end());

  const ModelFacts& model = call.core.backend().model();
  const bool is_served = std::ranges::any_of(model.names, [&](const std::string& name) {
    return id == name || id == repository_of(name);
  });
  if (!is_served)
    co_return refuse("RepoNotFound",
                     "server: '" + id +
                         "' is not served here; get_server_capabilities() lists the names. What "
                         "the hub has, data sets too, is asked for without HF_ENDPOINT");
  Response out;
  const auto make = [&, &files = call.service.hub_files] {
    const Repository repository = open(model);
    if (is_api && (rest.empty() || (rest.size() == 2 && rest[0] == "revision")))
      out = model_info(repository, id);
    else if (is_api && rest.size() == 2 && rest[0] == "tree")
      out = tree(repository);
    else if (!is_api && rest.size() == 3)
      out = file(repository, rest[2], model, files);
    else
      out = refuse("EntryNotFound", "server: there is no " + call.request.path);
  };
  co_await core::on(call.core.disk(), call.core.loop(), make);
  co_return out;
}

}  // namespace twinkle::server::api
