#include "transport/ucx/ucx_wire.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "transport/transport.h"

namespace sluice::transport {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

constexpr uint32_t kAddressMagic = 0x61756c73;  // "slua"
constexpr uint32_t kKeyMagic = 0x6b756c73;      // "sluk"
constexpr uint32_t kPrefixMagic = 0x6d756c73;   // "slum"
// Seed of the envelope's hash; grows with every change of the format, so that releases refuse each
// other clearly.
constexpr uint64_t kVersion = 1;

class Writer {
 public:
  explicit Writer(uint32_t magic) { Number(magic); }
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
  std::string Sealed() && {
    Number(Hash64(bytes_.data(), bytes_.size(), kVersion));
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

class Reader {
 public:
  // Checks magic and hash; ok() is false from the start if they are wrong.
  Reader(absl::string_view bytes, uint32_t magic) : left_(bytes) {
    constexpr size_t kHash = sizeof(uint64_t);
    if (bytes.size() < sizeof(magic) + kHash) return;
    uint64_t hash = 0;
    std::memcpy(&hash, bytes.data() + bytes.size() - kHash, kHash);
    left_.remove_suffix(kHash);
    ok_ = hash == Hash64(left_.data(), left_.size(), kVersion);
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

absl::Status NotOurs(absl::string_view what, absl::string_view bytes) {
  return absl::InvalidArgumentError(absl::StrCat("not ", what, " of this version: ", bytes.size(),
                                                 " bytes that do not pass the check"));
}

}  // namespace

std::string UcxAddress::Encode() const {
  Writer writer(kAddressMagic);
  writer.Blob(backend);
  writer.Id(transport);
  writer.Blob(worker_address);
  return std::move(writer).Sealed();
}

absl::StatusOr<UcxAddress> UcxAddress::Decode(absl::string_view bytes) {
  if (bytes.size() > kAddressBytesMax) return NotOurs("a UCX address", bytes);
  Reader reader(bytes, kAddressMagic);
  UcxAddress address;
  address.backend = reader.Blob();
  address.transport = reader.Id();
  address.worker_address = reader.Blob();
  if (!reader.AtEnd() || address.worker_address.empty()) return NotOurs("a UCX address", bytes);
  return address;
}

std::string UcxKey::Encode() const {
  Writer writer(kKeyMagic);
  writer.Id(transport);
  writer.Number(base);
  writer.Number(this->bytes);
  writer.Blob(rkey);
  return std::move(writer).Sealed();
}

absl::StatusOr<UcxKey> UcxKey::Decode(absl::string_view bytes) {
  if (bytes.size() > kRemoteKeyBytesMax) return NotOurs("a UCX memory key", bytes);
  Reader reader(bytes, kKeyMagic);
  UcxKey key;
  key.transport = reader.Id();
  key.base = reader.Number<uint64_t>();
  key.bytes = reader.Number<uint64_t>();
  key.rkey = reader.Blob();
  if (!reader.AtEnd() || key.rkey.empty()) return NotOurs("a UCX memory key", bytes);
  return key;
}

std::string UcxPrefix::Encode() const {
  Writer writer(kPrefixMagic);
  writer.Number(static_cast<uint32_t>(kind));
  writer.Id(sender);
  writer.Number(epoch);
  writer.Number(to_epoch);
  writer.Number(sequence);
  writer.Number(header_bytes);
  writer.Blob(address);
  return std::move(writer).Sealed();
}

absl::StatusOr<UcxPrefix> UcxPrefix::Decode(absl::string_view bytes) {
  Reader reader(bytes, kPrefixMagic);
  UcxPrefix prefix;
  const auto kind = reader.Number<uint32_t>();
  prefix.kind = static_cast<Kind>(kind);
  prefix.sender = reader.Id();
  prefix.epoch = reader.Number<uint64_t>();
  prefix.to_epoch = reader.Number<uint64_t>();
  prefix.sequence = reader.Number<uint64_t>();
  prefix.header_bytes = reader.Number<uint32_t>();
  prefix.address = reader.Blob();
  const bool known = kind >= 1 && kind <= 3;
  if (!reader.AtEnd() || !known || prefix.epoch == 0) return NotOurs("a message", bytes);
  return prefix;
}

}  // namespace sluice::transport
