#include "services/cli/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "services/cli/command.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kPollStep = absl::Milliseconds(20);
constexpr size_t kReplyBytesMax = size_t{1} << 20;  // metrics of a service have some 50 KiB

// A descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

std::string StringOf(const boost::json::object& object, const char* key) {
  const boost::json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string().c_str())
                                                : std::string();
}

absl::StatusOr<ReadyInfo> ReadReadyFile(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  boost::system::error_code error;
  const boost::json::value root = boost::json::parse(text, error);
  if (error || !root.is_object())
    return absl::InternalError(absl::StrCat("ready file ", path, " is not JSON"));
  const boost::json::object& object = root.get_object();
  ReadyInfo info;
  info.grpc = StringOf(object, "grpc");
  info.metrics = StringOf(object, "metrics");
  info.http = StringOf(object, "http");
  if (const auto* pid = object.if_contains("pid"); pid != nullptr && pid->is_int64()) {
    info.pid = static_cast<pid_t>(pid->get_int64());
  }
  return info;
}

int MillisecondsUntil(absl::Time deadline, const Clock& clock) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - clock.Now()), 0, 100));
}

bool ChildHasExited(pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; }

// A process to be stopped. Its descriptor turns readable when it ends, even if its parent never
// asks for its exit code; a zombie still takes signals, so that kill() would call it alive.
struct Stopping {
  pid_t pid;
  std::unique_ptr<Fd> pidfd;
};

int Signal(const Stopping& process, int signal) {
  return static_cast<int>(syscall(SYS_pidfd_send_signal, process.pidfd->get(), signal, nullptr, 0));
}

// Ctrl-C or SIGTERM came while they were blocked.
bool Interrupted() {
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

// Waits until all have ended or the deadline has come; returns those that are left.
std::vector<Stopping> WaitForEnd(std::vector<Stopping> left, absl::Time deadline,
                                 const Clock& clock) {
  while (!left.empty() && clock.Now() < deadline && !Interrupted()) {
    std::vector<pollfd> events;
    for (const Stopping& process : left) events.push_back({process.pidfd->get(), POLLIN, 0});
    poll(events.data(), events.size(), MillisecondsUntil(deadline, clock));
    std::vector<Stopping> running;
    for (size_t i = 0; i < left.size(); ++i) {
      if (events[i].revents == 0) {
        running.push_back(std::move(left[i]));
      } else {
        waitpid(left[i].pid, nullptr, WNOHANG);  // reaps our own
      }
    }
    left = std::move(running);
  }
  return left;
}

[[noreturn]] void RunChild(const std::string& binary, std::vector<std::string>& arguments,
                           int log_fd, bool die_with_parent) {
  setpgid(0, 0);
  if (die_with_parent) prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execv(binary.c_str(), argv.data());
  dprintf(STDERR_FILENO, "cannot start %s: %s\n", binary.c_str(), strerror(errno));
  _exit(127);
}

// Host and port of http://host:port.
absl::StatusOr<std::pair<std::string, uint16_t>> ParseHttpUrl(const std::string& url) {
  absl::string_view rest = url;
  absl::ConsumePrefix(&rest, "http://");
  const std::vector<std::string> parts = absl::StrSplit(rest, ':');
  uint32_t port = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &port) || port > UINT16_MAX)
    return absl::InvalidArgumentError(absl::StrCat("'", url, "' is not http://host:port"));
  return std::pair(parts[0], static_cast<uint16_t>(port));
}

// Status code and body of GET path, or 0 when there is no answer.
int HttpGet(const std::string& host, uint16_t port, absl::string_view path, std::string* body) {
  Fd socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  timeval timeout{1, 0};
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1 ||
      connect(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return 0;
  }
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\nConnection: close\r\n\r\n");
  if (send(socket_fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return 0;
  std::string reply;
  char buffer[4096];
  for (ssize_t got = 0; (got = recv(socket_fd.get(), buffer, sizeof(buffer), 0)) > 0 &&
                        reply.size() < kReplyBytesMax;) {
    reply.append(buffer, static_cast<size_t>(got));
  }
  const size_t split = reply.find("\r\n\r\n");
  if (split != std::string::npos) *body = reply.substr(split + 4);
  int code = 0;
  return reply.size() > 12 && absl::SimpleAtoi(reply.substr(9, 3), &code) ? code : 0;
}

}  // namespace

std::string BinaryFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

absl::StatusOr<pid_t> StartProgram(const std::string& binary, std::vector<std::string> arguments,
                                   const std::string& log_path, bool die_with_parent) {
  const std::string path = absl::StrCat(BinaryFolder(), "/", binary);
  if (access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(path, " is missing; build the whole tree first"));
  }
  Fd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log.get() < 0)
    return absl::PermissionDeniedError(
        absl::StrCat("cannot write ", log_path, ": ", strerror(errno)));
  const pid_t pid = fork();
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", strerror(errno)));
  if (pid == 0) RunChild(path, arguments, log.get(), die_with_parent);
  return pid;
}

absl::StatusOr<ChildProcess> StartChild(const std::string& folder, const std::string& name,
                                        const std::string& binary,
                                        std::vector<std::string> arguments, bool die_with_parent) {
  ChildProcess child{name, 0, absl::StrCat(folder, "/", name, ".log"),
                     absl::StrCat(folder, "/", name, ".ready.json")};
  arguments.push_back("--set");
  arguments.push_back(absl::StrCat("service.ready_file=", child.ready_path));
  arguments.push_back("--set");
  arguments.push_back(absl::StrCat("service.name=", name));
  SLUICE_ASSIGN_OR_RETURN(
      child.pid, StartProgram(binary, std::move(arguments), child.log_path, die_with_parent));
  return child;
}

absl::StatusOr<std::vector<ReadyInfo>> WaitReady(const std::vector<ChildProcess>& children,
                                                 const std::string& folder, const Clock& clock,
                                                 absl::Duration timeout) {
  const absl::Time deadline = clock.Now() + timeout;
  Fd watch(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  inotify_add_watch(watch.get(), folder.c_str(), IN_MOVED_TO | IN_CLOSE_WRITE);
  for (;;) {
    std::vector<ReadyInfo> infos;
    for (const ChildProcess& child : children) {
      if (access(child.ready_path.c_str(), R_OK) == 0) {
        SLUICE_ASSIGN_OR_RETURN(const ReadyInfo info, ReadReadyFile(child.ready_path));
        infos.push_back(info);
      } else if (ChildHasExited(child.pid)) {
        return absl::UnavailableError(absl::StrCat(child.name, " ended at start; its log ",
                                                   child.log_path, " says:\n",
                                                   TailOf(child.log_path)));
      } else if (clock.Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat(child.name, " is not ready after ",
                                                        absl::FormatDuration(timeout), "; see ",
                                                        child.log_path));
      }
    }
    if (infos.size() == children.size()) return infos;
    if (Interrupted()) return absl::CancelledError("interrupted");
    // Wakes when a ready file appears, and now and then to see whether a child has died.
    pollfd events{watch.get(), POLLIN, 0};
    poll(&events, 1, MillisecondsUntil(deadline, clock));
    char drain[4096];
    while (read(watch.get(), drain, sizeof(drain)) > 0) {
    }
  }
}

pid_t PidOf(const boost::json::value& value) {
  if (!value.is_int64()) return 0;
  const int64_t pid = value.get_int64();
  return pid > 1 && pid <= std::numeric_limits<pid_t>::max() ? static_cast<pid_t>(pid) : 0;
}

bool IsService(pid_t pid) {
  std::error_code error;
  const std::string name =
      std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/exe"), error).filename().string();
  return !error && absl::StartsWith(name, "sluice-");
}

bool StopProcesses(const std::vector<pid_t>& pids, const Clock& clock, absl::Duration grace) {
  std::vector<Stopping> running;
  for (pid_t pid : pids) {
    if (pid <= 1) continue;
    Stopping process{pid, std::make_unique<Fd>(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))};
    if (process.pidfd->get() >= 0 && Signal(process, SIGTERM) == 0)
      running.push_back(std::move(process));
  }
  const std::vector<Stopping> left = WaitForEnd(std::move(running), clock.Now() + grace, clock);
  for (const Stopping& process : left) {
    Signal(process, SIGKILL);
    waitpid(process.pid, nullptr, 0);
  }
  return left.empty();
}

std::string TailOf(const std::string& path, size_t bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "(no log)";
  const auto size = static_cast<size_t>(file.tellg());
  const size_t from = size > bytes ? size - bytes : 0;
  file.seekg(static_cast<std::streamoff>(from));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::StatusOr<std::string> HttpGetText(const std::string& url, absl::string_view path) {
  SLUICE_ASSIGN_OR_RETURN(const auto address, ParseHttpUrl(url));
  std::string body;
  const int code = HttpGet(address.first, address.second, path, &body);
  if (code == 200) return body;
  return absl::UnavailableError(absl::StrCat(url, path,
                                             code == 0 ? " does not answer" : " answers ",
                                             code == 0 ? "" : absl::StrCat(code)));
}

absl::Status WaitHttpReady(const std::string& url, const Clock& clock, absl::Duration timeout) {
  SLUICE_ASSIGN_OR_RETURN(const auto address, ParseHttpUrl(url));
  const absl::Time deadline = clock.Now() + timeout;
  for (std::string body;;) {
    if (HttpGet(address.first, address.second, "/ready", &body) == 200) return absl::OkStatus();
    if (clock.Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(url, " is not ready after ", absl::FormatDuration(timeout), ": ", body));
    }
    if (Interrupted()) return absl::CancelledError("interrupted");
    poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(kPollStep)));
  }
}

}  // namespace sluice::cli
