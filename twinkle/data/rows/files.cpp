#include "twinkle/data/rows/files.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"

namespace twinkle::data {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::pair<std::string_view, FileKind>, 9> kKinds = {
    {{".jsonl", FileKind::kLines},
     {".json", FileKind::kWhole},
     {".csv", FileKind::kWhole},
     {".tsv", FileKind::kWhole},
     {".txt", FileKind::kLines},
     {".parquet", FileKind::kTable},
     {".pq", FileKind::kTable},
     {".arrow", FileKind::kTable},
     {".lance", FileKind::kTable}}};

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::string all_extensions() {
  std::string out;
  for (const auto& [extension, kind] : kKinds)
    out.append(out.empty() ? "" : ", ").append(extension);
  return out;
}

// The known files of a folder, by name.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names = names_in(folder, error);
  require(!error, Code::kInvalid, "data: cannot read the folder ", folder.string(), ": ",
          error.message());
  std::ranges::sort(names);
  std::vector<fs::path> files;
  for (const std::string& name : names)
    if (kind_of_file(name) != FileKind::kOther) files.push_back(folder / name);
  require(!files.empty(), Code::kNotFound, "data: ", folder.string(), " holds no file of ",
          all_extensions());
  return files;
}

[[noreturn]] void fail_split(const fs::path& path, const std::string& split,
                             const std::vector<fs::path>& files, bool is_alone) {
  if (is_alone)
    fail(Code::kInvalid, "data: split is '", split, "', which is not in the name of ",
         path.string(), ": leave split out to read the file");
  constexpr size_t kShown = 8;
  std::string names;
  for (size_t i = 0; i < std::min(files.size(), kShown); ++i)
    names += (i ? ", " : "") + files[i].filename().string();
  fail(Code::kInvalid, "data: split is '", split, "', which is in no file's name in ",
       path.string(), "; there are ", names, files.size() > kShown ? ", ..." : "",
       ": name one of them as dataset_id, or leave split out to read all");
}

}  // namespace

std::string extension_of(const fs::path& file) { return lower(file.extension().string()); }

FileKind kind_of_file(const fs::path& file) {
  const std::string extension = extension_of(file);
  for (const auto& [known, kind] : kKinds)
    if (extension == known) return kind;
  return FileKind::kOther;
}

std::vector<fs::path> files_at(const fs::path& path, const std::string& split) {
  std::error_code ignored;
  const bool is_alone = !fs::is_directory(path, ignored) || extension_of(path) == ".lance";
  require(!is_alone || kind_of_file(path) != FileKind::kOther, Code::kInvalid,
          "data: ", path.string(), " has extension '", path.extension().string(),
          "', it must be one of ", all_extensions());
  const auto files = is_alone ? std::vector<fs::path>{path} : files_in(path);
  std::vector<fs::path> named;
  for (const fs::path& file : files)
    if (lower(file.stem().string()).find(lower(split)) != std::string::npos) named.push_back(file);
  if (!named.empty()) return named;
  if (split != "train") fail_split(path, split, files, is_alone);
  return files;
}

}  // namespace twinkle::data
