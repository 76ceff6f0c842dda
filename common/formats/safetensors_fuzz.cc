// Any bytes are parsed as a safetensors file; whatever is accepted must be readable to its last
// byte.
#include <cstddef>
#include <cstdint>

#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = sluice::formats::ParseSafetensors({data, size}, "fuzz");
  if (!header.ok()) return 0;
  volatile uint64_t sum = 0;
  for (const auto& tensor : header->tensors) {
    if (!tensor.data.empty()) sum = sum + tensor.data.front() + tensor.data.back();
  }
  return 0;
}
