// Every metric of every service, once. A metric that is not in this list cannot be made.
#pragma once

#include <array>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice::telemetry {

enum class MetricType { kCounter, kGauge, kHistogram };

// Upper bounds of a histogram's buckets, in the metric's unit.
enum class Buckets {
  kNone,
  kFirstToken,  // seconds: 1 ms .. 60 s
  kPerToken,    // seconds: 1 ms .. 2.5 s
  kDuration,    // seconds: 10 ms .. 10 min
  kShort,       // seconds: 0.1 ms .. 30 s
};

inline constexpr size_t kLabelsMax = 3;

struct MetricDef {
  const char* name;
  MetricType type;
  const char* help;
  std::array<const char*, kLabelsMax> labels = {};  // null: no more
  Buckets buckets = Buckets::kNone;
};

// Label values are given in the order of `labels`. A label named "tenant" folds to "other" past
// 1,000 tenants. Every service.
inline constexpr MetricDef kBuildInfo = {"sluice_build_info",
                                         MetricType::kGauge,
                                         "1; labels say what runs here.",
                                         {"program", "name", "version"}};
inline constexpr MetricDef kReady = {"sluice_ready", MetricType::kGauge,
                                     "1 while the process may admit requests."};
inline constexpr MetricDef kDegraded = {
    "sluice_degraded",
    MetricType::kGauge,
    "1 while a dependency is missing and the process serves without it.",
    {"dependency"}};
inline constexpr MetricDef kInFlight = {"sluice_requests_in_flight", MetricType::kGauge,
                                        "Requests that run in this process."};
inline constexpr MetricDef kRpcRefusals = {
    "sluice_rpc_refusals_total",
    MetricType::kCounter,
    "gRPC connections whose handshake failed, calls that their caller's role may not make, and "
    "calls without a router's claim.",
    {"reason"}};
inline constexpr MetricDef kCertificateExpiry = {
    "sluice_certificate_expiry_timestamp_seconds", MetricType::kGauge,
    "When the certificate of mTLS ends, in Unix time; 0 without one."};
inline constexpr MetricDef kProcessCpu = {"sluice_process_cpu_seconds_total", MetricType::kCounter,
                                          "CPU time used, user and system."};
inline constexpr MetricDef kProcessMemory = {"sluice_process_resident_bytes", MetricType::kGauge,
                                             "Resident memory."};
inline constexpr MetricDef kProcessFds = {"sluice_process_open_fds", MetricType::kGauge,
                                          "Open file descriptors."};

inline constexpr MetricDef kAuthFailures = {
    "sluice_auth_failures_total",
    MetricType::kCounter,
    "Callers refused for their credentials: missing, key, token, certificate, or valid ones that "
    "belong to no tenant.",
    {"reason"}};
inline constexpr MetricDef kTenantsReloadFailures = {
    "sluice_tenants_reload_failures_total", MetricType::kCounter,
    "Changes of the tenants file, or of what it names, that were refused: the old one stays."};

// Workers: the engine.
inline constexpr MetricDef kHeartbeatAge = {"sluice_engine_heartbeat_age_seconds",
                                            MetricType::kGauge,
                                            "Time since the last engine step or idle tick."};
inline constexpr MetricDef kRunning = {"sluice_engine_running_sequences", MetricType::kGauge,
                                       "Sequences in the engine."};
inline constexpr MetricDef kWaiting = {"sluice_engine_waiting_sequences", MetricType::kGauge,
                                       "Sequences that wait for a start."};
inline constexpr MetricDef kPrefillBacklog = {"sluice_engine_prefill_backlog_tokens",
                                              MetricType::kGauge,
                                              "Prompt tokens accepted and not computed."};
inline constexpr MetricDef kDecodeContext = {"sluice_engine_decode_context_tokens",
                                             MetricType::kGauge,
                                             "Tokens of context of all running sequences."};
inline constexpr MetricDef kPrefillRate = {
    "sluice_engine_prefill_tokens_per_second", MetricType::kGauge,
    "Measured prefill rate; 0 before the first measurement."};
inline constexpr MetricDef kDecodeStep = {
    "sluice_engine_decode_step_seconds", MetricType::kGauge,
    "Measured time of a decode step; 0 before the first measurement."};
inline constexpr MetricDef kWeightBytesRead = {
    "sluice_engine_weight_read_bytes_total", MetricType::kCounter,
    "Bytes of weights read; once per matrix and step, whatever the batch."};
inline constexpr MetricDef kPromptTokens = {
    "sluice_worker_prompt_tokens_total",
    MetricType::kCounter,
    "Prompt tokens of finished calls by where their KV came from: computed or cached.",
    {"source"}};
inline constexpr MetricDef kOutputTokens = {"sluice_worker_output_tokens_total",
                                            MetricType::kCounter, "Tokens sampled here."};
inline constexpr MetricDef kRecomputedTokens = {
    "sluice_recomputed_tokens_total", MetricType::kCounter,
    "Tokens whose KV was computed again after a retry, a migration or a preemption."};
inline constexpr MetricDef kPreemptions = {"sluice_preemptions_total", MetricType::kCounter,
                                           "Sequences put aside for lack of pages."};
inline constexpr MetricDef kPhaseSeconds = {"sluice_phase_seconds",
                                            MetricType::kHistogram,
                                            "Time requests spend in a phase of their life.",
                                            {"phase"},
                                            Buckets::kDuration};
inline constexpr MetricDef kWorkerCalls = {"sluice_worker_calls_total",
                                           MetricType::kCounter,
                                           "Calls ended, by method and status code.",
                                           {"method", "code"}};

// Workers: pages and the prefix cache.
inline constexpr MetricDef kKvPages = {
    "sluice_kv_pages",
    MetricType::kGauge,
    "Pages by state: free, active, cached, quarantined. Their sum is the pool.",
    {"state"}};
inline constexpr MetricDef kQuarantineAge = {
    "sluice_kv_quarantine_age_seconds", MetricType::kGauge,
    "Age of the oldest quarantined page; 0 when there is none."};
inline constexpr MetricDef kPinAge = {
    "sluice_kv_pin_age_seconds", MetricType::kGauge,
    "Age of the oldest offered pages that a taker may still be reading; 0 when there are none."};
inline constexpr MetricDef kKvPageBytes = {"sluice_kv_page_bytes", MetricType::kGauge,
                                           "Bytes of one page."};
inline constexpr MetricDef kKvTokens = {"sluice_kv_capacity_tokens", MetricType::kGauge,
                                        "Tokens that the pool holds."};
inline constexpr MetricDef kPrefixBlocks = {"sluice_prefix_blocks", MetricType::kGauge,
                                            "Blocks in the prefix cache."};
inline constexpr MetricDef kPrefixQueries = {"sluice_prefix_queries_total", MetricType::kCounter,
                                             "Blocks looked up in the prefix cache."};
inline constexpr MetricDef kPrefixHits = {"sluice_prefix_hits_total", MetricType::kCounter,
                                          "Blocks found in the prefix cache."};
inline constexpr MetricDef kPrefixDamage = {
    "sluice_prefix_damage_total",
    MetricType::kCounter,
    "Cached blocks found damaged before their use, and forgotten: another tag or another digest.",
    {"kind"}};
inline constexpr MetricDef kKvEvictions = {
    "sluice_kv_evictions_total",
    MetricType::kCounter,
    "Cached blocks that a tenant lost: to itself (own); to another tenant while it held more than "
    "its own part, which without budgets is an equal share of the pool (borrowed), or not more "
    "(foreign: never, with budgets); to a lower limit (pressure).",
    {"tenant", "tier", "cause"}};
inline constexpr MetricDef kTenantKvBytes = {
    "sluice_tenant_kv_bytes",
    MetricType::kGauge,
    "Bytes of pages a tenant holds: active (in use, quarantined included) or cached.",
    {"tenant", "tier", "kind"}};
inline constexpr MetricDef kTenantKvOwnBytes = {
    "sluice_tenant_kv_own_bytes",
    MetricType::kGauge,
    "Bytes of cached pages that no other tenant takes from a tenant that holds them; 0 without "
    "shares.",
    {"tenant", "tier"}};
inline constexpr MetricDef kTenantKvLimitBytes = {
    "sluice_tenant_kv_limit_bytes",
    MetricType::kGauge,
    "Bytes of pages a tenant may hold; the whole pool where no cap is set.",
    {"tenant", "tier"}};
inline constexpr MetricDef kLedgerBytes = {
    "sluice_ledger_kv_bytes",
    MetricType::kGauge,
    "Bytes a tenant holds on all workers as the cache-manager knows it: active or cached.",
    {"tenant", "kind"}};
inline constexpr MetricDef kTagFailures = {
    "sluice_kv_tag_failures_total", MetricType::kCounter,
    "Sequences ended because a page was not the one they own."};

// Workers: the hand-off.
inline constexpr MetricDef kKvTransferBytes = {"sluice_kv_transfer_bytes_total",
                                               MetricType::kCounter,
                                               "Bytes of KV pieces moved; side is send or receive.",
                                               {"transport", "side"}};
inline constexpr MetricDef kKvTransferPieces = {"sluice_kv_transfer_pieces_total",
                                                MetricType::kCounter,
                                                "Pieces moved; side is send or receive.",
                                                {"transport", "side"}};
inline constexpr MetricDef kKvTransfers = {"sluice_kv_transfers_total",
                                           MetricType::kCounter,
                                           "Transfers ended: completed or failed.",
                                           {"outcome"}};
inline constexpr MetricDef kKvTransferSeconds = {
    "sluice_kv_transfer_seconds",
    MetricType::kHistogram,
    "At the taker, from the first offered piece to the last verified one; overlaps with computing.",
    {},
    Buckets::kShort};
inline constexpr MetricDef kStaleMessages = {
    "sluice_kv_stale_messages_total", MetricType::kCounter,
    "Messages of an older incarnation, lease, attempt or generation: refused."};
inline constexpr MetricDef kDuplicateMessages = {"sluice_kv_duplicate_messages_total",
                                                 MetricType::kCounter, "Messages seen before."};
inline constexpr MetricDef kInvalidMessages = {
    "sluice_kv_invalid_messages_total", MetricType::kCounter,
    "Messages that cannot be parsed or contradict the grant or themselves: refused."};
inline constexpr MetricDef kTransportRefusals = {
    "sluice_transport_refusals_total",
    MetricType::kCounter,
    "Connections and messages that the transport of pages refused, by reason.",
    {"reason"}};
inline constexpr MetricDef kDigestFailures = {"sluice_kv_digest_failures_total",
                                              MetricType::kCounter,
                                              "Pieces whose bytes were not the ones offered."};
inline constexpr MetricDef kGrantsRefused = {
    "sluice_kv_grants_refused_total", MetricType::kCounter,
    "Grants of another incarnation or layout, served before, or malformed."};
inline constexpr MetricDef kPeerQuarantines = {
    "sluice_kv_peer_quarantines_total", MetricType::kCounter,
    "Times that a peer was not taken from for a while, because its pages had wrong digests."};
inline constexpr MetricDef kPeerRefusals = {
    "sluice_kv_peer_refusals_total", MetricType::kCounter,
    "Moves refused because of the peer's record: wrong digests, or a connection that breaks again "
    "and again."};
inline constexpr MetricDef kLeaseExpiries = {"sluice_kv_lease_expiries_total", MetricType::kCounter,
                                             "Leases that ran out unused."};

// Router.
inline constexpr MetricDef kRequests = {
    "sluice_requests_total",
    MetricType::kCounter,
    "Requests ended: ok, cancelled (the client left), slow (the client did not read its stream), "
    "invalid (the client's mistake), rejected (no room) or failed.",
    {"tenant", "outcome"}};
inline constexpr MetricDef kRejections = {"sluice_rejections_total",
                                          MetricType::kCounter,
                                          "Requests refused or invalid, by reason.",
                                          {"reason"}};
inline constexpr MetricDef kTenantRejections = {
    "sluice_tenant_rejections_total",
    MetricType::kCounter,
    "Requests refused: by the tenant's limits (rate), its share of memory (quota), or for lack of "
    "room (capacity).",
    {"tenant", "cause"}};
inline constexpr MetricDef kTenantQueueSeconds = {
    "sluice_tenant_queue_seconds_total",
    MetricType::kCounter,
    "Time that requests waited before they were let through.",
    {"tenant"}};
inline constexpr MetricDef kUsageRecordsLost = {
    "sluice_usage_records_lost_total", MetricType::kCounter,
    "Usage records that could not be written."};
inline constexpr MetricDef kFailures = {
    "sluice_failures_total", MetricType::kCounter, "Requests failed, by reason.", {"reason"}};
inline constexpr MetricDef kQueueRequests = {
    "sluice_queue_requests", MetricType::kGauge, "Requests waiting or let through.", {"state"}};
inline constexpr MetricDef kQueueSeconds = {
    "sluice_queue_seconds", MetricType::kHistogram, "Time in the queue.", {}, Buckets::kFirstToken};
inline constexpr MetricDef kRouteDecisions = {
    "sluice_route_decisions_total", MetricType::kCounter, "Placements: split or local.", {"kind"}};
inline constexpr MetricDef kPredictedCachedTokens = {
    "sluice_predicted_cached_tokens_total", MetricType::kCounter,
    "Prompt tokens of answered requests that their first placement expected to find cached."};
inline constexpr MetricDef kLookupFailures = {"sluice_cache_lookup_failures_total",
                                              MetricType::kCounter,
                                              "Lookups without an answer in time."};
inline constexpr MetricDef kTtft = {"sluice_ttft_seconds",
                                    MetricType::kHistogram,
                                    "From arrival to the first token.",
                                    {},
                                    Buckets::kFirstToken};
inline constexpr MetricDef kTtftPhase = {
    "sluice_ttft_phase_seconds",
    MetricType::kHistogram,
    "Part of the time to first token spent in a phase; the phases of a request add up to it.",
    {"phase"},
    Buckets::kFirstToken};
inline constexpr MetricDef kItl = {"sluice_itl_seconds",
                                   MetricType::kHistogram,
                                   "Between consecutive tokens of a stream.",
                                   {},
                                   Buckets::kPerToken};
inline constexpr MetricDef kRequestSeconds = {"sluice_request_seconds",
                                              MetricType::kHistogram,
                                              "From arrival to the end.",
                                              {"outcome"},
                                              Buckets::kDuration};
inline constexpr MetricDef kInputTokens = {
    "sluice_input_tokens_total", MetricType::kCounter, "Prompt tokens.", {"tenant"}};
inline constexpr MetricDef kGeneratedTokens = {
    "sluice_output_tokens_total", MetricType::kCounter, "Tokens delivered.", {"tenant"}};
inline constexpr MetricDef kCachedTokens = {
    "sluice_cached_tokens_total",
    MetricType::kCounter,
    "Prompt tokens whose KV was found rather than computed.",
    {"tenant"}};
inline constexpr MetricDef kMigrations = {"sluice_migrations_total",
                                          MetricType::kCounter,
                                          "Streams moved after their first token.",
                                          {"cause"}};
inline constexpr MetricDef kRetries = {"sluice_retries_total",
                                       MetricType::kCounter,
                                       "Requests tried again before their first token.",
                                       {"cause"}};
inline constexpr MetricDef kResumeGap = {
    "sluice_resume_gap_seconds",
    MetricType::kHistogram,
    "From the last token before a migration to the first one after it.",
    {},
    Buckets::kFirstToken};
inline constexpr MetricDef kStreamPauses = {
    "sluice_stream_pauses_total", MetricType::kCounter,
    "Times that a stream gave up its place and pages, because its client did not read."};
inline constexpr MetricDef kExposed = {
    "sluice_kv_exposed_seconds",
    MetricType::kHistogram,
    "Split streams: gap between token 1 and 2 beyond one decode step, so what the hand-off costs "
    "the client.",
    {},
    Buckets::kShort};
inline constexpr MetricDef kRouterWorkers = {
    "sluice_router_workers",
    MetricType::kGauge,
    "Workers as this router sees them: usable, not_ready, draining or breaker_open.",
    {"worker_role", "state"}};

// Cache-manager.
inline constexpr MetricDef kIndexBlocks = {"sluice_index_blocks", MetricType::kGauge,
                                           "Known (block, worker) pairs."};
inline constexpr MetricDef kIndexOverflows = {"sluice_index_overflows_total", MetricType::kCounter,
                                              "Block events forgotten because the index is full."};
inline constexpr MetricDef kIndexGaps = {"sluice_index_gaps_total", MetricType::kCounter,
                                         "Gaps in workers' events, each repaired by a snapshot."};
inline constexpr MetricDef kWorkers = {
    "sluice_workers", MetricType::kGauge, "Registered workers.", {"worker_role", "state"}};
inline constexpr MetricDef kLookups = {"sluice_lookups_total",
                                       MetricType::kCounter,
                                       "Lookups answered, by result: hit or miss.",
                                       {"result"}};
inline constexpr MetricDef kWorkerUpdates = {
    "sluice_worker_updates_total", MetricType::kCounter, "Messages from workers.", {"kind"}};

// All of the above, for tests and documentation.
absl::Span<const MetricDef* const> AllMetrics();

// Empty, or what is wrong with a definition: prefix, characters, unit, `_total`, help text, labels,
// buckets.
std::string LintMetric(const MetricDef& def);

// Bounds of a bucket set.
absl::Span<const double> BucketBounds(Buckets buckets);

}  // namespace sluice::telemetry
