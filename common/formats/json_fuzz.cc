// Any text is parsed as JSON; whatever is accepted is walked.
#include <cstddef>
#include <cstdint>

#include "formats/json.h"

namespace {

size_t Walk(const sluice::formats::JsonValue& value) {
  size_t count = 1;
  for (const auto& element : value.array()) count += Walk(element);
  for (const auto& [key, member] : value.members()) count += key.size() + Walk(member);
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto value =
      sluice::formats::ParseJson({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (value.ok()) static_cast<void>(Walk(*value));
  return 0;
}
