// Message buffers that are used again: fresh memory of a megabyte costs more page faults than the
// copy into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace sluice::transport {

class BufferPool;

// Bytes with no initial value. Move-only; goes back to its pool, which must outlive it.
class PooledBuffer {
 public:
  PooledBuffer() = default;
  PooledBuffer(PooledBuffer&& other) noexcept { *this = static_cast<PooledBuffer&&>(other); }
  PooledBuffer& operator=(PooledBuffer&& other) noexcept;
  ~PooledBuffer() { Reset(); }

  uint8_t* data() const { return data_.get(); }
  size_t size() const { return size_; }
  void Reset();

 private:
  friend class BufferPool;
  BufferPool* pool_ = nullptr;
  std::unique_ptr<uint8_t[]> data_;
  size_t size_ = 0;
  size_t size_class_ = 0;
};

// Keeps at most `bytes_max` for the next user. Belongs to one loop.
class BufferPool {
 public:
  explicit BufferPool(size_t bytes_max) : bytes_max_(bytes_max) {}
  PooledBuffer Take(size_t bytes);
  size_t kept_bytes() const { return kept_bytes_; }

 private:
  friend class PooledBuffer;
  void Give(std::unique_ptr<uint8_t[]> data, size_t size_class);

  const size_t bytes_max_;
  size_t kept_bytes_ = 0;
  std::vector<std::vector<std::unique_ptr<uint8_t[]>>> free_;  // by size class: 2^class bytes
};

}  // namespace sluice::transport
