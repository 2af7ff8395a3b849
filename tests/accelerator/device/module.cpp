// The device for torch's Python side: its hooks, and what the tests may ask and set.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include "tensors.h"

namespace py = pybind11;

namespace pretend {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return kNumDevices;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    set_current_device(device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = current_device();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(c10::kCPU);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    const c10::DeviceGuard guard(impl->device());
    auto memory = allocator().allocate(size);
    if (memory.get() != nullptr && impl->data() != nullptr) {
      allocator().copy_data(memory.get(), impl->data(), std::min(size, impl->nbytes()));
    }
    impl->set_data_ptr_noswap(std::move(memory));
    impl->set_nbytes(size);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return generator(device < 0 ? current_device() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
};

// Frames of all entries are looked up at once, and each distinct one is one Python object.
class FrameLists {
 public:
  void want(py::dict in, const Frames& frames) {
    in["frames"] = py::list();
    if (frames != nullptr) {
      tracebacks_.push_back(torch::getCapturedTracebackFromContext(frames));
      dicts_.push_back(std::move(in));
    }
  }
  void fill() {
    const auto found = torch::symbolize(tracebacks_);
    std::vector<py::dict> frames;
    for (const auto& frame : found.all_frames) {
      py::dict made;
      made["name"] = frame.funcname;
      made["filename"] = frame.filename;
      made["line"] = frame.lineno;
      frames.push_back(std::move(made));
    }
    for (size_t index = 0; index < dicts_.size(); ++index) {
      py::list list;
      for (const auto number : found.tracebacks[index]) {
        list.append(frames[number]);
      }
      dicts_[index]["frames"] = list;
    }
  }

 private:
  std::vector<torch::CapturedTraceback*> tracebacks_;
  std::vector<py::dict> dicts_;
};

py::dict segment_dict(const SegmentState& segment, FrameLists& frames) {
  size_t allocated = 0, active = 0, requested = 0;
  py::list blocks;
  for (const auto& block : segment.blocks) {
    py::dict made;
    made["address"] = block.address;
    made["size"] = block.size;
    made["requested_size"] = block.requested;
    made["state"] = block.state;
    frames.want(made, block.frames);
    blocks.append(made);
    const std::string state = block.state;
    allocated += state == "active_allocated" ? block.size : 0;
    active += state != "inactive" ? block.size : 0;
    requested += block.requested;
  }
  py::dict made;
  made["device"] = segment.device;
  made["address"] = segment.address;
  made["total_size"] = segment.size;
  made["allocated_size"] = allocated;
  made["active_size"] = active;
  made["requested_size"] = requested;
  made["stream"] = segment.stream;
  made["segment_type"] = segment.is_small ? "small" : "large";
  made["segment_pool_id"] = py::make_tuple(0, 0);
  made["is_expandable"] = false;
  frames.want(made, segment.frames);
  made["blocks"] = blocks;
  return made;
}

py::dict entry_dict(const Entry& entry, FrameLists& frames) {
  py::dict made;
  made["action"] = entry.action;
  made[std::string(entry.action) == "oom" ? "device_free" : "addr"] = entry.address;
  made["size"] = entry.size;
  made["stream"] = entry.stream;
  made["time_us"] = entry.time_us;
  made["compile_context"] = "N/A";
  made["user_metadata"] = "";
  frames.want(made, entry.frames);
  return made;
}

py::tuple snapshot() {
  // Copies: making Python's objects may collect garbage, and tensors among it go back to the allocator meanwhile.
  const auto found = allocator().segments();
  std::vector<std::vector<Entry>> histories;
  for (c10::DeviceIndex device = 0; device < kNumDevices; ++device) {
    histories.push_back(allocator().history(device));
  }
  FrameLists frames;
  py::list segments, traces;
  for (const auto& segment : found) {
    segments.append(segment_dict(segment, frames));
  }
  for (const auto& history : histories) {
    py::list trace;
    for (const auto& entry : history) {
      trace.append(entry_dict(entry, frames));
    }
    traces.append(trace);
  }
  frames.fill();
  return py::make_tuple(segments, traces);
}

} // namespace

at::Generator& generator(c10::DeviceIndex device) {
  static at::Generator generators[kNumDevices] = {
      at::detail::createCPUGenerator(), at::detail::createCPUGenerator()};
  return generators[device];
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  module.def("device_count", [] { return kNumDevices; });
  module.def("current_device", &current_device);
  module.def("set_device", &set_current_device);
  module.def("synchronize", [](c10::DeviceIndex device) { synchronize(device); });
  module.def("generator", [](c10::DeviceIndex device) { return generator(device); });
  module.def("snapshot", &snapshot);
  module.def("has_history", [] { return allocator().has_history(); });
  module.def("set_history", [](bool is_on, size_t max_entries, bool frames_of_frees) {
    allocator().set_history({is_on, max_entries, frames_of_frees});
  });
  module.def("set_capacity", [](c10::DeviceIndex device, size_t bytes) { allocator().set_capacity(device, bytes); });
  module.def("set_lag", &set_lag);
  module.attr("KERNEL_NS") = kKernelNs;
}

} // namespace pretend
