// The files of rows at a path: which names are read, and by whom, and which files of a folder a
// split has. Opens none.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace twinkle::data {

// In lower case: ".jsonl" of "A.JSONL"; empty: none.
std::string extension_of(const std::filesystem::path& file);

// How a file's rows are read, by its extension in any case.
enum class FileKind {
  kOther,  // not at all
  kLines,  // .jsonl, .txt: Dataset::read, or LineRows, one after the other
  kWhole,  // .json, .csv, .tsv: Dataset::read
  kTable   // .parquet, .pq, .arrow, .lance: the Python package, by Arrow
};
FileKind kind_of_file(const std::filesystem::path& file);

// The file at `path`, which may also be a folder of the name *.lance; or those of a folder in the
// order of their names, as far as they have a known extension and `split`, in any case of ASCII
// letters, in their name before it. Where none has the usual split, "train", it is all. Error
// kNotFound: a folder without such files; kInvalid: another extension, or another split that is in
// no name; a folder that cannot be read.
std::vector<std::filesystem::path> files_at(const std::filesystem::path& path,
                                            const std::string& split = "train");

}  // namespace twinkle::data
