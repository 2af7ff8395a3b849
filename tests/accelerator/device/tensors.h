// What the kernels of the device share.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include "allocator.h"
#include "streams.h"

namespace pretend {

// Around every kernel. Like one of a GPU's it is no operator of its own: what the host's kernels call inside is not
// recorded, or torch's data flow, and with it the categories, would be those of the copies.
struct Kernel {
  explicit Kernel(const at::Tensor& on) : Kernel(on.device().index()) {}
  explicit Kernel(c10::DeviceIndex device) : launch(device) {}

  at::RecordFunctionGuard quiet{false};
  c10::NoGradGuard no_grad;
  Launch launch;
};

// A tensor of the host on the same memory.
at::Tensor on_host(const at::Tensor& tensor);
std::optional<at::Tensor> on_host(const std::optional<at::Tensor>& tensor);
// The generator of a device, which the host's kernels can use.
at::Generator& generator(c10::DeviceIndex device);

} // namespace pretend
