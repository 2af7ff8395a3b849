// The kernels: the host's, by fallback, and the few that the fallback gets wrong or that devices have and hosts do not.
#include <ATen/SDPBackend.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "tensors.h"

namespace pretend {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

c10::DeviceIndex device_of(const torch::jit::Stack& stack) {
  for (const auto& value : stack) {
    if (value.isTensor() && value.toTensor().is_privateuseone()) {
      return value.toTensor().device().index();
    }
    if (value.isTensorList() && value.toTensorVector().size() > 0) {
      return value.toTensorVector()[0].device().index();
    }
  }
  return current_device();
}

// A random operator takes its numbers from the device's generator and not from the host's.
void put_generator(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::DeviceIndex device) {
  const auto& arguments = op.schema().arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    auto& value = (*stack)[stack->size() - arguments.size() + index];
    if (arguments[index].name() == "generator" && value.isNone()) {
      value = generator(device);
    }
  }
}

// What the host's kernel warns of, its user has not done.
struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static NoWarnings no_warnings;
  const c10::WarningUtils::WarningHandlerGuard quiet(&no_warnings);
  const auto device = std::max<c10::DeviceIndex>(device_of(*stack), 0);
  const Kernel kernel(device);
  put_generator(op, stack, device);
  at::native::cpu_fallback(op, stack);
}

// Like cuDNN's, with memory of its own while it runs.
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
    int64_t groups) {
  const Kernel kernel(input);
  const auto workspace = allocator().scratch(input.device().index(), input.nbytes());
  const auto output = at::convolution(
      on_host(input), on_host(weight), on_host(bias), stride, padding, dilation, transposed, output_padding, groups);
  return output.to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> wanted) {
  const Kernel kernel(input);
  const std::vector<int64_t> bias_size{transposed ? weight.size(1) * groups : weight.size(0)};
  const auto found = at::convolution_backward(
      on_host(gradient), on_host(input), on_host(weight), at::IntArrayRef(bias_size), stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  const auto to_device = [&](const at::Tensor& one) { return one.defined() ? one.to(input.device()) : one; };
  return {to_device(std::get<0>(found)), to_device(std::get<1>(found)), to_device(std::get<2>(found))};
}

// The fallback's copies would lose the running statistics.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& running_mean,
    const MaybeTensor& running_var, bool training, double momentum, double eps) {
  const Kernel kernel(input);
  const auto [output, mean, inverse] = at::native_batch_norm(
      on_host(input), on_host(weight), on_host(bias), on_host(running_mean), on_host(running_var), training, momentum,
      eps);
  const auto device = input.device();
  return {output.to(device), mean.to(device), inverse.to(device)};
}

std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  const Kernel kernel(input);
  const auto host = on_host(input);
  auto mask = at::ones_like(host, at::kBool);
  if (train.value_or(true)) {
    mask.bernoulli_(1 - p, generator(input.device().index()));
  }
  const auto scale = !train.value_or(true) || p == 1 ? 1.0 : 1 / (1 - p);
  return {(host * mask * scale).to(input.device()), mask.to(input.device())};
}

// Devices fuse the cell of an LSTM; hosts have no such kernel.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx, const MaybeTensor& input_bias,
    const MaybeTensor& hidden_bias) {
  const Kernel kernel(cx);
  auto gates = on_host(input_gates) + on_host(hidden_gates);
  if (const auto bias = on_host(input_bias)) {
    gates = gates + *bias + *on_host(hidden_bias);
  }
  const auto parts = gates.chunk(4, 1);
  const auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(), out = parts[3].sigmoid();
  const auto cy = forget * on_host(cx) + in * cell;
  const auto hy = out * cy.tanh();
  const auto device = cx.device();
  return {hy.to(device), cy.to(device), at::cat({in, forget, cell, out}, 1).to(device)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const MaybeTensor& grad_hy, const MaybeTensor& grad_cy, const at::Tensor& cx, const at::Tensor& cy,
    const at::Tensor& workspace, bool has_bias) {
  const Kernel kernel(cx);
  const auto parts = on_host(workspace).chunk(4, 1);
  const auto in = parts[0], forget = parts[1], cell = parts[2], out = parts[3], tanh_cy = on_host(cy).tanh();
  const auto from_hy = on_host(grad_hy).value_or(at::zeros_like(tanh_cy));
  auto grad_cell = from_hy * out * (1 - tanh_cy * tanh_cy);
  if (const auto from_cy = on_host(grad_cy)) {
    grad_cell = grad_cell + *from_cy;
  }
  const auto gates = at::cat(
      {grad_cell * cell * in * (1 - in), grad_cell * on_host(cx) * forget * (1 - forget),
       grad_cell * in * (1 - cell * cell), from_hy * tanh_cy * out * (1 - out)},
      1);
  const auto device = cx.device();
  const auto bias = has_bias ? gates.sum(0).to(device) : at::Tensor();
  return {gates.to(device), (grad_cell * forget).to(device), bias};
}

// Attention without fused kernels: scores and their softmax are tensors.
int64_t attention_by_math(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const MaybeTensor&, double, bool, std::optional<double>,
    bool) {
  return int64_t(at::SDPBackend::math);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("native_batch_norm", batch_norm);
  library.impl("native_dropout", dropout);
  library.impl("_thnn_fused_lstm_cell", lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  library.impl("_fused_sdp_choice", attention_by_math);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

// The macros want this name.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
}

} // namespace
} // namespace pretend

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &::pretend::attention_by_math)
} // namespace at::native
