// Strong types for the identifiers of the system: one cannot be passed where another is meant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace sluice {

// A value of type `Rep` that only compares, hashes and prints. `Tag` makes each id its own type.
template <typename Tag, typename Rep>
class StrongId {
 public:
  StrongId() = default;
  explicit StrongId(Rep value) : value_(std::move(value)) {}
  const Rep& value() const { return value_; }

  friend bool operator==(const StrongId& a, const StrongId& b) { return a.value_ == b.value_; }
  friend bool operator!=(const StrongId& a, const StrongId& b) { return !(a == b); }
  friend bool operator<(const StrongId& a, const StrongId& b) { return a.value_ < b.value_; }
  template <typename H>
  friend H AbslHashValue(H state, const StrongId& id) {
    return H::combine(std::move(state), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& out, const StrongId& id) {
    return out << id.value_;
  }

 private:
  Rep value_{};
};

// Chosen by the client or the router; at most kRequestIdBytesMax bytes.
using RequestId = StrongId<struct RequestIdTag, std::string>;
using TenantId = StrongId<struct TenantIdTag, std::string>;
// The configured name of a worker; stays the same over restarts.
using WorkerId = StrongId<struct WorkerIdTag, std::string>;
// Random at every process start; tells a restarted worker from its predecessor.
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;
// A sequence inside one engine; never reused within a process.
using SequenceId = StrongId<struct SequenceIdTag, uint64_t>;
// Grows at every allocation of any page of a pool; 0 means "never allocated".
using Generation = StrongId<struct GenerationTag, uint64_t>;
// A timer of one loop.
using TimerId = uint64_t;
inline constexpr TimerId kNoTimer = 0;
// Index of a page in its pool.
using PageIndex = StrongId<struct PageIndexTag, uint32_t>;

inline constexpr size_t kRequestIdBytesMax = 128;

// A random 128-bit value: lease ids, digests kept to 128 bits, block keys.
struct Id128 {
  uint64_t high = 0;
  uint64_t low = 0;

  bool IsZero() const { return high == 0 && low == 0; }
  std::string ToHex() const;
  // 16 bytes, big-endian, as carried in protos.
  std::string ToBytes() const;
  // Returns false unless `bytes` is 16 bytes long.
  static bool FromBytes(absl::string_view bytes, Id128* out);

  friend bool operator==(const Id128& a, const Id128& b) {
    return a.high == b.high && a.low == b.low;
  }
  friend bool operator!=(const Id128& a, const Id128& b) { return !(a == b); }
  friend bool operator<(const Id128& a, const Id128& b) {
    return a.high != b.high ? a.high < b.high : a.low < b.low;
  }
  template <typename H>
  friend H AbslHashValue(H state, const Id128& id) {
    return H::combine(std::move(state), id.high, id.low);
  }
  friend std::ostream& operator<<(std::ostream& out, const Id128& id) { return out << id.ToHex(); }
};

// Fresh for every attempt of a request; never served twice by a holder.
using LeaseId = StrongId<struct LeaseIdTag, Id128>;

}  // namespace sluice
