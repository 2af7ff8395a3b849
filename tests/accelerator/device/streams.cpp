#include "streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "allocator.h"

namespace pretend {
namespace {

// Of one stream: its last launch, and the device's time when that ends.
struct Work {
  int64_t launch = 0;
  int64_t time_ns = 0;
};

struct Clock {
  std::mutex mutex;
  int64_t launches = 0; // on all streams
  int64_t waited_for = 0; // somebody waited for this launch and all before
  std::map<c10::StreamId, Work> streams;
};

Clock clocks[kNumDevices];
std::atomic<int64_t> device_lag{16};
std::atomic<c10::StreamId> last_stream{0};
thread_local c10::DeviceIndex current = 0;
thread_local c10::StreamId streams[kNumDevices] = {0, 0};
thread_local int depth = 0;

} // namespace

c10::DeviceIndex current_device() {
  return current;
}

void set_current_device(c10::DeviceIndex device) {
  TORCH_CHECK(device < kNumDevices, "pretend: there is no device ", int(device));
  if (device >= 0) {
    current = device;
  }
}

c10::StreamId current_stream(c10::DeviceIndex device) {
  return streams[device];
}

c10::StreamId exchange_stream(c10::DeviceIndex device, c10::StreamId stream) {
  return std::exchange(streams[device], stream);
}

c10::StreamId new_stream() {
  return ++last_stream;
}

Launch::Launch(c10::DeviceIndex device) {
  if (depth++ == 0) {
    Clock& clock = clocks[device];
    std::lock_guard<std::mutex> lock(clock.mutex);
    Work& work = clock.streams[streams[device]];
    work.launch = ++clock.launches;
    work.time_ns += kKernelNs;
  }
}

Launch::~Launch() {
  --depth;
}

bool Launch::is_outermost() const {
  return depth == 1;
}

Mark mark(c10::DeviceIndex device, c10::StreamId stream) {
  Clock& clock = clocks[device];
  std::lock_guard<std::mutex> lock(clock.mutex);
  const Work& work = clock.streams[stream];
  return {device, work.launch, work.time_ns};
}

bool is_done(const Mark& mark) {
  Clock& clock = clocks[mark.device];
  std::lock_guard<std::mutex> lock(clock.mutex);
  return mark.launch <= clock.waited_for || mark.launch + device_lag <= clock.launches;
}

void wait_for(c10::DeviceIndex device, c10::StreamId stream, const Mark& mark) {
  Clock& clock = clocks[device];
  std::lock_guard<std::mutex> lock(clock.mutex);
  Work& work = clock.streams[stream];
  work.time_ns = std::max(work.time_ns, mark.time_ns);
  if (mark.device == device) {
    work.launch = std::max(work.launch, mark.launch);
  }
}

void synchronize(c10::DeviceIndex device) {
  Clock& clock = clocks[device];
  std::lock_guard<std::mutex> lock(clock.mutex);
  clock.waited_for = clock.launches;
}

void synchronize(const Mark& mark) {
  Clock& clock = clocks[mark.device];
  std::lock_guard<std::mutex> lock(clock.mutex);
  clock.waited_for = std::max(clock.waited_for, mark.launch);
}

void set_lag(int64_t launches) {
  device_lag = launches;
}

namespace {

// What torch asks of a device: which one is current, streams, events.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device with_index(c10::Device device) {
    return {kType, device.has_index() ? device.index() : current};
  }

  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before(kType, current);
    set_current_device(device.index());
    return before;
  }
  c10::Device getDevice() const override {
    return {kType, current};
  }
  void setDevice(c10::Device device) const override {
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) {
      current = device.index();
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kNumDevices;
  }

  c10::Stream getStream(c10::Device device) const override {
    device = with_index(device);
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, with_index(device));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, with_index(device), new_stream());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = exchange_stream(stream.device_index(), stream.id());
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), before);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return is_done(mark(stream.device_index(), stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(mark(stream.device_index(), stream.id()));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize(device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    allocator().recordStream(pointer, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Mark;
    }
    *static_cast<Mark*>(*event) = mark(stream.device_index(), stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      wait_for(stream.device_index(), stream.id(), *static_cast<Mark*>(event));
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_done(*static_cast<Mark*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      synchronize(*static_cast<Mark*>(event));
    }
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Mark*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    TORCH_CHECK(queryEvent(first) && queryEvent(second), "Both events must be completed before calculating elapsed time.");
    return double(static_cast<Mark*>(second)->time_ns - static_cast<Mark*>(first)->time_ns) / 1e6;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

} // namespace
} // namespace pretend
