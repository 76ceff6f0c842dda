#include "handoff/peers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice::handoff {
namespace {

// `first`, doubled `times` times, but at most `most`.
absl::Duration Doubled(absl::Duration first, uint32_t times, absl::Duration most) {
  return std::min(most, first * static_cast<double>(uint64_t{1} << std::min(times, 32u)));
}

}  // namespace

Peers::Peer& Peers::Remember(Incarnation peer, absl::Time now) {
  peers_[peer].heard = now;
  if (peers_.size() > options_.peers_max) {
    peers_.erase(std::min_element(peers_.begin(), peers_.end(), [](const auto& a, const auto& b) {
      return a.second.heard < b.second.heard;
    }));
  }
  return peers_[peer];
}

absl::Status Peers::MayTake(Incarnation peer, absl::Time now) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || now >= found->second.quarantined_until) return absl::OkStatus();
  ++counters_.peer_refusals;
  return absl::FailedPreconditionError(absl::StrCat(
      "the pages of holder incarnation ", peer.value(), " had wrong digests ",
      options_.digest_failures_max, " times within ", absl::FormatDuration(options_.digest_window),
      "; nothing is taken from it for another ",
      absl::FormatDuration(
          absl::Trunc(found->second.quarantined_until - now, absl::Milliseconds(1))),
      ": check that host's memory and network"));
}

absl::Status Peers::MayConnect(Incarnation peer, absl::Time now) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || now >= found->second.connect_after) return absl::OkStatus();
  ++counters_.peer_refusals;
  return absl::UnavailableError(absl::StrCat(
      "the connection to taker incarnation ", peer.value(), " broke ",
      found->second.connections_failed, " times in a row; it is tried again in ",
      absl::FormatDuration(absl::Trunc(found->second.connect_after - now, absl::Milliseconds(1)))));
}

void Peers::OnDigestFailure(Incarnation peer, absl::Time now) {
  Peer& found = Remember(peer, now);
  found.digest_failures.push_back(now);
  while (found.digest_failures.front() < now - options_.digest_window)
    found.digest_failures.pop_front();
  if (found.digest_failures.size() < options_.digest_failures_max) return;
  found.digest_failures.clear();
  found.quarantined_until =
      now + Doubled(options_.quarantine_min, found.quarantines++, options_.quarantine_max);
  ++counters_.peer_quarantines;
}

void Peers::OnConnectionFailed(Incarnation peer, absl::Time now) {
  Peer& found = Remember(peer, now);
  if (++found.connections_failed < 2) return;
  found.connect_after =
      now + Doubled(options_.reconnect_min, found.connections_failed - 2, options_.reconnect_max);
}

void Peers::OnMoved(Incarnation peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second.connections_failed = 0;
  found->second.connect_after = absl::InfinitePast();
}

}  // namespace sluice::handoff
