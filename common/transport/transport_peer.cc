// The other process of the conformance tests: offers a region, answers what it is sent, until it is
// told to end or killed.
//   transport_peer BACKEND CERTIFICATES   prints "ADDRESS KEY" in hex; region byte i is
//   PatternByte(i); CERTIFICATES is a folder with tls.crt, tls.key and ca.crt
#include <cstdio>
#include <string>

#include "absl/strings/escaping.h"
#include "transport/factory.h"
#include "transport/pattern.h"
#include "transport/wait.h"

namespace sluice::transport {
namespace {

class Echo final : public Events {
 public:
  explicit Echo(Transport& transport) : transport_(transport) {}

  void OnMessage(EndpointId from, absl::string_view header,
                 absl::Span<const uint8_t> payload) override {
    if (header == "close") {
      transport_.Close(from);
    } else if (header == "exit") {
      running = false;
    } else {
      static_cast<void>(
          transport_.Send(from, header, payload));  // the test misses an echo that was refused
    }
  }
  void OnFetchDone(FetchId /*fetch*/, const absl::Status& /*status*/) override {}
  void OnPeerDown(EndpointId /*endpoint*/, const absl::Status& /*reason*/) override {}

  bool running = true;

 private:
  Transport& transport_;
};

int Main(const std::string& backend, const std::string& certificates) {
  TransportOptions options;
  options.backends = {backend};
  options.trusted_network = true;
  options.certificates = CertificateFilesIn(certificates);
  auto transport = CreateTransport(options);
  if (!transport.ok()) {
    std::fprintf(stderr, "%s\n", std::string(transport.status().message()).c_str());
    return 1;
  }
  const absl::StatusOr<Region> region = (*transport)->AllocateRegion(kPeerRegionBytes);
  if (!region.ok()) return 1;
  for (size_t i = 0; i < region->memory.size(); ++i) region->memory[i] = PatternByte(i);
  std::printf("%s %s\n", absl::BytesToHexString((*transport)->LocalAddress()).c_str(),
              absl::BytesToHexString(region->remote_key).c_str());
  std::fflush(stdout);
  Echo echo(**transport);
  Transport* const all[] = {transport->get()};
  while (echo.running) {
    if (!(*transport)->Poll(echo)) WaitForWork(all, absl::Seconds(1));
  }
  return 0;
}

}  // namespace
}  // namespace sluice::transport

int main(int argc, char** argv) {
  return argc == 3 ? sluice::transport::Main(argv[1], argv[2]) : 2;
}
