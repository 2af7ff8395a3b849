// Streams, the work on them and events, of a device whose kernels run on the host but whose clock is its own.
//
// Nothing here is measured: a kernel takes kKernelNs of the device's time, and the device is always as many launches
// behind the host as `lag` says, until somebody waits for it. So what depends on work that has not ended yet, such as
// a block that another stream still uses, comes out the same in every run.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>

namespace pretend {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kNumDevices = 2;
constexpr int64_t kKernelNs = 10'000;

// A point in a stream's work: everything up to this launch, which ended at this time of the device's clock.
struct Mark {
  c10::DeviceIndex device = 0;
  int64_t launch = 0;
  int64_t time_ns = 0;
};

c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
c10::StreamId current_stream(c10::DeviceIndex device);
c10::StreamId exchange_stream(c10::DeviceIndex device, c10::StreamId stream);
c10::StreamId new_stream();

Mark mark(c10::DeviceIndex device, c10::StreamId stream);
bool is_done(const Mark& mark);
// A stream's further work begins behind a mark of another one.
void wait_for(c10::DeviceIndex device, c10::StreamId stream, const Mark& mark);
void synchronize(c10::DeviceIndex device);
void synchronize(const Mark& mark);
// How many launches the device is behind the host.
void set_lag(int64_t launches);

// A kernel: counted once, whatever it launches inside.
class Launch {
 public:
  explicit Launch(c10::DeviceIndex device);
  ~Launch();
  // Whether no other kernel called this one.
  bool is_outermost() const;
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
};

} // namespace pretend
