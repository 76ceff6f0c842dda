// What this worker remembers of other workers: whose bytes were wrong, and whose connections break.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "handoff/move.h"

namespace sluice::handoff {

struct PeerOptions {
  // So many wrong digests within the window, and nothing is taken from the peer for a while; each
  // time that happens again, for twice as long.
  size_t digest_failures_max = 3;
  absl::Duration digest_window = absl::Seconds(10);
  absl::Duration quarantine_min = absl::Seconds(30);
  absl::Duration quarantine_max = absl::Minutes(5);
  // A connection that broke is made anew at once; when it breaks again before anything was moved,
  // after this time, which doubles.
  absl::Duration reconnect_min = absl::Milliseconds(50);
  absl::Duration reconnect_max = absl::Seconds(1);
  // Peers remembered; beyond them the one that was heard of least recently is forgotten.
  size_t peers_max = 1024;
};

// Owned by the move loop; not thread-safe. A peer is one life of a process: a restarted one begins
// with a clean record.
class Peers {
 public:
  // `counters` outlives the peers.
  Peers(const PeerOptions& options, MoveCounters& counters)
      : options_(options), counters_(counters) {}

  // May pages be taken from `peer`? Errors: FAILED_PRECONDITION while it is quarantined.
  absl::Status MayTake(Incarnation peer, absl::Time now);
  // May a connection to `peer` be used or made? Errors: UNAVAILABLE while one that broke again and
  // again must wait.
  absl::Status MayConnect(Incarnation peer, absl::Time now);

  void OnDigestFailure(Incarnation peer, absl::Time now);
  void OnConnectionFailed(Incarnation peer, absl::Time now);
  // A move with the peer has ended well: its connection works.
  void OnMoved(Incarnation peer);

  size_t size() const { return peers_.size(); }

 private:
  struct Peer {
    absl::Time heard;
    std::deque<absl::Time> digest_failures;
    uint32_t quarantines = 0;
    absl::Time quarantined_until = absl::InfinitePast();
    uint32_t connections_failed = 0;  // in a row
    absl::Time connect_after = absl::InfinitePast();
  };
  Peer& Remember(Incarnation peer, absl::Time now);

  const PeerOptions options_;
  MoveCounters& counters_;
  absl::btree_map<Incarnation, Peer> peers_;  // only those that something went wrong with
};

}  // namespace sluice::handoff
