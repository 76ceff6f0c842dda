#include "cluster/block_index.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/random.h"

namespace sluice::cluster {
namespace {

kv::BlockKey Key(uint64_t i) { return kv::BlockKey(Id128{i, ~i}); }
kv::BlockChange Stored(uint64_t i) { return {Key(i), false, TenantId("t")}; }
kv::BlockChange Gone(uint64_t i) { return {Key(i), true, TenantId("t")}; }

const WorkerId kA("a");
const WorkerId kB("b");
const Incarnation kFirst(11);
const Incarnation kSecond(22);
using Applied = BlockIndex::Applied;

TEST(BlockIndex, FindsTheLongestRunOfEachWorker) {
  BlockIndex index(100);
  const std::vector<kv::BlockChange> a = {Stored(1), Stored(2), Stored(3)};
  const std::vector<kv::BlockChange> b = {Stored(1), Stored(3)};
  EXPECT_EQ(index.ApplyChanges(kA, kFirst, 1, a), Applied::kOk);
  EXPECT_EQ(index.ApplyChanges(kB, kFirst, 1, b), Applied::kOk);
  const std::vector<kv::BlockKey> keys = {Key(1), Key(2), Key(3), Key(4)};
  const auto hits = index.Lookup(keys);
  ASSERT_EQ(hits.size(), 2u);
  EXPECT_EQ(hits[0].worker, kA);
  EXPECT_EQ(hits[0].blocks, 3u);
  EXPECT_EQ(hits[1].blocks, 1u);  // b lacks block 2
  EXPECT_TRUE(index.Lookup(absl::MakeConstSpan(keys).subspan(3)).empty());
}

TEST(BlockIndex, DuplicatesAreIgnoredAndOverlapsAppliedOnce) {
  BlockIndex index(100);
  const std::vector<kv::BlockChange> first = {Stored(1), Stored(2)};
  const std::vector<kv::BlockChange> overlap = {Stored(2), Gone(1)};
  EXPECT_EQ(index.ApplyChanges(kA, kFirst, 1, first), Applied::kOk);
  EXPECT_EQ(index.ApplyChanges(kA, kFirst, 1, first), Applied::kStale);
  EXPECT_EQ(index.ApplyChanges(kA, kFirst, 2, overlap), Applied::kOk);
  EXPECT_EQ(index.stats().blocks, 1u);
}

TEST(BlockIndex, AGapAsksForASnapshotAndIgnoresEventsUntilItCame) {
  BlockIndex index(100);
  const std::vector<kv::BlockChange> one = {Stored(1)};
  EXPECT_EQ(index.ApplyChanges(kA, kFirst, 1, one), Applied::kOk);
  EXPECT_EQ(index.ApplyChanges(kA, kFirst, 5, one), Applied::kNeedSnapshot);
  EXPECT_EQ(index.ApplyChanges(kA, kFirst, 2, one), Applied::kNeedSnapshot);
  const std::vector<kv::BlockChange> all = {Stored(7), Stored(8)};
  index.ApplySnapshot(kA, kFirst, 9, all);
  EXPECT_EQ(index.stats().blocks, 2u);
  const std::vector<kv::BlockChange> next = {Gone(7)};
  EXPECT_EQ(index.ApplyChanges(kA, kFirst, 10, next), Applied::kOk);
  EXPECT_EQ(index.stats().blocks, 1u);
}

TEST(BlockIndex, ARestartedWorkerStartsFromNothing) {
  BlockIndex index(100);
  const std::vector<kv::BlockChange> before = {Stored(1), Stored(2)};
  const std::vector<kv::BlockChange> after = {Stored(3)};
  EXPECT_EQ(index.ApplyChanges(kA, kFirst, 1, before), Applied::kOk);
  EXPECT_EQ(index.ApplyChanges(kA, kSecond, 2, after), Applied::kNeedSnapshot);
  EXPECT_EQ(index.ApplyChanges(kA, kSecond, 1, after), Applied::kOk);
  EXPECT_EQ(index.stats().blocks, 1u);
  const std::vector<kv::BlockKey> keys = {Key(3)};
  EXPECT_EQ(index.Lookup(keys)[0].incarnation, kSecond);
  index.RemoveWorker(kA);
  EXPECT_TRUE(index.Lookup(keys).empty());
}

TEST(BlockIndex, StaysWithinItsBound) {
  BlockIndex index(2);
  const std::vector<kv::BlockChange> three = {Stored(1), Stored(2), Stored(3)};
  EXPECT_EQ(index.ApplyChanges(kA, kFirst, 1, three), Applied::kOk);
  EXPECT_EQ(index.stats().blocks, 2u);
  EXPECT_EQ(index.stats().overflows, 1u);
}

TEST(BlockIndex, ReadersAndWritersRunTogether) {
  BlockIndex index(10000);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    const std::vector<kv::BlockKey> keys = {Key(1), Key(2), Key(3)};
    while (!stop.load()) {
      for (const WorkerHit& hit : index.Lookup(keys)) ASSERT_LE(hit.blocks, 3u);
    }
  });
  std::vector<std::thread> writers;
  for (uint64_t w = 0; w < 2; ++w) {
    writers.emplace_back([&index, w] {
      const WorkerId id(w == 0 ? "a" : "b");
      SeededRandom random(w);
      for (uint64_t sequence = 1; sequence < 2000; ++sequence) {
        const uint64_t key = 1 + random.Below(4);
        const std::vector<kv::BlockChange> change = {random.Below(2) == 0 ? Stored(key)
                                                                          : Gone(key)};
        ASSERT_EQ(index.ApplyChanges(id, kFirst, sequence, change), Applied::kOk);
      }
    });
  }
  for (auto& writer : writers) writer.join();
  stop.store(true);
  reader.join();
}

}  // namespace
}  // namespace sluice::cluster
