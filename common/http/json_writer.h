// Writes JSON text piece by piece.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice::http {

// The caller keeps the order of calls right: keys and values alternate inside objects.
// Thread-compatible.
class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Shut('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Shut(']'); }
  JsonWriter& Key(absl::string_view name);
  // Bytes that are not UTF-8 become U+FFFD.
  JsonWriter& String(absl::string_view value);
  JsonWriter& StringOrNull(absl::string_view value) {
    return value.empty() ? Null() : String(value);
  }
  JsonWriter& Int(int64_t value);
  // JSON has no infinities: what is not finite becomes -9999, which clients of log-probabilities
  // know.
  JsonWriter& Number(double value);
  JsonWriter& Bool(bool value) { return Raw(value ? "true" : "false"); }
  JsonWriter& Null() { return Raw("null"); }
  // A value that is JSON already.
  JsonWriter& Raw(absl::string_view json);

  std::string Take() { return std::move(out_); }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Shut(char bracket);
  void Separate();
  void AppendEscaped(absl::string_view value);

  std::string out_;
  bool comma_ = false;  // before the next key or value
};

}  // namespace sluice::http
