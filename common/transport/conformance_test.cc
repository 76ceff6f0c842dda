// What every backend must do, between two transports of this process.
#include "transport/conformance.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "transport/measure.h"
#include "transport/pattern.h"

namespace sluice::transport {
namespace {

TEST_P(Conformance, SaysWhatItIs) {
  EXPECT_EQ(a_->capabilities().name, GetParam());
  EXPECT_LE(a_->LocalAddress().size(), kAddressBytesMax);
  EXPECT_NE(a_->LocalAddress(), b_->LocalAddress());
  EXPECT_EQ(a_->capabilities().message_bytes_max, Limits().message_bytes_max);
}

TEST_P(Conformance, MessagesOfEverySizeArriveInOrder) {
  const EndpointId to = ConnectAToB();
  EXPECT_EQ(ConnectAToB(), to);
  // Small ones follow large ones, which travel differently inside UCX.
  const size_t sizes[] = {0,    1,     7,     64,     100,    1000,   4096,
                          8192, 10000, 65536, 100000, 300000, 1 << 20};
  size_t count = 0;
  for (int round = 0; round < 3; ++round) {
    for (const size_t size : sizes) {
      for (const size_t payload : {size, size_t{3}}) {
        const std::string header =
            absl::StrCat(count, " ", std::string(round == 1 ? 20000 : 5, 'h'));
        ASSERT_TRUE(a_->Send(to, header, Bytes(payload, count)).ok());
        ++count;
      }
    }
  }
  ASSERT_TRUE(Until([&] { return at_b_.messages.size() == count; }))
      << at_b_.messages.size() << " of " << count;
  for (size_t i = 0; i < count; ++i) {
    const Received& m = at_b_.messages[i];
    ASSERT_EQ(m.header.substr(0, m.header.find(' ')), absl::StrCat(i));
    ASSERT_EQ(m.payload, Bytes(m.payload.size(), i)) << "message " << i;
    ASSERT_EQ(m.payload.size(), i % 2 == 1 ? 3 : sizes[i / 2 % std::size(sizes)]);
    ASSERT_EQ(m.from, at_b_.messages[0].from);
  }
}

TEST_P(Conformance, BothEndsMayTalkAndConnect) {
  const EndpointId to_b = ConnectAToB();
  const EndpointId to_a = b_->Connect(a_->LocalAddress()).value();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(a_->Send(to_b, absl::StrCat("a", i), Bytes(1000, 1)).ok());
    ASSERT_TRUE(b_->Send(to_a, absl::StrCat("b", i), Bytes(20000, 2)).ok());
  }
  ASSERT_TRUE(Until([&] { return at_a_.messages.size() == 100 && at_b_.messages.size() == 100; }));
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(at_a_.messages[i].header, absl::StrCat("b", i));
    EXPECT_EQ(at_a_.messages[i].from, to_b);
    EXPECT_EQ(at_b_.messages[i].header, absl::StrCat("a", i));
    EXPECT_EQ(at_b_.messages[i].from, to_a);
  }
  EXPECT_TRUE(at_a_.down.empty() && at_b_.down.empty());
}

TEST_P(Conformance, FetchesAnyPieceOfTheRegion) {
  const Region region = b_->AllocateRegion(kPeerRegionBytes).value();
  ASSERT_EQ(region.memory.size(), kPeerRegionBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(region.memory.data()) % 64, 0u);
  for (size_t i = 0; i < kPeerRegionBytes; ++i) {
    ASSERT_EQ(region.memory[i], 0);
    region.memory[i] = PatternByte(i);
  }
  const EndpointId from = ConnectAToB();
  std::vector<uint8_t> local(kPeerRegionBytes + 2, 0xee);
  const auto fetch = [&](uint64_t offset, size_t bytes) {
    return a_->Fetch(from, region.remote_key, offset, absl::MakeSpan(local).subspan(1, bytes))
        .status()
        .code();
  };
  if (!CanFetch()) {
    EXPECT_EQ(fetch(0, 64), absl::StatusCode::kUnimplemented);
    return;
  }
  size_t count = 0;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{4096}, size_t{65536},
                             size_t{1} << 20, kPeerRegionBytes}) {
    for (const size_t offset : {size_t{0}, size_t{1}, size_t{4095}, (kPeerRegionBytes - bytes) / 2,
                                kPeerRegionBytes - bytes}) {
      if (offset + bytes > kPeerRegionBytes) continue;
      std::fill(local.begin(), local.end(), uint8_t{0xee});
      ASSERT_EQ(fetch(offset, bytes), absl::StatusCode::kOk);
      ++count;
      ASSERT_TRUE(Until([&] { return at_a_.fetches.size() == count; }));
      ASSERT_TRUE(at_a_.fetches.back().second.ok()) << at_a_.fetches.back().second;
      ASSERT_EQ(local[0], 0xee);
      ASSERT_EQ(local[bytes + 1], 0xee) << "nothing is written beyond the piece";
      for (size_t i = 0; i < bytes; ++i)
        ASSERT_EQ(local[1 + i], PatternByte(offset + i)) << offset << " + " << i;
    }
  }
  EXPECT_EQ(fetch(kPeerRegionBytes, 1), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(fetch(kPeerRegionBytes - 1, 2), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(fetch(~uint64_t{0}, 2), absl::StatusCode::kOutOfRange);
}

TEST_P(Conformance, ManyFetchesAtOnceAndTheRegionMayChangeBetween) {
  if (!CanFetch()) return;  // that Fetch says so is tested above
  const Region region = b_->AllocateRegion(1 << 20).value();
  const EndpointId from = ConnectAToB();
  for (uint8_t value = 1; value <= 3; ++value) {
    std::fill(region.memory.begin(), region.memory.end(), value);
    std::vector<uint8_t> local(1 << 20);
    at_a_.fetches.clear();
    for (size_t i = 0; i < 64; ++i) {
      ASSERT_TRUE(a_->Fetch(from, region.remote_key, i << 14,
                            absl::MakeSpan(local).subspan(i << 14, 1 << 14))
                      .ok());
    }
    ASSERT_TRUE(Until([&] { return at_a_.fetches.size() == 64; }));
    EXPECT_EQ(local, std::vector<uint8_t>(1 << 20, value));
  }
}

TEST_P(Conformance, RefusesRegionsThatDoNotFit) {
  EXPECT_EQ(a_->AllocateRegion(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a_->AllocateRegion(size_t{1} << 50).status().code(),
            absl::StatusCode::kResourceExhausted);
  for (size_t i = 0; i < Limits().regions_max; ++i) ASSERT_TRUE(a_->AllocateRegion(4096).ok());
  EXPECT_EQ(a_->AllocateRegion(4096).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(Conformance, Measures) {
  MeasureOptions options;
  options.region_bytes = 1 << 20;
  options.total_bytes = 4 << 20;
  for (const size_t piece : {size_t{1000}, size_t{65536}, size_t{1} << 20}) {
    options.piece_bytes = piece;
    const auto sent = MeasureSend(*a_, *b_, options, clock_);
    ASSERT_TRUE(sent.ok()) << sent.status();
    EXPECT_EQ(sent->bytes, sent->pieces * piece);
    EXPECT_EQ(sent->pieces, options.total_bytes / piece);
    EXPECT_GT(sent->gigabytes_per_second(), 0);
    const auto fetched = MeasureFetch(*a_, *b_, options, clock_);
    if (CanFetch()) {
      ASSERT_TRUE(fetched.ok()) << fetched.status();
      EXPECT_EQ(fetched->pieces, options.total_bytes / piece);
    } else {
      EXPECT_EQ(fetched.status().code(), absl::StatusCode::kUnimplemented);
    }
  }
  options.piece_bytes = options.region_bytes + 1;
  EXPECT_EQ(MeasureSend(*a_, *b_, options, clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(Conformance, RefusesForeignAddressesAndKeys) {
  SeededRandom random(7);
  std::string address = b_->LocalAddress();
  std::vector<std::string> bad = {"", "x", std::string(5000, 'a'), address.substr(1),
                                  address + "x"};
  for (int i = 0; i < 200; ++i) {
    std::string flipped = address;
    char& c = flipped[random.Below(flipped.size())];
    c = static_cast<char>(c ^ (1 << random.Below(8)));
    bad.push_back(flipped);
  }
  for (const std::string& bytes : bad) {
    EXPECT_EQ(a_->Connect(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(a_->Connect(a_->LocalAddress()).status().code(), absl::StatusCode::kInvalidArgument);
  if (!CanFetch()) return;
  const EndpointId from = ConnectAToB();
  const std::string key = b_->AllocateRegion(4096).value().remote_key;
  EXPECT_LE(key.size(), kRemoteKeyBytesMax);
  std::vector<uint8_t> local(64);
  bad = {"",
         "x",
         std::string(5000, 'a'),
         key.substr(1),
         key + "x",
         a_->AllocateRegion(4096).value().remote_key};
  for (size_t i = 0; i < key.size() * 8; ++i) {
    bad.push_back(key);
    char& c = bad.back()[i / 8];
    c = static_cast<char>(c ^ (1 << (i % 8)));
  }
  for (const std::string& bytes : bad) {
    EXPECT_EQ(a_->Fetch(from, bytes, 0, absl::MakeSpan(local)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(Conformance, CloseEndsBothSidesAndAllowsANewConnection) {
  for (int round = 0; round < 5; ++round) {
    const auto [to_b, to_a] = Introduce();
    ASSERT_TRUE(b_->Send(to_a, "dropped by the close", {}).ok());
    a_->Close(to_b);
    a_->Close(to_b);
    EXPECT_EQ(a_->Send(to_b, "late", {}).code(), absl::StatusCode::kNotFound);
    std::vector<uint8_t> local(64);
    if (CanFetch()) {
      EXPECT_EQ(a_->Fetch(to_b, "any", 0, absl::MakeSpan(local)).status().code(),
                absl::StatusCode::kNotFound);
    }
    ASSERT_TRUE(Until([&, a = to_b, b = to_a] { return at_a_.IsDown(a) && at_b_.IsDown(b); }))
        << "round " << round;
    EXPECT_EQ(b_->Send(to_a, "late", {}).code(), absl::StatusCode::kNotFound);
    EXPECT_TRUE(at_a_.messages.empty());
  }
  EXPECT_EQ(at_a_.down.size(), 5u);
  EXPECT_EQ(at_b_.down.size(), 5u);
}

TEST_P(Conformance, CloseWithMuchUnderWayReportsItAllOnce) {
  const Region region = b_->AllocateRegion(1 << 20).value();
  const EndpointId to_b = Introduce().first;
  std::vector<uint8_t> local(1 << 20);
  size_t fetches = 0;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(a_->Send(to_b, "large", Bytes(1 << 20, 1)).ok());
    if (CanFetch()) {
      ASSERT_TRUE(a_->Fetch(to_b, region.remote_key, 0, absl::MakeSpan(local)).ok());
      ++fetches;
    }
  }
  a_->Close(to_b);
  ASSERT_TRUE(Until([&] { return at_a_.IsDown(to_b) && at_b_.down.size() == 1; }));
  EXPECT_EQ(at_a_.fetches.size(), fetches);
  EXPECT_EQ(at_a_.fetches_after_down, 0);
  Introduce();
}

TEST_P(Conformance, ATransportThatIsDestroyedIsDown) {
  const EndpointId to_b = Introduce().first;
  b_.reset();
  ASSERT_TRUE(Until([&] { return at_a_.IsDown(to_b); }));
}

TEST_P(Conformance, AFullQueueRefusesAndLosesNothing) {
  const EndpointId to_b = Introduce().first;
  const size_t most = a_->capabilities().message_bytes_max;
  const std::vector<uint8_t> large = Bytes(most, 1);
  EXPECT_EQ(a_->Send(to_b, "x", large).code(), absl::StatusCode::kInvalidArgument);
  size_t accepted = 0;
  absl::Status status;
  while (status.ok() && accepted < 100) {
    status = a_->Send(to_b, {}, large);
    accepted += status.ok();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(accepted, Limits().send_queue_bytes_max / most);
  ASSERT_TRUE(Until([&] { return at_b_.messages.size() == accepted; }));
  for (const Received& message : at_b_.messages) ASSERT_EQ(message.payload, large);
  EXPECT_TRUE(a_->Send(to_b, "again", {}).ok());
}

INSTANTIATE_TEST_SUITE_P(All, Conformance,
                         testing::ValuesIn(BackendsThat([](const std::string& name) {
                           return name != "ucx-rdma";
                         })),  // needs an adapter
                         TestName);

}  // namespace
}  // namespace sluice::transport
