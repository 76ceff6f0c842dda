// The envelope of what transports tell each other: numbers, ids and byte strings between a magic
// number and a hash, so that random, truncated and foreign bytes are told apart. It guards against
// mistakes, not against malice. Internal to the folder.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/hash.h"
#include "base/ids.h"

namespace sluice::transport {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

// `version` seeds the hash and grows with every change of a format, so that releases refuse each
// other clearly.
class EnvelopeWriter {
 public:
  explicit EnvelopeWriter(uint32_t magic) { Number(magic); }
  template <typename T>
  void Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Id(const Id128& id) {
    Number(id.high);
    Number(id.low);
  }
  void Blob(absl::string_view blob) {
    Number(static_cast<uint32_t>(blob.size()));
    bytes_.append(blob.data(), blob.size());
  }
  std::string Sealed(uint64_t version) && {
    Number(Hash64(bytes_.data(), bytes_.size(), version));
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

// The refusal of bytes that are no envelope, or of another kind or version. `what`: "a hello".
inline absl::Status NotOurs(absl::string_view what, absl::string_view bytes) {
  return absl::InvalidArgumentError(absl::StrCat("not ", what, " of this version: ", bytes.size(),
                                                 " bytes that do not pass the check"));
}

// Values are zero once something was wrong; AtEnd tells.
class EnvelopeReader {
 public:
  EnvelopeReader(absl::string_view bytes, uint32_t magic, uint64_t version) : left_(bytes) {
    constexpr size_t kHash = sizeof(uint64_t);
    if (bytes.size() < sizeof(magic) + kHash) return;
    uint64_t hash = 0;
    std::memcpy(&hash, bytes.data() + bytes.size() - kHash, kHash);
    left_.remove_suffix(kHash);
    ok_ = hash == Hash64(left_.data(), left_.size(), version);
    ok_ = Number<uint32_t>() == magic && ok_;
  }
  template <typename T>
  T Number() {
    T value{};
    const absl::string_view bytes = Take(sizeof(T));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  Id128 Id() {
    Id128 id;
    id.high = Number<uint64_t>();
    id.low = Number<uint64_t>();
    return id;
  }
  std::string Blob() { return std::string(Take(Number<uint32_t>())); }
  // Everything was there and nothing is left.
  bool AtEnd() const { return ok_ && left_.empty(); }

 private:
  absl::string_view Take(size_t bytes) {
    ok_ = ok_ && left_.size() >= bytes;
    if (!ok_) return {};
    const absl::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  absl::string_view left_;
  bool ok_ = false;
};

}  // namespace sluice::transport
