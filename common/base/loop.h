// A loop: the one thread that owns some state. Others post messages to it. Production runs a
// ThreadLoop; the simulation runs the same code on loops of its own that share one virtual clock
// and one event queue.
#pragma once

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"

namespace sluice {

// What code that runs on a loop needs of it.
class Loop {
 public:
  using Task = absl::AnyInvocable<void()>;

  virtual ~Loop() = default;
  // Runs `task` on the loop after everything posted before. Returns false, dropping it, when the
  // queue is full or the loop has stopped. Thread-safe.
  virtual bool Post(Task task) = 0;
  // Runs `task` once the clock has reached `at`. Only on the loop.
  virtual TimerId RunAt(absl::Time at, Task task) = 0;
  // Only on the loop. Returns false if it ran already.
  virtual bool Cancel(TimerId timer) = 0;
  virtual const Clock& clock() const = 0;
};

}  // namespace sluice
