// Where the weights of a model id and the rows of a data set's are: a directory or file as it
// stands, else what the hub tools print.
#pragma once
#include <filesystem>
#include <string>

namespace twinkle::cli {

enum class Download { kAll, kWithoutWeights };

// Asks `python -m twinkle.hub get ID` for anything that is no path here: hubs are Python's
// business. The interpreter is $TWINKLE_PYTHON, which the console script sets, else python3. Error
// kNotFound with what it said; kInvalid: a directory that holds an adapter.
std::string model_path(const std::string& id, Download download = Download::kAll);

bool is_adapter(const std::filesystem::path& folder);
// For before the model is read, which may take long. Error kNotFound: `field`, as --adapter,
// names no directory of an adapter.
void check_adapter(const std::string& folder, const std::string& field = "--adapter");
// The file or folder of a data set's rows that the C++ readers take: theirs as they are; for ids of
// hubs, aliases of TWINKLE_DATASET_ID_ALIASES, tables and folders that have any what `python -m
// twinkle.dataset.fetch get ID` prints. Error kNotFound with what it said; and as data::files_at.
std::string data_path(const std::string& id);

// The name of the model in an adapter's files, as twinkle.hub.name_of: a path as it is, an id
// without hf:// or ms://, the built-in model's own.
std::string model_name(const std::string& id);

}  // namespace twinkle::cli
