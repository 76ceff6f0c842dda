#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"

namespace sluice::kv {
namespace {

constexpr size_t kPages = 8;

class PrefixIndexTest : public testing::Test {
 protected:
  PrefixIndexTest() {
    LayoutSpec spec;
    spec.layers = 1;
    spec.kv_heads = 1;
    spec.head_dim = 16;
    layout_ = *PageLayout::Make(spec);
    const size_t bytes = kPages * layout_.page_bytes();
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(64, bytes));
    pool_ = *PagePool::Create({memory_, bytes}, layout_, {true});
    index_ = PrefixIndex::Create(*pool_, {.changes_max = 16});
  }
  ~PrefixIndexTest() override {
    index_.reset();
    pool_.reset();
    std::free(memory_);
  }

  std::vector<BlockKey> Keys(absl::string_view tenant, int32_t first_token, size_t blocks) {
    std::vector<int32_t> tokens(blocks * layout_.page_tokens());
    std::iota(tokens.begin(), tokens.end(), first_token);
    return BlockKeys(CacheDomain::Derive("secret", TenantId(std::string(tenant)), ""), {}, tokens,
                     layout_.page_tokens());
  }
  void Fill(const std::vector<BlockKey>& keys) { Fill(keys, tenant_); }
  void Fill(const std::vector<BlockKey>& keys, const TenantId& tenant) {
    auto leases = pool_->Allocate(keys.size(), {}, tenant);
    ASSERT_TRUE(leases.ok()) << leases.status();
    for (size_t i = 0; i < keys.size(); ++i) {
      index_->Insert(keys[i], i == 0 ? BlockKey() : keys[i - 1], (*leases)[i], tenant);
    }
  }

  PageLayout layout_;
  uint8_t* memory_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<PrefixIndex> index_;
  const TenantId tenant_{"t"};
};

TEST_F(PrefixIndexTest, FindsTheLongestHeldPrefix) {
  const auto keys = Keys("a", 0, 4);
  Fill({keys.begin(), keys.begin() + 3});
  EXPECT_EQ(index_->Count(keys), 3u);
  const auto leases = index_->Find(keys);
  EXPECT_EQ(leases.size(), 3u);
  EXPECT_EQ(pool_->counts().active, 3u);
}

TEST_F(PrefixIndexTest, TenantsSaltsAndContextsNeverMeet) {
  std::set<std::string> seen;
  const std::vector<int32_t> tokens(32, 1);
  const auto key = [&](const CacheDomain& domain, const KeyContext& context) {
    return BlockKeys(domain, context, tokens, 32)[0].value().ToHex();
  };
  const auto domain = CacheDomain::Derive("secret", TenantId("a"), "");
  seen.insert(key(domain, {}));
  seen.insert(key(CacheDomain::Derive("secret", TenantId("b"), ""), {}));
  seen.insert(key(CacheDomain::Derive("secret", TenantId("a"), "b"), {}));
  seen.insert(key(CacheDomain::Derive("secret", TenantId("ab"), ""), {}));
  seen.insert(key(CacheDomain::Derive("other", TenantId("a"), ""), {}));
  seen.insert(key(domain, {{1, 0}, {}, {}, ""}));
  seen.insert(key(domain, {{}, {1, 0}, {}, ""}));
  seen.insert(key(domain, {{}, {}, {1, 0}, ""}));
  seen.insert(key(domain, {{}, {}, {}, "x"}));
  EXPECT_EQ(seen.size(), 9u);
}

TEST_F(PrefixIndexTest, AKeyDependsOnEverythingBeforeIt) {
  std::vector<int32_t> tokens(96, 1);
  const auto domain = CacheDomain::Derive("secret", tenant_, "");
  const auto keys = BlockKeys(domain, {}, tokens, 32);
  tokens[0] = 2;
  const auto other = BlockKeys(domain, {}, tokens, 32);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(keys[i], other[i]);
  EXPECT_EQ(BlockKeys(domain, {}, absl::MakeConstSpan(tokens).first(95), 32).size(), 2u);
}

TEST_F(PrefixIndexTest, ThePromptsKeysAreComputedOnceForEachKindOfWorker) {
  const std::vector<int32_t> tokens(200, 1);
  const auto domain = CacheDomain::Derive("secret", tenant_, "");
  PromptKeys keys;
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(keys.Of(domain, {}, tokens, 32), BlockKeys(domain, {}, tokens, 32));
    EXPECT_EQ(keys.Of(domain, {{1, 0}, {}, {}, ""}, tokens, 32),
              BlockKeys(domain, {{1, 0}, {}, {}, ""}, tokens, 32));
    EXPECT_EQ(keys.Of(domain, {}, tokens, 64), BlockKeys(domain, {}, tokens, 64));
  }
  EXPECT_EQ(keys.lists(), 3u);
}

TEST_F(PrefixIndexTest, EvictsLeastRecentlyUsedLeavesAndNeverPagesInUse) {
  const auto old = Keys("a", 0, 3);
  const auto recent = Keys("a", 1000, 3);
  Fill(old);
  Fill(recent);
  index_->Find(recent);
  auto in_use = index_->Find(absl::MakeConstSpan(old).first(1));
  auto fresh = pool_->Allocate(4, {}, tenant_);  // 2 are free, 2 must go
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_EQ(index_->Count(old), 1u);
  EXPECT_EQ(index_->Count(recent), 3u);
  EXPECT_EQ(in_use[0].ref(), index_->Find(old)[0].ref());
  EXPECT_FALSE(
      pool_->Allocate(4, {}, tenant_).ok());  // three recent ones can go, the one in use cannot
  EXPECT_EQ(pool_->counts().total(), kPages);
}

TEST_F(PrefixIndexTest, AKnownKeyKeepsItsPage) {
  const auto keys = Keys("a", 0, 1);
  Fill(keys);
  const PageRef before = index_->Find(keys)[0].ref();
  Fill(keys);
  EXPECT_EQ(index_->Find(keys)[0].ref(), before);
  EXPECT_EQ(pool_->counts().free, kPages - 1);
}

TEST_F(PrefixIndexTest, ABlockWithoutItsParentIsNotIndexed) {
  const auto keys = Keys("a", 0, 2);
  auto leases = pool_->Allocate(1, {}, tenant_);
  index_->Insert(keys[1], keys[0], (*leases)[0], tenant_);
  leases->clear();
  EXPECT_EQ(index_->stats().blocks, 0u);
  EXPECT_EQ(pool_->counts().free, kPages);
}

TEST_F(PrefixIndexTest, ChangesAreNumberedWithoutGapsUntilTheBound) {
  Fill(Keys("a", 0, 3));
  uint64_t sequence = 0;
  auto changes = index_->TakeChanges(&sequence);
  EXPECT_EQ(sequence, 1u);
  EXPECT_EQ(changes.size(), 3u);
  EXPECT_FALSE(changes[0].removed);
  index_->Clear();
  changes = index_->TakeChanges(&sequence);
  EXPECT_EQ(sequence, 4u);
  EXPECT_EQ(changes.size(), 3u);
  EXPECT_TRUE(changes[0].removed);
  for (int i = 0; i < 3; ++i) {  // 18 changes where 16 are kept
    Fill(Keys("a", 0, 3));
    index_->Clear();
  }
  changes = index_->TakeChanges(&sequence);
  EXPECT_EQ(sequence, 7u + 16u);
  EXPECT_EQ(changes.size(), 2u);
  EXPECT_TRUE(index_->Snapshot(&sequence).empty());
  EXPECT_EQ(sequence, 24u);
}

TEST_F(PrefixIndexTest, EvictionsNameTheLoserAndWhy) {
  std::map<std::string, int> seen;
  index_->OnEvicted([&seen](const TenantId& tenant, EvictionCause cause) {
    ++seen[absl::StrCat(tenant.value(), " ", EvictionCauseName(cause))];
  });
  const TenantId flood("flood"), quiet("quiet");
  Fill(Keys("quiet", 0, 2), quiet);
  Fill(Keys("flood", 0, 6), flood);
  // The pool is full, and the quiet tenant's blocks are the oldest.
  Fill(Keys("flood", 1000, 2), flood);
  EXPECT_EQ(seen, (std::map<std::string, int>{{"quiet foreign", 2}}));
  Fill(Keys("flood", 2000, 1), flood);
  EXPECT_EQ(seen["flood own"], 1);
  Fill(Keys("quiet", 1000, 1), quiet);
  EXPECT_EQ(seen["flood borrowed"], 1);
  EXPECT_EQ(index_->stats().evictions, 4u);
}

TEST_F(PrefixIndexTest, AFloodLeavesOthersWhatIsTheirOwn) {
  std::map<std::string, int> seen;
  index_->OnEvicted([&seen](const TenantId& tenant, EvictionCause cause) {
    ++seen[absl::StrCat(tenant.value(), " ", EvictionCauseName(cause))];
  });
  const TenantId flood("flood"), quiet("quiet");
  const auto kept = Keys("quiet", 0, 3);
  Fill(kept, quiet);
  const uint64_t page = layout_.page_bytes();
  pool_->SetBudgets({{{quiet, 2 * page, 4 * page}, {flood, 3 * page, 5 * page}}, {}});
  for (int i = 1; i < 20; ++i) Fill(Keys("flood", i * 1000, 5), flood);
  EXPECT_EQ(index_->Count(kept), 3u) << "the flood makes do with its fair part";
  EXPECT_EQ(seen, (std::map<std::string, int>{{"flood own", 18 * 5}}));
  Fill(Keys("flood", 50000, 6), flood);
  EXPECT_EQ(index_->Count(kept), 2u) << "what is borrowed makes room for requests";
  EXPECT_EQ(seen["quiet borrowed"], 1);
  EXPECT_FALSE(pool_->Allocate(7, {}, flood).ok());
  EXPECT_EQ(index_->Count(kept), 2u);
  // The owner takes back what others borrow.
  Fill(Keys("quiet", 1000, 2), quiet);
  EXPECT_EQ(seen["flood borrowed"], 2);
  EXPECT_EQ(seen["quiet foreign"] + seen["flood foreign"], 0);
}

TEST_F(PrefixIndexTest, WhatAnotherLacksOfItsFloorMayBeCachedInButNotUsed) {
  const TenantId quiet("quiet");
  const uint64_t page = layout_.page_bytes(), pages = pool_->counts().total();
  TenantBudget floor{quiet, 2 * page, 2 * page, pages * page};
  floor.floor_bytes = 2 * page;
  pool_->SetBudgets({{floor, {tenant_, 0, 0, pages * page}}, {}});
  EXPECT_TRUE(pool_->CheckRoom(tenant_, pages - 2, 0).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pool_->CheckRoom(tenant_, pages - 1, 0)));
  EXPECT_TRUE(absl::IsResourceExhausted(pool_->CheckRoom(tenant_, pages - 2, 1)));
  auto used = pool_->Allocate(pages - 2, {}, tenant_);
  ASSERT_TRUE(used.ok());
  EXPECT_FALSE(pool_->CheckRoom(tenant_, 1, 0).ok());
  EXPECT_TRUE(pool_->CheckRoom(quiet, 2, 0).ok());
  auto own = pool_->Allocate(1, {}, quiet);
  ASSERT_TRUE(own.ok());
  used->pop_back();
  EXPECT_TRUE(pool_->CheckRoom(tenant_, 1, 0).ok()) << "the owner lacks only one now";
  EXPECT_FALSE(pool_->CheckRoom(tenant_, 2, 0).ok());
}

TEST_F(PrefixIndexTest, ALimitIsKeptByEvictingItsOwnAndThenByRefusing) {
  const uint64_t page = layout_.page_bytes();
  const auto keys = Keys("t", 0, 3);
  Fill(keys);
  pool_->SetBudgets({{{tenant_, page, page, 4 * page}}, {}});
  auto two = pool_->Allocate(2, {}, tenant_);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(index_->Count(keys), 2u);
  const auto refused = pool_->Allocate(3, {}, tenant_);
  EXPECT_TRUE(IsBeyondLimit(refused.status())) << refused.status();
  EXPECT_EQ(index_->Count(keys), 2u) << "nothing is evicted for nothing";
  EXPECT_TRUE(IsBeyondLimit(pool_->CheckRoom(tenant_, 3, 0)));
  EXPECT_TRUE(pool_->CheckRoom(tenant_, 2, 0).ok());
  EXPECT_EQ(pool_->TakeTenants()[0].refused, 3u);
  EXPECT_EQ(pool_->TakeTenants()[0].refused, 0u);
  pool_->SetBudgets({{{tenant_, page, page, 3 * page}}, {}});
  index_->TrimToLimits();
  EXPECT_EQ(index_->Count(keys), 1u);
}

TEST_F(PrefixIndexTest, WhatWasFoundAgainOutlivesWhatWasUsedOnce) {
  const auto session = Keys("a", 0, 2);
  Fill(session);
  index_->Find(session);
  Fill(Keys("a", 1000, 3));
  Fill(Keys("a", 2000, 3));
  Fill(Keys("a", 3000, 3));  // evicts what was published after the session
  EXPECT_EQ(index_->Count(session), 2u);
  for (int i = 4; i < 8; ++i) Fill(Keys("a", i * 1000, 3));
  EXPECT_EQ(index_->Count(session), 0u) << "but not for ever";
}

TEST_F(PrefixIndexTest, BlocksInUseDoNotHideTheOthers) {
  const auto session = Keys("a", 0, 2);
  Fill(session);
  index_->Find(session);
  std::vector<std::vector<PageLease>> in_use;
  for (int i = 1; i <= 3; ++i) {
    in_use.push_back(*pool_->Allocate(2, {}, tenant_));
    const auto keys = Keys("a", i * 1000, 2);
    index_->Insert(keys[0], BlockKey(), in_use.back()[0], tenant_);
    index_->Insert(keys[1], keys[0], in_use.back()[1], tenant_);
  }
  EXPECT_TRUE(pool_->Allocate(2, {}, tenant_).ok());
  EXPECT_EQ(index_->Count(session), 0u);
}

TEST_F(PrefixIndexTest, PublicBlocksAreChargedToEverybodyAndStay) {
  const uint64_t page = layout_.page_bytes();
  const TenantId everybody{std::string(kPublicTenant)};
  const auto keys = Keys("public", 0, 2);
  {
    auto pages = *pool_->Allocate(2, {}, tenant_);
    index_->Insert(keys[0], BlockKey(), pages[0], everybody);
    index_->Insert(keys[1], keys[0], pages[1], everybody);
    EXPECT_EQ(pool_->tenants().size(), 1u);
    EXPECT_EQ(pool_->tenants()[0].tenant, everybody);
  }
  pool_->SetBudgets({{{tenant_, 8 * page, 8 * page}}, {}});
  for (int i = 1; i < 20; ++i) Fill(Keys("t", i * 1000, 6));
  EXPECT_EQ(index_->Count(keys), 2u);
}

// What can happen to a cached page between its publication and its use.
enum class Harm { kBitFlip, kTorn, kSwapped, kStale };

class PrefixDamage : public PrefixIndexTest,
                     public testing::WithParamInterface<std::tuple<Harm, DigestMode>> {
 protected:
  void Write(const PageLease& page, uint8_t value) const {
    std::memset(page.data() + kPageHeaderBytes, value, layout_.page_bytes() - kPageHeaderBytes);
  }
  // Blocks whose bytes follow from their place.
  void FillWritten(const std::vector<BlockKey>& keys) {
    auto leases = *pool_->Allocate(keys.size(), {}, tenant_);
    for (size_t i = 0; i < keys.size(); ++i) {
      Write(leases[i], static_cast<uint8_t>(i + 1));
      index_->Insert(keys[i], i == 0 ? BlockKey() : keys[i - 1], leases[i], tenant_);
    }
  }
  bool Intact(const PageLease& page, size_t block) const {
    return std::all_of(page.data() + kPageHeaderBytes, page.data() + layout_.page_bytes(),
                       [&](uint8_t byte) { return byte == block + 1; });
  }
  void Hurt(Harm harm, const PageLease& page, const PageLease& other) const {
    const size_t half = (layout_.page_bytes() - kPageHeaderBytes) / 2;
    switch (harm) {
      case Harm::kBitFlip:
        page.data()[kPageHeaderBytes + half] ^= 0x10;
        return;
      case Harm::kTorn:
        std::memset(page.data() + kPageHeaderBytes + half, 0x77, half);
        return;
      case Harm::kSwapped:
        std::swap_ranges(page.data() + kPageHeaderBytes, page.data() + layout_.page_bytes(),
                         other.data() + kPageHeaderBytes);
        return;
      case Harm::kStale:  // handed to another owner behind the pool's back: it has another tag too
        Write(page, 0x55);
        reinterpret_cast<PageHeader*>(page.data())->generation += 1;
        return;
    }
  }
};

// A page whose tag is another's is caught whatever the mode; changed bytes are caught always with
// digests of all blocks, one look in 16 with samples, and never without.
TEST_P(PrefixDamage, IsCaughtBeforeTheBlockIsUsed) {
  const auto [harm, mode] = GetParam();
  constexpr size_t kBlocks = 5;
  const auto keys = Keys("a", 0, kBlocks);
  for (size_t at = 0; at + 1 < kBlocks; ++at) {
    index_ = nullptr;
    index_ = PrefixIndex::Create(*pool_, {.changes_max = 1024, .digests = mode});
    FillWritten(keys);
    {
      const auto leases = index_->Find(keys);
      ASSERT_EQ(leases.size(), kBlocks) << "undamaged blocks are found";
      Hurt(harm, leases[at], leases[at + 1]);
    }
    size_t looks = 0, caught = 0;
    bool used_damaged = false;
    for (; looks < 64 && caught == 0; ++looks) {
      const auto found = index_->Find(keys);
      const PrefixIndex::Stats stats = index_->stats();
      caught = stats.tag_failures + stats.digest_failures;
      for (size_t i = 0; i < found.size(); ++i) used_damaged |= !Intact(found[i], i);
    }
    if (harm == Harm::kStale) {
      EXPECT_EQ(index_->stats().tag_failures, 1u);
      EXPECT_FALSE(used_damaged);
      EXPECT_EQ(looks, 1u);
    } else if (mode == DigestMode::kFull) {
      EXPECT_EQ(index_->stats().digest_failures, 1u);
      EXPECT_FALSE(used_damaged);
      EXPECT_EQ(looks, 1u);
    } else if (mode == DigestMode::kSampled) {
      EXPECT_EQ(index_->stats().digest_failures, 1u);
      EXPECT_LE(looks, 16u * kBlocks);
    } else {
      EXPECT_EQ(caught, 0u);
      EXPECT_TRUE(used_damaged) << "the damage is none";
    }
    if (caught == 0) continue;
    // What was damaged and what is below it is gone, and can be published anew and evicted.
    EXPECT_LE(index_->Count(keys), at + 1);
    FillWritten(keys);
    if (mode != DigestMode::kSampled) {
      EXPECT_EQ(index_->Find(keys).size(), kBlocks);
    }
  }
  index_->Clear();
  EXPECT_EQ(pool_->counts().free, kPages);
}

INSTANTIATE_TEST_SUITE_P(
    All, PrefixDamage,
    testing::Combine(testing::Values(Harm::kBitFlip, Harm::kTorn, Harm::kSwapped, Harm::kStale),
                     testing::Values(DigestMode::kOff, DigestMode::kSampled, DigestMode::kFull)));

TEST_F(PrefixIndexTest, BlocksBelowADamagedOneAreForgottenWithIt) {
  index_ = nullptr;
  index_ = PrefixIndex::Create(*pool_, {.changes_max = 64, .digests = DigestMode::kFull});
  auto keys = Keys("a", 0, 3);
  const auto branch = Keys("b", 0, 2);
  Fill(keys);
  Fill(branch);
  uint64_t sequence = 0;
  index_->TakeChanges(&sequence);
  { index_->Find(keys)[1].data()[kPageHeaderBytes] ^= 1; }
  EXPECT_EQ(index_->Find(keys).size(), 1u);
  const auto changes = index_->TakeChanges(&sequence);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].key, keys[2]) << "children first";
  EXPECT_EQ(changes[1].key, keys[1]);
  EXPECT_TRUE(changes[0].removed && changes[1].removed);
  EXPECT_EQ(pool_->counts().free, kPages - 3);
  EXPECT_EQ(index_->Find(branch).size(), 2u);
  // The block that takes its place evicts like any other.
  Fill(keys);
  EXPECT_EQ(index_->Find(keys).size(), 3u);
  EXPECT_TRUE(pool_->Allocate(kPages, {}, tenant_).ok());
  EXPECT_EQ(index_->stats().blocks, 0u);
}

}  // namespace
}  // namespace sluice::kv
