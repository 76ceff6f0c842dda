// In which order the blocks of one tenant are given up.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/node_hash_map.h"
#include "base/ids.h"
#include "kv/block_key.h"

namespace sluice::kv {

// The blocks that could go (no other depends on them), by tenant, the least useful first. Plain
// state; the prefix index guards it. O(log blocks) for each call.
class EvictionOrder {
 public:
  // What was found again counts as used `bonus` uses later.
  explicit EvictionOrder(uint64_t bonus) : bonus_(bonus) {}

  // How useful a block is that is used now.
  uint64_t UsefulnessNow(bool found_again) { return ++uses_ + (found_again ? bonus_ : 0); }

  void Add(const TenantId& tenant, uint64_t usefulness, const BlockKey& key) {
    leaves_[tenant].emplace(usefulness, key);
  }
  void Remove(const TenantId& tenant, uint64_t usefulness, const BlockKey& key) {
    const auto leaves = leaves_.find(tenant);
    leaves->second.erase({usefulness, key});
    if (leaves->second.empty()) leaves_.erase(leaves);
  }
  std::optional<BlockKey> First(const TenantId& tenant) const {
    const auto leaves = leaves_.find(tenant);
    if (leaves == leaves_.end()) return std::nullopt;
    return leaves->second.begin()->second;
  }
  size_t Size(const TenantId& tenant) const {
    const auto leaves = leaves_.find(tenant);
    return leaves == leaves_.end() ? 0 : leaves->second.size();
  }
  void Clear() { leaves_.clear(); }

 private:
  const uint64_t bonus_;
  uint64_t uses_ = 0;
  absl::node_hash_map<TenantId, absl::btree_set<std::pair<uint64_t, BlockKey>>> leaves_;
};

}  // namespace sluice::kv
