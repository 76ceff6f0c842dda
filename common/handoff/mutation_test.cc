// Every field of every message, given every kind of wrong value: refused and counted, nothing
// landed that is not right, nothing left behind. The fields are found by reflection, so a new one
// is covered from its first day.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "handoff/move_test_support.h"

namespace sluice::handoff {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A field by its path from the envelope; in a repeated one the last element is meant.
using Path = std::vector<const FieldDescriptor*>;

constexpr int kVariants = 4;

std::string NameOf(const Path& path) {
  return absl::StrJoin(path, ".", [](std::string* out, const FieldDescriptor* field) {
    out->append(field->name());
  });
}

// Accepted whatever they say: for logs, for a later use, or because only their sender knows better.
// A sequence number is only a name: one that was not used before is as good as another.
bool IsAdvisory(const std::string& name) {
  static const std::set<std::string> kAdvisory = {"offer.sequence",
                                                  "offer.source_lease_ms",
                                                  "offer.addresses",
                                                  "offer.addresses.backend",
                                                  "offer.addresses.address",
                                                  "commit.first_tokens.token",
                                                  "commit.first_tokens.logprob",
                                                  "commit.first_tokens.logits_hash",
                                                  "commit.first_tokens",
                                                  "commit.cached_tokens",
                                                  "renew.lease_ms",
                                                  "renew.sequence",
                                                  "released.reason",
                                                  "released.outcome",
                                                  "withdrawn.reason"};
  return kAdvisory.contains(name);
}

void CollectPaths(const google::protobuf::Descriptor& type, const Path& prefix,
                  std::vector<Path>* out) {
  for (int i = 0; i < type.field_count(); ++i) {
    Path path = prefix;
    path.push_back(type.field(i));
    out->push_back(path);
    if (type.field(i)->message_type() != nullptr)
      CollectPaths(*type.field(i)->message_type(), path, out);
  }
}

std::string ChangeBytes(std::string bytes, int variant) {
  if (variant == 0) return "";
  if (variant == 1) return bytes.substr(0, bytes.size() / 2);
  if (variant == 2) return bytes + std::string(5000, 'x');
  if (!bytes.empty()) bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  return bytes;
}

// 0, one more, the largest, one bit flipped.
template <typename T>
T ChangeNumber(T value, int variant) {
  const T changed[] = {0, static_cast<T>(value + 1), std::numeric_limits<T>::max(),
                       static_cast<T>(value ^ 4)};
  return changed[variant];
}

// Changes a singular value in place.
void ChangeValue(Message& in, const FieldDescriptor* field, int variant) {
  const google::protobuf::Reflection& reflection = *in.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(&in, field,
                                  ChangeNumber(reflection.GetUInt32(in, field), variant));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(&in, field,
                                  ChangeNumber(reflection.GetUInt64(in, field), variant));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(&in, field,
                                 variant == 0 ? std::numeric_limits<float>::quiet_NaN() : 1e30f);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&in, field, !reflection.GetBool(in, field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(&in, field, variant);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(&in, field,
                                  ChangeBytes(reflection.GetString(in, field), variant));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return reflection.ClearField(&in, field);
    default:
      FAIL() << "no mutation for " << field->full_name();
  }
}

// Repeated fields lose their last element, get it twice, or lose all.
void ChangeList(Message& in, const FieldDescriptor* field, int variant) {
  const google::protobuf::Reflection& reflection = *in.GetReflection();
  const int size = reflection.FieldSize(in, field);
  if (size == 0) return;
  if (variant == 0) return reflection.RemoveLast(&in, field);
  if (variant == 1) return reflection.ClearField(&in, field);
  for (int i = 0; i < (variant == 2 ? 1 : 700); ++i) {
    reflection.AddMessage(&in, field)->CopyFrom(reflection.GetRepeatedMessage(in, field, size - 1));
  }
}

// Returns false if the message does not have the field, or has that value already.
bool Mutate(v1::MoveMessage& message, const Path& path, int variant) {
  const std::string before = message.SerializeAsString();
  Message* at = &message;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    const google::protobuf::Reflection& reflection = *at->GetReflection();
    if (path[i]->is_repeated()) {
      const int size = reflection.FieldSize(*at, path[i]);
      if (size == 0) return false;
      at = reflection.MutableRepeatedMessage(at, path[i], size - 1);
    } else {
      if (!reflection.HasField(*at, path[i])) return false;
      at = reflection.MutableMessage(at, path[i]);
    }
  }
  if (path.back()->is_repeated()) {
    ChangeList(*at, path.back(), variant);
  } else {
    ChangeValue(*at, path.back(), variant);
  }
  return message.SerializeAsString() != before;
}

uint64_t Refusals(const MoveCounters& counters) {
  return counters.stale_messages + counters.duplicate_messages + counters.invalid_messages +
         counters.digest_failures + counters.lease_expiries + counters.transfers_failed;
}

struct Case {
  Path path;
  int variant = 0;
  int nth = 0;  // which message of this kind
  bool withdraw = false;
  bool true_get = true;
};

void RunCase(const Case& c, int* applied) {
  MoveOptions options;
  options.true_get = c.true_get;
  options.message_bytes_max = 64 << 10;
  MoveTest test(options);
  bool changed = false;
  int seen = 0;
  const auto hook = [&](v1::MoveMessage& message, auto&) {
    if (c.withdraw && message.has_commit()) return 0;
    if (message.GetReflection()->HasField(message, c.path[0]) && seen++ == c.nth) {
      changed = Mutate(message, c.path, c.variant);
    }
    return 1;
  };
  test.p.tap->on_send = hook;
  test.d.tap->on_send = hook;
  const uint32_t tokens = 40;
  const v1::Grant grant = *test.Reserve(test.Call(test.Prompt(tokens, 7)));
  const LeaseId lease = MoveTest::LeaseOf(grant);
  std::optional<absl::StatusOr<LandedSequence>> result;
  ASSERT_TRUE(test.Open(grant, tokens).ok());
  test.Attach(lease, &result);
  test.world.RunFor(options.lease * 0.6);
  test.On(test.p, [&] { test.ComputeAndOffer(lease, 7, tokens, 0); });
  test.world.RunFor(absl::Seconds(1));
  if (c.withdraw) test.On(test.p, [&] { test.p.source->Withdraw(lease, "cancelled"); });
  test.world.RunFor(absl::Minutes(3));

  ASSERT_TRUE(result.has_value());
  if (result->ok()) {
    for (uint32_t block = 0; block < 3; ++block)
      EXPECT_TRUE(test.Holds((*result)->pages[block], 7, block));
  }
  *applied += changed;
  if (changed && !IsAdvisory(NameOf(c.path))) {
    EXPECT_GT(Refusals(test.p.counters) + Refusals(test.d.counters), 0u) << "nobody noticed";
  }
  result.reset();
  EXPECT_EQ(test.p.PagesHeld() + test.d.PagesHeld(), 0u);
  EXPECT_EQ(test.p.source->transfers() + test.d.taker->reservations(), 0u);
}

class MutatedField : public ::testing::TestWithParam<int> {};

TEST_P(MutatedField, IsRefusedAndCounted) {
  const google::protobuf::Descriptor& envelope = *v1::MoveMessage::descriptor();
  const FieldDescriptor* kind = envelope.field(GetParam());
  std::vector<Path> paths = {{kind}};
  CollectPaths(*kind->message_type(), {kind}, &paths);
  for (const Path& path : paths) {
    int applied = 0;
    for (int i = 0; i < kVariants * 8; ++i) {
      const Case c{path, i % kVariants, i / kVariants % 2, kind->name() == "withdrawn",
                   i / kVariants / 4 == 0};
      SCOPED_TRACE(absl::StrCat(NameOf(path), " variant ", c.variant, " of message ", c.nth,
                                c.true_get ? "" : " inline"));
      RunCase(c, &applied);
      if (HasFailure()) return;
    }
    // What the holder leaves empty in these moves.
    const std::set<std::string> unused = {"commit.first_tokens.top",
                                          "commit.first_tokens.top.token",
                                          "commit.first_tokens.top.logprob"};
    EXPECT_EQ(applied == 0, unused.contains(NameOf(path))) << NameOf(path);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, MutatedField,
                         ::testing::Range(0, v1::MoveMessage::descriptor()->field_count()),
                         [](const auto& kind) {
                           return v1::MoveMessage::descriptor()->field(kind.param)->name();
                         });

TEST(Garbage, IsCountedAndDropped) {
  MoveTest test;
  const v1::Grant grant = *test.Reserve(test.Call(test.Prompt(20, 7)));
  SeededRandom random(3);
  const transport::EndpointId to = *test.p.inner->Connect(test.d.inner->LocalAddress());
  for (int i = 0; i < 200; ++i) {
    std::string bytes;
    for (uint64_t left = random.Below(64); left > 0; --left)
      bytes.push_back(static_cast<char>(random.Next64()));
    ASSERT_TRUE(test.p.inner->Send(to, bytes, {}).ok());
    test.world.RunFor(absl::Milliseconds(1));
  }
  EXPECT_GT(test.d.counters.invalid_messages, 150u);
  EXPECT_EQ(test.d.taker->reservations(), 1u);
}

}  // namespace
}  // namespace sluice::handoff
