// Gives back to the system what malloc keeps after a crowd has gone: buffers of many streams lie
// between blocks that live on, and glibc returns by itself only what is free at the heap's end.
#pragma once

#include <cstddef>

namespace sluice::services {

// Not thread-safe; one a process.
class HeapTrimmer {
 public:
  // Returns free memory once malloc's free bytes or the resident ones have grown by this much. Sets
  // what malloc may keep at the end of each of its heaps, which nobody can ask it for later.
  explicit HeapTrimmer(size_t growth_bytes);

  // To be called now and then, not by a thread that streams wait for: takes the locks of malloc for
  // as long as it looks (some 0.1 ms) and, when memory goes, for milliseconds.
  // True if it returned memory.
  bool Run();

 private:
  struct Sizes {
    size_t free_bytes = 0;
    size_t resident_bytes = 0;
  };
  static Sizes Measure();

  const size_t growth_bytes_;
  // The least since the last time. Two, because pages that were returned still count as free, and a
  // crowd that came and went between two calls shows in the resident bytes alone.
  Sizes least_;
};

}  // namespace sluice::services
