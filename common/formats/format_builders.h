// Test support: builds the bytes of GGUF and safetensors files, well-formed or lying.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice::formats::testing {

// Appends the little-endian bytes of a scalar.
template <typename T>
void Put(std::string* out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->append(bytes, sizeof(T));
}

inline void PutString(std::string* out, absl::string_view text) {
  Put<uint64_t>(out, text.size());
  out->append(text.data(), text.size());
}

// A metadata pair with a payload that the caller encodes.
inline std::string GgufPair(absl::string_view key, uint32_t type, absl::string_view payload) {
  std::string out;
  PutString(&out, key);
  Put(&out, type);
  out.append(payload.data(), payload.size());
  return out;
}

inline std::string GgufTensorInfo(absl::string_view name, const std::vector<uint64_t>& dims,
                                  uint32_t type, uint64_t offset) {
  std::string out;
  PutString(&out, name);
  Put<uint32_t>(&out, static_cast<uint32_t>(dims.size()));
  for (uint64_t dim : dims) Put(&out, dim);
  Put(&out, type);
  Put(&out, offset);
  return out;
}

// The file: every field can be set to a lie before Build.
struct GgufBytes {
  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  std::vector<std::string> pairs;
  std::vector<std::string> tensors;
  int64_t extra_tensors = 0;  // added to the tensor count
  int64_t extra_pairs = 0;
  uint64_t alignment = 32;  // of the padding
  std::string data;

  std::string Build() const {
    std::string out;
    Put(&out, magic);
    Put(&out, version);
    Put<uint64_t>(&out, tensors.size() + static_cast<uint64_t>(extra_tensors));
    Put<uint64_t>(&out, pairs.size() + static_cast<uint64_t>(extra_pairs));
    for (const std::string& pair : pairs) out += pair;
    for (const std::string& tensor : tensors) out += tensor;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }
};

// A safetensors file with this header text and data.
inline std::string SafetensorsBytes(absl::string_view header, absl::string_view data) {
  std::string out;
  PutString(&out, header);
  out.append(data.data(), data.size());
  return out;
}

inline absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace sluice::formats::testing
