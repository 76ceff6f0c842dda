#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/random.h"

namespace sluice::kv {
namespace {

class PagePoolTest : public testing::Test {
 protected:
  PagePoolTest() {
    LayoutSpec spec;
    spec.layers = 1;
    spec.kv_heads = 1;
    spec.head_dim = 16;
    layout_ = *PageLayout::Make(spec);
  }
  ~PagePoolTest() override {
    pool_.reset();
    std::free(memory_);
  }

  PagePool& Make(size_t pages, bool poison = true) {
    return Make(pages, PagePool::Options{.poison_freed = poison});
  }
  PagePool& Make(size_t pages, const PagePool::Options& options) {
    pool_.reset();
    std::free(memory_);
    const size_t bytes = pages * layout_.page_bytes();
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(64, bytes));
    std::memset(memory_, 0xAB, bytes);
    pool_ = *PagePool::Create({memory_, bytes}, layout_, options);
    return *pool_;
  }
  static const PageHeader& Header(const PageLease& lease) {
    return *reinterpret_cast<PageHeader*>(lease.data());
  }

  PageLayout layout_;
  uint8_t* memory_ = nullptr;
  std::unique_ptr<PagePool> pool_;
  const TenantId tenant_{"t"};
};

TEST_F(PagePoolTest, FreshPagesAreZeroAndCarryOwnerAndGeneration) {
  PagePool& pool = Make(2);
  auto first = pool.Allocate(1, {7, 8}, tenant_);
  ASSERT_TRUE(first.ok());
  const PageHeader& header = Header((*first)[0]);
  EXPECT_EQ(header.generation, (*first)[0].ref().generation.value());
  EXPECT_EQ(header.owner_high, 7u);
  EXPECT_EQ(header.owner_low, 8u);
  const uint8_t* data = (*first)[0].data();
  for (uint32_t i = kPageHeaderBytes; i < layout_.page_bytes(); ++i) ASSERT_EQ(data[i], 0) << i;
}

// The bar of the design, measured: sequences fill one budget of bytes until the pool is empty;
// headers, scales, padding and sink rows cost what they cost.
TEST_F(PagePoolTest, EightBitFormatsHoldTwiceTheTokensInTheSameBytes) {
  constexpr size_t kBudget = size_t{24} << 20;
  constexpr uint32_t kSequenceTokens = 1000;
  const auto tokens_held = [&](const LayoutSpec& spec) {
    layout_ = *PageLayout::Make(spec);
    PagePool& pool = Make(kBudget / layout_.page_bytes(), false);
    std::vector<std::vector<PageLease>> sequences;
    uint32_t tokens = 0;
    for (;;) {
      auto leases = pool.Allocate(layout_.PagesFor(kSequenceTokens), {}, tenant_);
      if (!leases.ok()) break;
      sequences.push_back(*std::move(leases));
      tokens += kSequenceTokens;
    }
    // What is left holds the beginning of one more.
    const auto rest = static_cast<uint32_t>(pool.counts().free);
    return tokens + rest * layout_.page_tokens() - spec.sink_rows;
  };
  for (uint32_t head_dim : {64u, 128u}) {
    const auto heads = [&](kernels::KvFormat format) {
      LayoutSpec spec;
      spec.format = format;
      spec.layers = 4;
      spec.kv_heads = 8;
      spec.head_dim = head_dim;
      spec.sink_rows = kernels::IsCentred(format) ? 1 : 0;
      return spec;
    };
    const double bf16 = tokens_held(heads(kernels::KvFormat::kBf16));
    EXPECT_GE(tokens_held(heads(kernels::KvFormat::kGqaFp8)) / bf16, 1.95) << head_dim;
    EXPECT_GE(tokens_held(heads(kernels::KvFormat::kGqaFp8c)) / bf16, 1.95) << head_dim;
    // Two bytes of scale: 2 * 64 / 66 and 2 * 128 / 130.
    EXPECT_GE(tokens_held(heads(kernels::KvFormat::kGqaInt8c)) / bf16, head_dim == 64 ? 1.92 : 1.95)
        << head_dim;
  }
  const auto latents = [&](kernels::KvFormat format) {
    LayoutSpec spec;
    spec.format = format;
    spec.page_tokens = 64;
    spec.layers = 4;
    spec.kv_heads = 1;
    spec.head_dim = 512;
    spec.rope_dim = 64;
    return spec;
  };
  const double bf16 = tokens_held(latents(kernels::KvFormat::kBf16));
  EXPECT_GE(tokens_held(latents(kernels::KvFormat::kMlaFp8)) / bf16, 1.95);
  EXPECT_GE(tokens_held(latents(kernels::KvFormat::kMlaFp8Tiles)) / bf16, 1.7);  // 1152 / 656
}

TEST_F(PagePoolTest, GenerationsNeverRepeatAndTheFreeListIsFifo) {
  PagePool& pool = Make(3);
  std::set<uint64_t> generations;
  std::vector<uint32_t> order;
  for (int i = 0; i < 6; ++i) {
    auto leases = pool.Allocate(1, {}, tenant_);
    generations.insert((*leases)[0].ref().generation.value());
    order.push_back((*leases)[0].ref().index.value());
  }
  EXPECT_EQ(generations.size(), 6u);
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 1, 2, 0, 1, 2}));
}

TEST_F(PagePoolTest, AFreedPageIsPoisonedAndExpectedByNobody) {
  PagePool& pool = Make(1);
  auto leases = pool.Allocate(1, {}, tenant_);
  const PageRef old = (*leases)[0].ref();
  const uint8_t* data = (*leases)[0].data();
  leases->clear();
  EXPECT_EQ(reinterpret_cast<const PageHeader*>(data)->generation, 0u);
  EXPECT_EQ(data[kPageHeaderBytes], 0xFF);
  EXPECT_FALSE(pool.Acquire(old).ok());
}

TEST_F(PagePoolTest, RefusesWithNumbersAndTakesNothing) {
  PagePool& pool = Make(2);
  const auto refused = pool.Allocate(3, {}, tenant_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.status().message(),
            "page pool: 3 pages wanted; of 2, 2 are free and 0 can be evicted for the tenant t");
  EXPECT_EQ(pool.counts().free, 2u);
}

TEST_F(PagePoolTest, SharedPagesStayUntilTheLastLeaseGoes) {
  PagePool& pool = Make(1);
  auto leases = pool.Allocate(1, {}, tenant_);
  PageLease pin = (*leases)[0].Share();
  leases->clear();
  EXPECT_EQ(pool.counts().active, 1u);
  pin.Reset();
  EXPECT_EQ(pool.counts().free, 1u);
}

TEST_F(PagePoolTest, CachedPagesComeBackUntilTheyAreUnmarked) {
  PagePool& pool = Make(1);
  auto leases = pool.Allocate(1, {}, tenant_);
  const PageRef ref = (*leases)[0].ref();
  ASSERT_TRUE(pool.MarkCached(ref, tenant_).ok());
  leases->clear();
  EXPECT_EQ(pool.counts().cached, 1u);
  auto again = pool.Acquire(ref);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(pool.counts().active, 1u);
  EvictionCause cause;
  EXPECT_EQ(pool.Evict(ref, tenant_, &cause), PagePool::Evicted::kInUse);
  pool.UnmarkCached(ref);  // in use: not freed by this call
  EXPECT_EQ(pool.counts().active, 1u);
  again->Reset();
  EXPECT_EQ(pool.counts().free, 1u);
  EXPECT_FALSE(pool.MarkCached(ref, tenant_).ok());
}

TEST_F(PagePoolTest, QuarantinedPagesAreNotHandedOut) {
  PagePool& pool = Make(2);
  PagePool::Quarantine quarantine = pool.QuarantinePages(*pool.Allocate(1, {}, tenant_));
  EXPECT_EQ(pool.counts().quarantined, 1u);
  EXPECT_FALSE(pool.Allocate(2, {}, tenant_).ok());
  quarantine = {};
  EXPECT_EQ(pool.counts().quarantined, 0u);
  EXPECT_TRUE(pool.Allocate(2, {}, tenant_).ok());
}

// Pages of one tenant come to another in every way there is: freed, evicted, out of quarantine.
// None shows a byte of what the first wrote.
TEST_F(PagePoolTest, NoPageShowsWhatAnotherTenantWrote) {
  const std::string canary = "canary of tenant a";
  const auto shows = [&](absl::Span<const uint8_t> bytes) {
    return std::search(bytes.begin(), bytes.end(), canary.begin(), canary.end()) != bytes.end();
  };
  for (bool poison : {false, true}) {
    PagePool& pool = Make(6, poison);
    const auto write = [&](const PageLease& page) {
      for (size_t at = kPageHeaderBytes; at + canary.size() <= layout_.page_bytes();
           at += canary.size())
        std::memcpy(page.data() + at, canary.data(), canary.size());
    };
    auto of_a = *pool.Allocate(6, {}, TenantId("a"));
    for (const PageLease& page : of_a) write(page);
    EXPECT_TRUE(shows({memory_, 6 * layout_.page_bytes()}));
    ASSERT_TRUE(pool.MarkCached(of_a[0].ref(), TenantId("a")).ok());
    const PageRef cached = of_a[0].ref();
    {
      std::vector<PageLease> given_up;
      given_up.push_back(std::move(of_a[1]));
      const auto quarantine = pool.QuarantinePages(std::move(given_up));
      of_a.clear();
    }
    pool.SetEvictor([&](const PagePool::Need&) {
      pool.UnmarkCached(cached);
      return 1;
    });
    const auto of_b = *pool.Allocate(6, {}, TenantId("b"));
    pool.SetEvictor(nullptr);
    for (const PageLease& page : of_b) EXPECT_FALSE(shows({page.data(), layout_.page_bytes()}));
    EXPECT_FALSE(shows({memory_, 6 * layout_.page_bytes()}));
  }
}

TEST_F(PagePoolTest, FreedPagesAreZeroedAtOnceWhereThatIsWanted) {
  for (bool at_once : {false, true}) {
    PagePool& pool = Make(2, PagePool::Options{.zero_freed = at_once});
    uint8_t* data = nullptr;
    {
      const auto leases = *pool.Allocate(1, {}, tenant_);
      data = leases[0].data();
      data[layout_.page_bytes() - 1] = 7;
    }
    EXPECT_EQ(data[layout_.page_bytes() - 1], at_once ? 0 : 7);
  }
}

TEST_F(PagePoolTest, CountsThePagesOfEachTenant) {
  PagePool& pool = Make(8);
  const TenantId a("a"), b("b");
  const auto usage = [&pool] {
    std::map<std::string, std::pair<uint64_t, uint64_t>> pages;
    for (const TenantPages& tenant : pool.tenants())
      pages[tenant.tenant.value()] = {tenant.active, tenant.cached};
    return pages;
  };
  using Usage = std::map<std::string, std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(usage(), Usage());
  auto of_a = *pool.Allocate(3, {}, a);
  auto of_b = *pool.Allocate(2, {}, b);
  ASSERT_TRUE(pool.MarkCached(of_a[0].ref(), TenantId("a")).ok());
  const PageRef cached = of_a[0].ref();
  of_a[0].Reset();
  EXPECT_EQ(usage(), (Usage{{"a", {2, 1}}, {"b", {2, 0}}}));
  PageLease again = *pool.Acquire(cached);
  EXPECT_EQ(usage(), (Usage{{"a", {3, 0}}, {"b", {2, 0}}}));
  again.Reset();
  pool.UnmarkCached(cached);
  {
    const auto quarantine = pool.QuarantinePages(std::move(of_b));
    EXPECT_EQ(usage(), (Usage{{"a", {2, 0}}, {"b", {2, 0}}}));
  }
  EXPECT_EQ(usage(), (Usage{{"a", {2, 0}}}));
}

// Threads allocate, share, cache and drop at random; the sum of states is constant and nobody's
// page is changed by another.
TEST_F(PagePoolTest, ManyThreadsConserveThePages) {
  static constexpr size_t kPages = 24;
  PagePool& pool = Make(kPages, false);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t, this] {
      SeededRandom random(t);
      std::vector<PageLease> held;
      for (int i = 0; i < 3000; ++i) {
        const uint64_t dice = random.Below(4);
        if (dice < 2) {
          auto leases = pool.Allocate(1 + random.Below(3), {t, t}, tenant_);
          if (!leases.ok()) continue;
          for (auto& lease : *leases) {
            std::memset(lease.data() + kPageHeaderBytes, static_cast<int>(t + 1), 64);
            held.push_back(std::move(lease));
          }
        } else if (dice == 2 && !held.empty()) {
          held.push_back(held[random.Below(held.size())].Share());
        } else if (!held.empty()) {
          const size_t at = random.Below(held.size());
          ASSERT_EQ(held[at].data()[kPageHeaderBytes], t + 1);
          ASSERT_EQ(Header(held[at]).generation, held[at].ref().generation.value());
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
        }
        if (held.size() > 6) held.clear();
        ASSERT_EQ(pool.counts().total(), kPages);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.counts().free, kPages);
  pool.TakeTenants();  // whoever was only refused pages is forgotten with this
  EXPECT_TRUE(pool.tenants().empty());
}

}  // namespace
}  // namespace sluice::kv
