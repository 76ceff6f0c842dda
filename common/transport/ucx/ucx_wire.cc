#include "transport/ucx/ucx_wire.h"

#include <utility>

#include "transport/envelope.h"
#include "transport/transport.h"

namespace sluice::transport {
namespace {

constexpr uint32_t kAddressMagic = 0x61756c73;  // "slua"
constexpr uint32_t kKeyMagic = 0x6b756c73;      // "sluk"
constexpr uint32_t kPrefixMagic = 0x6d756c73;   // "slum"
// Seed of the envelope's hash; grows with every change of the format, so that releases refuse each
// other clearly.
constexpr uint64_t kVersion = 1;

}  // namespace

std::string UcxAddress::Encode() const {
  EnvelopeWriter writer(kAddressMagic);
  writer.Blob(backend);
  writer.Id(transport);
  writer.Blob(worker_address);
  return std::move(writer).Sealed(kVersion);
}

absl::StatusOr<UcxAddress> UcxAddress::Decode(absl::string_view bytes) {
  if (bytes.size() > kAddressBytesMax) return NotOurs("a UCX address", bytes);
  EnvelopeReader reader(bytes, kAddressMagic, kVersion);
  UcxAddress address;
  address.backend = reader.Blob();
  address.transport = reader.Id();
  address.worker_address = reader.Blob();
  if (!reader.AtEnd() || address.worker_address.empty()) return NotOurs("a UCX address", bytes);
  return address;
}

std::string UcxKey::Encode() const {
  EnvelopeWriter writer(kKeyMagic);
  writer.Id(transport);
  writer.Number(base);
  writer.Number(this->bytes);
  writer.Blob(rkey);
  return std::move(writer).Sealed(kVersion);
}

absl::StatusOr<UcxKey> UcxKey::Decode(absl::string_view bytes) {
  if (bytes.size() > kRemoteKeyBytesMax) return NotOurs("a UCX memory key", bytes);
  EnvelopeReader reader(bytes, kKeyMagic, kVersion);
  UcxKey key;
  key.transport = reader.Id();
  key.base = reader.Number<uint64_t>();
  key.bytes = reader.Number<uint64_t>();
  key.rkey = reader.Blob();
  if (!reader.AtEnd() || key.rkey.empty()) return NotOurs("a UCX memory key", bytes);
  return key;
}

std::string UcxPrefix::Encode() const {
  EnvelopeWriter writer(kPrefixMagic);
  writer.Number(static_cast<uint32_t>(kind));
  writer.Id(sender);
  writer.Number(epoch);
  writer.Number(to_epoch);
  writer.Number(sequence);
  writer.Number(header_bytes);
  writer.Blob(address);
  return std::move(writer).Sealed(kVersion);
}

absl::StatusOr<UcxPrefix> UcxPrefix::Decode(absl::string_view bytes) {
  EnvelopeReader reader(bytes, kPrefixMagic, kVersion);
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
