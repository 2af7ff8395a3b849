// A caching allocator with the rules of CUDA's (c10/cuda/CUDACachingAllocator.cpp) on memory of the host.
//
// Left out: expandable segments, private pools, max_split_size, garbage collection.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace pretend {

using Frames = std::shared_ptr<c10::GatheredContext>;

// One entry of the history; `address` is what is left on the device where memory ran out.
struct Entry {
  const char* action;
  size_t address;
  size_t size;
  c10::StreamId stream;
  int64_t time_us;
  Frames frames;
};

struct BlockState {
  size_t address;
  size_t size;
  size_t requested;
  const char* state;
  Frames frames;
};

struct SegmentState {
  c10::DeviceIndex device;
  size_t address;
  size_t size;
  c10::StreamId stream;
  bool is_small;
  Frames frames;
  std::vector<BlockState> blocks;
};

// How much of what happens is remembered.
struct HistoryOptions {
  bool is_on = false;
  size_t max_entries = 0;
  bool frames_of_frees = true;
};

struct CachingAllocator : c10::DeviceAllocator {
  virtual void set_capacity(c10::DeviceIndex device, size_t bytes) = 0;
  virtual void set_history(const HistoryOptions& options) = 0;
  virtual bool has_history() const = 0;
  virtual std::vector<SegmentState> segments() = 0;
  virtual std::vector<Entry> history(c10::DeviceIndex device) = 0;
  // Memory of a kernel's own, which no tensor shows.
  c10::DataPtr scratch(c10::DeviceIndex device, size_t bytes);
};

CachingAllocator& allocator();

} // namespace pretend
