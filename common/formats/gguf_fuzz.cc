// Any bytes are parsed as a GGUF file; whatever is accepted must be readable to its last byte.
#include <cstddef>
#include <cstdint>

#include "formats/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sluice::formats::GgufFile;
  const auto file = GgufFile::Parse({data, size}, "fuzz");
  if (!file.ok()) return 0;
  volatile uint64_t sum = 0;
  for (const auto& tensor : file->tensors()) {
    sum = sum + tensor.rows() + tensor.data.front() + tensor.data.back();
  }
  for (const char* key : {"a", "b", "general.alignment", "tokenizer.ggml.tokens"}) {
    if (const auto text = file->GetString(key); text.ok()) sum = sum + text->size();
    if (const auto strings = file->GetStringArray(key); strings.ok()) {
      for (const auto& text : *strings)
        sum = sum + text.size() + (text.empty() ? 0u : static_cast<unsigned char>(text.back()));
    }
    if (const auto numbers = file->GetIntArray(key); numbers.ok()) sum = sum + numbers->size();
    static_cast<void>(file->GetU64(key).ok() || file->GetF64(key).ok());
  }
  return 0;
}
