#include "transport/tls/tls_wire.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/envelope.h"
#include "transport/transport.h"

namespace sluice::transport {
namespace {

constexpr uint32_t kAddressMagic = 0x74756c73;  // "slut"
constexpr uint32_t kHelloMagic = 0x68756c73;    // "sluh"
constexpr uint64_t kVersion = 1;

}  // namespace

std::string TlsAddress::Encode() const {
  EnvelopeWriter writer(kAddressMagic);
  writer.Id(transport);
  writer.Blob(host);
  writer.Number(port);
  writer.Blob(identity);
  return std::move(writer).Sealed(kVersion);
}

absl::StatusOr<TlsAddress> TlsAddress::Decode(absl::string_view bytes) {
  if (bytes.size() > kAddressBytesMax) return NotOurs("a tls address", bytes);
  EnvelopeReader reader(bytes, kAddressMagic, kVersion);
  TlsAddress address;
  address.transport = reader.Id();
  address.host = reader.Blob();
  address.port = reader.Number<uint16_t>();
  address.identity = reader.Blob();
  if (!reader.AtEnd() || address.port == 0) return NotOurs("a tls address", bytes);
  return address;
}

std::string TlsHello::Encode() const {
  EnvelopeWriter writer(kHelloMagic);
  writer.Id(sender);
  writer.Id(receiver);
  writer.Number(epoch);
  writer.Number(message_bytes_max);
  return std::move(writer).Sealed(kVersion);
}

absl::StatusOr<TlsHello> TlsHello::Decode(absl::string_view bytes) {
  EnvelopeReader reader(bytes, kHelloMagic, kVersion);
  TlsHello hello;
  hello.sender = reader.Id();
  hello.receiver = reader.Id();
  hello.epoch = reader.Number<uint64_t>();
  hello.message_bytes_max = reader.Number<uint64_t>();
  if (!reader.AtEnd() || hello.epoch == 0) return NotOurs("a hello", bytes);
  return hello;
}

std::array<uint8_t, TlsFrame::kBytes> TlsFrame::Encode() const {
  std::array<uint8_t, kBytes> bytes;
  std::memcpy(bytes.data(), &kind, 4);
  std::memcpy(bytes.data() + 4, &header_bytes, 4);
  std::memcpy(bytes.data() + 8, &payload_bytes, 8);
  return bytes;
}

absl::StatusOr<TlsFrame> TlsFrame::Decode(const std::array<uint8_t, kBytes>& bytes,
                                          size_t body_bytes_max) {
  TlsFrame frame;
  uint32_t kind = 0;
  std::memcpy(&kind, bytes.data(), 4);
  std::memcpy(&frame.header_bytes, bytes.data() + 4, 4);
  std::memcpy(&frame.payload_bytes, bytes.data() + 8, 8);
  frame.kind = static_cast<Kind>(kind);
  if (kind < 1 || kind > 4) {
    return absl::InvalidArgumentError(absl::StrCat("the peer sent a frame of kind ", kind));
  }
  // One after the other: the sum of hostile numbers may wrap.
  if (frame.header_bytes > body_bytes_max ||
      frame.payload_bytes > body_bytes_max - frame.header_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer sends ", frame.header_bytes, " + ", frame.payload_bytes,
                     " bytes in one message; the most is ", body_bytes_max));
  }
  return frame;
}

}  // namespace sluice::transport
