#include "rpc/listen.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace sluice::rpc {
namespace {

struct FileCloser {
  void operator()(DIR* directory) const { closedir(directory); }
};
using Directory = std::unique_ptr<DIR, FileCloser>;

struct AddressFreer {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

// Inodes of the sockets that listen on `port`, from one of the kernel's tables.
void ListeningInodes(const std::string& table, uint16_t port, std::vector<std::string>* inodes) {
  std::ifstream in(table);
  std::string line;
  std::getline(in, line);  // headings
  const std::string wanted = absl::StrCat(":", absl::Hex(port, absl::kZeroPad4));
  while (std::getline(in, line)) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    constexpr size_t kLocal = 1, kState = 3, kInode = 9;
    if (fields.size() <= kInode || fields[kState] != "0A") continue;
    if (absl::EndsWithIgnoreCase(fields[kLocal], wanted))
      inodes->push_back("socket:[" + fields[kInode] + "]");
  }
}

bool HoldsAny(const std::string& fd_directory, const std::vector<std::string>& sockets) {
  const Directory directory(opendir(fd_directory.c_str()));
  if (directory == nullptr) return false;
  while (const dirent* entry = readdir(directory.get())) {
    std::array<char, 128> target{};
    const std::string path = absl::StrCat(fd_directory, "/", entry->d_name);
    if (readlink(path.c_str(), target.data(), target.size() - 1) <= 0) continue;
    for (const std::string& socket : sockets) {
      if (socket == target.data()) return true;
    }
  }
  return false;
}

absl::Status TryBind(const addrinfo& address, const HostPort& where) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::InternalError(absl::StrCat("socket: ", strerror(errno)));
  const int on = 1;  // as gRPC does: connections in TIME_WAIT are no obstacle
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool bound = bind(fd, address.ai_addr, address.ai_addrlen) == 0 && listen(fd, 1) == 0;
  const int error = errno;
  close(fd);
  if (bound) return absl::OkStatus();
  if (error != EADDRINUSE) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", where.ToString(), ": ", strerror(error)));
  }
  const std::string holder = PortHolder(where.port);
  return absl::AlreadyExistsError(
      absl::StrCat("port ", where.port, " of ", where.host, " is in use by ",
                   holder.empty() ? "a process of another user" : holder,
                   "; stop it or choose another port (0 takes any)"));
}

}  // namespace

std::string HostPort::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const size_t colon = text.rfind(':');
  const absl::Status bad = absl::InvalidArgumentError(absl::StrCat(
      "\"", text, "\" is not an address; write host:port, for example 127.0.0.1:8081 or [::1]:0"));
  if (colon == absl::string_view::npos || colon == 0) return bad;
  absl::string_view host = text.substr(0, colon);
  uint32_t port = 0;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) return bad;
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return bad;
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ':')) {
    return bad;
  }
  return HostPort{std::string(host), static_cast<uint16_t>(port)};
}

bool IsLoopback(absl::string_view host) {
  if (host == "localhost") return true;
  in_addr v4{};
  const std::string text(host);
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<HostPort> CheckListen(absl::string_view listen, bool anywhere,
                                     absl::string_view allow) {
  SLUICE_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(listen));
  if (!IsLoopback(where.host) && !anywhere) {
    return absl::PermissionDeniedError(
        absl::StrCat("refusing to listen on ", where.ToString(),
                     " without TLS: everybody who reaches it could use it; listen on "
                     "127.0.0.1, or set ",
                     allow));
  }
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot resolve \"", where.host, "\": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, AddressFreer> freer(list);
  SLUICE_RETURN_IF_ERROR(TryBind(*list, where));
  return where;
}

std::string PortHolder(uint16_t port, const std::string& proc) {
  std::vector<std::string> sockets;
  ListeningInodes(proc + "/net/tcp", port, &sockets);
  ListeningInodes(proc + "/net/tcp6", port, &sockets);
  if (sockets.empty()) return "";
  const Directory directory(opendir(proc.c_str()));
  if (directory == nullptr) return "";
  while (const dirent* entry = readdir(directory.get())) {
    const std::string pid = entry->d_name;
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (!HoldsAny(absl::StrCat(proc, "/", pid, "/fd"), sockets)) continue;
    std::ifstream in(absl::StrCat(proc, "/", pid, "/comm"));
    std::string name;
    std::getline(in, name);
    return absl::StrCat("pid ", pid, " (", name, ")");
  }
  return "";
}

}  // namespace sluice::rpc
