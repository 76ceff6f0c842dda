// std::mutex with Clang's thread-safety annotations. absl::Mutex is not used: Debian's library is
// built without ThreadSanitizer, which therefore reports races in correct code that it guards.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

#if defined(__clang__)
#define SLUICE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define SLUICE_THREAD_ANNOTATION(x)
#endif
#define SLUICE_CAPABILITY(x) SLUICE_THREAD_ANNOTATION(capability(x))
#define SLUICE_SCOPED_CAPABILITY SLUICE_THREAD_ANNOTATION(scoped_lockable)
#define SLUICE_GUARDED_BY(x) SLUICE_THREAD_ANNOTATION(guarded_by(x))
#define SLUICE_REQUIRES(...) SLUICE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define SLUICE_ACQUIRE(...) SLUICE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define SLUICE_RELEASE(...) SLUICE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace sluice {

// Small locks only: never held across I/O, callbacks or waits on a device.
class SLUICE_CAPABILITY("mutex") Mutex {
 public:
  void Lock() SLUICE_ACQUIRE() { mutex_.lock(); }
  void Unlock() SLUICE_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class SLUICE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SLUICE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() SLUICE_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Condition variable for Mutex. Always wait in a loop that re-tests the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) SLUICE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // Waits at most `timeout`; returns false when it ran out.
  bool WaitFor(Mutex& mutex, absl::Duration timeout) SLUICE_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool notified =
        cv_.wait_for(lock, absl::ToChronoNanoseconds(timeout)) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace sluice
