// A journal's folder with one segment, twice: what the first opening cuts off, the second does not
// meet.
#include "twinkle/store/journal.h"

#include <stdexcept>

#include "tests/fuzz/fuzz.h"

namespace twinkle::fuzz {
namespace {

std::string record(uint64_t sequence, const std::string& payload) {
  const store::Header header = store::header_of({sequence, 1, 1, payload});
  return std::string(header.begin(), header.end()) + payload;
}

void read_journal(const std::string& bytes) {
  const std::filesystem::path folder = file_of(bytes, "00000000000000000001.journal").parent_path();
  uint64_t records[2] = {0, 0};
  for (uint64_t& count : records) {
    store::Journal journal(folder);
    const auto& report = journal.open([&](const store::Record&) { ++count; });
    if (report.next != count + 1) throw std::logic_error("a record was skipped");
    for (uint64_t i = 1; i <= count; ++i) journal.read(i);
  }
  if (records[0] != records[1]) throw std::logic_error("the second opening read other records");
}

}  // namespace

Reader journal() {
  const std::string three = record(1, "abc") + record(2, "") + record(3, std::string(300, 'x'));
  return {.name = "journal",
          .corpus = {three, three + three, three.substr(0, 50), record(2, "a"), ""},
          .words = {record(1, ""), record(2, "b"), record(4, "c"), raw<uint32_t>(11),
                    raw<uint32_t>(0xffffffff), std::string(40, '\0')},
          .read = read_journal};
}

}  // namespace twinkle::fuzz
