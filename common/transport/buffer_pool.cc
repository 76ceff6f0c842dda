#include "transport/buffer_pool.h"

#include <bit>
#include <utility>

namespace sluice::transport {
namespace {

// Smaller ones are left to malloc, which keeps them itself.
constexpr size_t kKeepClassMin = 14;

}  // namespace

PooledBuffer& PooledBuffer::operator=(PooledBuffer&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  pool_ = std::exchange(other.pool_, nullptr);
  data_ = std::move(other.data_);
  size_ = std::exchange(other.size_, 0);
  size_class_ = other.size_class_;
  return *this;
}

void PooledBuffer::Reset() {
  if (pool_ != nullptr) pool_->Give(std::move(data_), size_class_);
  pool_ = nullptr;
  data_ = nullptr;
  size_ = 0;
}

PooledBuffer BufferPool::Take(size_t bytes) {
  PooledBuffer buffer;
  if (bytes == 0) return buffer;
  buffer.size_ = bytes;
  buffer.size_class_ = static_cast<size_t>(std::bit_width(bytes - 1));
  if (buffer.size_class_ < kKeepClassMin) {
    buffer.data_ = std::make_unique_for_overwrite<uint8_t[]>(bytes);
    return buffer;
  }
  buffer.pool_ = this;
  if (buffer.size_class_ < free_.size() && !free_[buffer.size_class_].empty()) {
    buffer.data_ = std::move(free_[buffer.size_class_].back());
    free_[buffer.size_class_].pop_back();
    kept_bytes_ -= size_t{1} << buffer.size_class_;
  } else {
    buffer.data_ = std::make_unique_for_overwrite<uint8_t[]>(size_t{1} << buffer.size_class_);
  }
  return buffer;
}

void BufferPool::Give(std::unique_ptr<uint8_t[]> data, size_t size_class) {
  const size_t bytes = size_t{1} << size_class;
  if (kept_bytes_ + bytes > bytes_max_) return;
  if (free_.size() <= size_class) free_.resize(size_class + 1);
  free_[size_class].push_back(std::move(data));
  kept_bytes_ += bytes;
}

}  // namespace sluice::transport
