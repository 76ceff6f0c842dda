// What every service process has: metrics, readiness, fault points, servers, drain. A service
// builds its parts on it, then serves and waits.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/thread_loop.h"
#include "http/metrics_server.h"
#include "rpc/channel_pool.h"
#include "rpc/server.h"
#include "rpc/service_state.h"
#include "rpc/signals.h"
#include "rpc/tls.h"
#include "services/process/heap_trimmer.h"
#include "services/process/loop_watch.h"
#include "sluice/v1/admin.pb.h"
#include "sluice/v1/config.pb.h"
#include "telemetry/metrics.h"

namespace sluice::services {

// What allows a public-facing service to listen beyond loopback.
inline constexpr absl::string_view kAllowClients =
    "insecure_clients_anywhere: true where something in front ends the TLS of clients";

// What a service tells about itself.
struct ProcessIdentity {
  std::string service;  // "router", "prefill", "decode", "cache-manager"
  v1::ServiceConfig config;
  std::string config_yaml;     // for the admin service
  bool public_facing = false;  // clients call it, not services: `listen` stays plaintext
  bool insecure_clients_anywhere = false;
  CertificateFiles client_tls = {};  // of `listen`, if clients call it; empty: plaintext
};

// Thread-safe after Serve. Parts that services own and hand over references of must outlive it or
// be gone after Stop().
class ServiceProcess {
 public:
  explicit ServiceProcess(ProcessIdentity identity);
  ~ServiceProcess();

  const std::string& name() const { return identity_.config.name(); }
  // "decode/decode-0": the source of errors.
  std::string source() const { return identity_.service + "/" + identity_.config.name(); }
  const Clock& clock() const { return clock_; }
  telemetry::Registry& metrics() { return metrics_; }
  rpc::ServiceState& state() { return state_; }
  // Null in builds without fault points.
  FaultInjector* faults();

  // Asked by probes; OK unless set. Thread-safe. Before Serve.
  void SetLiveCheck(std::function<absl::Status()> live) { live_ = std::move(live); }
  // The process counts as alive only while `loop` moves. Before Serve.
  void Watch(absl::string_view name, Loop& loop) { loops_.Add(name, loop); }
  // Names of missing dependencies, and the age of the engine's heartbeat. Before Serve.
  void SetStatusSource(absl::AnyInvocable<void(v1::GetStatusReply*)> source) {
    status_source_ = std::move(source);
  }

  // Called when the drain has begun, by WaitForDrain.
  void OnDrain(std::function<void()> begun) { drain_begun_ = std::move(begun); }

  // Runs `work` every second on the thread that keeps liveness, which may read files. Before Serve.
  void EverySecond(std::function<void()> work) { chores_.push_back(std::move(work)); }

  // Called after every change of readiness. Before SetUp.
  void OnReadyChanged(std::function<void()> changed) { ready_changed_ = std::move(changed); }

  // Reads service.tls, whose certificate must be one of this service, and sees whether the
  // configured addresses can be bound. First of all, before anything expensive. Errors:
  // INVALID_ARGUMENT with the file, or what was presented and what expected; those of
  // rpc::CheckListen.
  absl::Status Prepare();
  // Null without service.tls. For channels to other services.
  const std::shared_ptr<const rpc::Tls>& tls() const { return tls_; }
  // How to reach services of these roles.
  rpc::ChannelOptions ChannelsTo(ServiceRoles servers) const;
  // After Prepare: starts the gRPC, admin and metrics servers. Not ready yet. Errors as
  // rpc::CheckListen.
  absl::Status Serve(const std::vector<rpc::ServedService>& services);
  const std::string& grpc_address() const { return grpc_->address(); }
  const std::string& metrics_address() const { return metrics_server_->address(); }
  const std::string& admin_address() const { return admin_->address(); }
  // The configured address that others use, or the bound one.
  std::string advertised_address() const;

  // SIGTERM and SIGINT begin the drain from now on. rpc::BlockTerminationSignals must have been
  // called first.
  absl::Status HandleSignals();
  // The start is over: health of "startup", and the ready file with "grpc", "metrics", "admin",
  // "pid", "name", "service" and `more`. Readiness is state()'s, for the service to say.
  absl::Status SetUp(const std::map<std::string, std::string>& more);

  // Waits for the drain to begin and then until nothing is in flight, at most service.drain_s. What
  // clients call tells them to go elsewhere meanwhile; between services, those that still have work
  // here must be able to talk of it.
  // Returns whether all requests were finished.
  bool WaitForDrain();
  // Stops the servers; calls that still run are cancelled and waited for. Idempotent.
  void Stop();

 private:
  void RegisterMetrics();
  // CertificateFiles of service.tls; empty without.
  CertificateFiles Certificates() const;
  struct Listener {
    std::string address;
    bool anywhere = false;
    absl::string_view allow;  // the setting that makes `anywhere` true
  };
  Listener GrpcListener() const;
  Listener AdminListener() const;
  Listener MetricsListener() const;
  absl::Status Live() const;
  // On the watch loop, every few seconds: the gRPC health of "liveness", and memory that nobody
  // uses.
  void KeepHouse();
  // On the watch loop.
  void DoChores();
  absl::Status WriteReadyFile(const std::map<std::string, std::string>& more) const;

  const ProcessIdentity identity_;
  const SystemClock clock_;
  telemetry::Registry metrics_;
  rpc::ServiceState state_;
  FaultInjector faults_;
  std::function<absl::Status()> live_;
  LoopWatch loops_{clock_};
  std::function<void()> ready_changed_;
  std::function<void()> drain_begun_;
  std::vector<std::function<void()>> chores_;
  absl::AnyInvocable<void(v1::GetStatusReply*)> status_source_;
  std::shared_ptr<const rpc::Tls> tls_;
  std::unique_ptr<grpc::Service> admin_service_;
  std::unique_ptr<rpc::Server> grpc_;
  std::unique_ptr<rpc::Server> admin_;
  std::unique_ptr<http::MetricsServer> metrics_server_;
  HeapTrimmer heap_;  // on the watch loop
  std::unique_ptr<ThreadLoop> watch_loop_;
  std::unique_ptr<rpc::SignalWatcher> signals_;
};

// The version of this build.
const char* Version();

}  // namespace sluice::services
