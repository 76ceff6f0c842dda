// Envelopes round-trip, and nothing but an untouched envelope passes.
#include "transport/ucx/ucx_wire.h"

#include <gtest/gtest.h>

#include <string>

#include "base/random.h"

namespace sluice::transport {
namespace {

const UcxAddress kAddress{"ucx-shm", Id128{1, 2}, std::string("address\0bytes", 13)};
const UcxKey kKey{Id128{3, 4}, 0x7f0000001000, 1 << 20, "rkey"};

UcxPrefix Message() {
  UcxPrefix prefix;
  prefix.kind = UcxPrefix::Kind::kData;
  prefix.sender = Id128{5, 6};
  prefix.epoch = 7;
  prefix.to_epoch = 8;
  prefix.sequence = 9;
  prefix.header_bytes = 10;
  prefix.address = kAddress.Encode();
  return prefix;
}

TEST(UcxWire, RoundTrips) {
  const UcxAddress address = UcxAddress::Decode(kAddress.Encode()).value();
  EXPECT_EQ(address.backend, kAddress.backend);
  EXPECT_EQ(address.transport, kAddress.transport);
  EXPECT_EQ(address.worker_address, kAddress.worker_address);
  const UcxKey key = UcxKey::Decode(kKey.Encode()).value();
  EXPECT_EQ(key.transport, kKey.transport);
  EXPECT_EQ(key.base, kKey.base);
  EXPECT_EQ(key.bytes, kKey.bytes);
  EXPECT_EQ(key.rkey, kKey.rkey);
  const UcxPrefix prefix = UcxPrefix::Decode(Message().Encode()).value();
  EXPECT_EQ(prefix.Encode(), Message().Encode());
  EXPECT_EQ(prefix.address, kAddress.Encode());
}

TEST(UcxWire, RefusesEveryTruncationAndEveryFlippedBit) {
  const auto refused = [](const std::string& bytes) {
    return !UcxAddress::Decode(bytes).ok() && !UcxKey::Decode(bytes).ok() &&
           !UcxPrefix::Decode(bytes).ok();
  };
  for (const std::string& good : {kAddress.Encode(), kKey.Encode(), Message().Encode()}) {
    for (size_t bytes = 0; bytes < good.size(); ++bytes)
      ASSERT_TRUE(refused(good.substr(0, bytes)));
    for (size_t bit = 0; bit < good.size() * 8; ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
      ASSERT_TRUE(refused(bad)) << "bit " << bit;
    }
    ASSERT_TRUE(refused(good + "x"));
  }
  SeededRandom random(1);
  for (int i = 0; i < 1000; ++i) {
    std::string bytes(random.Below(5000), '\0');
    for (char& c : bytes) c = static_cast<char>(random.Below(256));
    ASSERT_TRUE(refused(bytes));
  }
}

TEST(UcxWire, OneKindIsNotAnother) {
  EXPECT_FALSE(UcxKey::Decode(kAddress.Encode()).ok());
  EXPECT_FALSE(UcxAddress::Decode(kKey.Encode()).ok());
  EXPECT_FALSE(UcxAddress::Decode(UcxAddress{"ucx-shm", Id128{1, 2}, ""}.Encode()).ok());
  EXPECT_FALSE(
      UcxAddress::Decode(UcxAddress{"ucx-shm", Id128{1, 2}, std::string(5000, 'a')}.Encode()).ok());
}

}  // namespace
}  // namespace sluice::transport
