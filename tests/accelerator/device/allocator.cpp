#include "allocator.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <unordered_map>

#include "streams.h"

namespace pretend {
namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using Lock = std::lock_guard<std::recursive_mutex>;

constexpr size_t kMiB = 1 << 20;
constexpr size_t kMinBlock = 512;
constexpr size_t kSmall = kMiB; // the largest request that the small pool serves
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kLargeSegment = 20 * kMiB;
constexpr size_t kOwnSegment = 10 * kMiB; // from here on a request has a segment of its own
constexpr size_t kSegmentStep = 2 * kMiB;
constexpr size_t kDefaultCapacity = size_t(8) << 30;

size_t up_to_multiple(size_t size, size_t step) {
  return (size + step - 1) / step * step;
}

size_t segment_size(size_t size) {
  if (size <= kSmall) {
    return kSmallSegment;
  }
  return size < kOwnSegment ? kLargeSegment : up_to_multiple(size, kSegmentStep);
}

int64_t now_us() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::microseconds>(system_clock::now().time_since_epoch()).count();
}

enum class State { free, used, pending };

struct Segment {
  char* address;
  size_t size;
  c10::DeviceIndex device;
  c10::StreamId stream;
  bool is_small;
  int64_t number; // of free blocks of one size, that of the oldest segment is taken
  Frames frames;
};

struct Block {
  Segment* segment;
  char* address;
  size_t size;
  size_t requested = 0;
  State state = State::free;
  Block* previous = nullptr;
  Block* next = nullptr;
  std::set<c10::StreamId> other_streams;
  int num_marks = 0;
  Frames frames;

  bool is_split() const {
    return previous != nullptr || next != nullptr;
  }
  bool is_free() const {
    return state == State::free;
  }
};

struct BySize {
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const {
    return std::tuple(a->size, a->segment->number, a->address) < std::tuple(b->size, b->segment->number, b->address);
  }
  bool operator()(const Block* block, size_t size) const {
    return block->size < size;
  }
  bool operator()(size_t size, const Block* block) const {
    return size < block->size;
  }
};

using FreeBlocks = std::set<Block*, BySize>;

struct Device {
  size_t capacity = kDefaultCapacity;
  c10::CachingDeviceAllocator::DeviceStats stats;
  // Pools of large and of small blocks, each by stream: the order in which everything cached is released.
  std::map<std::pair<bool, c10::StreamId>, FreeBlocks> pools;
  std::map<char*, Block*> heads;
  std::map<c10::StreamId, std::deque<std::pair<Mark, Block*>>> waiting;
  std::deque<Entry> history;
};

void change(StatArray& stats, bool is_small, int64_t amount) {
  const auto pool = is_small ? StatType::SMALL_POOL : StatType::LARGE_POOL;
  for (const auto which : {StatType::AGGREGATE, pool}) {
    auto& stat = stats[size_t(which)];
    amount < 0 ? stat.decrease(size_t(-amount)) : stat.increase(size_t(amount));
  }
}

void release_pointer(void* pointer);

class Allocator final : public CachingAllocator {
 public:
  // ----------------------------------------------------------------------------------------- what torch asks
  c10::DataPtr allocate(size_t size) override {
    const auto device = current_device();
    void* pointer = size > 0 ? allocate_block(device, size) : nullptr;
    return {pointer, pointer, &release_pointer, c10::Device(kType, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release_pointer;
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {
    Lock lock(mutex_);
    for (auto& device : devices_) {
      release_cached(device);
    }
  }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    Lock lock(mutex_);
    const auto found = used_.find(pointer.get());
    if (found != used_.end() && found->second->segment->stream != stream.id()) {
      found->second->other_streams.insert(stream.id());
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    Lock lock(mutex_);
    return devices_[device].stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    Lock lock(mutex_);
    for_all_stats(device, [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    Lock lock(mutex_);
    for_all_stats(device, [](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    Lock lock(mutex_);
    return {unreserved(devices_[device]), devices_[device].capacity};
  }

  // ---------------------------------------------------------------------------------------- what the tests ask
  void set_capacity(c10::DeviceIndex device, size_t bytes) override {
    Lock lock(mutex_);
    devices_[device].capacity = bytes;
  }
  void set_history(const HistoryOptions& options) override {
    Lock lock(mutex_);
    options_ = options;
    is_recording_ = options.is_on;
    for (auto& device : devices_) {
      device.history.clear();
    }
  }
  bool has_history() const override {
    return is_recording_;
  }
  std::vector<Entry> history(c10::DeviceIndex device) override {
    Lock lock(mutex_);
    return {devices_[device].history.begin(), devices_[device].history.end()};
  }
  std::vector<SegmentState> segments() override {
    Lock lock(mutex_);
    std::vector<SegmentState> found;
    for (auto& device : devices_) {
      for (const auto& [address, head] : device.heads) {
        found.push_back(state_of(head));
      }
    }
    return found;
  }

  void free_block(void* pointer) {
    const auto frames = options_.frames_of_frees ? gather() : nullptr;
    Lock lock(mutex_);
    Block* block = used_.at(pointer);
    used_.erase(pointer);
    Device& device = devices_[block->segment->device];
    const auto size = block->size;
    change(device.stats.allocation, block->segment->is_small, -1);
    change(device.stats.allocated_bytes, block->segment->is_small, -int64_t(size));
    note(device, "free_requested", block, frames);
    block->state = State::pending;
    if (block->other_streams.empty()) {
      complete_free(device, block);
    } else {
      wait_for_other_streams(device, block);
    }
    report(pointer, -int64_t(size), device);
  }

 private:
  // The Python lock is taken for the frames, and whoever has it may wait for ours: so frames come first.
  Frames gather() const {
    return is_recording_ ? torch::CapturedTraceback::gather(true, false, false) : nullptr;
  }

  void* allocate_block(c10::DeviceIndex index, size_t requested) {
    const auto frames = gather();
    Lock lock(mutex_);
    Device& device = devices_[index];
    complete_ended_frees(device);
    const size_t size = std::max(kMinBlock, up_to_multiple(requested, kMinBlock));
    const bool is_small = size <= kSmall;
    const auto stream = current_stream(index);
    Block* block = take_cached(device, is_small, stream, size);
    if (block == nullptr) {
      block = reserve(device, index, stream, size, frames);
    }
    if (block == nullptr) {
      release_cached(device);
      device.stats.num_alloc_retries++;
      block = reserve(device, index, stream, size, frames);
    }
    if (block == nullptr) {
      run_out_of_memory(device, index, requested, size, stream, frames);
    }
    const size_t rest = block->size - size;
    if (is_small ? rest >= kMinBlock : rest > kSmall) {
      cut(device, block, size);
    }
    block->state = State::used;
    block->requested = requested;
    block->frames = frames;
    used_[block->address] = block;
    change(device.stats.allocation, is_small, 1);
    change(device.stats.allocated_bytes, is_small, int64_t(block->size));
    change(device.stats.active, is_small, 1);
    change(device.stats.active_bytes, is_small, int64_t(block->size));
    change(device.stats.requested_bytes, is_small, int64_t(requested));
    note(device, "alloc", block, frames);
    report(block->address, int64_t(block->size), device);
    return block->address;
  }

  Block* take_cached(Device& device, bool is_small, c10::StreamId stream, size_t size) {
    auto& blocks = device.pools[{is_small, stream}];
    const auto found = blocks.lower_bound(size);
    if (found == blocks.end()) {
      return nullptr;
    }
    Block* block = *found;
    take(device, block);
    return block;
  }

  Block* reserve(Device& device, c10::DeviceIndex index, c10::StreamId stream, size_t size, const Frames& frames) {
    const size_t bytes = segment_size(size);
    if (bytes > unreserved(device)) {
      return nullptr;
    }
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "pretend: the host has no memory for a segment of ", bytes, " bytes");
    const bool is_small = size <= kSmall;
    auto* address = static_cast<char*>(memory);
    auto* segment = new Segment{address, bytes, index, stream, is_small, ++num_segments_, frames};
    auto* block = new Block{segment, address, bytes};
    device.heads[address] = block;
    change(device.stats.segment, is_small, 1);
    change(device.stats.reserved_bytes, is_small, int64_t(bytes));
    device.stats.num_device_alloc++;
    note(device, "segment_alloc", size_t(address), bytes, stream, frames);
    return block;
  }

  [[noreturn]] void run_out_of_memory(
      Device& device, c10::DeviceIndex index, size_t requested, size_t size, c10::StreamId stream, const Frames& frames) {
    using c10::CachingAllocator::format_size;
    device.stats.num_ooms++;
    const size_t free = unreserved(device);
    const auto allocated = size_t(device.stats.allocated_bytes[0].current);
    const auto reserved = size_t(device.stats.reserved_bytes[0].current);
    note(device, "oom", free, size, stream, frames);
    c10::reportOutOfMemoryToProfiler(int64_t(requested), allocated, reserved, c10::Device(kType, index));
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "PRETEND out of memory. Tried to allocate ", format_size(segment_size(size)), ". GPU ",
        int(index), " has a total capacity of ", format_size(device.capacity), " of which ", format_size(free),
        " is free. Of the allocated memory ", format_size(allocated), " is allocated by PyTorch, and ",
        format_size(reserved - allocated), " is reserved by PyTorch but unallocated.");
    throw std::bad_alloc(); // not reached, which the compiler cannot know
  }

  // ------------------------------------------------------------------------------------------------- free blocks
  void put(Device& device, Block* block) {
    block->state = State::free;
    device.pools[{block->segment->is_small, block->segment->stream}].insert(block);
    count_split(device, block, 1);
  }
  void take(Device& device, Block* block) {
    device.pools[{block->segment->is_small, block->segment->stream}].erase(block);
    count_split(device, block, -1);
  }
  void count_split(Device& device, const Block* block, int sign) {
    if (block->is_split()) {
      change(device.stats.inactive_split, block->segment->is_small, sign);
      change(device.stats.inactive_split_bytes, block->segment->is_small, sign * int64_t(block->size));
    }
  }
  void cut(Device& device, Block* block, size_t size) {
    auto* rest = new Block{block->segment, block->address + size, block->size - size};
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != nullptr) {
      rest->next->previous = rest;
    }
    block->next = rest;
    block->size = size;
    put(device, rest);
  }
  static void swallow_next(Block* block) {
    Block* swallowed = block->next;
    block->size += swallowed->size;
    block->next = swallowed->next;
    if (block->next != nullptr) {
      block->next->previous = block;
    }
    delete swallowed;
  }

  // ------------------------------------------------------------------------------------------------------- frees
  void complete_free(Device& device, Block* block) {
    const bool is_small = block->segment->is_small;
    note(device, "free_completed", block, nullptr);
    change(device.stats.active, is_small, -1);
    change(device.stats.active_bytes, is_small, -int64_t(block->size));
    change(device.stats.requested_bytes, is_small, -int64_t(block->requested));
    block->requested = 0;
    block->frames = nullptr;
    block->other_streams.clear();
    if (block->next != nullptr && block->next->is_free()) {
      take(device, block->next);
      swallow_next(block);
    }
    if (block->previous != nullptr && block->previous->is_free()) {
      block = block->previous;
      take(device, block);
      swallow_next(block);
    }
    put(device, block);
  }

  void wait_for_other_streams(Device& device, Block* block) {
    for (const auto stream : block->other_streams) {
      device.waiting[stream].emplace_back(mark(block->segment->device, stream), block);
      block->num_marks++;
    }
  }

  void complete_ended_frees(Device& device) {
    for (auto& [stream, blocks] : device.waiting) {
      while (!blocks.empty() && is_done(blocks.front().first)) {
        Block* block = blocks.front().second;
        blocks.pop_front();
        if (--block->num_marks == 0) {
          complete_free(device, block);
        }
      }
    }
  }

  void release_cached(Device& device) {
    for (auto& [stream, blocks] : device.waiting) {
      for (const auto& [reached, block] : blocks) {
        synchronize(reached);
      }
    }
    complete_ended_frees(device);
    for (auto& [pool, blocks] : device.pools) {
      const std::vector<Block*> free(blocks.begin(), blocks.end());
      for (Block* block : free) {
        if (!block->is_split()) {
          release_segment(device, block);
        }
      }
    }
  }

  void release_segment(Device& device, Block* block) {
    Segment* segment = block->segment;
    take(device, block);
    device.heads.erase(segment->address);
    change(device.stats.segment, segment->is_small, -1);
    change(device.stats.reserved_bytes, segment->is_small, -int64_t(segment->size));
    device.stats.num_device_free++;
    note(device, "segment_free", size_t(segment->address), segment->size, segment->stream, segment->frames);
    munmap(segment->address, segment->size);
    delete block;
    delete segment;
  }

  // ------------------------------------------------------------------------------------------------------- books
  static size_t unreserved(const Device& device) {
    const auto reserved = size_t(device.stats.reserved_bytes[0].current);
    return device.capacity > reserved ? device.capacity - reserved : 0;
  }

  template <typename Change>
  void for_all_stats(c10::DeviceIndex device, Change change_stat) {
    auto& s = devices_[device].stats;
    for (auto* stats :
         {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes, &s.reserved_bytes,
          &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes}) {
      std::for_each(stats->begin(), stats->end(), change_stat);
    }
  }

  void note(Device& device, const char* action, const Block* block, const Frames& frames) {
    note(device, action, size_t(block->address), block->requested, block->segment->stream, frames);
  }
  void note(
      Device& device, const char* action, size_t address, size_t size, c10::StreamId stream, const Frames& frames) {
    if (!options_.is_on) {
      return;
    }
    device.history.push_back({action, address, size, stream, now_us(), frames});
    if (device.history.size() > options_.max_entries) {
      device.history.pop_front();
    }
  }

  static void report(void* pointer, int64_t size, const Device& device) {
    const auto index = c10::DeviceIndex(&device - devices_);
    c10::reportMemoryUsageToProfiler(
        pointer, size, size_t(device.stats.allocated_bytes[0].current), size_t(device.stats.reserved_bytes[0].current),
        c10::Device(kType, index));
  }

  static SegmentState state_of(const Block* head) {
    const Segment* segment = head->segment;
    SegmentState state{
        segment->device, size_t(segment->address), segment->size, segment->stream, segment->is_small, segment->frames,
        {}};
    for (const Block* block = head; block != nullptr; block = block->next) {
      const char* name = block->is_free() ? "inactive"
          : block->state == State::used   ? "active_allocated"
                                          : "active_pending_free";
      state.blocks.push_back({size_t(block->address), block->size, block->requested, name, block->frames});
    }
    return state;
  }

  std::recursive_mutex mutex_;
  static Device devices_[kNumDevices];
  std::unordered_map<void*, Block*> used_;
  int64_t num_segments_ = 0;
  HistoryOptions options_;
  std::atomic<bool> is_recording_{false};
};

Device Allocator::devices_[kNumDevices];
// Never destroyed: tensors of modules may outlive this library's static objects.
Allocator& the_allocator = *new Allocator;

void release_pointer(void* pointer) {
  if (pointer != nullptr) {
    the_allocator.free_block(pointer);
  }
}

const bool is_registered = (c10::SetAllocator(kType, &the_allocator), true);

} // namespace

c10::DataPtr CachingAllocator::scratch(c10::DeviceIndex device, size_t bytes) {
  const auto before = current_device();
  set_current_device(device);
  auto memory = allocate(bytes);
  set_current_device(before);
  return memory;
}

CachingAllocator& allocator() {
  return the_allocator;
}

} // namespace pretend
